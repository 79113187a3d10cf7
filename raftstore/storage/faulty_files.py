"""File operations that meet the disk faults a test asks for (``raftstore.faults``)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from raftstore.faults import Injector
from raftstore.storage.files import FileOps

UNSYNCED_SUFFIX: Final = ".unsynced"
"""Beside the control file: if it exists at the start, it is kept (see ``UnsyncedJournal``)."""


class UnsyncedJournal:
    """Bytes written and not synced yet, so that a test can take them away again.

    A killed process leaves everything it wrote; a machine without power does not. Before each write
    a line says where it goes and what was there, ``{"path", "at", "size", "length", "old"}``, and
    after each sync ``{"synced": path}``. Truncations, new names and removed ones count as durable.
    Appended to by the log writer's and the mark's thread: one line is one write.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def writing(self, path: Path, at: int, length: int) -> None:
        """Call before ``length`` bytes are written at ``at``."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            old = os.pread(descriptor, length, at)
        finally:
            os.close(descriptor)
        self._tell({"path": str(path), "at": at, "size": size, "length": length, "old": old.hex()})

    def synced(self, path: Path) -> None:
        """Call after everything written so far is durable."""
        self._tell({"synced": str(path)})

    def _tell(self, line: dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


class FaultyFileOps(FileOps):
    """The real ones, after asking the injector."""

    def __init__(self, injector: Injector) -> None:
        self._injector = injector
        self._paths: dict[int, Path] = {}
        path = injector.beside(UNSYNCED_SUFFIX)
        self._journal = UnsyncedJournal(path) if path.exists() else None

    def open(self, path: Path, flags: int) -> int:
        """Open, and remember what."""
        descriptor = super().open(path, flags)
        self._paths[descriptor] = path.absolute()
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write unless the disk shall be full or broken."""
        self._injector.before_write()
        if self._journal is not None:
            # A write without an offset is at the start of a file just opened, or appends.
            at = os.fstat(descriptor).st_size
            self._journal.writing(self._paths[descriptor], at, len(data))
        return super().write(descriptor, data)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Write unless the disk shall be full or broken."""
        self._injector.before_write()
        if self._journal is not None:
            self._journal.writing(self._paths[descriptor], offset, len(data))
        return super().pwrite(descriptor, data, offset)

    def datasync(self, descriptor: int) -> None:
        """Sync late, or not at all."""
        self._injector.before_sync()
        super().datasync(descriptor)
        if self._journal is not None:
            self._journal.synced(self._paths[descriptor])

    def allocate(self, descriptor: int, size: int) -> None:
        """Take space unless the disk shall be full or broken."""
        self._injector.before_write()
        super().allocate(descriptor, size)

    def free_bytes(self, directory: Path) -> int:
        """Nothing on a disk that shall be full."""
        return 0 if self._injector.orders().is_full else super().free_bytes(directory)
