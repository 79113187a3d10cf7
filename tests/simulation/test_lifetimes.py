"""Worlds in which most rows live for moments, under all faults and with one clock that jumps.

Every answer has to be explained by the channel time of the position that it names (O5), every
condition by that before its record (S10), and what is due is gone in the end.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftstore.testing.options import draw_options
from raftstore.testing.simulation import Simulation
from raftstore.types import RecordKind


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 14])
def test_s10_rows_expire_by_what_the_log_tells_under_faults(seed: int) -> None:
    """Leaders change and a clock jumps both ways; docs/mutations.md names what this notices."""
    options = replace(draw_options(seed), ttl_percent=50.0, rolling_upgrades=False)
    world = Simulation(options)
    verdict = world.run()
    assert (verdict.violation, verdict.void) == (None, None)
    truths = [world.cluster.oracle.truth(channel) for channel in world.cluster.table_channels]
    records = [each.record for truth in truths for each in truth.records]
    assert sum(record.kind is RecordKind.EXPIRE for record in records) > 10
    assert any(record.kind is RecordKind.ROWS_WITH_TTL for record in records)
    assert verdict.faults["clock_jump"] > 1
    assert verdict.elections > 2
