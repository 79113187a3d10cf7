"""Reading rows of one table: by key, by many keys, in key order. Every read has a level."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Any, Unpack

from raftstore.client.arguments import items, whole
from raftstore.client.batches.batch_writes import BatchResult, BatchWrites
from raftstore.client.cluster.vector import Commit, commit_of
from raftstore.client.context import Context, timeout_in_ms
from raftstore.client.definitions import check_is_table
from raftstore.client.opened import opening
from raftstore.client.position import Position
from raftstore.client.reads.channel_reads import ChannelReads, Range
from raftstore.client.reads.key_reads import (
    AnswerBudget,
    FoundPart,
    KeyReads,
    KeysPart,
    gather_or_cancel,
    parts_of,
)
from raftstore.client.reads.projection import Projection
from raftstore.client.reads.read_spec import ReadOptions, ReadSpec, spec_of
from raftstore.client.results import CountResult, GetResult, PageResult
from raftstore.client.scans.pages import PageToken, PinnedScan, served_parts
from raftstore.client.scans.scanning import Item, merged, taken
from raftstore.client.scans.shapes import Shape, bounds_of, check_range
from raftstore.client.scans.snapshot_opening import (
    SnapshotOpening,
    SnapshotOptions,
    SnapshotSpec,
    SnapshotToken,
    check_is_of,
    commit_of_batch,
    snapshot_read_spec,
)
from raftstore.client.scans.snapshots import AsyncSnapshot
from raftstore.client.settings import (
    ANSWERS_AT_ONCE,
    PAGE_ROWS_MAX,
    PAGE_ROWS_MIN,
    SCAN_PAGE_ROWS,
)
from raftstore.errors import ArgumentError, PositionError, UnknownTableError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.reads import CountAnswer
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema


class TableReads:
    """The reading half of ``AsyncTable``, and what both halves know of the table."""

    def __init__(self, name: str, context: Context, channel_reads: ChannelReads) -> None:
        self.name = name
        self._context = context
        self._channel_reads = channel_reads
        self._schema: tuple[bytes, str, TableSchema] | None = None
        self._bytes_max = context.settings.answer_bytes_max
        self._parts = KeyReads(channel_reads, self._bytes_max, context.recorder)

    def __repr__(self) -> str:
        info = self._context.topology.table(self.name)
        known = ""
        if info is not None:
            known = f": key {', '.join(info.key_columns)}, {info.partitions} partitions"
        return f"<{type(self).__name__} {self.name!r}{known}>"

    async def definition(self, *, timeout: float | None = None) -> TableInfo:
        """Return the table's definition as it is known here; asks only when it is not.

        Placement and leaders are those of ``table_info``.
        """
        return (await self._open(self._context.deadline_ms(timeout)))[0]

    async def get(self, key: Any, **options: Unpack[ReadOptions]) -> dict[str, Any] | None:
        """Return the row with this key or None; linearizable by default."""
        shape, found = await self._one(key, options)
        value = found.value()
        return value if value is None or shape.is_of_all else shape.of(value)

    async def get_result(self, key: Any, **options: Unpack[ReadOptions]) -> GetResult:
        """Return the row with its version, and by whom it was served and how fresh that was."""
        shape, found = await self._one(key, options)
        [result] = found.results(shape)
        return result

    async def get_many(
        self, keys: Iterable[Any], **options: Unpack[ReadOptions]
    ) -> list[dict[str, Any] | None]:
        """Return one row or None per key, in order.

        Each partition is read once, not all at once: at level linearizable every row
        is as new as the call, but they are no snapshot.
        """
        shape, encoded, parts = await self._many(keys, options)
        values: dict[bytes, dict[str, Any] | None] = {}
        for part in parts:
            values |= zip(part.keys, part.values(), strict=True)
        if shape.is_of_all:
            return [values[key] for key in encoded]
        rows = [values[key] for key in encoded]
        return [None if row is None else shape.of(row) for row in rows]

    async def get_many_results(
        self, keys: Iterable[Any], **options: Unpack[ReadOptions]
    ) -> list[GetResult]:
        """Return ``get_many``'s rows with their versions, and by whom each was served."""
        shape, encoded, parts = await self._many(keys, options)
        results: dict[bytes, GetResult] = {}
        for part in parts:
            results |= zip(part.keys, part.results(shape), strict=True)
        return [results[key] for key in encoded]

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
        spec = spec_of(options)
        check_range(start, stop, prefix)
        if limit is not None:
            whole("limit", limit, 0)
        bounds = (start, stop, prefix)
        return self._scan(
            bounds, limit, spec, options.get("timeout"), keys_only=keys_only, snapshot=snapshot
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
        spec = spec_of(options)
        check_range(start, stop, prefix)
        if type(limit) is not int or not 1 <= limit <= PAGE_ROWS_MAX:
            raise ArgumentError(f"limit={limit!r} is no number of rows from 1 to {PAGE_ROWS_MAX}")
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info, schema = await self._open(deadline_ms, spec)
        spec = spec.for_table(info)
        shape = Shape(schema, spec, keys_only=keys_only)
        first, stop_key = bounds_of(schema, start, stop, prefix)
        scan = shape.digest(first, stop_key)
        pinned = PinnedScan(
            self._channel_reads,
            info,
            spec,
            stop_key,
            page_rows=min(limit, max(PAGE_ROWS_MIN, 2 * limit // info.partitions)),
            keys_only=shape.keys_only,
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
            rows = merged(info.partitions, first, limit, pinned.fetch)
            items = await taken(rows, self._bytes_max)
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
        spec = spec_of(options)
        check_range(start, stop, prefix)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info, schema = await self._open(deadline_ms, spec)
        spec = spec.for_table(info)
        part = Range(*bounds_of(schema, start, stop, prefix))
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def counted(partition: int) -> CountAnswer:
            channel = info.channels[partition].channel
            min_seq = spec.min_seq(info, partition)
            async with slots:
                return await self._channel_reads.count(channel, part, spec, deadline_ms, min_seq)

        answers = await gather_or_cancel([counted(p) for p in range(info.partitions)])
        reported = {partition: answer.served for partition, answer in enumerate(answers)}
        return CountResult(
            rows=sum(answer.rows for answer in answers),
            position=Position(
                {
                    (info.uuid, p): (served.term, served.applied_seq)
                    for p, served in reported.items()
                }
            ),
            served=served_parts(reported),
        )

    @opening
    async def snapshot(
        self,
        *,
        at_batch: BatchResult | tuple[str, int] | None = None,
        at_least: BatchResult | AsyncSnapshot | Position | str | None = None,
        keep: bool = True,
        idle: float | None = None,
        **options: Unpack[SnapshotOptions],
    ) -> AsyncSnapshot:
        """Open one state of all partitions: batches are in it as a whole or not at all.

        Any replica may serve. At level linearizable (default) everything acknowledged before the
        call is in it. At level bounded it is as new as a bounded read at the call, and refused like
        one; at level any it may be older. In either case snapshots of a table never go back for
        this client, and what it committed itself is in them. ``at_least``: a position, or a batch
        or snapshot that must be in it. ``at_batch``: exactly the state after this batch, while it
        is kept: what ``commit_batch`` returned, or (writer, batch id) of the newest batch, which is
        waited for.

        Rows written one by one (``put``) are in it as each partition has them. The nodes keep the
        states for reads that follow until ``close``, or until nobody has read them for half a
        minute (``idle``: other seconds): PageExpiredError then. ``keep=False`` only decides which
        commit it would be. Raises SnapshotExpiredError, never mixes two states, and
        StoreTooOldError while some node is of a version without batches.
        """
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        after = at_least if isinstance(at_least, BatchResult | AsyncSnapshot) else None
        position = at_least if isinstance(at_least, Position | str) else None
        if at_least is not None and after is None and position is None:
            raise ArgumentError(
                f"at_least={at_least!r:.60} is no position, batch or snapshot; give what a write, "
                "commit_batch or snapshot returned"
            )
        if at_batch is not None and at_least is not None:
            raise ArgumentError(
                "at_batch and at_least are both given, and at_batch is one state; give one of them"
            )
        read = snapshot_read_spec(options, position, is_floor_given=after is not None)
        given = at_batch if isinstance(at_batch, BatchResult) else after
        if given is None:
            info, schema = await self._open(deadline_ms, read)
        else:
            state = given.token if isinstance(given, AsyncSnapshot) else given
            info, schema = await self._open_of(partial(check_is_of, state), deadline_ms)
        context = self._context
        # A node that does not know the question ends the connection, again and again.
        await BatchWrites(context).check_level(info.name, deadline_ms)
        exactly = None
        if at_batch is not None and read.has_bound:
            raise ArgumentError(
                "at_batch is one state, however old: give either at_batch or bounds such as max_lag"
            )
        if at_batch is not None:
            exactly = await commit_of_batch(context, info, at_batch, deadline_ms)
        spec = SnapshotSpec(
            read=read,
            floor=Commit() if after is None else commit_of(after.vector),
            exactly=exactly,
            keep=keep,
            idle_ms=0 if idle is None else timeout_in_ms(idle),
        )
        opening = SnapshotOpening(context, self._channel_reads, info, spec, deadline_ms)
        return AsyncSnapshot(context, self._channel_reads, info, schema, await opening.open(), read)

    @opening
    async def read_snapshot(
        self, token: SnapshotToken, *, timeout: float | None = None
    ) -> AsyncSnapshot:
        """Read a snapshot that was opened elsewhere, perhaps in another process (``token``)."""
        deadline_ms = self._context.deadline_ms(timeout)
        info, schema = await self._open_of(partial(check_is_of, token), deadline_ms)
        return AsyncSnapshot(self._context, self._channel_reads, info, schema, token)

    # --- inside ----------------------------------------------------------------------------------

    async def _open(
        self, deadline_ms: int, spec: ReadSpec | None = None
    ) -> tuple[TableInfo, TableSchema]:
        if spec is not None and spec.at_least is not None:
            return await self._open_of(spec.at_least.check_table, deadline_ms)
        info = self._context.topology.table(self.name)
        if info is None:
            info = await self._context.discovery.table(self.name, deadline_ms)
        check_is_table(info)
        known = self._schema
        if known is None or known[0] != info.uuid or known[1] != info.schema_json:
            schema = TableSchema(info.key_columns, info.schema_json)
            self._schema = known = (info.uuid, info.schema_json, schema)
        return info, known[2]

    async def _open_of(
        self, check: Callable[[TableInfo], object], deadline_ms: int
    ) -> tuple[TableInfo, TableSchema]:
        """Open the table that a position, a batch or a snapshot is of, as ``check`` finds: that may
        be newer than the catalog known here, which is asked for once before it is refused."""
        info, schema = await self._open(deadline_ms)
        try:
            check(info)
        except (PositionError, UnknownTableError):
            await self._context.discovery.refresh(deadline_ms)
            info, schema = await self._open(deadline_ms)
            check(info)
        return info, schema

    async def _one(self, key: Any, options: ReadOptions) -> tuple[Projection, FoundPart]:
        """Read one key."""
        context = self._context
        spec = spec_of(options)
        timeout_ms = context.timeout_ms(options.get("timeout"))
        deadline_ms = context.now_ms() + timeout_ms
        info, schema = self._opened(spec) or await self._open(deadline_ms, spec)
        encoded = schema.key_of(key)
        spec = spec.for_table(info)
        shape = Projection.chosen(schema, spec.columns)
        partition = partition_of(encoded, info.partitions)
        part = KeysPart(info, schema, partition, (encoded,))
        return shape, await self._parts.read(part, spec, timeout_ms, deadline_ms)

    async def _many(
        self, keys: Iterable[Any], options: ReadOptions
    ) -> tuple[Projection, list[bytes], list[FoundPart]]:
        """Read many keys, each once: encoded as they were given, and where they were found."""
        context = self._context
        spec = spec_of(options)
        timeout_ms = context.timeout_ms(options.get("timeout"))
        deadline_ms = context.now_ms() + timeout_ms
        info, schema = self._opened(spec) or await self._open(deadline_ms, spec)
        encoded = [schema.key_of(key) for key in items("keys", keys)]
        spec = spec.for_table(info)
        shape = Projection.chosen(schema, spec.columns)
        parts = parts_of(info, schema, encoded)
        found = await self._parts.read_all(parts, spec, timeout_ms, deadline_ms)
        if self._bytes_max is not None:
            # Each key was read once, but its row is reported as often as it was asked for.
            sizes: dict[bytes, int] = {}
            for each in found:
                sizes |= each.sizes()
            AnswerBudget(self._bytes_max).take(sum(sizes[key] for key in encoded))
        return shape, encoded, found

    def _opened(self, spec: ReadSpec) -> tuple[TableInfo, TableSchema] | None:
        """The table if it is known as it is, which it is nearly always."""
        info, known = self._context.topology.table(self.name), self._schema
        if info is None or known is None or spec.at_least is not None:
            return None
        uuid, schema_json, schema = known
        return (info, schema) if uuid == info.uuid and schema_json == info.schema_json else None

    async def _scan(
        self,
        bounds: tuple[Any, Any, Any],
        limit: int | None,
        spec: ReadSpec,
        timeout: float | None,
        *,
        keys_only: bool,
        snapshot: bool,
    ) -> AsyncGenerator[dict[str, Any], None]:
        info, schema = await self._open(self._context.deadline_ms(timeout), spec)
        spec = spec.for_table(info)
        start, stop = bounds_of(schema, *bounds)
        page_rows = SCAN_PAGE_ROWS if limit is None else max(1, min(limit, SCAN_PAGE_ROWS))
        shape = Shape(schema, spec, keys_only=keys_only)
        pinned = PinnedScan(
            self._channel_reads,
            info,
            spec,
            stop,
            page_rows=page_rows,
            keys_only=shape.keys_only,
            deadline_ms=lambda: self._context.deadline_ms(timeout),
            snapshot=snapshot,
            rows_max=limit,
        )
        items: AsyncGenerator[Item, None] = merged(info.partitions, start, limit, pinned.fetch)
        try:
            async for key, sealed, _ in items:
                yield shape.row(key, sealed)
        finally:
            await items.aclose()
            pinned.close()
