"""All lives of a replica whose log is trimmed, and the rules without which it is not whole."""

from __future__ import annotations

import pytest

from tests.model.trimming import FAULTS, Model, search


def test_i1_replica_whose_log_is_trimmed_is_whole_after_every_power_cut() -> None:
    """S6.4, S6.5: with open attempts, full disks, and a table that goes back to any state."""
    found = search(Model())
    assert found.broken is None, found.path
    assert found.names == {"apply", "flush", "flush fails", "told", "trim", "sync", "power"}
    assert found.states > 5_000


@pytest.mark.parametrize("fault", FAULTS)
def test_rule_of_trimming_taken_out_shows(fault: str) -> None:
    """Each planted fault leaves a replica that lacks rows."""
    found = search(Model(fault))
    assert found.broken is not None
    assert found.path[-1] == "power"
