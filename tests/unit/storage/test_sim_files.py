"""Simulated files do what real ones do, and lose in a crash only what a disk may lose."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from raftstore.storage.files import FileOps
from raftstore.testing.sim_files import PAGE_BYTES, ProcessEndedError, SimFiles

ROOT = Path("/disk")


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileOps, Path]:
    """File operations and an empty directory."""
    if request.param == "real":
        return FileOps(), tmp_path
    return SimFiles(random.Random(0), tmp_path), tmp_path


def test_files_are_written_read_cut_and_renamed_alike(disk: tuple[FileOps, Path]) -> None:
    """Both implementations of files create, append, overwrite, rename and list alike, as far as the
    log relies on it.
    """
    ops, root = disk
    ops.make_directory(root / "log")
    ops.create_file(root / "log" / "a", b"0123456789")
    with pytest.raises(FileExistsError):
        ops.create_file(root / "log" / "a", b"")
    descriptor = ops.open(root / "log" / "a", os.O_WRONLY | os.O_APPEND)
    ops.write_all(descriptor, b"ab")
    ops.close(descriptor)
    descriptor = ops.open(root / "log" / "a", os.O_RDWR)
    ops.pwrite_all(descriptor, b"X", 3)
    ops.pwrite_all(descriptor, b"end", 20)
    assert ops.pread(descriptor, 5, 1) == b"12X45"
    ops.truncate(descriptor, 22)
    ops.datasync(descriptor)
    first = ops.place(root / "log" / "a", descriptor)
    ops.close(descriptor)
    assert ops.read_file(root / "log" / "a") == b"012X456789ab" + bytes(8) + b"en"
    assert ops.read_unsynced(root / "log" / "a") == ops.read_file(root / "log" / "a")
    assert ops.read_start(root / "log" / "a", 4) == b"012X"
    assert ops.size_bytes(root / "log" / "a") == 22
    ops.replace_file(root / "log" / "a", b"new")
    descriptor = ops.open(root / "log" / "a", os.O_RDONLY)
    assert ops.place(root / "log" / "a", descriptor)[1:] != first[1:]
    ops.close(descriptor)
    assert ops.names(root / "log") == ["a"]
    ops.unlink(root / "log" / "a")
    assert not ops.exists(root / "log" / "a")
    assert ops.is_directory(root / "log")
    with pytest.raises(FileNotFoundError):
        ops.open(root / "log" / "a", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        ops.names(root / "none")
    with pytest.raises(FileExistsError):
        ops.make_directory(root / "log")
    ops.make_directory(root / "log", may_exist=True)


def written(files: SimFiles, data: bytes, name: str = "a") -> int:
    """A durable file, open for appending."""
    files.create_file(files.root / name, data)
    return files.open(files.root / name, os.O_WRONLY | os.O_APPEND)


def test_power_loss_takes_what_was_not_synced_in_every_way() -> None:
    """None, all, a torn end, or pages with holes between them: never what was synced."""
    found: set[str] = set()
    pages = [bytes([n]) * PAGE_BYTES for n in range(1, 5)]
    for seed in range(60):
        files = SimFiles(random.Random(seed), ROOT)
        descriptor = written(files, b"durable")
        files.write_all(descriptor, b"".join(pages))
        files.lose_power()
        left = files.read_unsynced(ROOT / "a")
        assert left[:7] == b"durable"
        whole = b"durable" + b"".join(pages)
        if left in (b"durable", whole):
            found.add("none" if left == b"durable" else "all")
        else:
            found.add("torn" if whole.startswith(left) else "hole")
    assert found == {"none", "all", "torn", "hole"}


def test_process_that_ends_loses_nothing_it_wrote() -> None:
    """kill -9: the system has it; but what ended within a write has written a part of it."""
    parts: set[int] = set()
    for seed in range(20):
        files = SimFiles(random.Random(seed), ROOT)
        descriptor = written(files, b"durable")
        files.write_all(descriptor, b"more")
        files.end_after(0)
        with pytest.raises(ProcessEndedError):
            files.write_all(descriptor, b"12345")
        files.end_process()
        left = files.read_unsynced(ROOT / "a")
        assert b"durablemore12345".startswith(left)
        assert left.startswith(b"durablemore")
        parts.add(len(left))
    assert len(parts) > 3


def test_name_is_lost_with_the_power_until_its_directory_is_synced() -> None:
    """A file that is synced and whose name is not is gone; so is one below a lost directory."""
    lost = 0
    for seed in range(20):
        files = SimFiles(random.Random(seed), ROOT)
        files.make_directory(ROOT / "log")
        files.create_file(ROOT / "log" / "a", b"1")
        files.lose_power()
        lost += not files.exists(ROOT / "log" / "a")
    assert 0 < lost < 20
    files.make_directory(ROOT / "log", may_exist=True)
    files.sync_directory(ROOT)
    files.replace_file(ROOT / "log" / "b", b"2")
    for _ in range(5):
        files.lose_power()
        assert files.read_unsynced(ROOT / "log" / "b") == b"2"


def test_failed_sync_leaves_pages_that_only_look_durable() -> None:
    """As on Linux: they are read until they are dropped, and no later sync saves them."""
    survived: set[bool] = set()
    for seed in range(20):
        files = SimFiles(random.Random(seed), ROOT)
        descriptor = written(files, b"durable")
        files.write_all(descriptor, b"more")
        files.fail("sync")
        with pytest.raises(OSError, match="Input/output") as error:
            files.datasync(descriptor)
        assert error.value.errno == errno.EIO
        files.end_process()
        assert files.read_unsynced(ROOT / "a") == b"durablemore"
        left = files.read_file(ROOT / "a")
        assert left in (b"durablemore", b"durable" + bytes(4))
        files.lose_power()
        assert files.read_unsynced(ROOT / "a") == left
        survived.add(left == b"durablemore")
    assert survived == {True, False}


def test_error_strikes_the_chosen_operation_once_or_for_good() -> None:
    """After so many operations of any kind; a read is none of them."""
    files = SimFiles(random.Random(0), ROOT)
    descriptor = written(files, b"")

    def outcome(call: Any, *arguments: Any) -> int:
        try:
            call(*arguments)
        except OSError as error:
            return error.errno or 0
        return 0

    files.fail("write", after=2)
    assert [outcome(files.write, descriptor, b"x") for _ in range(4)] == [0, 0, errno.EIO, 0]
    assert (files.struck, files.is_failing) == (1, False)
    files.fail("write", code=errno.ENOSPC, is_lasting=True)
    assert [outcome(files.write, descriptor, b"x") for _ in range(2)] == [errno.ENOSPC] * 2
    assert outcome(files.datasync, descriptor) == 0
    assert (files.is_broken, files.free_bytes(ROOT)) == (True, 0)
    files.mend()
    assert outcome(files.write, descriptor, b"x") == 0
