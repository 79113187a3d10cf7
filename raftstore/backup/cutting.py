"""Which rows share a file: the rows say it themselves, so a change touches its own file alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from raftstore.config import MIB
from raftstore.crc import crc32

CUT_SHARE: Final = 65_536
"""A file ends behind about one row in so many."""
FILE_ROWS_MAX: Final = 4 * CUT_SHARE
FILE_BYTES_MAX: Final = 64 * MIB
"""Keys and values of one file, about: it ends behind the row that reaches it."""

RowT = TypeVar("RowT", bound=tuple[Any, ...])


def cut(rows: Iterable[RowT]) -> Iterator[list[RowT]]:
    """Gather rows (key, value, …) in key order into the rows of files."""
    items: list[RowT] = []
    size = 0
    for item in rows:
        items.append(item)
        size += len(item[0]) + len(item[1] or b"")
        if _is_cut(item[0]) or len(items) >= FILE_ROWS_MAX or size >= FILE_BYTES_MAX:
            yield items
            items, size = [], 0
    if items:
        yield items


def _is_cut(key: bytes) -> bool:
    """Whether a file ends behind this row: the key alone says it, so rows that come or go before it
    move no other cut. The partition goes by other bits of the same number."""
    return crc32(key) >> 16 == 0
