"""All short lives of a log with bases and a floor, and of what goes wrong without a rule."""

from __future__ import annotations

import pytest

from tests.model.log_bases import FAULTS, Model, search

MOVES = {"append", "rebase", "replace", "sync", "mark", "roll", "floor", "unlink", "power"}
LONG = ("record below floor", "replaced once")


@pytest.mark.slow
def test_log_with_bases_and_a_floor_comes_back_as_it_was() -> None:
    """S0.3, S6.5: every power cut and every single damaged entry of lives of five steps."""
    found = search(Model(moves_max=5))
    assert found.broken is None, found.path
    assert found.names >= MOVES
    assert found.states > 7_000


@pytest.mark.slow
@pytest.mark.parametrize(("moves", "cuts"), [(6, 1), (5, 2)])
def test_longer_lives_of_a_log_come_back_too(moves: int, cuts: int) -> None:
    """One step more, or a second power cut."""
    found = search(Model(moves_max=moves, cuts_max=cuts))
    assert found.broken is None, found.path
    assert found.states > 12_000


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in FAULTS],
)
def test_rule_taken_out_of_the_model_shows(fault: str) -> None:
    """Each planted fault breaks a start."""
    assert search(Model(fault, moves_max=6)).broken is not None
