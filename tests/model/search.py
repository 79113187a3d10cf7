"""Every state that a model can reach, breadth first, each of them checked."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tests.model.states import Violation, World
from tests.model.world import Model


class Found(NamedTuple):
    """A finished search."""

    states: int
    moves: int
    violation: str | None
    path: tuple[str, ...]
    seen: frozenset[str]
    """Names of all moves."""


def search(model: Model, *, states_max: int = 10**9) -> Found:
    """Breadth-first through all interleavings, to the first broken promise or to the end."""
    start = model.initial()
    came: dict[World, tuple[World, str] | None] = {start: None}
    waiting = deque([start])
    count = moves = 0
    seen: dict[str, None] = {}
    while waiting:
        world = waiting.popleft()
        count += 1
        assert count <= states_max, f"more than {states_max} states"
        try:
            model.check(world)
            if model.checks_l1:
                model.settle(world)
            if model.checks_l2:
                model.finish(world)
            for name, after in model.moves(world):
                moves += 1
                seen[name] = None
                model.check_step(world, after)
                if after not in came:
                    came[after] = (world, name)
                    waiting.append(after)
        except Violation as violation:
            return Found(count, moves, str(violation), _path(came, world), frozenset(seen))
    return Found(count, moves, None, (), frozenset(seen))


def _path(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    steps: list[str] = []
    while (origin := came[world]) is not None:
        world, name = origin
        steps.append(name)
    return tuple(reversed(steps))
