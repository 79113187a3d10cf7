"""One table as users see it: reads (``table_reads``), changes (``table_changes``) and writes,
which name their outcome."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from raftstore.client.arguments import Ttl, flag, items, lifetime_ms, whole
from raftstore.client.batches.batch_writes import (
    BatchResult,
    BatchTicket,
    BatchWrites,
    TableWriters,
    check_same_table,
)
from raftstore.client.batches.stager import AsyncStager, StagedParts, own_name
from raftstore.client.context import Context, timeout_in_ms
from raftstore.client.opened import opening
from raftstore.client.position import Position
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.key_reads import gather_or_cancel
from raftstore.client.results import WriteAck, WriteSummary
from raftstore.client.table_changes import TableChanges
from raftstore.client.writes.bulk import AsyncBulkWriter
from raftstore.client.writes.chunks import Chunk, Pair, failure_of, split, summarise
from raftstore.client.writes.kinds import RowWrite, Write
from raftstore.client.writes.publisher import Publisher
from raftstore.errors import (
    ArgumentError,
    ConflictError,
    DecodeError,
    PayloadTooLargeError,
    RequestError,
    SchemaError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.payload import decode_mark, encode_mark, encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.staged import ChunkHeader
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.types import (
    BatchModeName,
    ChannelId,
    RecordKind,
    Seq,
    channel_partition,
    guid_text,
)


class AsyncTable(TableChanges):
    """A table by name; made by ``client.table(name)``, which asks nobody.

    Rows are dicts with the key columns. A key is its value, a tuple for several key columns, or a
    dict of them.
    """

    def __init__(
        self, name: str, context: Context, publisher: Publisher, channel_reads: ChannelReads
    ) -> None:
        super().__init__(name, context, channel_reads)
        self._publisher = publisher
        self._batches = BatchWrites(context)

    # --- writing ---------------------------------------------------------------------------------

    async def put(
        self,
        row: Mapping[str, Any],
        *,
        if_absent: bool = False,
        if_position: Position | str | None = None,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> WriteAck:
        """Insert or replace a row; returns when a quorum has it durably.

        Puts and deletes of one key are applied in the order in which this client began them.
        Those that are begun while others are under way may share a record, and so a guid.

        ``if_absent``: only if there is no row with this key. ``if_position``: only if the row is
        the version written at this position. A lost race is ConflictError, NOT_APPLIED. An expired
        row is no row to both.

        ``ttl``: how long the row lives, in seconds or as a timedelta, 0: for ever; without one, as
        the table's own ttl says. The next write of the row counts alone: it may have another
        lifetime, or none. ArgumentError for one that cannot be.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        if flag("if_absent", if_absent) and if_position is not None:
            raise ArgumentError("if_absent and if_position exclude each other; give one of them")
        info, schema, version = await self._open_at(if_position, deadline_ms)
        key, value = schema.row_to_key_value(row)
        expected = Seq(0) if if_absent else _expected(info, key, version)
        write = RowWrite(
            self._channel_of(info, key), key, seal(key, value), expected, _ttl_ms(info, ttl)
        )
        return await self._write_row(info, write, deadline_ms)

    async def delete(
        self,
        key: Any,
        *,
        if_position: Position | str | None = None,
        timeout: float | None = None,
    ) -> WriteAck:
        """Remove a row; removing one that is not there is no error."""
        deadline_ms = self._context.deadline_ms(timeout)
        info, schema, version = await self._open_at(if_position, deadline_ms)
        encoded = schema.key_of(key)
        expected = _expected(info, encoded, version)
        write = RowWrite(self._channel_of(info, encoded), encoded, None, expected)
        return await self._write_row(info, write, deadline_ms)

    async def put_many(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        max_in_flight: int = 8,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> WriteSummary:
        """Insert or replace many rows; of rows with the same key the last one wins.

        All rows are checked before the first is sent. They are written as records of at most 1000
        rows or 1 MiB, each applied as a whole; ``timeout`` is for each record. When records end
        differently, PartialWriteError holds the numbers of the rows that were applied, not applied
        and unknown. ``ttl``: how long all of them live, as in ``put``.
        """
        lifetime_ms(ttl)
        info, schema = await self._open(self._context.deadline_ms(timeout))
        pairs, ttl_ms = _sealed(schema, rows), _ttl_ms(info, ttl)
        return await self._write_many(info, pairs, max_in_flight, timeout, ttl_ms)

    async def delete_many(
        self, keys: Iterable[Any], *, max_in_flight: int = 8, timeout: float | None = None
    ) -> WriteSummary:
        """Remove many rows, in records like ``put_many``."""
        info, schema = await self._open(self._context.deadline_ms(timeout))
        pairs: list[Pair] = [(schema.key_of(key), None) for key in items("keys", keys)]
        return await self._write_many(info, pairs, max_in_flight, timeout)

    async def publish_rows(
        self,
        partition: int,
        pairs: Sequence[Pair],
        *,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> WriteAck:
        """Write encoded rows of one partition as one record (``rows.keys``, ``rows.sealing``).

        ``ttl`` is that of all of them, as in ``put``.
        """
        lifetime_ms(ttl)
        deadline_ms = self._context.deadline_ms(timeout)
        info, _ = await self._open(deadline_ms)
        payload, rows, ttl_ms = encode_rows(pairs), len(pairs), _ttl_ms(info, ttl)
        return await self._write(
            info, partition, RecordKind.ROWS, payload, rows, deadline_ms, ttl_ms=ttl_ms
        )

    async def mark_batch(
        self,
        writer: str,
        batch_id: int,
        *,
        partitions: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Announce that a micro-batch written row by row is complete; reads count them
        (BLOG-32).

        Call it when all rows of the batch are acknowledged: each of ``partitions`` (default: all)
        gets one record that changes no row, and a read with ``max_batches_behind`` counts those
        that a replica has not applied. Marking again the batch that the writer marked last counts
        nothing: it is taken for a replay of the same rows. Returns the position that holds the
        batch. Raises StoreTooOldError while some node is of a version without marks.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        info, _ = await self._open(deadline_ms)
        try:
            payload = encode_mark(writer, batch_id)
            decode_mark(payload)
        except (DecodeError, TypeError, OverflowError) as error:
            raise SchemaError(str(error)) from error
        chosen = (
            range(info.partitions)
            if partitions is None
            else sorted({whole("partitions", each, 0) for each in items("partitions", partitions)})
        )
        acks = await gather_or_cancel(
            [
                self._write(info, partition, RecordKind.BATCH_MARK, payload, 1, deadline_ms)
                for partition in chosen
            ]
        )
        return summarise(acks).position

    @opening
    async def bulk_writer(
        self, *, max_in_flight: int = 8, ttl: Ttl = None, timeout: float | None = None
    ) -> AsyncBulkWriter:
        """Return a writer of encoded records; ``timeout`` is for each, retries included.

        ``ttl`` is for all rows, as in ``put``.
        The writer keeps to the table that has this name now: after a drop it fails.
        """
        lifetime_ms(ttl)
        info, _ = await self._open(self._context.deadline_ms(timeout))
        ttl_ms = _ttl_ms(info, ttl)

        async def write(partition: int, payload: bytes, rows: int) -> WriteAck:
            deadline_ms = self._context.deadline_ms(timeout)
            return await self._write(
                info, partition, RecordKind.ROWS, payload, rows, deadline_ms, ttl_ms=ttl_ms
            )

        return AsyncBulkWriter(write, max_in_flight=max_in_flight)

    # --- atomic micro-batches --------------------------------------------------------------------

    async def check_batches(self, *, timeout: float | None = None) -> None:
        """Raise StoreTooOldError while some node of the cluster could not read batches."""
        await self._batches.check_level(self.name, self._context.deadline_ms(timeout))

    async def begin_batch(
        self,
        writer: str,
        batch_id: int,
        *,
        uuid: bytes | None = None,
        lineage: str = "",
        one_shot: bool = False,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> BatchTicket:
        """Open an attempt at a batch; the attempt of this writer that was open can never commit.

        All who give the same ``uuid`` (16 bytes) get the same attempt. ``lineage`` names the
        checkpoint that the batch ids count in. ``one_shot``: there will be no second batch,
        and the writer is forgotten after the commits of 65,536 others (``batch.one_shots_max``).
        ``ttl``: seconds after which an attempt that nobody begins again is closed. A batch that is
        in the table already gives a ticket that says so. Raises BatchRegressionError for a lower
        batch id or another checkpoint, StoreTooOldError while some node is of an older version.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        info, _ = await self._open(deadline_ms)
        return await self._batches.begin(
            info,
            writer,
            batch_id,
            uuid=uuid,
            lineage=lineage,
            one_shot=one_shot,
            ttl_ms=0 if ttl is None else timeout_in_ms(ttl),
            deadline_ms=deadline_ms,
        )

    @opening
    async def stager(
        self,
        ticket: BatchTicket,
        partition_id: int,
        task_attempt_id: int,
        *,
        max_in_flight: int = 8,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> AsyncStager:
        """Return a stager of encoded chunks for one attempt of one task of the batch.

        A second stager of the same attempt begins anew: only what is in the parts of the one that
        is committed becomes visible. ``timeout`` is for each chunk, retries included. ``ttl``: how
        long the rows live once they are visible, as in ``put``.
        """
        lifetime_ms(ttl)
        context = self._context
        info, _ = await self._open_of(
            partial(check_same_table, ticket), context.deadline_ms(timeout)
        )
        whole("partition_id", partition_id, 0)
        whole("task_attempt_id", task_attempt_id, 0)
        if ticket.is_already_written:
            raise ArgumentError(f"batch {ticket.batch_id} is in the table already: stage nothing")

        async def publish(partition: int, payload: bytes, rows: int, deadline_ms: int) -> WriteAck:
            return await self._write(info, partition, RecordKind.STAGED, payload, rows, deadline_ms)

        return AsyncStager(
            ChunkHeader(
                ticket.writer,
                ticket.attempt,
                partition_id,
                own_name(task_attempt_id),
                0,
                ttl_ms=_ttl_ms(info, ttl),
            ),
            publish,
            max_in_flight=max_in_flight,
            deadline_ms=lambda: context.deadline_ms(timeout),
            now_ms=context.now_ms,
        )

    async def commit_batch(
        self,
        ticket: BatchTicket,
        parts: Iterable[StagedParts],
        *,
        mode: BatchModeName = "append",
        timeout: float | None = None,
    ) -> BatchResult:
        """Make what these tasks staged visible, all at once; "overwrite" replaces the table.

        Returns when every channel has applied it. WriterFencedError: another attempt took over;
        stop, the outcome is UNKNOWN. BatchPendingError: not seen applied everywhere in time.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        info, _ = await self._open_of(partial(check_same_table, ticket), deadline_ms)
        result = await self._batches.commit(info, ticket, parts, mode, deadline_ms)
        self._context.floors.note(info.uuid, result.vector)
        return result

    async def abort_batch(self, ticket: BatchTicket, *, timeout: float | None = None) -> None:
        """Give the attempt up; what it staged never becomes visible."""
        deadline_ms = self._context.deadline_ms(timeout)
        info, _ = await self._open_of(partial(check_same_table, ticket), deadline_ms)
        await self._batches.abort(info, ticket, deadline_ms)

    async def write_batch(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        writer: str,
        batch_id: int,
        mode: BatchModeName = "append",
        deletes: Iterable[Any] = (),
        lineage: str = "",
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> BatchResult:
        """Write rows, and remove those with the keys ``deletes``, as one atomic batch.

        Exactly once for each batch id of the writer: a batch that is in the table already changes
        nothing, whatever its rows are now. ``timeout`` is for the whole batch, ``ttl`` for all of
        its rows, as in ``put``.
        """
        lifetime_ms(ttl)
        context = self._context
        deadline_ms = context.deadline_ms(timeout)
        info, schema = await self._open(deadline_ms)
        pairs = _sealed(schema, rows) + [
            (schema.key_of(key), None) for key in items("deletes", deletes)
        ]

        def left_s() -> float:
            return max(1, deadline_ms - context.now_ms()) / 1000

        ticket = await self.begin_batch(writer, batch_id, lineage=lineage, timeout=left_s())
        staged: list[StagedParts] = []
        if pairs and not ticket.is_already_written:
            try:
                staged.append(await self._stage(info, ticket, pairs, ttl, left_s()))
            except RequestError:
                with suppress(RequestError):  # else the next batch ends the attempt, or its time
                    await self.abort_batch(ticket, timeout=left_s())
                raise
        return await self.commit_batch(ticket, staged, mode=mode, timeout=left_s())

    async def writers(self, writer: str = "", *, timeout: float | None = None) -> TableWriters:
        """Return the writers of the table's batches, or one of them: last batch, open attempt."""
        deadline_ms = self._context.deadline_ms(timeout)
        info, _ = await self._open(deadline_ms)
        return await self._batches.writers(info, writer, deadline_ms)

    # --- inside ----------------------------------------------------------------------------------

    async def _stage(
        self, info: TableInfo, ticket: BatchTicket, pairs: list[Pair], ttl: Ttl, timeout: float
    ) -> StagedParts:
        """Stage the rows of a batch that one program writes alone."""
        async with await self.stager(ticket, 0, 0, ttl=ttl, timeout=timeout) as stager:
            for chunk in split(pairs, info.partitions):
                payload = encode_rows(chunk.pairs)
                await stager.add(chunk.partition, payload, len(chunk.pairs))
            return await stager.flush()

    async def _open_at(
        self, given: Position | str | None, deadline_ms: int
    ) -> tuple[TableInfo, TableSchema, Position | None]:
        """Open the table for a write on the condition that a row has the version of a position."""
        if given is None:
            return *await self._open(deadline_ms), None
        position = Position.parse(given)
        return *await self._open_of(position.check_table, deadline_ms), position

    @staticmethod
    def _channel_of(info: TableInfo, key: bytes) -> ChannelId:
        return info.channels[partition_of(key, info.partitions)].channel

    async def _write_row(self, info: TableInfo, write: RowWrite, deadline_ms: int) -> WriteAck:
        recorder, key = self._context.recorder, write.key
        began_ms = None if recorder is None else recorder.began((key,))
        ack = await self._publisher.write_row(write, deadline_ms)
        partition = channel_partition(write.channel)
        written = _written(info, partition, 1, ack, write.expected)
        if began_ms is not None and recorder is not None:
            recorder.wrote(info, partition, key, write.sealed, written.seq, written.term, began_ms)
        return written

    async def _write(
        self,
        info: TableInfo,
        partition: int,
        kind: RecordKind,
        payload: bytes,
        rows: int,
        deadline_ms: int,
        *,
        ttl_ms: int = 0,
    ) -> WriteAck:
        if not 0 <= partition < info.partitions:
            raise SchemaError(
                f"partition {partition} of table {info.name!r} does not exist; "
                f"it has 0 to {info.partitions - 1}"
            )
        channel = info.channels[partition].channel
        write = Write.of_rows(channel, kind, payload, rows, ttl_ms)
        return _written(info, partition, rows, await self._publisher.publish(write, deadline_ms))

    async def _write_many(
        self,
        info: TableInfo,
        pairs: list[Pair],
        max_in_flight: int,
        timeout: float | None,
        ttl_ms: int = 0,
    ) -> WriteSummary:
        whole("max_in_flight", max_in_flight, 1)
        slots = asyncio.Semaphore(max_in_flight)
        failed: set[int] = set()

        async def write(chunk: Chunk) -> WriteAck | RequestError | None:
            async with slots:
                if chunk.partition in failed:
                    return None
                try:
                    return await self._publish_chunk(info, chunk, timeout, ttl_ms)
                except RequestError as error:
                    failed.add(chunk.partition)
                    return error

        chunks = split(pairs, info.partitions)
        results = await gather_or_cancel([write(chunk) for chunk in chunks])
        acks = [result for result in results if isinstance(result, WriteAck)]
        if len(acks) == len(results):
            return summarise(acks)
        failure = failure_of([key for key, _ in pairs], list(zip(chunks, results, strict=True)))
        raise failure

    async def _publish_chunk(
        self, info: TableInfo, chunk: Chunk, timeout: float | None, ttl_ms: int
    ) -> WriteAck:
        """Write one chunk as one record."""
        deadline_ms = self._context.deadline_ms(timeout)
        payload = encode_rows(chunk.pairs)
        rows, kind, recorder = len(chunk.pairs), RecordKind.ROWS, self._context.recorder
        began_ms = None if recorder is None else recorder.began([key for key, _ in chunk.pairs])
        ack = await self._write(
            info, chunk.partition, kind, payload, rows, deadline_ms, ttl_ms=ttl_ms
        )
        if began_ms is not None and recorder is not None:
            for key, sealed in dict(chunk.pairs).items():  # of one key the last counts
                recorder.wrote(info, chunk.partition, key, sealed, ack.seq, ack.term, began_ms)
        return ack


def _sealed(schema: TableSchema, rows: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """Encode rows; an error names the row that does not fit by its number."""
    pairs: list[Pair] = []
    for number, row in enumerate(items("rows", rows)):
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
    return pairs


def _ttl_ms(info: TableInfo, ttl: Ttl) -> int:
    """How long rows live that are written with this ttl; 0: for ever."""
    given_ms = lifetime_ms(ttl)
    return (info.settings.ttl_ms or 0) if given_ms is None else given_ms


def _expected(info: TableInfo, key: bytes, version: Position | None) -> Seq | None:
    """Return the version that the row must have; None for "any"."""
    if version is None:
        return None
    partition = partition_of(key, info.partitions)
    seq = version.seq_of(info.uuid, partition)
    if seq is None:
        raise SchemaError(
            f"the position {version} says nothing about partition {partition} of table "
            f"{info.name!r}, where the row lives; give the position of this row"
        )
    return seq


def _written(
    info: TableInfo, partition: int, rows: int, ack: PubAck, expected: Seq | None = None
) -> WriteAck:
    """The result of a write for its caller; ``expected``: the version its condition names."""
    guid = guid_text(ack.channel, ack.guid)
    if ack.conflict:
        conflict = _conflict(info, partition, ack, expected)
        conflict.guid = guid
        raise conflict
    return WriteAck(
        position=Position.at(info.uuid, partition, ack.record_term, ack.last_seq),
        partition=partition,
        seq=ack.last_seq,
        term=ack.record_term,
        rows=rows,
        durability=ack.durability,
        replicas_acked=ack.replicas_acked,
        guid=guid,
    )


def _conflict(info: TableInfo, partition: int, ack: PubAck, expected: Seq | None) -> ConflictError:
    if ack.conflict_seq == 0:
        return ConflictError("the row does not exist, so nothing was written; read it again")
    # The term of the row's record is not reported; a position is compared by seq alone.
    position = Position.at(info.uuid, partition, ack.record_term, ack.conflict_seq)
    found = (
        f"the row was written since: it has the version of seq {ack.conflict_seq}, and the "
        f"condition names that of seq {expected}"
        if expected
        else f"the row exists, in the version of seq {ack.conflict_seq}"
    )
    return ConflictError(
        f"{found}, so nothing was written; read it again",
        position=str(position),
    )
