"""Runs a scene on virtual time: faults, healing, a bound for liveness, read-back, judgement.

Everything is drawn from the scene's seed, so the same scene gives the same history and trace.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from jepsen_like.calls import Answer, Call, argument, asked, details_of
from jepsen_like.checker.injections import check_faults
from jepsen_like.checker.progress import check_progress, stop_ms_max
from jepsen_like.checker.replicas import check_replicas
from jepsen_like.checker.status import StatusWatch, untruths
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.nemesis.fault import Fault, Heal
from jepsen_like.nemesis.witness import witnessed
from jepsen_like.plan import Plan, Progress
from jepsen_like.result import Result, machine_facts
from jepsen_like.scene import BURST_MS, Scene, scene_of
from jepsen_like.schedule import FaultEvent
from jepsen_like.script import SCRIPT_NAME, write_script
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.sim_client import SimClient
from jepsen_like.target.simulated import SimulatedTarget
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.fates import asking_fates
from jepsen_like.workload.registry import workload_named
from raftstore.testing.invariants import InvariantError
from raftstore.testing.sim_network import LATE_MS_MAX
from raftstore.testing.simulation import SETTLE_MS_MAX, where
from raftstore.types import Outcome

BIRTH_MS_MAX: Final = 10_000.0
LEADER_MS_MAX: Final = 5_000.0
CONVERGE_MS_MAX: Final = 20_000.0
STATUS_MS_MAX: Final = 3_000.0
STATUS_EVERY_MS: Final = 50.0
READ_BACK_MS_MAX: Final = 60_000.0
SLICE_MS: Final = 1_000.0
"""How often a phase looks whether enough has happened."""
NANOSECONDS: Final = 1_000_000
"""Of a millisecond."""


class _Process:
    """One workload client at one simulated client."""

    def __init__(
        self, world: SimulatedRun, client: SimClient, calls: Client, *, is_final: bool = False
    ) -> None:
        self._world = world
        self._is_final = is_final
        self._client = client
        self._calls = calls
        self.is_busy = False
        self.is_over = False

    def start(self) -> None:
        """Yield the first call."""
        self._next(None)

    def _next(self, answer: Answer | None) -> None:
        if self._world.is_ending and not self._is_final:
            self.is_over = True
            return
        try:
            call = next(self._calls) if answer is None else self._calls.send(answer)
        except StopIteration:
            self.is_over = True
            return
        cluster, scene = self._world.target.cluster, self._world.scene
        is_burst = self._is_final or cluster.rng.random() * 100 < scene.burst_percent
        pause = cluster.rng.uniform(*(BURST_MS if is_burst else scene.think_ms))
        cluster.scheduler.after(pause, self._ask, call)

    def _ask(self, call: Call) -> None:
        if self._world.is_ending and not self._is_final:
            self.is_over = True
            return
        operation = _operation(self._client.name, call, self._world.now)
        self._world.history.append(operation)
        self.is_busy = True

        def done(answer: Answer) -> None:
            self.is_busy = False
            self._world.finished += 1
            self._world.answered += answer.outcome is Outcome.OK
            _close(operation, answer, self._world.now)
            self._next(answer)

        self._client.ask(call, done)


@dataclass(slots=True, eq=False)
class _OpenFault:
    """A fault in force; ``heal`` is None while one that comes and goes is away."""

    fault: Fault
    entry: dict[str, Any]
    rng: random.Random
    heal: Heal | None = None


class SimulatedRun:
    """One scene on one simulated cluster."""

    def __init__(self, scene: Scene, progress: Progress) -> None:
        self.scene = scene
        self._progress = progress
        self._workload = workload_named(scene.workload)
        self.target = SimulatedTarget(
            scene.options, self._workload.tables, scene.clients + 1, scene.settings
        )
        self.history: list[Operation] = []
        self.injected: list[dict[str, Any]] = []
        self.finished = 0
        """Operations whose client knows what became of them, or never will."""
        self.answered = 0
        """Operations answered OK."""
        self._born_elections = 0
        self._began_ms = 0.0
        self._open: list[_OpenFault] = []
        self._processes: list[_Process] = []
        self._status = StatusWatch()
        self.is_ending = False

    @property
    def now(self) -> int:
        """Virtual nanoseconds."""
        return int(self.target.cluster.scheduler.now_ms * NANOSECONDS)

    @property
    def phase_seconds(self) -> float:
        """Length of the phase under faults, so far."""
        return (self.target.cluster.scheduler.now_ms - self._began_ms) / 1_000

    @property
    def elections(self) -> int:
        """Elections won since the clients began."""
        return self.target.cluster.oracle.elections_won - self._born_elections

    def run(self) -> Result:
        """All phases; a violation is in the verdicts, never raised."""
        started = time.process_time()
        oracle = Verdict("oracle", Validity.VALID, "every step kept O1 to O6")
        try:
            self._birth()
            self._faults_phase()
            self._heal()
            self._read_back()
        except InvariantError as error:
            oracle = Verdict("oracle", Validity.INVALID, str(error))
        except Exception as error:  # noqa: BLE001 - nothing may ever be raised in a world
            text = f"{type(error).__name__} in the code under test: {where(error)} {error}"
            oracle = Verdict("oracle", Validity.INVALID, text)
        run = Run(
            self.history, self.target.commits(), self.target.replica_hashes(), self.injected,
            self._status, held_ms=LATE_MS_MAX if self.scene.options.late_percent else 0.0,
            voters=self.target.voters(),
        )  # fmt: skip
        progress = check_progress(run, stop_ms=stop_ms_max(self.scene.options.loss_percent))
        verdicts = [
            oracle, check_replicas(run), progress, run.status.verdict(),
            *self._workload.check(run),
        ]  # fmt: skip
        hashes = run.replica_hashes.items()
        return Result(
            target=self.target.name, workload=self.scene.workload, nemeses=self.scene.kinds,
            seed=self.scene.seed, options=self.scene.options.as_dict(),
            seconds=self.target.cluster.scheduler.now_ms / 1_000, verdicts=verdicts,
            history=self.history, faults=self.injected,
            replica_hashes={f"{table}/{at}": of for (table, at), of in hashes},
            facts=machine_facts() | self._facts(time.process_time() - started),
            replay=self.scene.replay,
        )  # fmt: skip

    def digest(self) -> str:
        """Over every event, every delivered message, every operation and every answer."""
        digest = hashlib.blake2b(self.target.cluster.trace_digest().encode(), digest_size=16)
        for operation in self.history:
            digest.update(repr(operation).encode())
        return digest.hexdigest()

    def _facts(self, cpu_seconds: float) -> dict[str, Any]:
        cluster = self.target.cluster
        return {
            "elections": self.elections,
            "messages": cluster.network.messages,
            "steps": cluster.scheduler.steps,
            "digest": self.digest(),
            "cpu_seconds": round(cpu_seconds, 3),
            "times_real_time": round(cluster.scheduler.now_ms / 1_000 / cpu_seconds, 1),
            "operations_per_second": round(len(self.history) / cpu_seconds),
        }

    # --- phases -----------------------------------------------------------------------------------

    def _birth(self) -> None:
        self.target.start_world()
        self._wait(BIRTH_MS_MAX, lambda: self.target.is_born, "no tables in a healthy cluster")
        self._born_elections = self.target.cluster.oracle.elections_won

    def _faults_phase(self) -> None:
        scene, scheduler = self.scene, self.target.cluster.scheduler
        for index in range(scene.clients):
            client = SimClient(self.target.cluster, index, self.target.tables)
            calls = asking_fates(
                self._workload.client(index, random.Random(f"{scene.seed} {index}"))
            )
            process = _Process(self, client, calls)
            self.target.clients.append(client)
            self._processes.append(process)
            process.start()
        self._began_ms = scheduler.now_ms
        for event in scene.schedule:
            scheduler.at(self._began_ms + event.at_ms, self._inject, event)
        while not self._is_enough():
            scheduler.run_until(scheduler.now_ms + SLICE_MS)
            self._status.observe(self.target.views())
            self._progress(f"{len(self.history)} operations, {len(self.injected)} faults")

    def _is_enough(self) -> bool:
        scene, seconds = self.scene, self.phase_seconds
        if seconds < scene.seconds:
            return False
        # One that is armed and never strikes turns out not to have fired when it ends.
        fired = sum(entry["fired"] and "ended" in entry for entry in self.injected)
        has_all = (
            self.finished >= scene.operations_min
            and self.answered >= scene.answered_min
            and fired >= min(scene.faults_min, len(scene.schedule))
        )
        return has_all or seconds >= scene.ends_at_the_latest

    def _heal(self) -> None:
        self.is_ending = True
        for fault in tuple(self._open):
            self._end(fault)
        self.target.clients.clear()
        self.target.cluster.trace("heal")
        self.target.heal_everything()
        cluster = self.target.cluster
        self._wait(LEADER_MS_MAX, cluster.every_channel_has_a_leader, "a channel has no leader")
        self._settle_members()
        self._wait(CONVERGE_MS_MAX, self._is_quiet, "replicas differ")
        self._look_at_status()
        cluster.check_final()

    def _settle_members(self) -> None:
        """S8: what faults changed of the members is as it was before, and all agree on it."""
        cluster, target = self.target.cluster, self.target
        cluster.scheduler.run_until(
            cluster.scheduler.now_ms + SETTLE_MS_MAX, lambda: not target.why_not_settled()
        )
        why = target.why_not_settled()
        if why:
            raise InvariantError(f"O6: members do not settle in {SETTLE_MS_MAX:.0f} ms: {why}")

    def _look_at_status(self) -> None:
        """Wait until the status of every node is true; note how long that took."""
        scheduler = self.target.cluster.scheduler
        equal_ms = scheduler.now_ms
        while scheduler.now_ms < equal_ms + STATUS_MS_MAX:
            scheduler.run_until(scheduler.now_ms + STATUS_EVERY_MS)
            views = self.target.views()
            self._status.observe(views)
            self._status.last_untruths = tuple(untruths(views, tuple(views)))
            if not self._status.last_untruths:
                self._status.true_after_ms = scheduler.now_ms - equal_ms
                return

    def _read_back(self) -> None:
        client = SimClient(self.target.cluster, self.scene.clients, self.target.tables)
        rng = random.Random(f"{self.scene.seed} final")
        process = _Process(self, client, self._workload.final_client(rng), is_final=True)
        process.start()
        self._wait(READ_BACK_MS_MAX, lambda: process.is_over, "the read-back does not end")
        if getattr(self._workload, "rows_expire", False):
            self._wait(CONVERGE_MS_MAX, self._is_quiet, "replicas differ")

    def _is_quiet(self) -> bool:
        is_busy = any(process.is_busy for process in self._processes)
        return not is_busy and self.target.cluster.replicas_are_equal()

    def _wait(self, limit_ms: float, ready: Callable[[], bool], what: str) -> None:
        cluster = self.target.cluster
        cluster.scheduler.run_until(cluster.scheduler.now_ms + limit_ms, ready)
        if not ready():
            raise InvariantError(
                f"O6: {what} after {limit_ms:.0f} ms without faults: {cluster.positions()}"
            )

    # --- faults -----------------------------------------------------------------------------------

    def _inject(self, event: FaultEvent) -> None:
        if self.is_ending:
            return
        entry: dict[str, Any] = {"kind": event.kind, "started": self.now, "fired": True}
        entry["event"] = asdict(event)
        self.injected.append(entry)
        cluster = self.target.cluster
        cluster.trace("fault", kind=event.kind)
        fault = _OpenFault(CATALOGUE[event.kind], entry, random.Random(event.draw))
        try:
            fault.heal = self._strike(fault)
        except FaultUnavailableError as error:
            self._not_run(entry, error)
            return
        self._open.append(fault)
        cluster.scheduler.after(event.lasts_ms, self._end, fault)
        if fault.fault.repeats_ms:
            cluster.scheduler.after(fault.fault.repeats_ms, self._toggle, fault)

    def _strike(self, fault: _OpenFault) -> Heal:
        return fault.fault.inject(witnessed(self.target, fault.fault, fault.entry), fault.rng)

    def _toggle(self, fault: _OpenFault) -> None:
        """A fault that comes and goes goes, or comes again."""
        if fault not in self._open:
            return
        if fault.heal is None:
            # The node it would hit may be gone; then it stays away until the next turn.
            with contextlib.suppress(FaultUnavailableError):
                fault.heal = self._strike(fault)
        else:
            fault.heal()
            fault.heal = None
        self.target.cluster.scheduler.after(fault.fault.repeats_ms, self._toggle, fault)

    def _end(self, fault: _OpenFault) -> None:
        if fault not in self._open:
            return
        self._open.remove(fault)
        fault.entry["ended"] = self.now
        self.target.cluster.trace("healed", kind=fault.fault.name)
        try:
            if fault.heal is not None:
                fault.heal()
        except FaultUnavailableError as error:
            self._not_run(fault.entry, error)

    def _not_run(self, entry: dict[str, Any], error: FaultUnavailableError) -> None:
        entry.update(ended=self.now, fired=False, reason=str(error))
        self.target.cluster.trace("not_run", kind=entry["kind"], reason=str(error))


def run_simulated(plan: Plan, progress: Progress) -> Result:
    """Run the plan on virtual time; script.txt is written to its directory when it failed."""
    world = SimulatedRun(scene_of(plan), progress)
    world.target.cluster.events.keeps_messages = True
    result = world.run()
    if plan.nemeses:
        result.verdicts = [*result.verdicts, check_faults(result.faults)]
    if result.validity is Validity.INVALID:
        plan.directory.mkdir(parents=True, exist_ok=True)
        write_script(plan.directory / SCRIPT_NAME, result, world.target.cluster.events)
    return result


def _operation(process: str, call: Call, now: int) -> Operation:
    value = argument(call)
    return Operation(process, call.action.value, call.key, value, now, details=asked(call))


def _close(operation: Operation, answer: Answer, now: int) -> None:
    operation.returned = None if answer.outcome is Outcome.UNKNOWN else now
    operation.outcome = answer.outcome
    operation.result = answer.value
    operation.details.update(details_of(answer, now))
