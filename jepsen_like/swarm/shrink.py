"""A failing world with as few faults as possible: delta debugging over its list of faults.

Leaving faults out moves everything that comes after them, so each attempt is a run of its own, and
an attempt counts as failing only if the same checker complains. What is found is minimal when the
bound on runs was not reached: leaving out any single fault lets the world pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jepsen_like.checker.verdict import Validity
from jepsen_like.plan import Progress
from jepsen_like.result import Result
from jepsen_like.runner import SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.schedule import FaultEvent
from jepsen_like.swarm.campaign import run_scene
from jepsen_like.swarm.draw import under

RUNS_MAX: Final = 120
SLACK: Final = 1.3
"""With fewer faults the same thing may happen later."""

Faults = tuple[FaultEvent, ...]


class NothingToShrinkError(Exception):
    """The world does not fail."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failing scene that was found."""

    scene: Scene
    faults_before: int
    runs: int
    is_minimal: bool
    """Leaving out any one of its faults was tried, and let the world pass."""


def shrink(scene: Scene, on_progress: Progress, *, runs_max: int = RUNS_MAX) -> Shrunk:
    """Reduce the faults of a failing scene; NothingToShrinkError when it passes."""
    world, result = run_scene(scene)
    complaint = _complaint(result)
    if complaint is None:
        raise NothingToShrinkError(f"seed {scene.seed} breaks no promise, so nothing can be shrunk")
    # Only what struck before the violation can have led to it.
    struck = tuple(FaultEvent(**entry["event"]) for entry in result.faults if entry["fired"])
    attempts = _Attempts(_cut_short(scene, world), complaint, runs_max, on_progress)
    if not attempts.fails(struck):
        attempts = _Attempts(scene, complaint, runs_max, on_progress)
        struck = struck if attempts.fails(struck) else scene.schedule
    found, is_minimal = minimal(struck, attempts.fails, lambda: attempts.are_over)
    return Shrunk(under(scene, found), len(scene.schedule), attempts.runs, is_minimal)


def _cut_short(scene: Scene, world: SimulatedRun) -> Scene:
    """The scene without most of what would come after the violation.

    What fails in it fails in the whole scene too: up to its end both are the same.
    """
    if world.is_ending:
        return scene
    seconds = world.phase_seconds * SLACK + 2.0
    return replace(scene, seconds=seconds, seconds_max=seconds, operations_min=0)


def minimal(
    items: Faults, fails: Callable[[Faults], bool], is_over: Callable[[], bool]
) -> tuple[Faults, bool]:
    """Zeller's ddmin: the items cut down while ``fails`` holds; whether one-minimality was shown.

    ``items`` fail; ``is_over`` ends the search early with the best found so far.
    """
    if fails(()):
        return (), True
    parts = 2
    while len(items) >= 2:
        smaller = _smaller(items, parts, fails, is_over)
        if is_over():
            return smaller or items, False
        if smaller is not None:
            parts = max(2, min(parts - 1, len(smaller)))
            items = smaller
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return items, True


def _smaller(
    items: Faults, parts: int, fails: Callable[[Faults], bool], is_over: Callable[[], bool]
) -> Faults | None:
    """The items without one of their parts, if they still fail; None when each part is needed."""
    size = -(-len(items) // parts)
    for start in range(0, len(items), size):
        if is_over():
            return None
        rest = items[:start] + items[start + size :]
        if rest and fails(rest):
            return rest
    return None


class _Attempts:
    """Runs of the scene with other faults, counted."""

    def __init__(self, scene: Scene, complaint: str, runs_max: int, on_progress: Progress) -> None:
        self._scene = scene
        self._complaint = complaint
        self._runs_max = runs_max
        self._on_progress = on_progress
        self._known: dict[Faults, bool] = {}
        self._is_cut_short = scene.operations_min == 0
        self.runs = 0

    @property
    def are_over(self) -> bool:
        return self.runs >= self._runs_max

    def fails(self, faults: Sequence[FaultEvent]) -> bool:
        chosen = tuple(faults)
        if chosen not in self._known:
            self.runs += 1
            world, result = run_scene(under(self._scene, chosen))
            # In a scene cut short only the phase under faults is like that of the whole one.
            counts = not (world.is_ending and self._is_cut_short)
            self._known[chosen] = counts and _complaint(result) == self._complaint
            word = "fails" if self._known[chosen] else "passes"
            self._on_progress(f"run {self.runs}: {word} with {len(chosen)} faults")
        return self._known[chosen]


def _complaint(result: Result) -> str | None:
    """Which checker found something, and for the oracle which promise it names."""
    for verdict in result.verdicts:
        if verdict.validity is Validity.INVALID:
            promise = verdict.summary.partition(":")[0] if verdict.checker == "oracle" else ""
            return f"{verdict.checker} {promise}"
    return None
