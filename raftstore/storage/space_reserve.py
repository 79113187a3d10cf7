"""A file that keeps some of the disk, to be removed by a start that finds the disk full (GAP-13).

What frees a full disk, trimming logs and merging tables, needs a node that runs, and a node needs
some space to start. Its marks (``storage.min_free_bytes``) keep the node itself from filling the
disk; other programs on the same disk know of no marks. So a file of ``storage.reserve_bytes`` is
made while there is space, and given up when a start would have to wait for space otherwise.

The file holds nothing: it may be removed at any time, by anybody. It is made by the thread that
looks at the free space, since that may hang where a disk does, and given up by the loop thread
before that one begins.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from raftstore.config import StorageSettings
from raftstore.storage.files import FileOps

RESERVE_NAME: Final = "reserve"
_HALF_MADE_NAME: Final = "reserve.new"


class SpaceReserve:
    """The reserve of one data directory."""

    def __init__(self, ops: FileOps, directory: Path, settings: StorageSettings) -> None:
        self._ops = ops
        self.kept_bytes = 0
        """Size of the file by the newest look; 0: there is none."""
        self._path = directory / RESERVE_NAME
        self._half_made = directory / _HALF_MADE_NAME
        self._wanted_bytes = settings.reserve_bytes
        self._room_bytes = settings.reserve_room_bytes

    def look(self) -> int:
        """Size of the file; 0: there is none. Raises OSError."""
        self.kept_bytes = self._ops.size_bytes(self._path) if self._ops.exists(self._path) else 0
        return self.kept_bytes

    def give_up(self) -> int:
        """Remove the file; return how large it was, 0 if there was none. Raises OSError."""
        size = self.look()
        if size:
            self._ops.unlink(self._path)
            self._ops.sync_directory(self._path.parent)
            self.kept_bytes = 0
        return size

    def make_room(self, missing_bytes: int) -> int:
        """Give the file up if that is enough; return its size, 0 if it stays. Raises OSError."""
        # One that is too small would be gone for nothing.
        return self.give_up() if self.look() >= missing_bytes else 0

    def restore(self, free_bytes: int) -> None:
        """Make the file if it is not there in the wanted size and the disk has room for it.

        Errors are not raised: without it only the next start on a full disk is worse off.
        """
        try:
            size = self.look()
            if size == self._wanted_bytes:
                return
            if size:
                free_bytes += self.give_up()
            if self._wanted_bytes and free_bytes >= self._room_bytes:
                self._make()
        except OSError:
            return

    def _make(self) -> None:
        """Under another name first: a file that is cut short must not be taken for whole."""
        ops = self._ops
        descriptor = ops.open(self._half_made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            try:
                ops.allocate(descriptor, self._wanted_bytes)
                ops.datasync(descriptor)
            finally:
                ops.close(descriptor)
            ops.rename(self._half_made, self._path)
        except OSError:
            with suppress(OSError):
                ops.unlink(self._half_made)
            raise
        ops.sync_directory(self._path.parent)
        self.kept_bytes = self._wanted_bytes
