"""Log and table of a replica may be replaced apart, at any moment: every state was looked at."""

from __future__ import annotations

import pytest

from tests.model.replica_snapshots import FAULTS, search


@pytest.mark.slow
def test_replica_is_right_in_every_state() -> None:
    """S0.3, S6.4, S6.6: and it is whole again after its table was lost behind a base."""
    found = search()
    assert found.violation == "", found.path
    assert found.states > 20_000
    assert found.healed > 100


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_rule_is_needed(fault: str) -> None:
    """A rule taken out leads to a state that must not be."""
    found = search(fault)
    assert found.violation
    assert found.path
