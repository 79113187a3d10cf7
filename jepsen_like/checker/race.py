"""Two searches for one history: each is fast where the other is slow."""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.checker import jit, wgl
from jepsen_like.checker.models import Entry, Model
from jepsen_like.checker.problem import TURN, Found, Problem

DEFAULT_BUDGET = 5_000_000
"""Steps of both searches together, for one key."""


def race(model: Model, entries: Sequence[Entry], budget: int = DEFAULT_BUDGET) -> Found | None:
    """Give WGL and JIT turns of equal length; None when the budget ends first."""
    problem = Problem(model, entries)
    searches = [wgl.search(problem), jit.search(problem)]
    for _ in range(0, budget, 2 * TURN):
        for search in searches:
            found = next(search)
            if found is not None:
                return found
    return None
