"""A file keeps some of the disk for a start that finds it full (GAP-13)."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from raftstore.config import KIB, StorageSettings
from raftstore.errors import DiskFullError
from raftstore.storage.free_space import FreeSpace
from raftstore.storage.identity import FREE_BYTES_MIN
from raftstore.storage.space_reserve import RESERVE_NAME, SpaceReserve
from raftstore.storage.store import open_store
from tests.storage_helpers import SMALL, FaultyFiles

WANTED, MARK = 64 * KIB, 400 * KIB
ROOM = WANTED + MARK + MARK // 4
SETTINGS = StorageSettings(reserve_bytes=WANTED, min_free_bytes=MARK)


def reserve_of(directory: Path, settings: StorageSettings = SETTINGS) -> SpaceReserve:
    """The reserve of a directory."""
    return SpaceReserve(FaultyFiles(), directory, settings)


def names(directory: Path) -> list[str]:
    """Names of all that is in the directory."""
    return sorted(path.name for path in directory.iterdir())


def test_reserve_takes_its_bytes_from_the_disk_where_the_node_stays_above_its_mark(
    tmp_path: Path,
) -> None:
    """GAP-13: made with a quarter of the mark to spare, once; a byte less is too little."""
    reserve = reserve_of(tmp_path)
    reserve.restore(ROOM - 1)
    assert names(tmp_path) == []
    reserve.restore(ROOM)
    assert names(tmp_path) == [RESERVE_NAME]
    facts = (tmp_path / RESERVE_NAME).stat()
    assert facts.st_size == WANTED == reserve.kept_bytes
    assert facts.st_blocks * 512 >= WANTED, "no hole: its blocks are taken"
    reserve.restore(0)
    assert names(tmp_path) == [RESERVE_NAME], "a full disk is what it is for"
    assert (tmp_path / RESERVE_NAME).stat().st_ino == facts.st_ino


@pytest.mark.parametrize("wanted", [0, WANTED // 2, 2 * WANTED])
def test_other_size_in_the_settings_replaces_the_file(tmp_path: Path, wanted: int) -> None:
    """The space of the old one counts as free; none is made where none is wanted."""
    reserve_of(tmp_path).restore(ROOM)
    reserve = reserve_of(tmp_path, replace(SETTINGS, reserve_bytes=wanted))
    reserve.restore(ROOM)
    assert names(tmp_path) == ([RESERVE_NAME] if wanted else [])
    assert reserve.kept_bytes == wanted


@pytest.mark.parametrize(("method", "name"), [("sync", "reserve.new"), ("rename", RESERVE_NAME)])
def test_reserve_that_cannot_be_made_leaves_nothing(tmp_path: Path, method: str, name: str) -> None:
    """Another program was faster: the next look tries again, and the node goes on meanwhile."""
    ops = FaultyFiles()
    reserve = SpaceReserve(ops, tmp_path, SETTINGS)
    ops.fail(method, name, errno.ENOSPC)
    reserve.restore(ROOM)
    assert (names(tmp_path), reserve.kept_bytes) == ([], 0)
    (tmp_path / "reserve.new").write_bytes(b"left by a kill")
    reserve.restore(ROOM)
    assert (names(tmp_path), reserve.kept_bytes) == ([RESERVE_NAME], WANTED)


def test_look_says_what_is_there(tmp_path: Path) -> None:
    """Somebody may remove it to help himself: the next look makes it again."""
    ops = FaultyFiles()
    ops.free = ROOM
    space = FreeSpace(ops, tmp_path, SpaceReserve(ops, tmp_path, SETTINGS))
    space.look_and_restore()
    assert space.reserve.kept_bytes == WANTED
    (tmp_path / RESERVE_NAME).unlink()
    space.look()
    assert space.reserve.kept_bytes == 0
    space.look_and_restore()
    assert space.reserve.kept_bytes == WANTED


class SmallDisk(FaultyFiles):
    """A disk on which nothing is free but what a reserve gave back."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.reserve = directory / RESERVE_NAME
        self.size = 0

    def free_bytes(self, directory: Path) -> int:
        """All of the disk without the reserve."""
        del directory
        return self.size - (self.reserve.stat().st_size if self.reserve.exists() else 0)


def test_gap_13_start_on_a_full_disk_removes_the_reserve(tmp_path: Path) -> None:
    """It says so; and it is not removed where that would not be enough: then it waits as before."""
    directory = tmp_path / "data"
    settings = replace(SMALL, reserve_bytes=FREE_BYTES_MIN)
    open_store(directory, "n1", settings, free_bytes_min=0).close(is_clean=True)
    disk = SmallDisk(directory)
    SpaceReserve(disk, directory, settings).restore(2 * FREE_BYTES_MIN + (1 << 40))
    disk.size = FREE_BYTES_MIN - 1
    with pytest.raises(DiskFullError, match="-1 bytes free, 33554432 are needed to start"):
        open_store(directory, "n1", settings, ops=disk)
    assert disk.reserve.exists(), "it would be gone for nothing"
    disk.size = FREE_BYTES_MIN
    store = open_store(directory, "n1", settings, ops=disk)
    assert not disk.reserve.exists()
    assert any("the reserve of 33554432 bytes was removed" in note for note in store.notes)
    assert (store.space.newest, store.space.reserve.kept_bytes) == (FREE_BYTES_MIN, 0)
    store.close(is_clean=True)
    store = open_store(directory, "n1", settings, ops=disk)
    assert not any("reserve" in note for note in store.notes), "said once"
    store.close(is_clean=True)


def test_start_with_space_leaves_the_reserve_alone(tmp_path: Path) -> None:
    """It is for the worst day."""
    directory = tmp_path / "data"
    settings = replace(SMALL, reserve_bytes=FREE_BYTES_MIN)
    open_store(directory, "n1", settings, free_bytes_min=0).close(is_clean=True)
    disk = SmallDisk(directory)
    SpaceReserve(disk, directory, settings).restore(1 << 40)
    disk.size = 2 * FREE_BYTES_MIN
    store = open_store(directory, "n1", settings, ops=disk)
    assert disk.reserve.exists()
    assert store.space.reserve.kept_bytes == FREE_BYTES_MIN
    store.close(is_clean=True)
