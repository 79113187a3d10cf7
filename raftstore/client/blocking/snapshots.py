"""Snapshots for programs without asyncio; see ``snapshots``."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from raftstore.client.batches.batch_writes import BatchResult
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.iteration import iterate
from raftstore.client.position import Position
from raftstore.client.scans.scanning import Item
from raftstore.client.scans.snapshot_opening import SnapshotOptions, SnapshotToken
from raftstore.client.scans.snapshots import AsyncSnapshot
from raftstore.client.table import AsyncTable


class SnapshotTable:
    """The part of ``Table`` that reads snapshots."""

    _table: AsyncTable
    _loop: BackgroundLoop

    def snapshot(
        self,
        *,
        at_batch: BatchResult | tuple[str, int] | None = None,
        at_least: BatchResult | Snapshot | Position | str | None = None,
        keep: bool = True,
        idle: float | None = None,
        **options: Unpack[SnapshotOptions],
    ) -> Snapshot:
        """Open one state of all partitions: batches are in it as a whole or not at all."""
        snapshot = self._loop.call(
            self._table.snapshot(
                at_batch=at_batch,
                at_least=at_least.inner if isinstance(at_least, Snapshot) else at_least,
                keep=keep,
                idle=idle,
                **options,
            )
        )
        return Snapshot(snapshot, self._loop)

    def read_snapshot(self, token: SnapshotToken, *, timeout: float | None = None) -> Snapshot:
        """Read a snapshot that was opened elsewhere, perhaps in another process (``token``)."""
        snapshot = self._loop.call(self._table.read_snapshot(token, timeout=timeout))
        return Snapshot(snapshot, self._loop)


class Snapshot:
    """See ``AsyncSnapshot``; close it, or use it as a context manager."""

    def __init__(self, snapshot: AsyncSnapshot, loop: BackgroundLoop) -> None:
        self.inner = snapshot
        self._loop = loop

    @property
    def token(self) -> SnapshotToken:
        """For other processes: ``table.read_snapshot(token)``."""
        return self.inner.token

    @property
    def n(self) -> int:
        """Number of the newest batch of the table that is in it; 0: none."""
        return self.inner.n

    @property
    def vector(self) -> tuple[int, ...]:
        """Per partition, the newest batch that touches it."""
        return self.inner.vector

    @property
    def position(self) -> Position:
        """The position that each partition had applied: give it to ``at_least`` of later reads."""
        return self.inner.position

    def get_many(
        self, keys: Iterable[Any], *, timeout: float | None = None
    ) -> list[dict[str, Any] | None]:
        """Return one row or None per key, in order."""
        return self._loop.call(self.inner.get_many(list(keys), timeout=timeout))

    def scan(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        limit: int | None = None,
        keys_only: bool = False,
        timeout: float | None = None,
    ) -> Generator[dict[str, Any], None, None]:
        """Iterate over rows in key order; see ``table.scan`` for ranges."""
        rows = self.inner.scan(
            start=start,
            stop=stop,
            prefix=prefix,
            limit=limit,
            keys_only=keys_only,
            timeout=timeout,
        )
        return iterate(rows, self._loop)

    def count(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        timeout: float | None = None,
    ) -> int:
        """Count the rows of a range, of the whole table without one."""
        return self._loop.call(
            self.inner.count(start=start, stop=stop, prefix=prefix, timeout=timeout)
        )

    def pages(
        self,
        partition: int,
        *,
        start: bytes = b"",
        stop: bytes = b"",
        timeout: float | None = None,
    ) -> Generator[Sequence[Item], None, None]:
        """Iterate over pages of one partition: encoded keys, sealed values and versions.

        The keys are those of [start, stop).
        """
        pages = self.inner.pages(partition, start=start, stop=stop, timeout=timeout)
        return iterate(pages, self._loop, 1)

    def has_expiries(self, *, timeout: float | None = None) -> bool:
        """Return whether rows of the table ever had a lifetime (ttl), of their own or the
        table's."""
        return self._loop.call(self.inner.has_expiries(timeout=timeout))

    def expiries(
        self,
        partition: int,
        *,
        start: bytes = b"",
        stop: bytes = b"",
        timeout: float | None = None,
    ) -> dict[bytes, int]:
        """Return when rows of one partition expire, those of the encoded keys of [start, stop):
        key -> ms since 1970. Rows that do not expire are not in it."""
        return self._loop.call(
            self.inner.expiries(partition, start=start, stop=stop, timeout=timeout)
        )

    def scan_with_expiries(
        self, *, timeout: float | None = None
    ) -> Generator[tuple[dict[str, Any], int], None, None]:
        """Iterate over all rows in key order, each with its expiry in ms since 1970; 0: it has
        none."""
        return iterate(self.inner.scan_with_expiries(timeout=timeout), self._loop)

    def rows_of(
        self, partition: int, keys: Sequence[bytes], *, timeout: float | None = None
    ) -> Generator[Sequence[Item], None, None]:
        """Iterate over the rows that some encoded keys of one partition have, many at a time."""
        return iterate(self.inner.rows_of(partition, keys, timeout=timeout), self._loop, 1)

    def cuts(
        self, parts: int, *, start: bytes = b"", stop: bytes = b"", timeout: float | None = None
    ) -> list[list[bytes]]:
        """Return for each partition at which encoded keys to cut [start, stop) into about equal
        parts."""
        return self._loop.call(self.inner.cuts(parts, start=start, stop=stop, timeout=timeout))

    def close(self) -> None:
        """Notify the nodes that it is no longer needed. Repeating it is harmless."""
        if not self._loop.is_stopped:
            self._loop.call(self.inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
