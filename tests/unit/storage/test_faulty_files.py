"""Files that meet ordered faults, and the journal by which a test takes away what no sync kept."""

from __future__ import annotations

import errno
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raftstore.faults import Injector
from raftstore.storage.faulty_files import UNSYNCED_SUFFIX, FaultyFileOps


class Disk:
    """A directory with one file of ten bytes, and operations that take orders."""

    def __init__(self, directory: Path, *, is_kept: bool) -> None:
        self.control = directory / "control"
        self.journal = directory / f"control{UNSYNCED_SUFFIX}"
        self.path = directory / "file"
        self.path.write_bytes(b"0123456789")
        if is_kept:
            self.journal.write_bytes(b'{"of": "a start before"}\n')
        self.ops = FaultyFileOps(Injector(self.control))

    def order(self, number: int, **orders: Any) -> None:
        """Faults from now on."""
        aside = self.control.with_name("aside")
        aside.write_text(json.dumps({"number": number, **orders}))
        aside.rename(self.control)

    def lines(self) -> list[Any]:
        """Lines of the journal behind what it held before."""
        found = [json.loads(line) for line in self.journal.read_text().splitlines()]
        assert found[0] == {"of": "a start before"}
        return found[1:]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """One whose unsynced bytes are kept."""
    return Disk(tmp_path, is_kept=True)


def open_files() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_bytes_that_are_overwritten_are_kept_until_they_are_synced(disk: Disk) -> None:
    """Place and former content of each write come before it, and a line after each sync."""
    path = str(disk.path)
    descriptor = disk.ops.open(disk.path, os.O_RDWR)
    before = open_files()
    assert disk.ops.pwrite(descriptor, b"abc", 4) == 3
    assert disk.lines() == [{"path": path, "at": 4, "size": 10, "length": 3, "old": b"456".hex()}]
    disk.ops.datasync(descriptor)
    assert disk.lines()[1:] == [{"synced": path}]
    assert disk.ops.pwrite(descriptor, b"defg", 8) == 4
    assert disk.lines()[2:] == [
        {"path": path, "at": 8, "size": 10, "length": 4, "old": b"89".hex()}
    ]
    assert open_files() == before
    disk.ops.close(descriptor)
    assert disk.path.read_bytes() == b"0123abc7defg"


def test_appended_bytes_are_at_the_end_of_the_file(disk: Disk) -> None:
    """Nothing was there before; the path is reported in full, wherever the process stands."""
    descriptor = disk.ops.open(Path(os.path.relpath(disk.path)), os.O_WRONLY | os.O_APPEND)
    for at, data in ((10, b"ab"), (12, b"c")):
        assert disk.ops.write(descriptor, data) == len(data)
        told = disk.lines()[-1]
        assert Path(told["path"]).resolve() == disk.path
        assert Path(told["path"]).is_absolute()
        assert (told["at"], told["size"], told["length"], told["old"]) == (at, at, len(data), "")
    disk.ops.close(descriptor)
    assert disk.path.read_bytes() == b"0123456789abc"


def test_journal_is_written_where_one_lies_only(tmp_path: Path) -> None:
    """Without it nothing is kept, and the files work all the same."""
    disk = Disk(tmp_path, is_kept=False)
    descriptor = disk.ops.open(disk.path, os.O_WRONLY)
    assert disk.ops.write(descriptor, b"ab") == 2
    assert disk.ops.pwrite(descriptor, b"c", 2) == 1
    disk.ops.datasync(descriptor)
    disk.ops.close(descriptor)
    assert not disk.journal.exists()
    assert disk.path.read_bytes() == b"abc3456789"


@pytest.mark.parametrize("is_appended", [True, False])
def test_full_or_broken_disk_takes_nothing(disk: Disk, is_appended: bool) -> None:
    """No byte is written and no line says so."""
    descriptor = disk.ops.open(disk.path, os.O_WRONLY)
    arguments: tuple[Any, ...] = (descriptor, b"ab") if is_appended else (descriptor, b"ab", 0)
    write = partial(disk.ops.write if is_appended else disk.ops.pwrite, *arguments)
    for number, orders, code in (
        (1, {"is_full": True}, errno.ENOSPC),
        (2, {"fail": "write"}, errno.EIO),
    ):
        disk.order(number, **orders)
        with pytest.raises(OSError, match=re.escape(os.strerror(code))):
            write()
    disk.ops.close(descriptor)
    assert disk.lines() == []
    assert disk.path.read_bytes() == b"0123456789"


def test_failed_sync_keeps_nothing(disk: Disk) -> None:
    """Bytes written before it may be gone after a power cut."""
    descriptor = disk.ops.open(disk.path, os.O_WRONLY)
    disk.ops.pwrite(descriptor, b"a", 0)
    disk.order(1, fail="sync")
    with pytest.raises(OSError, match="Input/output"):
        disk.ops.datasync(descriptor)
    assert len(disk.lines()) == 1
    disk.ops.datasync(descriptor)
    assert disk.lines()[1:] == [{"synced": str(disk.path)}]
    disk.ops.close(descriptor)


def test_free_bytes_are_those_of_the_disk_unless_it_shall_be_full(disk: Disk) -> None:
    """A node looks at them before it takes writes."""
    assert disk.ops.free_bytes(disk.path.parent) > 0
    disk.order(1, is_full=True)
    assert disk.ops.free_bytes(disk.path.parent) == 0
