"""Real files that note what is done to them, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

from raftstore.storage.files import FileOps


class NotingFiles(FileOps):
    """Real files that note each change with its file, in order; and what is open."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.reads: list[str] = []
        self.opened: dict[int, str] = {}

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self.opened[descriptor] = path.name
        if flags & os.O_CREAT:
            self.changes.append(f"create {path.name}")
        return descriptor

    def close(self, descriptor: int) -> None:
        del self.opened[descriptor]
        super().close(descriptor)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self.changes.append(f"write {self.opened[descriptor]} at {offset}")
        return super().pwrite(descriptor, data, offset)

    def datasync(self, descriptor: int) -> None:
        self.changes.append(f"sync {self.opened[descriptor]}")
        super().datasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        self.changes.append(f"cut {self.opened[descriptor]} at {size}")
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self.changes.append(f"rename {source.name} {target.name}")
        super().rename(source, target)

    def make_directory(self, path: Path, *, may_exist: bool = False) -> None:
        self.changes.append(f"make {path.name}")
        super().make_directory(path, may_exist=may_exist)

    def sync_directory(self, directory: Path) -> None:
        super().sync_directory(directory)
        self.changes.append(f"sync {directory.name}/")

    def read_file(self, path: Path) -> bytes:
        self.reads.append(f"synced {path.name}")
        return super().read_file(path)

    def read_unsynced(self, path: Path) -> bytes:
        self.reads.append(path.name)
        return super().read_unsynced(path)
