"""Pulled plugs: what was acknowledged is there when the power is back."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.power_losses import run_power_losses
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
