"""Runs a plan on virtual time: faults, healing, a bound for liveness, read-back, judgement.

Everything is drawn from the plan's seed, so the same plan gives the same history and trace.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Final

from jepsen_like.calls import Answer, Call
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from jepsen_like.nemesis.catalogue import faults_named
from jepsen_like.nemesis.fault import Fault, Heal
from jepsen_like.plan import Plan, Progress
from jepsen_like.result import Result, machine_facts
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.sim_client import SimClient
from jepsen_like.target.simulated import SimulatedTarget
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.registry import workload_named
from raftstore.testing.invariants import InvariantError
from raftstore.testing.options import draw_options
from raftstore.types import Outcome

BIRTH_MS_MAX: Final = 10_000.0
LEADER_MS_MAX: Final = 5_000.0
CONVERGE_MS_MAX: Final = 20_000.0
READ_BACK_MS_MAX: Final = 60_000.0
FAULT_PAUSE_MS: Final = 600.0
THINK_MS: Final = (1.0, 40.0)
NANOSECONDS: Final = 1_000_000


class _Process:
    """One workload client at one simulated client."""

    def __init__(self, world: SimulatedRun, client: SimClient, calls: Client) -> None:
        self._world = world
        self._client = client
        self._calls = calls
        self.is_busy = False
        self.is_over = False

    def start(self) -> None:
        """Yield the first call."""
        self._next(None)

    def _next(self, answer: Answer | None) -> None:
        if self._world.is_ending and not self._world.is_reading_back:
            self.is_over = True
            return
        try:
            call = next(self._calls) if answer is None else self._calls.send(answer)
        except StopIteration:
            self.is_over = True
            return
        pause = self._world.target.cluster.rng.uniform(*THINK_MS)
        self._world.target.cluster.scheduler.after(pause, self._ask, call)

    def _ask(self, call: Call) -> None:
        if self._world.is_ending and not self._world.is_reading_back:
            self.is_over = True
            return
        operation = _operation(self._client.name, call, self._world.now)
        self._world.history.append(operation)
        self.is_busy = True

        def done(answer: Answer) -> None:
            self.is_busy = False
            _close(operation, answer, self._world.now)
            self._next(answer)

        self._client.ask(call, done)


class SimulatedRun:
    """One plan on one simulated cluster."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._rng = random.Random(f"jepsen {plan.seed}")
        self._workload = workload_named(plan.workload)
        self._faults = faults_named(plan.nemeses)
        self.options = draw_options(plan.seed)
        self.target = SimulatedTarget(self.options, self._workload.tables, plan.clients + 1)
        self.history: list[Operation] = []
        self.injected: list[dict[str, Any]] = []
        self._open: list[tuple[dict[str, Any], Heal]] = []
        self._processes: list[_Process] = []
        self.is_ending = False
        self.is_reading_back = False

    @property
    def now(self) -> int:
        """Virtual nanoseconds."""
        return int(self.target.cluster.scheduler.now_ms * NANOSECONDS)

    def run(self) -> Result:
        """All phases; a violation is in the verdicts, never raised."""
        started = time.perf_counter()
        broken: list[Verdict] = []
        try:
            self._birth()
            self._faults_phase()
            self._heal()
            self._read_back()
        except InvariantError as error:
            broken.append(Verdict("oracle", Validity.INVALID, str(error)))
        else:
            broken.append(Verdict("oracle", Validity.VALID, "every step kept O1 to O6"))
        cluster = self.target.cluster
        run = Run(self.history, self.target.commits(), self.target.replica_hashes(), self.injected)
        wall = time.perf_counter() - started
        hashes = run.replica_hashes.items()
        virtual = cluster.scheduler.now_ms / 1_000
        return Result(
            target=self.target.name, workload=self._plan.workload, nemeses=self._plan.nemeses,
            seed=self._plan.seed, options=self.options.as_dict(), seconds=virtual,
            verdicts=[*broken, *self._workload.check(run)], history=self.history,
            faults=self.injected,
            replica_hashes={f"{table}/{at}": of for (table, at), of in hashes},
            facts={
                **machine_facts(), "elections": cluster.oracle.elections_won,
                "messages": cluster.network.messages, "digest": cluster.trace_digest(),
                "times_real_time": round(virtual / wall, 1),
                "operations_per_second": round(len(self.history) / wall),
            },
            replay=self._plan.replay,
        )  # fmt: skip

    def write_trace(self) -> None:
        """The script of the world: time, what, where; one line each, beside the history."""
        self._plan.directory.mkdir(parents=True, exist_ok=True)
        path = self._plan.directory / "trace.txt"
        path.write_text("\n".join(self.target.cluster.lines) + "\n", encoding="utf-8")

    # --- phases -----------------------------------------------------------------------------------

    def _birth(self) -> None:
        self.target.start_world()
        self._wait(BIRTH_MS_MAX, lambda: self.target.is_born, "no tables in a healthy cluster")

    def _faults_phase(self) -> None:
        for index in range(self._plan.clients):
            client = SimClient(self.target.cluster, index, self.target.tables)
            calls = self._workload.client(index, random.Random(f"{self._plan.seed} {index}"))
            process = _Process(self, client, calls)
            self._processes.append(process)
            process.start()
        scheduler = self.target.cluster.scheduler
        if self._faults:
            scheduler.after(self._pause(), self._inject)
        end = scheduler.now_ms + self._plan.seconds * 1_000
        while scheduler.now_ms < end:
            scheduler.run_until(min(end, scheduler.now_ms + 10_000))
            self._progress(f"{len(self.history)} operations, {len(self.injected)} faults")

    def _heal(self) -> None:
        self.is_ending = True
        for entry, heal in self._open:
            heal()
            entry["ended"] = self.now
        self._open.clear()
        self.target.heal_everything()
        cluster = self.target.cluster
        self._wait(LEADER_MS_MAX, cluster.every_channel_has_a_leader, "a channel has no leader")
        self._wait(CONVERGE_MS_MAX, self._is_quiet, f"replicas differ: {cluster.positions()}")
        cluster.check_final()

    def _read_back(self) -> None:
        self.is_reading_back = True
        client = SimClient(self.target.cluster, self._plan.clients, self.target.tables)
        process = _Process(self, client, self._workload.final_client(self._rng))
        process.start()
        self._wait(READ_BACK_MS_MAX, lambda: process.is_over, "the read-back does not end")

    def _is_quiet(self) -> bool:
        is_busy = any(process.is_busy for process in self._processes)
        return not is_busy and self.target.cluster.replicas_are_equal()

    def _wait(self, limit_ms: float, ready: Any, what: str) -> None:
        scheduler = self.target.cluster.scheduler
        scheduler.run_until(scheduler.now_ms + limit_ms, ready)
        if not ready():
            raise InvariantError(f"O6: {what} after {limit_ms:.0f} ms without faults")

    # --- faults -----------------------------------------------------------------------------------

    def _pause(self) -> float:
        return self._rng.expovariate(1.0 / FAULT_PAUSE_MS)

    def _inject(self) -> None:
        if self.is_ending:
            return
        fault = self._rng.choice(self._faults)
        entry: dict[str, Any] = {"kind": fault.name, "started": self.now, "fired": True}
        self.injected.append(entry)
        self.target.cluster.trace("fault", kind=fault.name)
        try:
            heal = fault.inject(self.target, self._rng)
        except FaultUnavailableError as error:
            entry.update(ended=self.now, fired=False, reason=str(error))
        else:
            self._end_later(fault, entry, heal)
        self.target.cluster.scheduler.after(self._pause(), self._inject)

    def _end_later(self, fault: Fault, entry: dict[str, Any], heal: Heal) -> None:
        self._open.append((entry, heal))
        lasts = self._rng.uniform(*fault.lasts_ms)
        self.target.cluster.scheduler.after(lasts, self._end, entry, heal)

    def _end(self, entry: dict[str, Any], heal: Heal) -> None:
        if (entry, heal) in self._open:
            self._open.remove((entry, heal))
            heal()
            entry["ended"] = self.now
            self.target.cluster.trace("healed", kind=entry["kind"])


def run_simulated(plan: Plan, progress: Progress) -> Result:
    """Run the plan on virtual time; trace.txt is written to its directory when it failed."""
    world = SimulatedRun(plan, progress)
    result = world.run()
    if result.validity is Validity.INVALID:
        world.write_trace()
    return result


def _operation(process: str, call: Call, now: int) -> Operation:
    details: dict[str, Any] = {
        "table": call.table, "level": call.level.value, "max_lag": call.max_lag,
        "at_least": call.at_least, "expected_seq": call.expected_seq, "final": call.final,
        **call.note,
    }  # fmt: skip
    value: Any = call.value
    if call.rows:
        value = [list(row) for row in call.rows]
    elif call.keys:
        value = list(call.keys)
    return Operation(process, call.action.value, call.key, value, now, details=details)


def _close(operation: Operation, answer: Answer, now: int) -> None:
    operation.returned = None if answer.outcome is Outcome.UNKNOWN else now
    operation.outcome = answer.outcome
    operation.result = answer.value
    told: Mapping[str, Any] = {
        "seqs": answer.seqs, "positions": answer.positions, "conflict": answer.conflict,
        "served_by": answer.served_by, "lag": answer.lag, "error": answer.error,
    }  # fmt: skip
    operation.details.update(told)
