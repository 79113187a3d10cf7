"""Segment files: where the entries of ``raftstore.storage.log.records`` live.

``log/0000000000000001.log``, ``…2.log``, …: numbers without gaps, each file starting with a SEGMENT
entry that continues the chain of the file before it. Only the last file grows.

``SegmentWriter`` belongs to the log writer thread, ``SegmentReader`` to the loop thread; they share
no descriptor.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from pathlib import Path
from typing import Final

from raftstore.config import KIB
from raftstore.errors import PromisesLostError
from raftstore.storage.files import FileOps
from raftstore.storage.identity import PROMISES_REMEDY
from raftstore.storage.log.index import offset_of, segment_of
from raftstore.storage.log.mark import MARK_NAME
from raftstore.storage.presence import Place

LOG_DIRECTORY: Final = "log"
READ_AHEAD_BYTES: Final = 64 * KIB
"""Neighbouring small entries are read together."""
OPEN_FILES_MAX: Final = 64

_NAME: Final = re.compile(r"^(\d{16})\.log$")


def segment_path(directory: Path, number: int) -> Path:
    """Return the file of segment ``number``."""
    return directory / f"{number:016d}.log"


def list_segments(ops: FileOps, directory: Path) -> list[int]:
    """Return the numbers of the segment files, ascending."""
    matches = (_NAME.match(name) for name in ops.names(directory))
    return sorted(int(match[1]) for match in matches if match)


def check_pieces(ops: FileOps, directory: Path) -> None:
    """S0.2: data without its vote record, or the reverse, is refused."""
    log = directory / LOG_DIRECTORY
    has_log = ops.is_directory(log) and bool(list_segments(ops, log))
    has_mark = ops.exists(directory / MARK_NAME)
    if has_log and has_mark:
        return
    lost = "log" if has_mark else "mark" if has_log else "log and mark"
    raise PromisesLostError(
        f"the {lost} of {directory} is missing: what this node promised under its id is not "
        f"known any more (S0.2); {PROMISES_REMEDY}"
    )


class SegmentWriter:
    """Appends to the last segment and starts new ones. Every OSError passes through (S0.4)."""

    def __init__(self, ops: FileOps, directory: Path) -> None:
        self._ops = ops
        self._directory = directory
        self._descriptor = -1
        self._number = 0
        self.place: Place
        """Of the segment that is written; replaced as a whole, so any thread may read it."""

    def resume(self, number: int) -> None:
        """Continue behind the end of an existing segment."""
        self._number = number
        path = segment_path(self._directory, number)
        self._descriptor = self._ops.open(path, os.O_WRONLY | os.O_APPEND)
        self.place = self._ops.place(path, self._descriptor)

    def start(self, number: int, header: bytes) -> None:
        """Sync the last segment, then create the next, durable with its name before any use."""
        assert number == self._number + 1, f"segment {number} behind {self._number}: a gap (S0.3)"
        self._number = number
        if self._descriptor >= 0:
            self._ops.datasync(self._descriptor)
        self.close()
        path = segment_path(self._directory, number)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._descriptor = self._ops.open(path, flags)
        self._ops.write_all(self._descriptor, header)
        self._ops.datasync(self._descriptor)
        self._ops.sync_directory(self._directory)
        self.place = self._ops.place(path, self._descriptor)

    def write(self, data: bytes) -> None:
        """Append bytes; durable after ``sync``."""
        self._ops.write_all(self._descriptor, data)

    def sync(self) -> None:
        """Make everything written durable."""
        self._ops.datasync(self._descriptor)

    def close(self) -> None:
        """Close the file; nothing more is synced."""
        if self._descriptor >= 0:
            self._ops.close(self._descriptor)
            self._descriptor = -1


class SegmentReader:
    """Reads parts of segments by position. Every OSError passes through."""

    def __init__(self, ops: FileOps, directory: Path) -> None:
        self._ops = ops
        self._directory = directory
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        self._block = b""
        self._block_segment = 0
        self._block_start = 0

    def read(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes at ``position``; fewer when the file ends before."""
        segment, offset = segment_of(position), offset_of(position)
        start = offset - self._block_start
        if segment == self._block_segment and start >= 0 and start + size <= len(self._block):
            return self._block[start : start + size]
        data = self._ops.pread(self._open(segment), max(size, READ_AHEAD_BYTES), offset)
        self._block, self._block_segment, self._block_start = data, segment, offset
        return data[:size]

    def forget_below(self, segment: int) -> None:
        """Close files of segments that are to be removed: the space of an open one stays taken."""
        for number in [number for number in self._descriptors if number < segment]:
            self._ops.close(self._descriptors.pop(number))
        if self._block_segment < segment:
            self._block, self._block_segment = b"", 0

    def close(self) -> None:
        """Close all files."""
        while self._descriptors:
            self._ops.close(self._descriptors.popitem()[1])

    def _open(self, segment: int) -> int:
        descriptor = self._descriptors.get(segment)
        if descriptor is None:
            if len(self._descriptors) >= OPEN_FILES_MAX:
                self._ops.close(self._descriptors.popitem(last=False)[1])
            descriptor = self._ops.open(segment_path(self._directory, segment), os.O_RDONLY)
            self._descriptors[segment] = descriptor
        else:
            self._descriptors.move_to_end(segment)
        return descriptor
