"""What users do with one table: rows in, rows out. Every method names its outcome or its level."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Unpack, cast

from raftstore.client.batches import Chunk, Pair, failure_of, split, summarise
from raftstore.client.bulk import AsyncBulkWriter
from raftstore.client.context import Context
from raftstore.client.position import Position
from raftstore.client.publisher import Publisher, Write
from raftstore.client.querying import Querying
from raftstore.client.reads import ReadOptions, ReadWish, read_wish
from raftstore.client.results import GetResult, WriteAck, WriteSummary
from raftstore.client.scanning import Item, merged
from raftstore.client.settings import ANSWERS_AT_ONCE, KEYS_PER_GET, SCAN_PAGE_ROWS
from raftstore.errors import (
    ConfigError,
    ConflictError,
    PayloadTooLargeError,
    RequestError,
    SchemaError,
)
from raftstore.messages import PubAck
from raftstore.requests import GetAnswer, ScanAnswer, TableInfo
from raftstore.rows.partitioner import partition_of
from raftstore.rows.payload import encode_conditional, encode_rows
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal, unseal
from raftstore.types import Level, RecordKind, Seq, node_name


class AsyncTable:
    """A table by name; made by ``client.table(name)``, which asks nobody.

    Rows are dicts with the key columns. A key is its value, a tuple for several key columns, or a
    dict of them.
    """

    def __init__(
        self, name: str, context: Context, publisher: Publisher, querying: Querying
    ) -> None:
        self.name = name
        self._context = context
        self._publisher = publisher
        self._querying = querying
        self._schema: tuple[bytes, str, TableSchema] | None = None

    # --- writing ---------------------------------------------------------------------------------

    async def put(
        self,
        row: Mapping[str, Any],
        *,
        if_absent: bool = False,
        if_position: Position | str | None = None,
        timeout: float | None = None,
    ) -> WriteAck:
        """Insert or replace a row; returns when a quorum has it durably.

        ``if_absent``: only if there is no row with this key. ``if_position``: only if the row is
        the version written at this position. A lost race is ConflictError, NOT_APPLIED.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        info, schema = await self._open(deadline_ms)
        key, value = schema.row_to_key_value(row)
        expected = _expected(info, key, if_absent=if_absent, if_position=if_position)
        return await self._write_row(info, key, seal(key, value), expected, deadline_ms)

    async def delete(
        self,
        key: Any,
        *,
        if_position: Position | str | None = None,
        timeout: float | None = None,
    ) -> WriteAck:
        """Remove a row; removing one that is not there is no error."""
        deadline_ms = self._context.deadline_ms(timeout)
        info, schema = await self._open(deadline_ms)
        encoded = schema.key_of(key)
        expected = _expected(info, encoded, if_absent=False, if_position=if_position)
        return await self._write_row(info, encoded, None, expected, deadline_ms)

    async def put_many(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        max_in_flight: int = 8,
        timeout: float | None = None,
    ) -> WriteSummary:
        """Insert or replace many rows; of rows with the same key the last one wins.

        All rows are checked before the first is sent. They are written as records of at most 1000
        rows or 1 MiB, each applied as a whole; ``timeout`` is for each record. When records end
        differently, PartialWriteError holds the numbers of the rows that were applied, not applied
        and unknown.
        """
        info, schema = await self._open(self._context.deadline_ms(timeout))
        pairs: list[Pair] = []
        for number, row in enumerate(rows):
            try:
                key, value = schema.row_to_key_value(row)
            except PayloadTooLargeError as error:
                raise PayloadTooLargeError(
                    f"row {number}: {error} (nothing was written)",
                    size=error.size,
                    limit=error.limit,
                ) from error
            except SchemaError as error:
                raise SchemaError(f"row {number}: {error} (nothing was written)") from error
            pairs.append((key, seal(key, value)))
        return await self._write_many(info, pairs, max_in_flight, timeout)

    async def delete_many(
        self, keys: Iterable[Any], *, max_in_flight: int = 8, timeout: float | None = None
    ) -> WriteSummary:
        """Remove many rows, in records like ``put_many``."""
        info, schema = await self._open(self._context.deadline_ms(timeout))
        pairs: list[Pair] = [(schema.key_of(key), None) for key in keys]
        return await self._write_many(info, pairs, max_in_flight, timeout)

    async def publish_rows(
        self, partition: int, pairs: Sequence[Pair], *, timeout: float | None = None
    ) -> WriteAck:
        """Write encoded rows of one partition as one record (``rows.keys``, ``rows.sealing``)."""
        deadline_ms = self._context.deadline_ms(timeout)
        info, _ = await self._open(deadline_ms)
        payload = encode_rows(pairs)
        return await self._write(info, partition, RecordKind.ROWS, payload, len(pairs), deadline_ms)

    async def bulk_writer(
        self, *, max_in_flight: int = 8, timeout: float | None = None
    ) -> AsyncBulkWriter:
        """Return a writer of encoded records; ``timeout`` is for each, retries included.

        The writer keeps to the table that has this name now: after a drop it fails.
        """
        info, _ = await self._open(self._context.deadline_ms(timeout))

        async def write(partition: int, payload: bytes, rows: int) -> WriteAck:
            deadline_ms = self._context.deadline_ms(timeout)
            return await self._write(info, partition, RecordKind.ROWS, payload, rows, deadline_ms)

        return AsyncBulkWriter(write, max_in_flight=max_in_flight)

    # --- reading ---------------------------------------------------------------------------------

    async def get(self, key: Any, **options: Unpack[ReadOptions]) -> dict[str, Any] | None:
        """Return the row with this key or None; linearizable unless told otherwise."""
        return (await self.get_result(key, **options)).value

    async def get_result(self, key: Any, **options: Unpack[ReadOptions]) -> GetResult:
        """Return the row with its version, and by whom it was served and how fresh that was."""
        wish = read_wish(options)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info, schema = await self._open(deadline_ms)
        encoded = schema.key_of(key)
        partition = partition_of(encoded, info.partitions)
        answer = await self._get(info, partition, (encoded,), wish, deadline_ms)
        return _get_result(info, schema, partition, encoded, answer)

    async def get_many(
        self, keys: Iterable[Any], **options: Unpack[ReadOptions]
    ) -> list[dict[str, Any] | None]:
        """Return one row or None per key, in order. Each partition is read once, not all at once:
        at level linearizable every row is as new as the call, but they are no snapshot."""
        wish = read_wish(options)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info, schema = await self._open(deadline_ms)
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

        async def values(partition: int, part: tuple[bytes, ...]) -> tuple[bytes | None, ...]:
            async with slots:
                return await self._values(info, partition, part, wish, deadline_ms)

        answers = await _gather([values(partition, part) for partition, part in parts])
        rows: dict[bytes, dict[str, Any] | None] = {}
        for (_, part), found in zip(parts, answers, strict=True):
            for key, sealed in zip(part, found, strict=True):
                rows[key] = _row(schema, key, sealed)
        return [rows[key] for key in encoded]

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

    async def _open(self, deadline_ms: int) -> tuple[TableInfo, TableSchema]:
        info = self._context.topology.table(self.name)
        if info is None:
            info = await self._context.discovery.table(self.name, deadline_ms)
        known = self._schema
        if known is None or known[0] != info.uuid or known[1] != info.schema_json:
            schema = TableSchema(info.key_columns, info.schema_json)
            self._schema = known = (info.uuid, info.schema_json, schema)
        return info, known[2]

    async def _write_row(
        self,
        info: TableInfo,
        key: bytes,
        sealed: bytes | None,
        expected: Seq | None,
        deadline_ms: int,
    ) -> WriteAck:
        partition = partition_of(key, info.partitions)
        if expected is None:
            kind, payload = RecordKind.ROWS, encode_rows([(key, sealed)])
        else:
            kind, payload = RecordKind.CONDITIONAL, encode_conditional(key, sealed, expected)
        return await self._write(info, partition, kind, payload, 1, deadline_ms)

    async def _write(
        self,
        info: TableInfo,
        partition: int,
        kind: RecordKind,
        payload: bytes,
        rows: int,
        deadline_ms: int,
    ) -> WriteAck:
        if not 0 <= partition < info.partitions:
            raise SchemaError(
                f"partition {partition} of table {info.name!r} does not exist; "
                f"it has 0 to {info.partitions - 1}"
            )
        write = Write(info.channels[partition].channel, kind, payload, rows)
        ack = await self._publisher.publish(write, deadline_ms)
        if ack.conflict:
            raise _conflict(info, partition, ack)
        return WriteAck(
            position=Position.at(info.uuid, partition, ack.record_term, ack.last_seq),
            partition=partition,
            seq=ack.last_seq,
            term=ack.record_term,
            rows=rows,
            durability=ack.durability,
            replicas_acked=ack.replicas_acked,
        )

    async def _write_many(
        self, info: TableInfo, pairs: list[Pair], max_in_flight: int, timeout: float | None
    ) -> WriteSummary:
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight={max_in_flight} is not positive; use 1 or more")
        slots = asyncio.Semaphore(max_in_flight)
        failed: set[int] = set()

        async def write(chunk: Chunk) -> WriteAck | RequestError | None:
            async with slots:
                if chunk.partition in failed:
                    return None
                try:
                    return await self._publish_chunk(info, chunk, timeout)
                except RequestError as error:
                    failed.add(chunk.partition)
                    return error

        chunks = split(pairs, info.partitions)
        results = await _gather([write(chunk) for chunk in chunks])
        acks = [result for result in results if isinstance(result, WriteAck)]
        if len(acks) == len(results):
            return summarise(acks)
        failure = failure_of([key for key, _ in pairs], list(zip(chunks, results, strict=True)))
        raise failure

    async def _publish_chunk(
        self, info: TableInfo, chunk: Chunk, timeout: float | None
    ) -> WriteAck:
        """Write one chunk as one record."""
        deadline_ms = self._context.deadline_ms(timeout)
        payload = encode_rows(chunk.pairs)
        rows = len(chunk.pairs)
        return await self._write(info, chunk.partition, RecordKind.ROWS, payload, rows, deadline_ms)

    async def _get(
        self,
        info: TableInfo,
        partition: int,
        keys: tuple[bytes, ...],
        wish: ReadWish,
        deadline_ms: int,
    ) -> GetAnswer:
        channel = info.channels[partition].channel
        min_seq = wish.min_seq(info.uuid, partition)
        return await self._querying.get(channel, keys, wish, min_seq, deadline_ms)

    async def _values(
        self,
        info: TableInfo,
        partition: int,
        keys: tuple[bytes, ...],
        wish: ReadWish,
        deadline_ms: int,
    ) -> tuple[bytes | None, ...]:
        """Read keys of one partition; rows too large for one answer are asked for in halves."""
        try:
            return (await self._get(info, partition, keys, wish, deadline_ms)).values
        except PayloadTooLargeError:
            if len(keys) == 1:
                raise
        half = len(keys) // 2
        first = await self._values(info, partition, keys[:half], wish, deadline_ms)
        return first + await self._values(info, partition, keys[half:], wish, deadline_ms)

    async def _scan(
        self,
        bounds: tuple[Any, Any, Any],
        limit: int | None,
        wish: ReadWish,
        timeout: float | None,
        *,
        keys_only: bool,
    ) -> AsyncGenerator[dict[str, Any], None]:
        info, schema = await self._open(self._context.deadline_ms(timeout))
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
                    wish.min_seq(info.uuid, partition),
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


