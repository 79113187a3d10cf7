"""Bytes that running nodes have stored: their files come and go while one looks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def file_bytes(directory: Path) -> int:
    """Bytes that the files below have."""
    return sum(status.st_size for status in _files(directory))


def disk_bytes(directory: Path) -> int:
    """Bytes that they take on the disk."""
    return sum(status.st_blocks * 512 for status in _files(directory))


def _files(directory: Path) -> Iterator[os.stat_result]:
    for place, _, names in os.walk(directory):  # a directory that goes meanwhile is passed over
        for name in names:
            try:
                yield (Path(place) / name).stat()
            except FileNotFoundError:
                continue
