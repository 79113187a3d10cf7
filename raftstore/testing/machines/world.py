"""A simulated world with a channel set of a user's machine: clients, faults, judgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from raftstore.machine import StateMachine
from raftstore.ports.machine import NoMachines
from raftstore.record_machine import MachineRules, MachineSource
from raftstore.testing.invariants import InvariantError
from raftstore.testing.machines.judging import Judged, check_rows, judge
from raftstore.testing.machines.sim_client import SimUser
from raftstore.testing.machines.workload import Operation, Query, Script, Workload
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.simulation import CONVERGE_MS_MAX, SimClient, Simulation
from raftstore.types import ChannelId

SCAN_ROWS_MAX: Final = 1_000_000
JOURNAL_BYTES: Final = 300
"""So few that snapshots of a machine in memory are made and restored all the time."""
Check = Callable[[list[Operation]], object]
"""A user wrote it, so it may answer something, which is refused (``CHECK_MANNER``)."""
CHECK_MANNER: Final = "a check raises AssertionError where something is wrong, and answers nothing"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a world is made of besides its seed and its faults."""

    machine: type[StateMachine]
    workload: Workload
    specification: type[StateMachine]
    check: Check | None
    clients: int
    operations: int
    """Of each client."""
    left_out: tuple[tuple[int, int], ...] = ()
    """(client, number) of operations that are passed over, to find out which are needed."""


class OneMachine(NoMachines):
    """ports.Machines: every node has the code of one machine, whatever it is called."""

    rules = MachineRules(journal_bytes=JOURNAL_BYTES, is_interruptible=True)

    def __init__(self, machine: type[StateMachine]) -> None:
        self._machine = machine

    def load(self, name: str) -> MachineSource:
        """The code of the machine."""
        machine = self._machine
        return MachineSource(name, machine, machine.version, machine.oldest_version)


class MachineSimulation(Simulation):
    """Runs one world."""

    def __init__(self, options: SimOptions, plan: Plan) -> None:
        super().__init__(options, cluster=SimCluster(options, machines=OneMachine(plan.machine)))
        self._plan = plan
        self.users = [self._user(index) for index in range(plan.clients)]

    @property
    def history(self) -> list[Operation]:
        """All operations in the order in which they began."""
        operations = [each for user in self.users for each in user.operations]
        return sorted(operations, key=lambda operation: operation.begun_ms)

    @property
    def levels(self) -> Mapping[str, int]:
        """How many queries were answered, by level."""
        return sum((user.levels for user in self.users), Counter[str]())

    def _user(self, index: int) -> SimUser:
        plan = self._plan
        left_out = [number for client, number in plan.left_out if client == index]
        name = f"client {index}"
        script = Script(plan.workload, self.options.seed, name, plan.operations, left_out)
        return SimUser(
            self.cluster, index, plan.machine, script, self.outcomes, lambda _: self.check_stops()
        )

    def check_stops(self) -> None:
        """A machine that raised in ``apply`` stopped its partition, on all replicas alike."""
        for node in self.cluster.nodes.values():
            for channel in [] if node.runner is None else self.cluster.table_channels:
                if node.runner is None or channel not in node.runner.channels:
                    continue
                stop = node.tables.stoppable(channel).stop
                if stop is not None:
                    text = f"the machine stopped at the command with seq {stop.seq}: {stop.reason}"
                    raise InvariantError(f"{text}; it must raise nothing but RejectedError")

    def _create(self) -> None:
        name = f"{self._plan.machine.__module__}:{self._plan.machine.__name__}"
        self.cluster.create_table(self.options.partitions, name)

    def _clients(self) -> Sequence[SimClient]:
        return self.users

    def _is_enough(self) -> bool:
        return all(user.is_done for user in self.users)

    def _use(self) -> None:
        """Every question that was asked is asked once more: all that was acknowledged is there."""
        cluster, user = self.cluster, self.users[0]
        asked = {(each.asked.key, repr(each.asked)): each.asked for each in self.history}
        end_ms = cluster.scheduler.now_ms + CONVERGE_MS_MAX
        for each in asked.values():
            if isinstance(each, Query):
                self._ask(user, each, end_ms)
        # What the cluster notes down by itself meanwhile reaches every replica, too.
        cluster.scheduler.run_until(end_ms, self._is_converged)
        if not self._is_converged():
            message = f"O6: the last records do not reach every replica: {cluster.positions()}"
            raise InvariantError(message)
        self.judge()

    def _ask(self, user: SimUser, query: Query, end_ms: float) -> None:
        scheduler = self.cluster.scheduler
        while True:
            user.do(query)
            scheduler.run_until(end_ms, lambda: user.is_idle)
            last = user.operations[-1]
            if last.outcome in ("ok", "rejected"):
                return
            if scheduler.now_ms >= end_ms:
                message = f"after healing no query is answered within {CONVERGE_MS_MAX:.0f} ms"
                raise InvariantError(f"O6: {message}: {last}")

    def judge(self) -> None:
        """Hold all answers and states against a sequential run, and against the user's check."""
        history = self.history
        for partition, channel in enumerate(self.cluster.table_channels):
            truth = self.cluster.oracle.truth(channel)
            records = [known.record for known in truth.records]
            operations = [each for each in history if each.channel == channel]
            judged = judge(self._plan.specification, partition, records, operations)
            if self._plan.specification is self._plan.machine:
                self._check_replicas(channel, judged)
        if self._plan.check is not None:
            try:
                answer = self._plan.check(history)
            except AssertionError as error:
                raise InvariantError(f"the check of the history failed: {error}") from error
            if answer is not None:  # a generator or a coroutine has not even begun
                raise InvariantError(f"{CHECK_MANNER}; this one answered {answer!r:.80}")

    def first_wrong(self) -> str | None:
        """The first thing that is wrong where replicas are not equal; None: nothing else is."""
        try:
            self.check_stops()
            self.judge()
        except InvariantError as error:
            return str(error)
        return None

    def _check_replicas(self, channel: ChannelId, judged: Judged) -> None:
        for node in self.cluster.nodes.values():
            if node.runner is None or channel not in node.runner.channels:
                continue
            found = node.tables.scan(channel, b"", b"", SCAN_ROWS_MAX)[0]
            rows = {row.key: row.value for row in found}
            check_rows(self._plan.machine, node.name, rows, judged)
