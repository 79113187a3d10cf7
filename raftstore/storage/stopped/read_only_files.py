"""Reads a stopped node's store and changes nothing in it: what a start would mend stays in memory.

A start writes damaged headers again and cuts a damaged end (``raftstore.storage.log.recovery``).
Here headers are patched in what is read, cuts are left out, and ``repairs`` names the files that a
start would change. Everything else that writes is refused by the operating system.

Bounds: one header for each damage that recovery finds.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from raftstore.storage.files import FileOps


class ReadOnlyFiles(FileOps):
    """Opens every file for reading only."""

    is_read_only = True

    def __init__(self) -> None:
        self.repairs: list[Path] = []
        """Files that the next start of the node would change."""
        self._paths: dict[int, Path] = {}
        self._patches: dict[Path, list[tuple[int, bytes]]] = {}

    def open(self, path: Path, flags: int) -> int:
        """Open for reading, whatever was asked for; a missing file is not made."""
        descriptor = super().open(path, os.O_RDONLY | flags & os.O_DIRECTORY)
        self._paths[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        self._paths.pop(descriptor, None)
        super().close(descriptor)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read as if the damaged headers had been written again."""
        data = super().pread(descriptor, size, offset)
        for start, patch in self._patches.get(self._paths[descriptor], ()):
            first, last = max(start, offset), min(start + len(patch), offset + len(data))
            if first < last:
                inside = patch[first - start : last - start]
                data = data[: first - offset] + inside + data[last - offset :]
        return data

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Remember what a start would write again."""
        path = self._paths[descriptor]
        self._patches.setdefault(path, []).append((offset, bytes(data)))
        self.repairs.append(path)
        return len(data)

    def truncate(self, descriptor: int, size: int) -> None:
        """Note that a start would cut the file."""
        del size
        self.repairs.append(self._paths[descriptor])

    def replace_file(self, path: Path, data: bytes) -> None:
        """Note that a start would write the file anew."""
        del data
        self.repairs.append(path)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Refuse."""
        del data
        raise self._refusal(self._paths[descriptor])

    def make_directory(self, path: Path, *, may_exist: bool = False) -> None:
        """Refuse."""
        del may_exist
        raise self._refusal(path)

    def create_file(self, path: Path, data: bytes) -> None:
        """Refuse."""
        del data
        raise self._refusal(path)

    def rename(self, source: Path, target: Path) -> None:
        """Refuse."""
        raise self._refusal(source if source.exists() else target)

    def unlink(self, path: Path) -> None:
        """Note that a start would remove the file."""
        self.repairs.append(path)

    def _refusal(self, path: Path) -> OSError:
        return OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
