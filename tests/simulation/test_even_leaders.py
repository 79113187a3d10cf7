"""Worlds in which leaderships are moved all the time: nothing is lost, and leaders are even soon
after the last fault (NATS-001)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftstore.testing.options import draw_options
from raftstore.testing.simulation import Simulation

SEEDS = (1, 4, 11)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_leaders_are_even_after_the_faults_and_moves_cost_no_more_than_a_hand_over(
    seed: int,
) -> None:
    """Drawn worlds with as many partitions as make a difference; clients work all the while."""
    options = replace(
        draw_options(seed), even_leaders=True, partitions=6, operations=300, rolling_upgrades=False
    )
    world = Simulation(options)
    verdict = world.run()
    assert verdict.violation is None, verdict.violation
    assert verdict.void is None
    assert world.leader_counts.is_even()
