"""Pulled plugs: what was acknowledged is there when the power is back."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.power_losses import ALL_EVERY, run_power_losses
from raftstore.types import Durability
from tests.promises import promised

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_no_acknowledged_write_is_lost_when_all_nodes_lose_power(tmp_path: Path) -> None:
    """Without root: unsynced writes are taken back from the files of all three nodes."""
    said: list[str] = []
    figures = run_power_losses(1, 1, tmp_path / "pulled", said.append, with_disks=False)
    promised((figures.lost, figures.made_up) == (0, 0), str(figures.violations))
    assert figures.violations == []
    assert (figures.pulls, figures.lost, figures.made_up, figures.different) == (1, 0, 0, 0)
    assert figures.acknowledged > 0
    assert len(said) == 1


def test_node_that_loses_power_costs_nothing_of_a_table_in_memory(tmp_path: Path) -> None:
    """S0.6: the others have what it acknowledged and lost; it asks them before it votes. With all
    nodes something may be gone, and is then, at all replicas alike."""
    figures = run_power_losses(
        ALL_EVERY, 2, tmp_path / "pulled", with_disks=False, durability=Durability.MEMORY
    )
    promised((figures.lost, figures.made_up) == (0, 0), str(figures.violations))
    assert figures.violations == []
    assert (figures.pulls, figures.lost, figures.made_up, figures.different) == (ALL_EVERY, 0, 0, 0)
    assert figures.acknowledged > 0
