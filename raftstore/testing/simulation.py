"""One world from its seed: birth, faults, healing, convergence, verdict.

Phase 1 (safety): clients work while faults are injected; the oracle looks after every step.
Phase 2 (liveness): everything heals; within a bound every channel has a leader, every operation an
outcome, every replica the whole committed log, and all tables are equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from raftstore.config import NodeSettings
from raftstore.testing.invariants import InvariantError
from raftstore.testing.last_copies import last_copy_taken
from raftstore.testing.leader_counts import LeaderCounts
from raftstore.testing.nemesis import Nemesis
from raftstore.testing.options import SAFETY_PHASE_MS_MAX, SimOptions, check_options
from raftstore.testing.sim_batches import BatchOracle, SimJob
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_members import MemberChanges
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.testing.sim_reads import SimReader
from raftstore.testing.sim_rolling import RollingUpgrades
from raftstore.testing.sim_writes import SimWriter

BIRTH_MS_MAX = 5_000.0
LEADER_MS_MAX = 5_000.0
"""O6: after healing every channel has a leader within this."""
CONVERGE_MS_MAX = 20_000.0
"""After healing all replicas are equal within this."""
SETTLE_MS_MAX = 30_000.0
"""And changes of members have ended within this."""
OPERATIONS_MIN = 500
FAULTS_MIN = 10
OK_MIN = 50
"""Writes that were acknowledged; a refusal is an operation, but proves little."""
READS_OK_MIN = 50
"""Reads that were answered."""


@dataclass(slots=True)
class Verdict:
    """The result of a world."""

    seed: int
    violation: str | None
    digest: str
    virtual_ms: float
    cpu_seconds: float
    """Of the process, so that the figures do not depend on what else the machine does."""
    steps: int
    messages: int
    outcomes: Outcomes
    elections: int
    crashes: int
    faults: dict[str, int] = field(default_factory=dict)
    leader_after_ms: float | None = None
    converged_after_ms: float | None = None
    trace: list[str] = field(default_factory=list)
    void: str | None = None
    """Why the world stood still by no fault of the nodes: its faults took more than they may."""

    @property
    def operations_per_second(self) -> float:
        """Finished client operations per second of processor time."""
        return self.outcomes.finished / self.cpu_seconds if self.cpu_seconds else 0.0


class SimClient(Protocol):
    """A client of a world."""

    is_stopped: bool
    """It begins nothing any more."""

    @property
    def is_idle(self) -> bool:
        """Nothing of it is open."""

    def start(self) -> None:
        """Begin after a moment."""


class Simulation:
    """Runs one world."""

    def __init__(
        self,
        options: SimOptions,
        settings: NodeSettings | None = None,
        *,
        cluster: SimCluster | None = None,
    ) -> None:
        check_options(options)
        self.options = options
        self.cluster = SimCluster(options, settings) if cluster is None else cluster
        self.outcomes = Outcomes()
        self.nemesis = Nemesis(self.cluster, options)
        self.upgrades: RollingUpgrades | None = None
        if options.rolling_upgrades:
            self.upgrades = RollingUpgrades(self.cluster, self.nemesis.boot)
        self.members: MemberChanges | None = None
        if options.member_changes:
            self.members = MemberChanges(self.cluster, self.nemesis.boot)
        self.writers = [
            SimWriter(self.cluster, index, self.outcomes) for index in range(options.writers)
        ]
        self.readers = [
            SimReader(self.cluster, index, self.outcomes) for index in range(options.readers)
        ]
        self.batches = BatchOracle(self.cluster)
        self.jobs = [
            SimJob(self.cluster, index, self.batches, self.outcomes)
            for index in range(options.jobs)
        ]
        self.leader_counts = LeaderCounts(self.cluster)
        self._leader_after: float | None = None
        self._converged_after: float | None = None

    def run(self) -> Verdict:
        """The whole world; a violation is in the verdict, never raised."""
        started = time.process_time()
        violation = void = None
        try:
            self.begin()
            self._safety()
            self._liveness()
        except InvariantError as error:
            # Only of standing still may the faults be guilty: nothing excuses what is wrong.
            void = last_copy_taken(self.cluster) if str(error).startswith("O6: ") else None
            violation = None if void else f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - nothing may ever be raised in a world
            violation = f"{type(error).__name__} in the code under test: {where(error)} {error}"
        cluster = self.cluster
        return Verdict(
            seed=self.options.seed,
            violation=violation,
            digest=cluster.trace_digest(),
            virtual_ms=cluster.scheduler.now_ms,
            cpu_seconds=time.process_time() - started,
            steps=cluster.scheduler.steps,
            messages=cluster.network.messages,
            outcomes=self.outcomes,
            elections=cluster.oracle.elections_won,
            crashes=sum(node.crashes for node in cluster.nodes.values()),
            faults=self.nemesis.kinds
            | (self.upgrades.kinds if self.upgrades else {})
            | (self.members.kinds if self.members else {}),
            leader_after_ms=self._leader_after,
            converged_after_ms=self._converged_after,
            void=void,
            trace=cluster.lines,
        )

    def _clients(self) -> Sequence[SimClient]:
        return [*self.writers, *self.readers, *self.jobs]

    def begin(self) -> None:
        """Start the nodes and create the table."""
        cluster = self.cluster
        cluster.start()
        self._create()
        cluster.scheduler.run_until(
            cluster.scheduler.now_ms + BIRTH_MS_MAX, lambda: bool(cluster.table_channels)
        )
        if not cluster.table_channels:
            message = f"O6: no table after {BIRTH_MS_MAX:.0f} ms of a healthy cluster"
            raise InvariantError(message)

    def _is_enough(self) -> bool:
        """Whether what a world has of its own besides is at its end."""
        return True

    def _create(self) -> None:
        self.cluster.create_table(self.options.partitions)

    def _safety(self) -> None:
        cluster, options = self.cluster, self.options
        for client in self._clients():
            client.start()
        self.nemesis.start()
        if self.upgrades is not None:
            self.upgrades.start()
        if self.members is not None:
            self.members.start()
        scheduler = cluster.scheduler
        begun = scheduler.now_ms

        def enough() -> bool:
            return (
                self.nemesis.injected >= options.faults
                and self.nemesis.struck >= min(options.faults, FAULTS_MIN)
                and self.outcomes.finished >= options.operations
                and self.outcomes.ok >= min(options.operations // 12, OK_MIN)
                and (
                    self.outcomes.reads_ok >= min(options.operations // 12, READS_OK_MIN)
                    or not self.readers
                )
                and (self.upgrades is None or self.upgrades.is_done)
                and (
                    self.members is None
                    or (self.members.is_done and self.nemesis.has_killed_and_parted)
                )
                and self._is_enough()
            )

        least_ms = begun + options.fault_phase_ms
        scheduler.run_until(begun + SAFETY_PHASE_MS_MAX, enough, not_before_ms=least_ms)

    def _liveness(self) -> None:
        cluster = self.cluster
        if self.upgrades is not None:
            self.upgrades.stop()
        self.nemesis.heal()
        if self.members is not None:
            self.members.heal()
        self._check_disks()
        for client in self._clients():
            client.is_stopped = True
        healed = cluster.scheduler.now_ms
        cluster.scheduler.run_until(healed + LEADER_MS_MAX, cluster.every_channel_has_a_leader)
        if not cluster.every_channel_has_a_leader():
            message = f"O6: a channel has no leader {LEADER_MS_MAX:.0f} ms after healing"
            raise InvariantError(message)
        self._leader_after = cluster.scheduler.now_ms - healed
        cluster.scheduler.run_until(healed + CONVERGE_MS_MAX, self._is_converged)
        if not self._is_converged():
            message = (
                f"O6: replicas are not equal {CONVERGE_MS_MAX:.0f} ms after healing: "
                f"{cluster.positions()}"
            )
            raise InvariantError(message)
        self._converged_after = cluster.scheduler.now_ms - healed
        self._settle_members()
        cluster.check_final()
        self._expire()
        if self.options.even_leaders:
            self.leader_counts.check_even()
        self._use()
        cluster.check_final()
        self.batches.check_final()

    def _settle_members(self) -> None:
        """S8: what was ordered of members ends, or was taken back, and all agree on it."""
        members, cluster = self.members, self.cluster
        if members is None:
            return

        def is_settled() -> bool:
            return not members.why_not_settled() and self._is_converged()

        cluster.scheduler.run_until(cluster.scheduler.now_ms + SETTLE_MS_MAX, is_settled)
        why = members.why_not_settled()
        if why or not self._is_converged():
            message = f"O6: members do not settle in {SETTLE_MS_MAX:.0f} ms: {why}"
            raise InvariantError(f"{message}; {cluster.positions()}")
        members.check_history()

    def _check_disks(self) -> None:
        """GAP-13: a node notices in time that its disk fills up."""
        for node in self.cluster.nodes.values():
            if node.store.files.overruns:
                message = f"GAP-13: {node.name} wrote until its disk was full, which ended it"
                raise InvariantError(message)

    def _expire(self) -> None:
        """Rows that are due expire when leaders are there and clocks are right, on all nodes."""
        cluster = self.cluster
        if not self.options.ttl_percent:
            return

        def is_clean() -> bool:
            channels = cluster.table_channels
            return not any(cluster.oracle.overdue(channel) for channel in channels)

        cluster.scheduler.run_until(cluster.scheduler.now_ms + CONVERGE_MS_MAX, is_clean)
        if not is_clean():
            left = [cluster.oracle.overdue(channel) for channel in cluster.table_channels]
            message = f"O6: rows outlive their lifetime by {CONVERGE_MS_MAX:.0f} ms: {left}"
            raise InvariantError(message)

    def _use(self) -> None:
        """O6: every channel takes a write and answers a linearizable read, as before the faults."""
        cluster = self.cluster
        writer = SimWriter(cluster, self.options.writers, self.outcomes)
        reader = SimReader(cluster, self.options.readers, self.outcomes)
        writer.is_stopped = reader.is_stopped = True
        end_ms = cluster.scheduler.now_ms + CONVERGE_MS_MAX
        for channel in cluster.table_channels:
            self._succeed(writer, partial(writer.write_to, channel), end_ms, "write")
            self._succeed(reader, partial(reader.read_from, channel), end_ms, "linearizable read")
        cluster.scheduler.run_until(end_ms, self._is_converged)
        if not self._is_converged():
            message = f"O6: the last writes do not reach every replica: {cluster.positions()}"
            raise InvariantError(message)

    def _succeed(
        self, client: SimWriter | SimReader, begin: Callable[[], None], end_ms: float, what: str
    ) -> None:
        """Begin it until one is answered; a node may refuse while it looks for its leader."""
        scheduler, outcomes = self.cluster.scheduler, self.outcomes
        before = outcomes.ok + outcomes.reads_ok
        while outcomes.ok + outcomes.reads_ok == before:
            if scheduler.now_ms >= end_ms:
                message = f"O6: after healing no {what} succeeds within {CONVERGE_MS_MAX:.0f} ms"
                raise InvariantError(message)
            begin()
            scheduler.run_until(end_ms, lambda: client.is_idle)

    def _is_converged(self) -> bool:
        idle = all(client.is_idle for client in self._clients())
        return idle and self.cluster.replicas_are_equal()


def where(error: BaseException) -> str:
    """File and line that raised an error."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return "?"
    name = frame.tb_frame.f_code.co_filename.rpartition("/")[2]
    return f"{name}:{frame.tb_lineno}"


def simulate(options: SimOptions) -> Verdict:
    """Run one world."""
    return Simulation(options).run()
