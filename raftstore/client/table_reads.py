"""Reading rows of one table: by key, by many keys, in key order. Every read has a level."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

from raftstore.client.context import Context
from raftstore.client.pages import PageToken, PinnedScan, served_parts
from raftstore.client.position import Position
from raftstore.client.projection import Projection
from raftstore.client.querying import Querying, Range
from raftstore.client.reads import ReadOptions, ReadWish, read_wish
from raftstore.client.results import CountResult, GetResult, PageResult
from raftstore.client.scanning import Item, merged
from raftstore.client.settings import (
    ANSWERS_AT_ONCE,
    KEYS_PER_GET,
    PAGE_ROWS_MAX,
    PAGE_ROWS_MIN,
    SCAN_PAGE_ROWS,
)
from raftstore.errors import ConfigError, PayloadTooLargeError, PositionError
from raftstore.requests import CountAnswer, GetAnswer, TableInfo
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import unseal
from raftstore.types import Level, node_name


class TableReads:
    """The reading half of ``AsyncTable``, and what both halves know of the table."""

    def __init__(self, name: str, context: Context, querying: Querying) -> None:
        self.name = name
        self._context = context
        self._querying = querying
        self._schema: tuple[bytes, str, TableSchema] | None = None

    async def definition(self, *, timeout: float | None = None) -> TableInfo:
        """Return the table's definition as it is known here; asks only when it is not.

        Placement and leaders are those of ``table_info``.
        """
        return (await self._open(self._context.deadline_ms(timeout)))[0]

    async def get(self, key: Any, **options: Unpack[ReadOptions]) -> dict[str, Any] | None:
        """Return the row with this key or None; linearizable unless told otherwise."""
        return (await self.get_result(key, **options)).value

    async def get_result(self, key: Any, **options: Unpack[ReadOptions]) -> GetResult:
        """Return the row with its version, and by whom it was served and how fresh that was."""
        wish = read_wish(options)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info, schema = await self._open(deadline_ms, wish)
        encoded = schema.key_of(key)
        partition = partition_of(encoded, info.partitions)
        wish = wish.for_table(info)
        shape = Projection(schema, wish.columns)
        answer = await self._get(info, partition, (encoded,), wish, deadline_ms)
        return _projected(_get_result(info, schema, partition, encoded, answer, 0), shape)

    async def get_many(
        self, keys: Iterable[Any], **options: Unpack[ReadOptions]
    ) -> list[dict[str, Any] | None]:
        """Return one row or None per key, in order. Each partition is read once, not all at once:
        at level linearizable every row is as new as the call, but they are no snapshot."""
        return [result.value for result in await self.get_many_results(keys, **options)]

    async def get_many_results(
        self, keys: Iterable[Any], **options: Unpack[ReadOptions]
    ) -> list[GetResult]:
        """Return ``get_many``'s rows with their versions, and by whom each was served."""
        wish = read_wish(options)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info, schema = await self._open(deadline_ms, wish)
        encoded = [schema.key_of(key) for key in keys]
        wish = wish.for_table(info)
        shape = Projection(schema, wish.columns)
        wanted: dict[int, dict[bytes, None]] = {}
        for key in encoded:
            wanted.setdefault(partition_of(key, info.partitions), {})[key] = None
        parts = [
            (partition, tuple(keys_wanted)[at : at + KEYS_PER_GET])
            for partition, keys_wanted in wanted.items()
            for at in range(0, len(keys_wanted), KEYS_PER_GET)
        ]
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def read(partition: int, part: tuple[bytes, ...]) -> list[GetResult]:
            async with slots:
                return await self._results(info, schema, partition, part, wish, deadline_ms)

        answers = await gather_or_cancel([read(partition, part) for partition, part in parts])
        results: dict[bytes, GetResult] = {}
        for (_, part), found in zip(parts, answers, strict=True):
            results |= zip(part, found, strict=True)
        return [_projected(results[key], shape) for key in encoded]

    def scan(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        limit: int | None = None,
        keys_only: bool = False,
        snapshot: bool = True,
        **options: Unpack[ReadOptions],
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Iterate over rows in key order: start <= key < stop, all partitions merged.

        ``start`` and ``stop`` are keys, or tuples of their first columns. ``prefix``: a tuple of
        first columns, or text (bytes) that the first column begins with. ``keys_only`` yields the
        key columns alone.

        Each partition is read in one state, that of its first page, which obeys the level asked
        for; PageExpiredError when the node that keeps it is gone, or when rows are not taken for
        too long. ``snapshot=False`` reads each page at the level asked for, of whichever state
        that is. ``timeout`` is for each page.
        """
        wish = read_wish(options)
        _check_range(start, stop, prefix)
        if limit is not None and limit < 0:
            raise ConfigError(f"limit={limit} is negative; use 0 or more rows, or none")
        bounds = (start, stop, prefix)
        return self._scan(
            bounds, limit, wish, options.get("timeout"), keys_only=keys_only, snapshot=snapshot
        )

    async def page(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        limit: int = 100,
        token: str | None = None,
        keys_only: bool = False,
        **options: Unpack[ReadOptions],
    ) -> PageResult:
        """Return ``limit`` rows of a scan in key order, and a token for the page that follows.

        All pages are of the states that the first one pinned at the nodes; the token goes with the
        same range and columns. PageTokenError when it is damaged or of another scan,
        PageExpiredError when a state is gone: its node, or after half a minute without a page.
        """
        wish = read_wish(options)
        _check_range(start, stop, prefix)
        if type(limit) is not int or not 1 <= limit <= PAGE_ROWS_MAX:
            raise ConfigError(f"limit={limit!r} is no number of rows from 1 to {PAGE_ROWS_MAX}")
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info, schema = await self._open(deadline_ms, wish)
        wish = wish.for_table(info)
        shape = _Shape(schema, wish, keys_only=keys_only)
        first, stop_key = _bounds(schema, start, stop, prefix)
        scan = shape.digest(first, stop_key)
        pinned = PinnedScan(
            self._querying,
            info,
            wish,
            stop_key,
            page_rows=min(limit, max(PAGE_ROWS_MIN, 2 * limit // info.partitions)),
            keys_only=shape.keys_only,
            keep=True,
            deadline_ms=lambda: deadline_ms,
        )
        try:
            if token is None:
                await gather_or_cancel([pinned.open(p) for p in range(info.partitions)])
            else:
                known = PageToken.parse(token, info, scan)
                pinned.resume(known)
                first = known.next_key
            position = pinned.position()
            items = [item async for item in merged(info.partitions, first, limit, pinned.fetch)]
        except BaseException:
            if token is None:
                pinned.close()  # else the same token may be used again
            raise
        following = pinned.token(scan, items[-1][0] if items else first)
        return PageResult(
            rows=tuple(shape.row(key, sealed) for key, sealed, _ in items),
            next_token=None if following is None else following.text(),
            position=position,
            served=pinned.served(),
        )

    async def count(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        **options: Unpack[ReadOptions],
    ) -> CountResult:
        """Count the rows of a range, of the whole table without one; see ``scan`` for ranges.

        Each partition is counted in one state, which obeys the level asked for.
        """
        wish = read_wish(options)
        _check_range(start, stop, prefix)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info, schema = await self._open(deadline_ms, wish)
        wish = wish.for_table(info)
        part = Range(*_bounds(schema, start, stop, prefix))
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def counted(partition: int) -> CountAnswer:
            channel = info.channels[partition].channel
            min_seq = wish.min_seq(info, partition)
            async with slots:
                return await self._querying.count(channel, part, wish, min_seq, deadline_ms)

        answers = await gather_or_cancel([counted(p) for p in range(info.partitions)])
        told = {partition: answer.served for partition, answer in enumerate(answers)}
        return CountResult(
            rows=sum(answer.rows for answer in answers),
            position=Position(
                {(info.uuid, p): (served.term, served.applied_seq) for p, served in told.items()}
            ),
            served=served_parts(told),
        )

    # --- inside ----------------------------------------------------------------------------------

    async def _open(
        self, deadline_ms: int, wish: ReadWish | None = None
    ) -> tuple[TableInfo, TableSchema]:
        info = self._context.topology.table(self.name)
        if info is None:
            info = await self._context.discovery.table(self.name, deadline_ms)
        if wish is not None and wish.at_least is not None:
            info = await self._of_position(info, wish.at_least, deadline_ms)
        known = self._schema
        if known is None or known[0] != info.uuid or known[1] != info.schema_json:
            schema = TableSchema(info.key_columns, info.schema_json)
            self._schema = known = (info.uuid, info.schema_json, schema)
        return info, known[2]

    async def _of_position(
        self, info: TableInfo, position: Position, deadline_ms: int
    ) -> TableInfo:
        """Check that the position is of this table; it may be newer than the catalog known here."""
        try:
            position.check_table(info.uuid, info.name, info.partitions)
        except PositionError:
            await self._context.discovery.refresh(deadline_ms)
            info = await self._context.discovery.table(self.name, deadline_ms)
            position.check_table(info.uuid, info.name, info.partitions)
        return info

    async def _get(
        self,
        info: TableInfo,
        partition: int,
        keys: tuple[bytes, ...],
        wish: ReadWish,
        deadline_ms: int,
    ) -> GetAnswer:
        channel = info.channels[partition].channel
        min_seq = wish.min_seq(info, partition)
        return await self._querying.get(channel, keys, wish, min_seq, deadline_ms)

    async def _results(
        self,
        info: TableInfo,
        schema: TableSchema,
        partition: int,
        keys: tuple[bytes, ...],
        wish: ReadWish,
        deadline_ms: int,
    ) -> list[GetResult]:
        """Read keys of one partition; rows too large for one answer are asked for in halves."""
        try:
            answer = await self._get(info, partition, keys, wish, deadline_ms)
        except PayloadTooLargeError:
            if len(keys) == 1:
                raise
        else:
            return [
                _get_result(info, schema, partition, key, answer, number)
                for number, key in enumerate(keys)
            ]
        half = len(keys) // 2
        first = await self._results(info, schema, partition, keys[:half], wish, deadline_ms)
        rest = await self._results(info, schema, partition, keys[half:], wish, deadline_ms)
        return first + rest

    async def _scan(
        self,
        bounds: tuple[Any, Any, Any],
        limit: int | None,
        wish: ReadWish,
        timeout: float | None,
        *,
        keys_only: bool,
        snapshot: bool,
    ) -> AsyncGenerator[dict[str, Any], None]:
        info, schema = await self._open(self._context.deadline_ms(timeout), wish)
        wish = wish.for_table(info)
        start, stop = _bounds(schema, *bounds)
        page_rows = SCAN_PAGE_ROWS if limit is None else max(1, min(limit, SCAN_PAGE_ROWS))
        shape = _Shape(schema, wish, keys_only=keys_only)
        pinned = PinnedScan(
            self._querying,
            info,
            wish,
            stop,
            page_rows=page_rows,
            keys_only=shape.keys_only,
            keep=snapshot and (limit is None or limit > page_rows),  # else the first page is all
            deadline_ms=lambda: self._context.deadline_ms(timeout),
        )
        items: AsyncGenerator[Item, None] = merged(info.partitions, start, limit, pinned.fetch)
        try:
            async for key, sealed, _ in items:
                yield shape.row(key, sealed)
        finally:
            await items.aclose()
            pinned.close()


class _Shape:
    """What becomes of the rows of one scan: which columns, and of which scan they are."""

    def __init__(self, schema: TableSchema, wish: ReadWish, *, keys_only: bool) -> None:
        self._schema = schema
        self._columns = wish.columns
        self._projection = Projection(schema, wish.columns)
        self.keys_only = keys_only or self._projection.is_of_keys

    def row(self, key: bytes, sealed: bytes | None) -> dict[str, Any]:
        """Return a row as the caller wants it."""
        if self.keys_only:
            schema = self._schema
            row = dict(zip(schema.key_columns, schema.decode_key(key), strict=True))
        else:
            row = cast(dict[str, Any], _row(self._schema, key, sealed))
        return self._projection.of(row)

    def digest(self, start: bytes, stop: bytes) -> bytes:
        """Tell scans apart: the pages of one have the same range and columns."""
        content = repr((start, stop, self._columns, self.keys_only)).encode()
        return hashlib.blake2b(content, digest_size=8).digest()


def _projected(result: GetResult, projection: Projection) -> GetResult:
    if result.value is None or projection.is_of_all:
        return result
    return replace(result, value=projection.of(result.value))


def _row(schema: TableSchema, key: bytes, sealed: bytes | None) -> dict[str, Any] | None:
    return None if sealed is None else schema.key_value_to_row(key, unseal(key, sealed))


def _get_result(
    info: TableInfo,
    schema: TableSchema,
    partition: int,
    key: bytes,
    answer: GetAnswer,
    number: int,
) -> GetResult:
    served, seq = answer.served, answer.seqs[number]
    value = _row(schema, key, answer.values[number])
    version = None if value is None else Position.at(info.uuid, partition, served.term, seq)
    return GetResult(
        value=value,
        position=version,
        seq=seq,
        applied_position=Position.at(info.uuid, partition, served.term, served.applied_seq),
        applied_seq=served.applied_seq,
        partition=partition,
        term=served.term,
        node=node_name(served.node),
        level=Level(served.level),
        lag=served.lag,
        leader_info_age_ms=served.leader_info_age_ms,
        staleness_ms=served.staleness_ms,
        batches_behind=served.batches_behind,
    )


def _check_range(start: Any, stop: Any, prefix: Any) -> None:
    if prefix is not None and (start is not None or stop is not None):
        raise ConfigError("prefix and start or stop exclude each other; give one of them")


def _bounds(schema: TableSchema, start: Any, stop: Any, prefix: Any) -> tuple[bytes, bytes]:
    """Return [start, stop) of encoded keys; b"" is open."""
    if prefix is not None:
        if isinstance(prefix, str | bytes):
            return schema.text_prefix((), prefix)
        return schema.key_prefix(_columns(schema, prefix))
    first = b"" if start is None else schema.key_prefix(_columns(schema, start))[0]
    last = b"" if stop is None else schema.key_prefix(_columns(schema, stop))[0]
    return first, last


def _columns(schema: TableSchema, given: Any) -> Sequence[Any]:
    if isinstance(given, Mapping):
        return schema.decode_key(schema.key_of(given))
    return given if isinstance(given, tuple | list) else (given,)


async def gather_or_cancel(coroutines: Sequence[Any]) -> list[Any]:
    """Await all; when one fails cancel the others, and leave none behind."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
