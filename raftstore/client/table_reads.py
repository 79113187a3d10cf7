"""Reading rows of one table: by key, by many keys, in key order. Every read has a level."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Unpack, cast

from raftstore.client.context import Context
from raftstore.client.position import Position
from raftstore.client.querying import Querying
from raftstore.client.reads import ReadOptions, ReadWish, read_wish
from raftstore.client.results import GetResult
from raftstore.client.scanning import Item, merged
from raftstore.client.settings import ANSWERS_AT_ONCE, KEYS_PER_GET, SCAN_PAGE_ROWS
from raftstore.errors import ConfigError, PayloadTooLargeError, PositionError
from raftstore.requests import GetAnswer, ScanAnswer, TableInfo
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
        answer = await self._get(info, partition, (encoded,), wish, deadline_ms)
        return _get_result(info, schema, partition, encoded, answer, 0)

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
        return [results[key] for key in encoded]

    def scan(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        limit: int | None = None,
        keys_only: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Iterate over rows in key order: start <= key < stop, all partitions merged.

        ``start`` and ``stop`` are keys, or tuples of their first columns. ``prefix``: a tuple of
        first columns, or text (bytes) that the first column begins with. ``keys_only`` yields the
        key columns alone. Pages are read one after the other, each at the level asked for and with
        its own timeout, so a scan is no snapshot.
        """
        wish = read_wish(options)
        if prefix is not None and (start is not None or stop is not None):
            raise ConfigError("prefix and start or stop exclude each other; give one of them")
        if limit is not None and limit < 0:
            raise ConfigError(f"limit={limit} is negative; use 0 or more rows, or none")
        bounds = (start, stop, prefix)
        return self._scan(bounds, limit, wish, options.get("timeout"), keys_only=keys_only)

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
    ) -> AsyncGenerator[dict[str, Any], None]:
        info, schema = await self._open(self._context.deadline_ms(timeout), wish)
        start, stop = _bounds(schema, *bounds)
        page_rows = SCAN_PAGE_ROWS if limit is None else max(1, min(limit, SCAN_PAGE_ROWS))
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def fetch(partition: int, at: bytes) -> ScanAnswer:
            async with slots:
                return await self._querying.scan(
                    info.channels[partition].channel,
                    at,
                    stop,
                    page_rows,
                    wish,
                    wish.min_seq(info, partition),
                    deadline_ms=self._context.deadline_ms(timeout),
                    keys_only=keys_only,
                )

        items: AsyncGenerator[Item, None] = merged(info.partitions, start, limit, fetch)
        try:
            async for key, sealed, _ in items:
                if keys_only:
                    yield dict(zip(schema.key_columns, schema.decode_key(key), strict=True))
                else:
                    yield cast(dict[str, Any], _row(schema, key, sealed))
        finally:
            await items.aclose()


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
