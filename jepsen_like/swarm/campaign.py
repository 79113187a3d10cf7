"""Many worlds of the swarm on several processes: sums, and the first that fails."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jepsen_like.checker.verdict import Validity
from jepsen_like.result import Result
from jepsen_like.runner import SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.schedule import write_schedule
from jepsen_like.script import SCRIPT_NAME, write_script
from jepsen_like.swarm.draw import ANSWERED_MIN, FAULTS_MIN, OPERATIONS_MIN
from raftstore.testing.campaign import no_collections
from raftstore.testing.workers import Workers

FAULTS_NAME = "faults.jsonl"
HASH_SEEDS = ("1", "4242")
"""PYTHONHASHSEED of the first and the second run when seeds run twice."""


@dataclass(frozen=True, slots=True)
class WorldVerdict:
    """The result of one world; small enough to be sent between processes."""

    seed: int
    workload: str
    violation: str | None
    """The first checker that found something, and what; None when nothing was found."""
    undecided: str | None
    operations: int
    answered: int
    elections: int
    fired: dict[str, int]
    not_run: dict[str, int]
    virtual_seconds: float
    cpu_seconds: float
    steps: int
    digest: str

    @property
    def too_quiet(self) -> str | None:
        """Why the world proves too little to count; None when it counts."""
        faults = sum(self.fired.values())
        if self.operations < OPERATIONS_MIN:
            return f"{self.operations} operations, {OPERATIONS_MIN} are the least"
        if self.answered < ANSWERED_MIN:
            return f"{self.answered} operations answered OK, {ANSWERED_MIN} are the least"
        if faults < FAULTS_MIN:
            return f"{faults} faults fired, {FAULTS_MIN} are the least"
        if self.elections < 1:
            return "no election after the first ones"
        return None if self.undecided is None else f"undecided: {self.undecided}"


@dataclass(slots=True)
class Totals:
    """Sums over worlds."""

    worlds: int = 0
    operations: int = 0
    elections: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    fired: dict[str, int] = field(default_factory=dict)
    not_run: dict[str, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    quiet: list[int] = field(default_factory=list)
    unequal: list[int] = field(default_factory=list)
    """Seeds whose two runs differed."""

    def add(self, verdict: WorldVerdict) -> None:
        """Count one world."""
        self.worlds += 1
        self.operations += verdict.operations
        self.elections += verdict.elections
        self.virtual_seconds += verdict.virtual_seconds
        self.cpu_seconds += verdict.cpu_seconds
        for counted, reported in ((self.fired, verdict.fired), (self.not_run, verdict.not_run)):
            for kind, count in reported.items():
                counted[kind] = counted.get(kind, 0) + count
        if verdict.violation is not None:
            self.failed.append(verdict.seed)
        elif verdict.too_quiet is not None:
            self.quiet.append(verdict.seed)

    @property
    def operations_per_second(self) -> float:
        """Operations per second of processor time."""
        return self.operations / self.cpu_seconds if self.cpu_seconds else 0.0

    @property
    def times_real_time(self) -> float:
        """Virtual seconds per second of processor time."""
        return self.virtual_seconds / self.cpu_seconds if self.cpu_seconds else 0.0


def run_scene(scene: Scene, *, keeps_messages: bool = False) -> tuple[SimulatedRun, Result]:
    """Run one scene; the world is returned too, for its trace."""
    world = SimulatedRun(scene, lambda _: None)
    world.target.cluster.events.keeps_messages = keeps_messages
    with no_collections():
        return world, world.run()


def judge(scene: Scene) -> WorldVerdict:
    """Run one scene in this process. Top level, so that it can be sent to another."""
    world, result = run_scene(scene)
    verdict = verdict_of(world, result)
    del world, result
    gc.collect()
    return verdict


def verdict_of(world: SimulatedRun, result: Result) -> WorldVerdict:
    """The short form of a result."""
    bad = [v for v in result.verdicts if v.validity is Validity.INVALID]
    open_ = [v for v in result.verdicts if v.validity is Validity.UNDECIDED]
    fired: dict[str, int] = {}
    not_run: dict[str, int] = {}
    for entry in result.faults:
        counted = fired if entry["fired"] else not_run
        counted[entry["kind"]] = counted.get(entry["kind"], 0) + 1
    return WorldVerdict(
        seed=result.seed,
        workload=result.workload,
        violation=f"{bad[0].checker}: {bad[0].summary}" if bad else None,
        undecided=f"{open_[0].checker}: {open_[0].summary}" if open_ else None,
        operations=world.finished,
        answered=world.answered,
        elections=world.elections,
        fired=fired,
        not_run=not_run,
        virtual_seconds=result.seconds,
        cpu_seconds=result.facts["cpu_seconds"],
        steps=result.facts["steps"],
        digest=result.facts["digest"],
    )


def run_scenes(scenes: Sequence[Scene], *, jobs: int) -> Iterator[WorldVerdict]:
    """Verdicts in the order of the scenes."""
    if jobs <= 1 or len(scenes) <= 1:
        yield from map(judge, scenes)
        return
    with Workers(jobs) as workers:
        yield from workers.each(judge, scenes)


def run_twice(scenes: Sequence[Scene], *, jobs: int) -> Iterator[tuple[WorldVerdict, WorldVerdict]]:
    """Each scene in two processes that order sets and hash strings differently."""
    with contextlib.ExitStack() as opened:
        verdicts: list[Iterator[WorldVerdict]] = []
        for hash_seed in HASH_SEEDS:
            workers = opened.enter_context(Workers(max(1, jobs // 2)))
            with _hash_seed(hash_seed):  # a worker starts when it gets its first scene
                verdicts.append(workers.each(judge, scenes))
        first, second = verdicts
        yield from zip(first, second, strict=True)


@contextlib.contextmanager
def _hash_seed(hash_seed: str) -> Iterator[None]:
    """Processes started in this block get this PYTHONHASHSEED."""
    kept = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = hash_seed
    try:
        yield
    finally:
        if kept is None:
            os.environ.pop("PYTHONHASHSEED", None)
        else:
            os.environ["PYTHONHASHSEED"] = kept


def keep(scene: Scene, directory: Path) -> None:
    """Run a failing scene once more and write history, faults and script to a directory."""
    world, result = run_scene(scene, keeps_messages=True)
    result.save(directory)
    write_schedule(directory / FAULTS_NAME, scene.schedule)
    write_script(directory / SCRIPT_NAME, result, world.target.cluster.events)
