"""Places for damaged bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.storage.files import FileOps
from raftstore.storage.quarantine import free_place


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], "log-0000"),
        (["notes of an operator"], "log-0000"),
        (["log-0003", "log-0001", "notes", "tables-ab12-0000"], "log-0004"),
        (["tables-ab12-0011", "log-0002"], "log-0012"),
        (["log-12345"], "log-12346"),
    ],
)
def test_new_place_is_behind_the_highest(tmp_path: Path, names: list[str], expected: str) -> None:
    """Whichever were removed: nothing that is kept is written over."""
    quarantine = tmp_path / "quarantine"
    quarantine.mkdir()
    for name in names:
        (quarantine / name).mkdir()
    assert free_place(FileOps(), tmp_path, "log") == quarantine / expected


def test_first_place_makes_the_quarantine(tmp_path: Path) -> None:
    """It is for the user of the node alone, as everything in the data directory."""
    assert free_place(FileOps(), tmp_path, "tables") == tmp_path / "quarantine" / "tables-0000"
    assert (tmp_path / "quarantine").stat().st_mode & 0o777 == 0o700
