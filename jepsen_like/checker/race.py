"""Two searches for one history: each is fast where the other is slow."""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.checker import jit, wgl
from jepsen_like.checker.models import Entry, Model
from jepsen_like.checker.problem import TURN, Found, Problem

DEFAULT_BUDGET = 5_000_000
"""Steps of both searches together, for one key."""
_HEAD_START = 4
"""Steps per operation that WGL has for itself: nearly all histories are done by then."""


def race(model: Model, entries: Sequence[Entry], budget: int = DEFAULT_BUDGET) -> Found | None:
    """Give WGL and JIT turns of equal length; None when the budget ends first."""
    problem = Problem(model, entries)
    first = wgl.search(problem)
    alone = min(budget, _HEAD_START * len(problem.done))
    for _ in range(0, alone, TURN):
        found = next(first)
        if found is not None:
            return found
    searches = [first, jit.search(problem)]
    for _ in range(alone, budget, 2 * TURN):
        for search in searches:
            found = next(search)
            if found is not None:
                return found
    return None
