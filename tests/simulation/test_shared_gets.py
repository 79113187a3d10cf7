"""Gets of real clients under drawn faults: a caller gets the committed state of its own keys."""

from __future__ import annotations

import pytest

from tests.simulation.get_world import run_get_world

SEEDS = (2, 6, 8)
"""Worlds in which many gets are shared; a second each."""


@pytest.mark.slow
def test_shared_gets_show_each_caller_the_committed_rows_of_its_own_keys() -> None:
    """O5, S7: for callers of other keys, channels and bounds that share a request, while links,
    leaders and nodes come and go."""
    shared = served = 0
    for seed in SEEDS:
        violation, outcomes, requests = run_get_world(
            seed, {"operations": "150", "fault_phase_ms": "3000"}
        )
        assert violation is None, f"seed {seed}: {violation}"
        served += outcomes.reads_ok
        shared += requests
    assert served > 1_000
    assert shared > 100, "no world has shown anything of shared requests"
