"""Disks that fill up under simulated nodes: marks keep every write from failing (GAP-13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftstore.testing.options import FULL_VALUE_BYTES, SimOptions, draw_options, draw_surroundings
from raftstore.testing.simulation import simulate


def world(seed: int) -> SimOptions:
    """A world in which every fourth fault fills a disk."""
    return replace(draw_options(seed), full_disk_percent=25.0, value_bytes=FULL_VALUE_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 8])
def test_gap_13_no_node_writes_until_its_disk_is_full(seed: int) -> None:
    """Leaders refuse writes, followers take no records, in time: also of what comes between two
    looks at the disk, as seed 8 shows. With space everything goes on."""
    verdict = simulate(world(seed))
    assert verdict.violation is None
    assert verdict.faults["full_disk"] >= 3


def test_worlds_above_the_pinned_seeds_draw_full_disks_and_tables_below_fsync() -> None:
    """Swarm testing: alone and together with everything else."""
    drawn = [draw_options(seed) for seed in range(31, 331)]
    assert 10 < sum(bool(options.full_disk_percent) for options in drawn) < 60
    levels = {options.durability for options in drawn}
    assert levels == {"fsync", "buffered", "memory"}
    below = [options for options in drawn if options.durability != "fsync"]
    assert 15 < len(below) < 80
    assert any(options.retention for options in below)
    assert not any(options.rolling_upgrades or options.damage_percent for options in below)
    elsewhere = [draw_surroundings(seed) for seed in range(31, 331)]
    assert {options.durability for options in elsewhere} == {"fsync"}, "what judges them expects it"
    assert not any(options.full_disk_percent for options in elsewhere)
    pinned = [draw_options(seed) for seed in range(1, 31)]
    assert not any(options.full_disk_percent for options in pinned)
    assert {options.durability for options in pinned} == {"fsync"}
