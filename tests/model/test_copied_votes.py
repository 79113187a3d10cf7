"""Replicas whose copied table is ahead of their log vote: every state was looked at."""

from __future__ import annotations

import pytest

from tests.model.copied_votes import FAULTS, search

EXPECTED = {
    "copied tables do not vote": "never heal",
    "all vote": "lacks committed records",
}


@pytest.mark.slow
def test_one_damaged_replica_never_costs_the_channel_its_leader() -> None:
    """S0.3, S1.1, O6: the leader has all that is committed, and all are whole in the end."""
    found = search()
    assert found.violation == ""
    assert found.states > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_rule_is_needed(fault: str) -> None:
    """A rule taken out leads to a wrong leader, or to none."""
    assert EXPECTED[fault] in search(fault).violation
