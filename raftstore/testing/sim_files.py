"""Simulated files: ``raftstore.storage.files.FileOps`` without a disk, for the production log.

A file has what the system shows (``content``) and what is on the disk (``durable``). A write goes
to the first, page by page; a sync takes those pages to the second. Names are durable once their
directory was synced. So there are two ways to end:

* ``end_process`` (kill -9): the system keeps everything it was handed.
* ``lose_power``: of each file survive none, all, a prefix or a random subset of the pages that were
  not synced; of the names that were not synced, those made before a random moment.

An error may strike the n-th operation from now on, once or for good; the process may end within the
n-th, too. A sync that fails leaves pages that the system calls clean and that never reached the
disk, as Linux does: they are read as if they were durable until they are dropped from memory.

Everything is drawn from the generator that is given.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from raftstore.storage.files import FileOps
from raftstore.storage.log.segments import LOG_DIRECTORY
from raftstore.storage.presence import Place

PAGE_BYTES: Final = 4096
FREE_BYTES: Final = 1 << 40

WRITE: Final = "write"
SYNC: Final = "sync"
READ: Final = "read"


class ProcessEndedError(BaseException):
    """The process ended within an operation; nothing that was running here goes on."""


class _File:
    """Pages as the system shows them, and as they are on the disk."""

    __slots__ = ("number", "content", "durable", "dirty", "stale")

    def __init__(self, number: int) -> None:
        self.number = number
        self.content = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()
        """Pages that are not synced."""
        self.stale: set[int] = set()
        """Pages whose sync failed: not on the disk, and clean for the system."""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        content = self.content
        end = offset + len(data)
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset:end] = data
        self.dirty.update(range(offset // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1))

    def truncate(self, size: int) -> None:
        content = self.content
        if size < len(content):
            del content[size:]
            last = (size - 1) // PAGE_BYTES
            self.dirty = {page for page in self.dirty if page <= last}
            self.stale = {page for page in self.stale if page <= last}
        else:
            content.extend(bytes(size - len(content)))

    def sync(self) -> None:
        self.durable = self._with_pages(self.durable, sorted(self.dirty), len(self.content))
        self.dirty.clear()

    def fail_sync(self, rng: random.Random) -> None:
        """Some pages reach the disk; the others are called clean all the same."""
        reached = [page for page in sorted(self.dirty) if rng.random() < 0.5]
        self.stale.update(self.dirty.difference(reached))
        size = max(len(self.durable), self._end_of(reached))
        self.durable = self._with_pages(self.durable, reached, size)
        self.dirty.clear()

    def forget_cached(self) -> None:
        """The next read of a clean page comes from the disk."""
        for page in sorted(self.stale - self.dirty):
            start = page * PAGE_BYTES
            end = min(start + PAGE_BYTES, len(self.content))
            held = bytes(self.durable[start:end])
            self.content[start:end] = held.ljust(end - start, b"\0")
        self.stale.clear()

    def lose_power(self, rng: random.Random) -> None:
        """The pages that survive of those that were not synced."""
        if self.dirty or self.stale or len(self.content) != len(self.durable):
            self.durable = self._survivors(rng)
            self.content = bytearray(self.durable)
            self.dirty.clear()
            self.stale.clear()

    def _survivors(self, rng: random.Random) -> bytearray:
        pages = sorted(self.dirty)
        match rng.randrange(4):
            case 0:
                return self.durable
            case 1:
                return self._with_pages(self.durable, pages, len(self.content))
            case 2 if pages:
                cut = rng.randint(pages[0] * PAGE_BYTES, len(self.content))
                whole = self._with_pages(self.durable[:], pages, len(self.content))
                return whole[:cut] + self.durable[cut:]
            case _:
                kept = [page for page in pages if rng.random() < 0.5]
                size = max(len(self.durable), self._end_of(kept))
                return self._with_pages(self.durable, kept, size)

    def _end_of(self, pages: list[int]) -> int:
        return min((pages[-1] + 1) * PAGE_BYTES, len(self.content)) if pages else 0

    def _with_pages(self, durable: bytearray, pages: list[int], size: int) -> bytearray:
        """``durable`` with these pages of the content, in this length; holes are zeros."""
        del durable[size:]
        for page in pages:
            start = page * PAGE_BYTES
            if start > len(durable):
                durable.extend(bytes(start - len(durable)))
            durable[start : start + PAGE_BYTES] = self.content[start : start + PAGE_BYTES]
        if size > len(durable):
            durable.extend(bytes(size - len(durable)))
        return durable


class _Open(NamedTuple):
    path: Path
    file: _File
    appends: bool
    position: list[int]
    """Where the next write without an offset goes."""


class _Rename(NamedTuple):
    """A change of names that is not durable. ``file`` None: a directory."""

    target: Path
    file: _File | None
    is_removed: bool = False
    source: Path | None = None


class SimFiles(FileOps):
    """The files of one simulated node; they outlive its processes."""

    def __init__(self, rng: random.Random, root: Path) -> None:
        self.root = root
        self.rng = rng
        self._names: dict[Path, _File | None] = {root: None}
        self._durable_names: dict[Path, _File | None] = {root: None}
        self._changes: list[_Rename] = []
        self._open: dict[int, _Open] = {}
        self._created = self._opened = 0
        self._operations = 0
        self._ends_at = 0
        self._failing: str | None = None
        self._fails_at = 0
        self._code = errno.EIO
        self._is_lasting = False
        self.log_bytes_max: int | None = None
        """The disk has room for so many bytes of segments; None: for all. Other files are as large
        as they will be from their creation on."""
        self.overruns = 0
        """Writes for which there was no room."""
        self.is_scarred = False
        """Bytes were damaged, and nothing shows what they were."""
        self.struck = 0
        """Errors that were met."""

    # --- what a test or a world does to the disk --------------------------------------------------

    def fail(
        self, operation: str, *, after: int = 0, code: int = errno.EIO, is_lasting: bool = False
    ) -> None:
        """The next such operation ("write", "sync" or "read") fails once ``after`` operations of
        any kind are done; with ``is_lasting`` all that follow do as well."""
        self._failing, self._fails_at = operation, self._operations + after
        self._code, self._is_lasting = code, is_lasting

    def mend(self) -> None:
        """No error from now on."""
        self._failing = None

    @property
    def is_failing(self) -> bool:
        """Whether an error waits for the next operation, or for each."""
        return self._failing is not None

    @property
    def is_broken(self) -> bool:
        """Whether errors last until ``mend``."""
        return self._failing is not None and self._is_lasting

    def end_after(self, operations: int) -> None:
        """The process ends within the operation after this many; 0: within the next."""
        self._ends_at = self._operations + operations + 1

    def live_on(self) -> None:
        """No end is ordered any more."""
        self._ends_at = 0

    def end_process(self) -> None:
        """Kill -9: what the system was handed stays."""
        self._open.clear()
        self._ends_at = 0

    def lose_power(self) -> None:
        """Keep a part of what was not synced."""
        self.end_process()
        if self._changes:
            for change in self._changes[: self.rng.randint(0, len(self._changes))]:
                _rename(self._durable_names, change)
            self._changes.clear()
        names = self._durable_names
        for path in [path for path in names if path != self.root and path.parent not in names]:
            del names[path]
        self._names = dict(names)
        for file in names.values():
            if file is not None:
                file.lose_power(self.rng)

    def damage(self, path: Path, offset: int, data: bytes) -> None:
        """Other bytes than were written, on the disk and in memory."""
        file = self._file(path)
        file.content[offset : offset + len(data)] = data
        file.durable[offset : offset + len(data)] = data

    def durable_bytes(self, path: Path, offset: int, size: int) -> bytes:
        """Bytes as they are on the disk."""
        return bytes(self._file(path).durable[offset : offset + size])

    def cut(self, path: Path, size: int) -> None:
        """The end of a file is gone."""
        file = self._file(path)
        file.truncate(size)
        del file.durable[size:]

    def clear(self) -> None:
        """The directory is gone, as after a disk was replaced."""
        self._open.clear()
        self._changes.clear()
        self._names, self._durable_names = {self.root: None}, {self.root: None}

    def paths(self) -> Iterator[Path]:
        """Every file, in the order of creation."""
        return (path for path, file in self._names.items() if file is not None)

    # --- FileOps ----------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        """Open without following a retry or creating parents."""
        file = self._names.get(path)
        if path not in self._names:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            self._before(WRITE)
            file = self._create(path)
        elif flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        elif file is None:
            raise _error(errno.EISDIR, path)
        elif flags & os.O_TRUNC:
            self._before(WRITE)
            file.truncate(0)
        assert file is not None
        self._opened += 1
        self._open[self._opened] = _Open(path, file, bool(flags & os.O_APPEND), [0])
        return self._opened

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write all of ``data``; a part of it when it fails."""
        opened = self._open[descriptor]
        at = len(opened.file.content) if opened.appends else opened.position[0]
        self._find_room(opened, at + len(data))
        self._write(opened.file, data, at)
        opened.position[0] = at + len(data)
        return len(data)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Write all of ``data`` at ``offset``; a part of it when it fails."""
        self._find_room(self._open[descriptor], offset + len(data))
        self._write(self._open[descriptor].file, data, offset)
        return len(data)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read at most ``size`` bytes at ``offset``."""
        if self._failing == READ:
            self._before(READ)
        return bytes(self._open[descriptor].file.content[offset : offset + size])

    def datasync(self, descriptor: int) -> None:
        """Make the content (and a new length) of the file durable."""
        file = self._open[descriptor].file
        try:
            self._before(SYNC)
        except OSError:
            file.fail_sync(self.rng)
            raise
        file.sync()

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut or extend the file."""
        self._before(WRITE)
        self._open[descriptor].file.truncate(size)

    def allocate(self, descriptor: int, size: int) -> None:
        """Make the file ``size`` bytes long."""
        self.truncate(descriptor, size)

    def forget_cached(self, descriptor: int) -> None:
        """Drop clean pages, so that the next read comes from the disk."""
        self._open[descriptor].file.forget_cached()

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        self._open.pop(descriptor, None)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one file system, replacing the target."""
        self._before(WRITE)
        self._change(_Rename(target, self._file(source), source=source))

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self._before(WRITE)
        self._change(_Rename(path, self._file(path), is_removed=True))

    def make_directory(self, path: Path, *, may_exist: bool = False) -> None:
        """Create a directory in one that exists."""
        if path in self._names:
            if may_exist and self._names[path] is None:
                return
            raise _error(errno.EEXIST, path)
        self._before(WRITE)
        if path.parent not in self._names:
            raise _error(errno.ENOENT, path)
        self._change(_Rename(path, None))

    def names(self, directory: Path) -> list[str]:
        """Names of what is in the directory, in no order."""
        if directory not in self._names:
            raise _error(errno.ENOENT, directory)
        return [path.name for path in self._names if path.parent == directory]

    def exists(self, path: Path) -> bool:
        """Whether anything has this name."""
        return path in self._names

    def is_directory(self, path: Path) -> bool:
        """Whether a directory has this name."""
        return path in self._names and self._names[path] is None

    def size_bytes(self, path: Path) -> int:
        """Length of a file."""
        return len(self._file(path).content)

    def place(self, path: Path, descriptor: int) -> Place:
        """The path and what ``descriptor`` has open."""
        return Place(path, 0, self._open[descriptor].file.number)

    def free_bytes(self, directory: Path) -> int:
        """Plenty, unless the disk is full, or has little room."""
        del directory
        if self.log_bytes_max is not None:
            return max(0, self.log_bytes_max - self.log_bytes())
        return 0 if self.is_broken and self._code == errno.ENOSPC else FREE_BYTES

    def sync_directory(self, directory: Path) -> None:
        """Make created, renamed and removed names of the directory durable."""
        self._before(SYNC)
        if self._changes:
            done = [change for change in self._changes if change.target.parent == directory]
            for change in done:
                _rename(self._durable_names, change)
            self._changes = [c for c in self._changes if c.target.parent != directory]

    def log_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(
            len(file.content)
            for path, file in self._names.items()
            if file is not None and path.parent.name == LOG_DIRECTORY
        )

    # --- inside -----------------------------------------------------------------------------------

    def _find_room(self, opened: _Open, end: int) -> None:
        """Fail a write that makes a segment longer than the disk has room for."""
        if self.log_bytes_max is None or opened.path.parent.name != LOG_DIRECTORY:
            return
        more = end - len(opened.file.content)
        if more > 0 and self.log_bytes() + more > self.log_bytes_max:
            self.overruns += 1
            raise _error(errno.ENOSPC, opened.path)

    def _before(self, operation: str) -> None:
        """Count an operation, and let it meet what waits for it."""
        self._operations += 1
        if self._operations == self._ends_at:
            raise ProcessEndedError(operation)
        if self._failing == operation and self._operations > self._fails_at:
            if not self._is_lasting:
                self._failing = None
            self.struck += 1
            raise OSError(self._code, os.strerror(self._code))

    def _write(self, file: _File, data: bytes | memoryview, offset: int) -> None:
        try:
            self._before(WRITE)
        except (OSError, ProcessEndedError):
            written = self.rng.randint(0, len(data))
            if written:
                file.write(data[:written], offset)
            raise
        if data:
            file.write(data, offset)

    def _create(self, path: Path) -> _File:
        if path.parent not in self._names:
            raise _error(errno.ENOENT, path)
        self._created += 1
        file = _File(self._created)
        self._change(_Rename(path, file))
        return file

    def _change(self, change: _Rename) -> None:
        _rename(self._names, change)
        self._changes.append(change)

    def _file(self, path: Path) -> _File:
        file = self._names.get(path)
        if file is None:
            raise _error(errno.ENOENT, path)
        return file


def _rename(names: dict[Path, _File | None], change: _Rename) -> None:
    if change.source is not None:
        names.pop(change.source, None)
    if change.is_removed:
        names.pop(change.target, None)
    else:
        names[change.target] = change.file


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
