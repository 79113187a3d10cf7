"""Members of a channel change in every order of small worlds, and in random ways of larger ones."""

from __future__ import annotations

import pytest

from tests.model.members import FAULTS, SCENARIOS, search, walk

WHOLE = {"alone": 40_000, "second life": 80_000, "elections": 40_000}
"""Scenarios that are searched to their end here, and how many states they have at least. The others
are by ``python -m tests.model.members``."""
WALKS = 150

FOUND = {
    "one majority": ("replaced of three", "two leaders"),
    "not joint": ("replaced of three", "two leaders"),
    "committed elects": ("second life", "nothing goes on"),
    "learners count": ("replaced of three", "two leaders"),
    "old terms commit": ("elections", "without committed records"),
    "two at once": ("replaced of three", "two leaders"),
    "base without members": ("trimmed", "nothing goes on"),
    "deleted by the order": ("second life", "nothing goes on"),
    "stale orders": ("and back", "behind a newer one"),
    "reads unconfirmed": ("elections", "answers a read"),
}
"""Where a rule that is taken out is found, and as what."""
LATE = ("late to leave", 789)
"""The random way on which a second life is counted by what its first one held."""


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "states_min"), WHOLE.items())
def test_no_order_of_moves_breaks_a_promise(scenario: str, states_min: int) -> None:
    """S8, M1 to M14, O1, O2, O3, O6: one leader, nothing committed lost, reads confirmed, and the
    change ends."""
    found = search(scenario, probe_every=10)
    assert found.violation == "", found.path
    assert found.is_whole
    assert found.states > states_min


@pytest.mark.slow
@pytest.mark.parametrize("scenario", sorted({*SCENARIOS} - {*WHOLE}))
def test_no_random_way_breaks_a_promise(scenario: str) -> None:
    """The same, where there are too many states to see them all."""
    for seed in range(WALKS):
        found = walk(scenario, seed)
        assert found.violation == "", (seed, found.path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FOUND)
def test_every_rule_is_needed(fault: str) -> None:
    """A rule that is taken out breaks a promise, in few steps."""
    scenario, what = FOUND[fault]
    found = search(scenario, fault, probe_every=10, states_max=100_000)
    assert what in found.violation


@pytest.mark.slow
def test_second_life_must_not_count_as_the_first() -> None:
    """M4: what a replica held that was deleted is not held by the one that comes after it."""
    assert {*FOUND, "numbers ignored"} == {*FAULTS}
    assert "without committed records" in walk(*LATE, "numbers ignored", steps_max=60).violation
    assert walk(*LATE, steps_max=60).violation == ""
