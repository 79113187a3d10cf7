"""An atomic write: tasks stage, the driver commits (docs/protocol.md).

``write`` begins the attempt, each task once; nothing that runs on the driver before the tasks does,
because Spark makes a second instance of the writer before it commits, and an attempt of that one
would end the one that is about to commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from raftstore.client.batches.batch_writes import BatchResult, BatchTicket, result_of
from raftstore.client.batches.stager import StagedParts
from raftstore.errors import ConfigError, RaftstoreError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.spark.failures import bracketed
from raftstore.spark.identity import BatchIdentity, LocalProperty, in_task
from raftstore.spark.logs import visible_log
from raftstore.spark.options import SinkOptions
from raftstore.spark.store import Connect, Store
from raftstore.spark.tables import refuse_other_table
from raftstore.spark.write.commit_message import Settled, TaskMessage, settled
from raftstore.spark.write.tasks import Written, chunks_of, find_table
from raftstore.types import BatchModeName


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where in a Spark job a task runs."""

    partition_id: int = 0
    task_attempt_id: int = 0
    local_property: LocalProperty = lambda _name: None


def plan_batch(
    options: SinkOptions,
    schema_json: str,
    connect: Connect,
    identity: BatchIdentity,
    *,
    is_overwrite: bool,
    begun: int | None = None,
) -> BatchTask:
    """Find or create the table and check that the DataFrame fits. Runs on the driver.

    ``begun``: the batch that is about to be written, where the driver can know it.
    """
    streamed = begun if identity.is_stream else None
    table = find_table(options, schema_json, connect, streamed=streamed)
    if options.ignore_null_values and not _has_columns(table):
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] ignoreNullValues needs the columns of table "
            f"{table.name!r} to be declared: leave it out, or create the table with a schema"
        )
    if options.on_regression == "apply":
        _take_over(options, identity, begun, connect)
    return BatchTask(options, table, schema_json, identity, connect, is_overwrite)


def _take_over(
    options: SinkOptions, identity: BatchIdentity, begun: int | None, connect: Connect
) -> None:
    """onRegression=apply: let the writer begin at this batch, though it was at a later one, or at
    one of another checkpoint.

    On the driver, before any task: a task that came late could undo the order of later batches.
    """
    if identity.one_shot:
        return
    if identity.is_stream and not identity.lineage:
        raise ConfigError(
            "[RAFTSTORE_OPTION_INVALID] onRegression=apply needs a checkpoint that the driver can "
            "read as a file, to know the query and its batch: leave it out, and have the writer "
            "adopted with 'raftstore writer adopt'"
        )
    with connect(options) as store:
        known = store.writer_of(options.table, identity.writer)
        if known is None:
            return
        is_other = known.lineage is not None and known.lineage != identity.lineage
        is_back = begun is not None and begun < known.last_batch
        if is_other or is_back:
            store.adopt(options.table, identity.writer, identity.lineage)
            visible_log().warning(
                "table=%s writer=%s was at batch %s of checkpoint %r and begins anew at batch %s "
                "of %r: onRegression=apply",
                options.table,
                identity.writer,
                known.last_batch,
                known.lineage,
                "-" if begun is None else begun,
                identity.lineage,
            )


def _has_columns(table: TableInfo) -> bool:
    return bool(TableSchema(table.key_columns, table.schema_json).value_columns)


