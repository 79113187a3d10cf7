"""Writes the rows of a file to a table, each with the lifetime that it has left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from raftstore.cli.expiries import ttl_of
from raftstore.client.arguments import Ttl
from raftstore.client.results import WriteSummary

WRITES_AT_ONCE: Final = 32
"""Rows of one lifetime are written together; so many lifetimes of a chunk side by side."""


class Writable(Protocol):
    """A table that rows are written to."""

    def put_many(self, rows: Sequence[Mapping[str, Any]], *, ttl: Ttl = None) -> WriteSummary:
        """Write rows of one lifetime."""


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row of a file that the table takes."""

    key: bytes
    """As the table stores it."""
    row: dict[str, Any]
    expires_ms: int
    """``expiries.FOR_EVER`` and ``expiries.NOT_STATED`` are among them."""


class RowImport:
    """One import of one file."""

    def __init__(self, table: Writable) -> None:
        self._table = table
        self.written = 0
        """Rows that are acknowledged, each as often as the file has it."""
        self.expired = 0
        """Rows of the file that are not written, because they have expired."""
        self.is_writing = False
        """Whether some rows may be written that are not acknowledged."""

    def write(self, chunk: Sequence[CheckedRow]) -> None:
        """Write rows; of two with one key the later counts."""
        newest = {row.key: row for row in chunk}
        by_ttl: dict[int | None, list[dict[str, Any]]] = {}
        gone: set[bytes] = set()
        at_ms = now_ms()
        for row in newest.values():
            ttl_ms = ttl_of(row.expires_ms, at_ms)
            if ttl_ms is not None and ttl_ms < 0:
                gone.add(row.key)
            else:
                by_ttl.setdefault(ttl_ms, []).append(row.row)
        self.is_writing = True
        self._put(by_ttl)
        self.is_writing = False
        expired = sum(row.key in gone for row in chunk)
        self.expired += expired
        self.written += len(chunk) - expired

    def _put(self, by_ttl: Mapping[int | None, list[dict[str, Any]]]) -> None:
        if len(by_ttl) <= 1:
            for ttl_ms, rows in by_ttl.items():
                self._put_all(rows, ttl_ms)
            return
        with ThreadPoolExecutor(WRITES_AT_ONCE, "raftstore-import") as threads:
            writes = [
                threads.submit(self._put_all, rows, ttl_ms) for ttl_ms, rows in by_ttl.items()
            ]
            try:
                for write in writes:
                    write.result()
            finally:
                for write in writes:
                    write.cancel()

    def _put_all(self, rows: list[dict[str, Any]], ttl_ms: int | None) -> None:
        if ttl_ms is None:
            self._table.put_many(rows)
        else:
            self._table.put_many(rows, ttl=ttl_ms / 1000)


def now_ms() -> int:
    """The time in ms since 1970."""
    return time.time_ns() // 1_000_000
