"""Replicas that acknowledge what they have not synced: every state was looked at (S0.6)."""

from __future__ import annotations

import pytest

from tests.model.durability_levels import FAULTS, search

LOST = "a leader lacks an acknowledged record that a replica holds"
STUCK = "not everybody takes part again"
EXPECTED = dict.fromkeys(FAULTS, LOST) | {"a target stays": STUCK, "no end without a leader": STUCK}


@pytest.mark.slow
def test_acknowledged_record_is_lost_only_when_all_that_held_it_lost_it() -> None:
    """S0.6: two stops of any replicas, each with any part of its log; all take part again."""
    found = search(terms_max=2, records_max=1)
    assert found.violation == ""
    assert found.states > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_rule_of_doubt_is_needed(fault: str) -> None:
    """A rule taken out leads to a wrong leader, or to none."""
    assert search(fault, terms_max=2, records_max=1).violation == EXPECTED[fault]
