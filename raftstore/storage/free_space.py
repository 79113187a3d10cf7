"""How much of the disk is free, as a thread that may wait for it saw it last (GAP-13)."""

from __future__ import annotations

from pathlib import Path

from raftstore.storage.files import FileOps
from raftstore.storage.space_reserve import SpaceReserve


class FreeSpace:
    """Free space on the disk of one data directory; looked at by one thread, read by any."""

    def __init__(self, ops: FileOps, directory: Path, reserve: SpaceReserve) -> None:
        self._ops = ops
        self._directory = directory
        self.reserve = reserve
        self.newest: int | None = None
        """Bytes that an ordinary user may still write; None: not known."""

    def look(self) -> None:
        """Look now. A disk that cannot report it leaves what is known: its next write will fail."""
        try:
            self.newest = self._ops.free_bytes(self._directory)
            self.reserve.look()
        except OSError:
            return

    def look_and_restore(self) -> None:
        """Look now, and make the reserve where the disk has room for it again."""
        self.look()
        if self.newest is not None:
            self.reserve.restore(self.newest)
