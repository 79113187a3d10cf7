"""Many seeds, on several processes, with one line each and a verdict at the end."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from raftstore.testing.options import SimOptions, own_options
from raftstore.testing.simulation import (
    FAULTS_MIN,
    OK_MIN,
    OPERATIONS_MIN,
    READS_OK_MIN,
    Verdict,
    simulate,
)
from raftstore.testing.workers import Workers

TRACE_TAIL_LINES = 200


@dataclass(slots=True)
class CampaignResult:
    """Sums over all seeds of a campaign."""

    seeds: int = 0
    operations: int = 0
    faults: int = 0
    elections: int = 0
    crashes: int = 0
    virtual_ms: float = 0.0
    cpu_seconds: float = 0.0
    failed: list[int] = field(default_factory=list)
    weak: list[int] = field(default_factory=list)
    """Seeds that did too little to be worth anything (fewer than the promised operations, faults
    or elections)."""
    void: list[int] = field(default_factory=list)
    """Seeds whose faults took the last copy of a committed record: they rightly stood still."""

    def add(self, verdict: Verdict) -> None:
        """Count one world."""
        self.seeds += 1
        self.operations += verdict.outcomes.finished
        self.faults += sum(verdict.faults.values())
        self.elections += verdict.elections
        self.crashes += verdict.crashes
        self.virtual_ms += verdict.virtual_ms
        self.cpu_seconds += verdict.cpu_seconds
        if verdict.violation is not None:
            self.failed.append(verdict.seed)
        elif verdict.void is not None:
            self.void.append(verdict.seed)
        elif is_weak(verdict):
            self.weak.append(verdict.seed)

    @property
    def operations_per_second(self) -> float:
        """Operations per second of one process."""
        return self.operations / self.cpu_seconds if self.cpu_seconds else 0.0

    @property
    def times_real_time(self) -> float:
        """Virtual time per process time."""
        return self.virtual_ms / 1000.0 / self.cpu_seconds if self.cpu_seconds else 0.0


def is_weak(verdict: Verdict) -> bool:
    """Whether the world did less than a seed must do to count."""
    return (
        verdict.outcomes.finished < OPERATIONS_MIN
        or verdict.outcomes.ok < OK_MIN
        or verdict.outcomes.reads_ok < READS_OK_MIN
        or sum(verdict.faults.values()) < FAULTS_MIN
        or verdict.elections < 1
    )


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """A world is dropped as a whole: looking for garbage while it runs only costs time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_seed(seed: int, changes: dict[str, str] | None = None) -> Verdict:
    """Run one seed with its drawn options, changed as given. Top level, so it can be spawned."""
    options = own_options(seed, changes or {})
    with no_collections():
        verdict = simulate(options)
    if verdict.violation is None:
        verdict.trace = []
    else:
        verdict.trace = verdict.trace[-TRACE_TAIL_LINES:]
    return verdict


def _run_pair(pair: tuple[int, dict[str, str]]) -> Verdict:
    return run_seed(*pair)


def run_campaign(
    seeds: Sequence[int],
    *,
    jobs: int,
    changes: dict[str, str] | None = None,
    on_verdict: Callable[[Verdict], None],
) -> CampaignResult:
    """Run the seeds on ``jobs`` processes; ``on_verdict`` is called in seed order."""
    result = CampaignResult()
    for verdict in _verdicts(seeds, jobs, changes or {}):
        result.add(verdict)
        on_verdict(verdict)
    return result


def _verdicts(seeds: Sequence[int], jobs: int, changes: dict[str, str]) -> Iterator[Verdict]:
    pairs = [(seed, changes) for seed in seeds]
    if jobs <= 1 or len(pairs) <= 1:
        yield from map(_run_pair, pairs)
        return
    with Workers(jobs) as workers:
        yield from workers.each(_run_pair, pairs)


def describe(options: SimOptions) -> str:
    """The options that differ from the defaults, on one line."""
    plain = SimOptions(seed=options.seed).as_dict()
    changed = [
        f"{name}={value}" for name, value in options.as_dict().items() if value != plain[name]
    ]
    return f"seed {options.seed} {' '.join(changed)}"