def _expected(
    info: TableInfo, key: bytes, *, if_absent: bool, if_position: Position | str | None
) -> Seq | None:
    """Return the version that the row must have: 0 for "no row", None for "any"."""
    if if_position is None:
        return Seq(0) if if_absent else None
    if if_absent:
        raise ConfigError("if_absent and if_position exclude each other; give one of them")
    partition = partition_of(key, info.partitions)
    seq = Position.parse(if_position).seq_of(info.uuid, partition)
    if seq is None:
        raise SchemaError(
            f"the position {if_position} says nothing about partition {partition} of table "
            f"{info.name!r}, where the row lives; give the position of this row"
        )
    return seq


def _conflict(info: TableInfo, partition: int, ack: PubAck) -> ConflictError:
    if ack.conflict_seq == 0:
        return ConflictError("the row does not exist, so nothing was written; read it again")
    # The term of the row's record is not told; a position is compared by seq alone.
    position = Position.at(info.uuid, partition, ack.record_term, ack.conflict_seq)
    return ConflictError(
        f"the row has another version (seq {ack.conflict_seq}), so nothing was written; "
        "read it again",
        position=str(position),
    )


def _row(schema: TableSchema, key: bytes, sealed: bytes | None) -> dict[str, Any] | None:
    return None if sealed is None else schema.key_value_to_row(key, unseal(key, sealed))


def _get_result(
    info: TableInfo, schema: TableSchema, partition: int, key: bytes, answer: GetAnswer
) -> GetResult:
    served, seq = answer.served, answer.seqs[0]
    value = _row(schema, key, answer.values[0])
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


async def _gather(coroutines: Sequence[Any]) -> list[Any]:
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
