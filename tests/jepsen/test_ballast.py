"""A file of another program that takes the space of a disk, and gives it back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes.ballast import NAME, give_back, take_all_but

MIB = 1 << 20


def free_bytes(disk: Path) -> int:
    facts = os.statvfs(disk)
    return facts.f_bavail * facts.f_frsize


def test_ballast_takes_what_is_asked_for_and_gives_it_back(tmp_path: Path) -> None:
    """No byte of it is written, and it goes as a whole."""
    taken = take_all_but(tmp_path, free_bytes(tmp_path) - 8 * MIB)
    assert 2 * MIB < taken < 32 * MIB  # others write to this disk, too
    assert (tmp_path / NAME).stat().st_blocks * 512 >= taken
    give_back(tmp_path)
    give_back(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_disk_that_has_less_already_is_not_filled(tmp_path: Path) -> None:
    """Nothing is done, and the reason is said."""
    with pytest.raises(FaultUnavailableError, match="bytes free already"):
        take_all_but(tmp_path, 2 * free_bytes(tmp_path))
    assert list(tmp_path.iterdir()) == []
