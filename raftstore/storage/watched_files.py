"""File operations that note what they are at, so that one that hangs is found (S0.4)."""

from __future__ import annotations

from pathlib import Path

from raftstore.storage.files import FileOps
from raftstore.storage.presence import Place
from raftstore.storage.stalls import Area, Operation, StallWatch


class WatchedFileOps(FileOps):
    """Others, each of them noted while it is under way."""

    def __init__(self, ops: FileOps, watch: StallWatch) -> None:
        self._ops = ops
        self._watch = watch
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, flags: int) -> int:
        """Open, and remember what."""
        with self._doing("open", path):
            descriptor = self._ops.open(path, flags)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write some of ``data``; return how much."""
        with self._doing("write", self._path(descriptor)):
            return self._ops.write(descriptor, data)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Write some of ``data`` at ``offset``; return how much."""
        with self._doing("pwrite", self._path(descriptor)):
            return self._ops.pwrite(descriptor, data, offset)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read at most ``size`` bytes at ``offset``."""
        with self._doing("pread", self._path(descriptor)):
            return self._ops.pread(descriptor, size, offset)

    def datasync(self, descriptor: int) -> None:
        """Make the content (and a new length) of the file durable."""
        with self._doing("fdatasync", self._path(descriptor)):
            self._ops.datasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut or extend the file."""
        with self._doing("ftruncate", self._path(descriptor)):
            self._ops.truncate(descriptor, size)

    def allocate(self, descriptor: int, size: int) -> None:
        """Make the file ``size`` bytes long, all of them taken from the disk now."""
        with self._doing("fallocate", self._path(descriptor)):
            self._ops.allocate(descriptor, size)

    def forget_cached(self, descriptor: int) -> None:
        """Drop clean pages, so that the next read comes from the disk."""
        with self._doing("fadvise", self._path(descriptor)):
            self._ops.forget_cached(descriptor)

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        with self._doing("close", self._path(descriptor)):
            self._paths.pop(descriptor, None)
            self._ops.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one file system, replacing the target."""
        with self._doing("rename", target):
            self._ops.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        with self._doing("unlink", path):
            self._ops.unlink(path)

    def make_directory(self, path: Path, *, may_exist: bool = False) -> None:
        """Create a directory in one that exists."""
        with self._doing("mkdir", path):
            self._ops.make_directory(path, may_exist=may_exist)

    def names(self, directory: Path) -> list[str]:
        """Names of what is in the directory, in no order."""
        with self._doing("readdir", directory):
            return self._ops.names(directory)

    def exists(self, path: Path) -> bool:
        """Whether anything has this name."""
        with self._doing("stat", path):
            return self._ops.exists(path)

    def is_directory(self, path: Path) -> bool:
        """Whether a directory has this name."""
        with self._doing("stat", path):
            return self._ops.is_directory(path)

    def size_bytes(self, path: Path) -> int:
        """Length of a file."""
        with self._doing("stat", path):
            return self._ops.size_bytes(path)

    def place(self, path: Path, descriptor: int) -> Place:
        """The path and what ``descriptor`` has open."""
        with self._doing("fstat", path):
            return self._ops.place(path, descriptor)

    def free_bytes(self, directory: Path) -> int:
        """Bytes an ordinary user may still write to the directory's file system."""
        with self._doing("statvfs", directory):
            return self._ops.free_bytes(directory)

    def sync_directory(self, directory: Path) -> None:
        """Make created, renamed and removed names of the directory durable."""
        with self._doing("fsync of the directory", directory):
            self._ops.sync_directory(directory)

    def _path(self, descriptor: int) -> Path:
        return self._paths.get(descriptor, _UNKNOWN)

    def _doing(self, call: str, path: Path) -> Operation:
        return self._watch.doing(Area.LOG, call, path)


_UNKNOWN = Path("?")
