"""Wall clocks that jump by days: no retry becomes a second write at any leader (S4.5, S10)."""

from __future__ import annotations

import random
from typing import Final

import pytest

from raftstore.core.folds import FoldBounds, Folds
from raftstore.testing.options import SimOptions
from raftstore.testing.simulation import Simulation, Verdict

DAY_MS: Final = 86_400_000.0
JUMPS_MS: Final = (0.0, 601_000.0, DAY_MS, -DAY_MS, 400 * DAY_MS, -400 * DAY_MS)
JUMP_INTERVAL_MS: Final = 150.0
SMALL: Final = FoldBounds(guid_window=4, sessions_max=3, outcomes_max=8)
"""Bounds that a world of a few writers reaches all the time."""


def jumping_world(seed: int, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    """Run a world whose nodes forget soon and have wall clocks that jump, each for itself.

    No message is doubled or late: a copy of a first attempt that comes after its session was
    forgotten counts as new (docs/guarantees.md), and here a session is forgotten at once.
    """
    monkeypatch.setitem(Folds.__init__.__kwdefaults__, "bounds", SMALL)
    world = Simulation(
        SimOptions(seed, writers=8, readers=1, partitions=1, duplicate_percent=40, operations=900)
    )
    clocks = random.Random(seed)

    def jump() -> None:
        node = clocks.choice(list(world.cluster.nodes.values()))
        node.wall_offset_ms = clocks.choice(JUMPS_MS)
        world.cluster.scheduler.after(JUMP_INTERVAL_MS, jump)

    jump()
    return world.run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_s4_5_no_retry_is_written_twice_while_clocks_jump(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sessions of most retries are forgotten by then: those retries are expired, never new."""
    verdict = jumping_world(seed, monkeypatch)
    assert verdict.violation is None
    assert verdict.outcomes.unknown > 20, "retries met forgotten sessions"
    assert verdict.outcomes.ok > 100
