"""Protocols that were not built, small enough to see why: each breaks in a few steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple, TypeVar

from tests.model.states import Violation

S = TypeVar("S", bound=Hashable)


def explore(start: S, moves: Callable[[S], Iterator[tuple[str, S]]]) -> tuple[str, ...]:
    """The shortest way to a Violation; () if there is none."""
    came: dict[S, tuple[str, ...]] = {start: ()}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        try:
            for name, after in moves(state):
                if after not in came:
                    came[after] = (*came[state], name)
                    waiting.append(after)
        except Violation as violation:
            return (*came[state], str(violation))
    return ()


class Arrivals(NamedTuple):
    """Drivers that wrote the rows of each task of the batch."""

    tasks: tuple[str, str] = ("", "")
    told: frozenset[str] = frozenset()


CUTS = {"A": ("r0", "r1"), "B": ("r1", "r0")}
"""Rows of task 0 and task 1: the replay B cuts the same rows otherwise."""


def rows_applied_on_arrival(state: Arrivals) -> Iterator[tuple[str, Arrivals]]:
    """Rows are visible when they come; a task of a batch that came before is a duplicate."""
    for attempt in CUTS:
        for task in (0, 1):
            name = f"{attempt} task {task}"
            tasks = list(state.tasks)
            tasks[task] = tasks[task] or attempt
            yield name, Arrivals((tasks[0], tasks[1]), state.told | {name})
        if all(f"{attempt} task {task}" in state.told for task in (0, 1)):
            rows = sorted(CUTS[by][task] for task, by in enumerate(state.tasks))
            if rows != ["r0", "r1"]:
                raise Violation(f"{attempt} is acknowledged, the table has {rows}")


def markers_per_channel(state: Arrivals) -> Iterator[tuple[str, Arrivals]]:
    """Each channel by itself makes the batch of the first marker visible that comes."""
    for attempt in ("A", "B"):
        for channel in (0, 1):
            name = f"marker of {attempt} -> ch{channel}"
            channels = list(state.tasks)
            channels[channel] = channels[channel] or attempt
            yield name, Arrivals((channels[0], channels[1]), state.told | {name})
        if all(f"marker of {attempt} -> ch{channel}" in state.told for channel in (0, 1)):
            if len(set(state.tasks)) > 1:
                raise Violation(f"{attempt} is acknowledged, rows of A and B are mixed")


class Aborts(NamedTuple):
    """Attempts X and Y without an order, and a list of aborted ones that has one place."""

    staged: frozenset[str] = frozenset({"X", "Y"})
    aborted: tuple[str, ...] = ()


def unordered_attempts(state: Aborts) -> Iterator[tuple[str, Aborts]]:
    """COMMIT is refused for what is on the list; what is on it may be dropped."""
    for attempt in ("X", "Y"):
        if attempt not in state.aborted:
            yield f"abort {attempt}", state._replace(aborted=(*state.aborted, attempt)[-1:])
            if attempt not in state.staged:
                raise Violation(f"late COMMIT {attempt} is accepted, its chunks are gone")
        else:
            yield f"drop {attempt}", state._replace(staged=state.staged - {attempt})