@dataclass(frozen=True, slots=True)
class BatchTask:
    """Input of every task of an atomic write. Pickled by Spark."""

    options: SinkOptions
    table: TableInfo
    schema_json: str
    identity: BatchIdentity
    connect: Connect
    is_overwrite: bool = False

    # --- in a task --------------------------------------------------------------------------------

    def write(
        self, batches: Iterator[pa.RecordBatch], clock: Callable[[], float], place: TaskPlace
    ) -> TaskMessage:
        """Stage the rows of one task; returns when a quorum has all of them."""
        try:
            return self._write(batches, clock, place)
        except RaftstoreError as error:
            raise bracketed(error, self.table.name, is_atomic=True) from None

    def _write(
        self, batches: Iterator[pa.RecordBatch], clock: Callable[[], float], place: TaskPlace
    ) -> TaskMessage:
        started = clock()
        identity = in_task(self.identity, place.local_property)
        nothing = StagedParts(place.partition_id, place.task_attempt_id)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return TaskMessage(identity, None, nothing, Written())
        with self.connect(self.options) as store:
            refuse_other_table(store.table_info(self.table.name).uuid, self.table)
            ticket = self._begin(store, identity)
            if ticket.is_already_written:
                for _ in batches:
                    pass  # Spark wants its rows taken
                return TaskMessage(identity, ticket, nothing, Written(seconds=clock() - started))
            with store.stager(
                self.table.name,
                ticket,
                place.partition_id,
                place.task_attempt_id,
                self.options.max_in_flight,
            ) as stager:
                rows = chain((first,), batches)
                for chunk in chunks_of(self.options, self.table, self.schema_json, rows):
                    stager.add(chunk.partition, chunk.payload, chunk.rows, chunk.mode)
                staged = stager.flush()
        return TaskMessage(identity, ticket, staged, _written(staged, clock() - started))

    def _begin(self, store: Store, identity: BatchIdentity) -> BatchTicket:
        ticket = store.begin(self.table.name, identity, self.options)
        # Another instance may plan with the table of now, and would commit what is staged there.
        refuse_other_table(ticket.table_uuid, self.table)
        return ticket

    # --- on the driver ----------------------------------------------------------------------------

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
    ) -> None:
        """Make all of it visible at once; returns when every partition has applied it."""
        try:
            began = monotonic()
            reported = settled(messages)
            result = self._commit(reported, batch_id)
            self._log(reported, self._identity(reported, batch_id), result, monotonic() - began)
        except RaftstoreError as error:
            raise bracketed(error, self.table.name, is_atomic=True) from None

    def _identity(self, reported: Settled, batch_id: int | None) -> BatchIdentity:
        identity = reported.identity or self.identity
        return identity if batch_id is None else replace(identity, batch_id=batch_id)

    def _commit(self, reported: Settled, batch_id: int | None) -> BatchResult | None:
        ticket = reported.ticket
        if ticket is not None and ticket.is_already_written:
            # "Already" is answered when every partition has applied it (rule 5).
            return result_of(ticket)
        identity = self._identity(reported, batch_id)
        if ticket is None and not identity.is_known:
            if not self.is_overwrite:
                return None  # a batch without tasks changes nothing, and batch ids may have gaps
            raise ConfigError(
                "[RAFTSTORE_WRITER_ID_MISSING] a batch without tasks replaces the table, but "
                "whose it is cannot be read here: put the checkpoint where the driver reads it as "
                "a file"
            )
        with self.connect(self.options) as store:
            refuse_other_table(store.table_info(self.table.name).uuid, self.table)
            ticket = ticket or self._begin(store, identity)
            mode: BatchModeName = "overwrite" if self.is_overwrite else "append"
            return store.commit(self.table.name, ticket, reported.staged, mode, self.options)

    def abort(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
    ) -> None:
        """Give the attempt up, as far as a task's message names it; nothing of it is visible."""
        done = [message for message in messages if isinstance(message, TaskMessage)]
        tickets = {message.ticket for message in done if message.ticket is not None}
        for ticket in tickets:
            # Else the next attempt ends it, or its time.
            with suppress(RaftstoreError), self.connect(self.options) as store:
                store.abort(self.table.name, ticket)
        number = batch_id if batch_id is not None else self.identity.batch_id
        visible_log().warning(
            "table=%s batch=%s was given up: %d of %d tasks had staged %d rows, which nobody sees "
            "unless its commit had been asked for before (its error says so)",
            self.table.name,
            "-" if number is None else number,
            len(done),
            len(messages),
            sum(message.written.rows for message in done),
        )

    def _log(
        self,
        reported: Settled,
        identity: BatchIdentity,
        result: BatchResult | None,
        commit_s: float,
    ) -> None:
        log = visible_log()
        if result is None or result.already:
            log.info(
                "table=%s writer=%s batch=%s %s",
                self.table.name,
                identity.writer or "-",
                "-" if identity.batch_id is None else identity.batch_id,
                "had no tasks" if result is None else f"is in the table already, commit {result.n}",
            )
            return
        log.info(
            "table=%s writer=%s batch=%s attempt=%s commit=%d rows=%d records=%d bytes=%d "
            "tasks=%d slowest_task_s=%.3f commit_s=%.3f",
            self.table.name,
            identity.writer,
            identity.batch_id,
            "-" if reported.ticket is None else reported.ticket.attempt,
            result.n,
            reported.written.rows,
            reported.written.records,
            reported.written.payload_bytes,
            reported.tasks,
            reported.slowest_s,
            commit_s,
        )


def _written(staged: StagedParts, seconds: float) -> Written:
    return Written(
        rows=staged.rows,
        records=sum(part.chunks for part in staged.parts),
        payload_bytes=sum(part.bytes for part in staged.parts),
        seconds=seconds,
        partitions=frozenset(part.partition for part in staged.parts),
    )
