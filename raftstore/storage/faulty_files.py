"""File operations that meet the disk faults a test asks for (``raftstore.faults``)."""

from __future__ import annotations

from pathlib import Path

from raftstore.faults import Injector
from raftstore.storage.files import FileOps


class FaultyFileOps(FileOps):
    """The real ones, after asking the injector."""

    def __init__(self, injector: Injector) -> None:
        self._injector = injector

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write unless the disk shall be full or broken."""
        self._injector.before_write()
        return super().write(descriptor, data)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Write unless the disk shall be full or broken."""
        self._injector.before_write()
        return super().pwrite(descriptor, data, offset)

    def datasync(self, descriptor: int) -> None:
        """Sync late, or not at all."""
        self._injector.before_sync()
        super().datasync(descriptor)

    def free_bytes(self, directory: Path) -> int:
        """Nothing on a disk that shall be full."""
        return 0 if self._injector.orders().is_full else super().free_bytes(directory)
