"""Snapshots of a table: one state of all partitions, read as often as one likes until it is closed.

Every micro-batch is in a snapshot as a whole or not at all (``vector`` says how). The nodes keep
the state; a node that is gone takes its part along, and the reader gets a PageExpiredError.
"""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from raftstore.client.arguments import encoded, items, whole
from raftstore.client.context import Context
from raftstore.client.position import Position
from raftstore.client.reads.channel_reads import ChannelReads, Range
from raftstore.client.reads.key_reads import KeysPart, gather_or_cancel, parts_of
from raftstore.client.reads.read_spec import ANY_STATE, Pin, ReadSpec, pinned
from raftstore.client.scans.pages import PageToken, PinnedScan, Place
from raftstore.client.scans.scanning import Item, merged
from raftstore.client.scans.shapes import Shape, bounds_of, check_range
from raftstore.client.scans.snapshot_opening import SnapshotToken, check_is_of, pin_of
from raftstore.client.scans.splits import cuts_of
from raftstore.client.settings import ANSWERS_AT_ONCE, KEYS_PER_GET, SCAN_PAGE_ROWS
from raftstore.errors import (
    ArgumentError,
    DecodeError,
    PayloadTooLargeError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.reads import ScanAnswer
from raftstore.protocol.replica_checks import RowExpiriesAnswer
from raftstore.rows.schema import TableSchema
from raftstore.types import ChannelId

_NO_KEY: Final = b"\0"
"""In front of all keys: a range up to it has none."""
PAGE_ROWS: Final = 10_000
"""Rows of one page where rows are handed on by the page; a page has 4 MiB at most, too."""


class AsyncSnapshot:
    """One state of a table, kept by the nodes until ``close``; made by ``table.snapshot()``.

    ``timeout`` of a method is for each of its requests.
    """

    def __init__(
        self,
        context: Context,
        channel_reads: ChannelReads,
        info: TableInfo,
        schema: TableSchema,
        token: SnapshotToken,
        spec: ReadSpec = ANY_STATE,
    ) -> None:
        check_is_of(token, info)
        self._context = context
        self._channel_reads = channel_reads
        self._info = info
        self._schema = schema
        self._spec = spec
        self._is_closed = False
        self.token = token
        """For other processes: ``table.read_snapshot(token)``."""

    @property
    def n(self) -> int:
        """Number of the newest batch of the table that is in it; 0: none."""
        return self.token.n

    @property
    def vector(self) -> tuple[int, ...]:
        """Per partition, the newest batch that touches it."""
        return self.token.vector

    @property
    def position(self) -> Position:
        """The position that each partition had applied: give it to ``at_least`` of later reads."""
        places = enumerate(zip(self.token.terms, self.token.seqs, strict=True))
        return Position({(self._info.uuid, number): place for number, place in places})

    # --- reading ----------------------------------------------------------------------------------

    async def get_many(
        self, keys: Iterable[Any], *, timeout: float | None = None
    ) -> list[dict[str, Any] | None]:
        """Return one row or None per key, in order."""
        shape = Shape(self._schema, self._spec, keys_only=False)
        found_keys = [self._schema.key_of(key) for key in items("keys", keys)]
        parts = parts_of(self._info, self._schema, found_keys)
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def read(part: KeysPart) -> list[Item]:
            async with slots:
                return await self._rows(part.partition, part.keys, timeout)

        found = await gather_or_cancel([read(part) for part in parts])
        rows = {key: shape.row(key, sealed) for some in found for key, sealed, _ in some}
        return [rows.get(key) for key in found_keys]

    async def rows_of(
        self, partition: int, keys: Sequence[bytes], *, timeout: float | None = None
    ) -> AsyncGenerator[Sequence[Item], None]:
        """Iterate over the rows that some encoded keys of one partition have, many at a time."""
        wanted = [encoded("keys", key) for key in items("keys", keys)]
        for at in range(0, len(wanted), KEYS_PER_GET):
            part = tuple(wanted[at : at + KEYS_PER_GET])
            if found := await self._rows(partition, part, timeout):
                yield found

    def scan(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        limit: int | None = None,
        keys_only: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Iterate over rows in key order; see ``table.scan`` for ranges."""
        check_range(start, stop, prefix)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ArgumentError(
                f"limit={limit!r:.80} is no number of rows; use 0 or more rows, or none"
            )
        bounds = bounds_of(self._schema, start, stop, prefix)
        return self._scan(bounds, limit, timeout, keys_only=keys_only)

    async def count(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        timeout: float | None = None,
    ) -> int:
        """Count the rows of a range, of the whole table without one."""
        check_range(start, stop, prefix)
        part = Range(*bounds_of(self._schema, start, stop, prefix))
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def counted(partition: int) -> int:
            channel = self._info.channels[partition].channel
            spec = pinned(self._pin(partition))
            async with slots:
                deadline_ms = self._context.deadline_ms(timeout)
                answer = await self._channel_reads.count(channel, part, spec, deadline_ms)
            return answer.rows

        return sum(await gather_or_cancel([counted(p) for p in range(self._info.partitions)]))

    async def pages(
        self,
        partition: int,
        *,
        start: bytes = b"",
        stop: bytes = b"",
        timeout: float | None = None,
    ) -> AsyncGenerator[Sequence[Item], None]:
        """Iterate over pages of one partition: encoded keys, sealed values and versions.

        The next page is asked for while the caller works on one.
        """
        first = Range(encoded("start", start), encoded("stop", stop), PAGE_ROWS)
        following = asyncio.ensure_future(self._page(partition, first, timeout))
        try:
            while True:
                answer = await following
                if answer.more:
                    if not answer.rows:
                        raise DecodeError(f"a node said of partition {partition} that it has more")
                    # The lowest key above the last one: nothing is between a key and key + NUL.
                    part = Range(answer.rows[-1][0] + b"\0", stop, PAGE_ROWS)
                    following = asyncio.ensure_future(self._page(partition, part, timeout))
                if answer.rows:
                    yield answer.rows
                if not answer.more:
                    return
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def has_expiries(self, *, timeout: float | None = None) -> bool:
        """Return whether rows of the table ever had a lifetime (ttl), of their own or the
        table's."""
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def has_any(partition: int) -> bool:
            async with slots:
                return (await self._expiries(partition, b"", _NO_KEY, timeout)).has_any

        found = await gather_or_cancel([has_any(p) for p in range(self._info.partitions)])
        return any(found)

    async def expiries(
        self,
        partition: int,
        *,
        start: bytes = b"",
        stop: bytes = b"",
        timeout: float | None = None,
    ) -> dict[bytes, int]:
        """Return when rows of one partition expire, those of the encoded keys of [start, stop):
        key -> ms since 1970. Rows that do not expire are not in it."""
        encoded("start", start)
        encoded("stop", stop)
        found: dict[bytes, int] = {}
        while True:
            answer = await self._expiries(partition, start, stop, timeout)
            found.update(answer.expiries)
            if not answer.resume:
                return found
            start = answer.resume

    async def scan_with_expiries(
        self, *, timeout: float | None = None
    ) -> AsyncGenerator[tuple[dict[str, Any], int], None]:
        """Iterate over all rows in key order, each with its expiry in ms since 1970; 0: it has
        none."""
        expires_ms: dict[bytes, int] = {}
        shape = Shape(self._schema, self._spec, keys_only=False)
        pinned = self._pinned_scan(b"", b"", None, timeout, keys_only=False)

        async def fetch(partition: int, at: bytes) -> ScanAnswer:
            page = await pinned.fetch(partition, at)
            if page.rows:
                stop = page.rows[-1][0] + b"\0"
                more = await self.expiries(
                    partition, start=page.rows[0][0], stop=stop, timeout=timeout
                )
                expires_ms.update(more)
            return page

        items: AsyncGenerator[Item, None] = merged(self._info.partitions, b"", None, fetch)
        try:
            async for key, sealed, _ in items:
                yield shape.row(key, sealed), expires_ms.pop(key, 0)
        finally:
            await items.aclose()

    async def cuts(
        self, parts: int, *, start: bytes = b"", stop: bytes = b"", timeout: float | None = None
    ) -> list[list[bytes]]:
        """Return for each partition at which encoded keys to cut [start, stop) into about equal
        parts, fewer where there are few keys; see ``splits``."""
        whole("parts", parts, 1)
        encoded("start", start)
        encoded("stop", stop)
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def of(partition: int) -> list[bytes]:
            async def probe(at: bytes) -> bytes | None:
                part = Range(at, stop, 1, keys_only=True)
                answer = await self._page(partition, part, timeout)
                return answer.rows[0][0] if answer.rows else None

            async with slots:
                return await cuts_of(probe, start, stop, parts)

        return await gather_or_cancel([of(p) for p in range(self._info.partitions)])

    # --- ending -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Notify the nodes that it is no longer needed. Repeating it is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        for partition in range(len(self.token.pins)):
            channel = self._info.channels[partition].channel
            self._channel_reads.close_pin(channel, pin_of(self.token, partition))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- inside -----------------------------------------------------------------------------------

    def _channel(self, partition: int) -> ChannelId:
        whole("partition", partition, 0, self._info.partitions - 1)
        return self._info.channels[partition].channel

    def _pin(self, partition: int) -> Pin:
        if self._is_closed:
            raise ArgumentError("the snapshot was closed; open a new one")
        return pin_of(self.token, partition)

    async def _expiries(
        self, partition: int, start: bytes, stop: bytes, timeout: float | None
    ) -> RowExpiriesAnswer:
        channel = self._channel(partition)
        deadline_ms = self._context.deadline_ms(timeout)
        return await self._channel_reads.expiries(
            channel, self._pin(partition), start, stop, deadline_ms
        )

    async def _page(self, partition: int, part: Range, timeout: float | None) -> ScanAnswer:
        channel = self._channel(partition)
        deadline_ms = self._context.deadline_ms(timeout)
        spec = pinned(self._pin(partition))
        return await self._channel_reads.scan(channel, part, spec, deadline_ms)

    async def _rows(
        self, partition: int, keys: tuple[bytes, ...], timeout: float | None
    ) -> list[Item]:
        """Read keys; rows too large for one answer are asked for in halves."""
        channel = self._channel(partition)
        deadline_ms = self._context.deadline_ms(timeout)
        try:
            spec = pinned(self._pin(partition))
            answer = await self._channel_reads.get(channel, keys, spec, deadline_ms)
        except PayloadTooLargeError:
            if len(keys) == 1:
                raise
            half = len(keys) // 2
            first = await self._rows(partition, keys[:half], timeout)
            return first + await self._rows(partition, keys[half:], timeout)
        found = zip(keys, answer.values, answer.seqs, strict=True)
        return [(key, sealed, seq) for key, sealed, seq in found if sealed is not None]

    async def _scan(
        self,
        bounds: tuple[bytes, bytes],
        limit: int | None,
        timeout: float | None,
        *,
        keys_only: bool,
    ) -> AsyncGenerator[dict[str, Any], None]:
        start, stop = bounds
        shape = Shape(self._schema, self._spec, keys_only=keys_only)
        pinned = self._pinned_scan(start, stop, limit, timeout, keys_only=shape.keys_only)
        items: AsyncGenerator[Item, None] = merged(
            self._info.partitions, start, limit, pinned.fetch
        )
        try:
            async for key, sealed, _ in items:
                yield shape.row(key, sealed)
        finally:
            await items.aclose()

    def _pinned_scan(
        self,
        start: bytes,
        stop: bytes,
        limit: int | None,
        timeout: float | None,
        *,
        keys_only: bool,
    ) -> PinnedScan:
        """A scan of the states that are kept, from their first page on."""
        info, token = self._info, self.token
        self._pin(0)
        pinned = PinnedScan(
            self._channel_reads,
            info,
            ANY_STATE,
            stop,
            page_rows=SCAN_PAGE_ROWS if limit is None else max(1, min(limit, SCAN_PAGE_ROWS)),
            keys_only=keys_only,
            deadline_ms=lambda: self._context.deadline_ms(timeout),
        )
        nodes = tuple(dict.fromkeys(token.nodes))
        places = tuple(
            Place(p, token.terms[p], token.seqs[p], nodes.index(token.nodes[p]), token.pins[p])
            for p in range(info.partitions)
        )
        pinned.resume(PageToken(info.uuid, b"", start, nodes, places))
        return pinned
