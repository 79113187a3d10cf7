"""Every file operation of the log, the mark and the marker, behind one object that tests replace.

Nothing here retries: an error is translated once, with the file it happened to, and its caller
gives up the store (S0.4). Thread-safe as far as the operating system is: the object has no state.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from raftstore.errors import DiskFullError, PersistError, StorageError
from raftstore.storage.presence import Place, place_of

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Only the user that runs the node reads rows, whatever the umask is."""
READ_BYTES: Final = 1 << 24
"""Read of a whole file at once."""
DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)


class FileOps:
    """The system calls the store makes; a fault injector overrides single methods."""

    is_read_only = False
    """Nothing on the disk may change (``raftstore.storage.stopped.read_only_files``)."""

    def open(self, path: Path, flags: int) -> int:
        """Open without following a retry or creating parents."""
        return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write some of ``data``; return how much."""
        return os.write(descriptor, data)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Write some of ``data`` at ``offset``; return how much."""
        return os.pwrite(descriptor, data, offset)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read at most ``size`` bytes at ``offset``."""
        return os.pread(descriptor, size, offset)

    def datasync(self, descriptor: int) -> None:
        """Make the content (and a new length) of the file durable."""
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut or extend the file."""
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, size: int) -> None:
        """Make the file ``size`` bytes long, all of them taken from the disk now."""
        os.posix_fallocate(descriptor, 0, size)

    def forget_cached(self, descriptor: int) -> None:
        """Drop clean pages, so that the next read comes from the disk.

        After a failed fsync Linux keeps pages in memory that never reached the disk and calls them
        clean; a restarted process would read them back as if they were durable.
        """
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one file system, replacing the target."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def make_directory(self, path: Path, *, may_exist: bool = False) -> None:
        """Create a directory in one that exists."""
        path.mkdir(DIRECTORY_MODE, exist_ok=may_exist)

    def names(self, directory: Path) -> list[str]:
        """Names of what is in the directory, in no order."""
        return os.listdir(directory)  # noqa: PTH208 - names, not paths

    def exists(self, path: Path) -> bool:
        """Whether anything has this name."""
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        """Whether a directory has this name."""
        return path.is_dir()

    def size_bytes(self, path: Path) -> int:
        """Length of a file."""
        return path.stat().st_size

    def place(self, path: Path, descriptor: int) -> Place:
        """The path and what ``descriptor`` has open."""
        return place_of(path, descriptor)

    def free_bytes(self, directory: Path) -> int:
        """Bytes an ordinary user may still write to the directory's file system."""
        facts = os.statvfs(directory)
        return facts.f_bavail * facts.f_frsize

    def write_all(self, descriptor: int, data: bytes) -> None:
        """Write all of ``data`` at the descriptor's position."""
        view = memoryview(data)
        while view:
            view = view[self.write(descriptor, view) :]

    def pwrite_all(self, descriptor: int, data: bytes, offset: int) -> None:
        """Write all of ``data`` at ``offset``."""
        view = memoryview(data)
        while view:
            written = self.pwrite(descriptor, view, offset)
            view = view[written:]
            offset += written

    def sync_directory(self, directory: Path) -> None:
        """Make created, renamed and removed names of the directory durable."""
        descriptor = self.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            self.close(descriptor)

    def read_file(self, path: Path) -> bytes:
        """Return the whole content as it is on the disk, made durable first.

        What an earlier process wrote but did not sync becomes durable here; what it failed to sync
        is dropped from memory (see ``forget_cached``). Only then may it be believed.
        """
        descriptor = self.open(path, os.O_RDWR)
        try:
            self.datasync(descriptor)
            self.forget_cached(descriptor)
            return self._read_all(descriptor)
        finally:
            self.close(descriptor)

    def read_unsynced(self, path: Path) -> bytes:
        """Return the whole content as the system shows it, durable or not."""
        descriptor = self.open(path, os.O_RDONLY)
        try:
            return self._read_all(descriptor)
        finally:
            self.close(descriptor)

    def read_start(self, path: Path, size: int) -> bytes:
        """Return the first ``size`` bytes as the system shows them; fewer if there are fewer."""
        descriptor = self.open(path, os.O_RDONLY)
        try:
            return self.pread(descriptor, size, 0)
        finally:
            self.close(descriptor)

    def _read_all(self, descriptor: int) -> bytes:
        parts = []
        offset = 0
        while part := self.pread(descriptor, READ_BYTES, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def create_file(self, path: Path, data: bytes) -> None:
        """Create a file that must not exist, durable with its name when this returns."""
        descriptor = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self.write_all(descriptor, data)
            self.datasync(descriptor)
        finally:
            self.close(descriptor)
        self.sync_directory(path.parent)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Replace the whole content atomically and durably: write aside, sync, rename, sync."""
        aside = path.with_name(path.name + ".new")
        descriptor = self.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write_all(descriptor, data)
            self.datasync(descriptor)
        finally:
            self.close(descriptor)
        self.rename(aside, path)
        self.sync_directory(path.parent)


@contextmanager
def starting(path: Path, doing: str) -> Iterator[None]:
    """Translate OSError while a store is being opened: a full disk can be waited out there."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise DiskFullError(
                f"no space left on the disk of {path} while {doing}; free some space, "
                "the node starts by itself then"
            ) from error
        raise StorageError(
            f"{doing} failed on {path}: {error.strerror or error}; check the disk and its "
            "permissions, then start the node again"
        ) from error


@contextmanager
def persisting(path: Path, doing: str) -> Iterator[None]:
    """Translate OSError of a running store: outcome unknown, nothing is retried (S0.4)."""
    try:
        yield
    except OSError as error:
        raise PersistError(
            f"{doing} failed on {path}: {error.strerror or error}; the node stops, "
            "what was written last is unknown until it starts again"
        ) from error
