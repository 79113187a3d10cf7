"""Segment files by themselves: one that grows, those that are read, and how many are open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raftstore.storage.files import FileOps
from raftstore.storage.log.index import position_of
from raftstore.storage.log.segments import (
    OPEN_FILES_MAX,
    READ_AHEAD_BYTES,
    SegmentReader,
    SegmentWriter,
    list_segments,
    segment_path,
)
from tests.noting_files import NotingFiles

FIRST = "0000000000000001.log"
SECOND = "0000000000000002.log"
THIRD = "0000000000000003.log"


@pytest.fixture
def files() -> NotingFiles:
    """Real files that note what is done to them."""
    return NotingFiles()


def test_segments_are_listed_by_number_and_nothing_else_is(tmp_path: Path) -> None:
    """Given whatever else an operator or an interrupted start left in the directory."""
    for number in (10, 2, 300):
        segment_path(tmp_path, number).touch()
    for name in ("1.log", "0000000000000004.log.new", "x0000000000000005.log", "notes"):
        (tmp_path / name).touch()
    assert list_segments(FileOps(), tmp_path) == [2, 10, 300]


def test_new_segment_is_durable_before_it_is_used(tmp_path: Path, files: NotingFiles) -> None:
    """The one before it is synced and closed first; then the header, then the name."""
    segment_path(tmp_path, 2).write_bytes(b"before")
    writer = SegmentWriter(files, tmp_path)
    writer.resume(2)
    writer.write(b" and behind")
    assert writer.place == files.place(tmp_path / SECOND, min(files.opened))
    writer.start(3, b"header")
    assert files.changes == [
        f"sync {SECOND}",
        f"create {THIRD}",
        f"sync {THIRD}",
        f"sync {tmp_path.name}/",
    ]
    assert list(files.opened.values()) == [THIRD]
    assert writer.place == files.place(tmp_path / THIRD, min(files.opened))
    writer.write(b", entry")
    writer.sync()
    assert files.changes[4:] == [f"sync {THIRD}"]
    writer.close()
    writer.close()
    assert files.opened == {}
    assert (tmp_path / SECOND).read_bytes() == b"before and behind"
    assert (tmp_path / THIRD).read_bytes() == b"header, entry"
    again = SegmentWriter(files, tmp_path)
    again.resume(2)
    with pytest.raises(FileExistsError):
        again.start(3, b"again")
    again.close()


def test_writer_that_opened_nothing_has_nothing_to_close(
    tmp_path: Path, files: NotingFiles
) -> None:
    """A descriptor of somebody else must not be closed for it; nothing is synced before a file."""
    writer = SegmentWriter(files, tmp_path)
    writer.close()
    writer.start(1, b"header")
    assert files.changes[0] == f"create {FIRST}"
    writer.close()


class Reads(NotingFiles):
    """Notes (file, offset, size) of each read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[str, int, int]] = []

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self.read.append((self.opened[descriptor], offset, size))
        return super().pread(descriptor, size, offset)


def test_neighbours_are_read_together(tmp_path: Path) -> None:
    """One read for entries that stand beside each other, and another one for what is outside."""
    data = os.urandom(READ_AHEAD_BYTES + 100)
    for number in (2, 3):
        segment_path(tmp_path, number).write_bytes(data)
    files = Reads()
    reader = SegmentReader(files, tmp_path)

    def read(segment: int, offset: int, size: int) -> bool:
        before = len(files.read)
        assert reader.read(position_of(segment, offset), size) == data[offset : offset + size]
        return len(files.read) > before

    assert read(2, 50, 10)
    assert not read(2, 50, 10)
    assert not read(2, 60, 40)
    assert not read(2, 49 + READ_AHEAD_BYTES, 1)
    assert read(2, 49 + READ_AHEAD_BYTES, 2)
    assert read(2, 49, 1)
    assert read(3, 49, 1)
    assert read(2, 0, READ_AHEAD_BYTES + 1)
    assert read(3, READ_AHEAD_BYTES + 90, 20)
    assert files.read[0] == (SECOND, 50, READ_AHEAD_BYTES)
    assert files.read[4] == (SECOND, 0, READ_AHEAD_BYTES + 1)
    reader.close()
    assert files.opened == {}


def test_start_of_the_first_segment_is_read_from_the_file(tmp_path: Path) -> None:
    """A reader that has read nothing has nothing to give."""
    segment_path(tmp_path, 0).write_bytes(b"zero")
    assert SegmentReader(FileOps(), tmp_path).read(position_of(0, 0), 4) == b"zero"
    assert SegmentReader(FileOps(), tmp_path).read(position_of(0, 1), 9) == b"ero"


def test_open_files_are_bounded_by_those_used_last(tmp_path: Path) -> None:
    """The one that was not read for the longest time is closed, one for each new one."""
    for number in range(OPEN_FILES_MAX + 2):
        segment_path(tmp_path, number).write_bytes(b"%04d" % number)
    files = NotingFiles()
    reader = SegmentReader(files, tmp_path)
    for number in range(OPEN_FILES_MAX):
        assert reader.read(position_of(number, 0), 4) == b"%04d" % number
    assert len(files.opened) == OPEN_FILES_MAX
    assert reader.read(position_of(0, 0), 4) == b"0000"
    for number in (OPEN_FILES_MAX, OPEN_FILES_MAX + 1):
        reader.read(position_of(number, 0), 4)
    names = [segment_path(tmp_path, number).name for number in (*range(3, OPEN_FILES_MAX + 2), 0)]
    assert sorted(files.opened.values()) == sorted(names)
    reader.close()
    assert files.opened == {}
