"""Spark's calls with isolation=row: each record is visible when it is acknowledged.

The end of a micro-batch is marked afterwards, so that reads can count batches; a batch that failed
half-way stays half-written until it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from raftstore.errors import RaftstoreError, StoreTooOldError
from raftstore.spark.failures import bracketed
from raftstore.spark.identity import BATCH_PROPERTY, QUERY_PROPERTY
from raftstore.spark.logs import visible_log
from raftstore.spark.write.tasks import SinkTask, Written
from raftstore.spark.write.writer import TaskPlace

_warned_unmarked: Final[dict[str, None]] = {}
"""Queries whose missing marks this process has reported."""


@dataclass
class WrittenMessage(WriterCommitMessage):
    """The message of one task to the driver."""

    written: Written
    batch_id: str
    """Of the micro-batch that this write is (part of); "" for a batch job."""
    query_id: str = ""
    """Of the streaming query; "" for a batch job."""


@dataclass(frozen=True, slots=True)
class RowTask:
    """A write row by row behind the same three calls as ``writer.BatchTask``. Pickled by Spark."""

    task: SinkTask

    def write(
        self, batches: Iterator[pa.RecordBatch], clock: Callable[[], float], place: TaskPlace
    ) -> WrittenMessage:
        """Send one task's rows; returns when all are acknowledged, raises with the outcome."""
        try:
            written = self.task.run(batches, clock)
        except RaftstoreError as error:
            raise bracketed(error, self.task.options.table) from None
        batch_id = place.local_property(BATCH_PROPERTY)
        query_id = place.local_property(QUERY_PROPERTY)
        return WrittenMessage(written, batch_id or "", query_id or "")

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
    ) -> None:
        """Mark the end of a micro-batch, if this is one; log what was written: it is visible."""
        _mark_and_log(self.task, messages, "" if batch_id is None else str(batch_id))

    def abort(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
    ) -> None:
        """Log what stays in the table although the job failed."""
        _log_abort(self.task, messages, "" if batch_id is None else str(batch_id))


def _mark_and_log(
    task: SinkTask, messages: Sequence[WriterCommitMessage | None], batch_id: str
) -> None:
    done = [message for message in messages if isinstance(message, WrittenMessage)]
    total = sum((message.written for message in done), Written())
    writer = query_id = next((message.query_id for message in done), "")
    if not batch_id:
        # In foreachBatch one micro-batch may be several writes to one table. Each has a mark of its
        # own that counts: only the sink's single mark may be left out when it comes again.
        batch_id = next((message.batch_id for message in done), "")
        writer = f"{query_id}#{token_hex(4)}"
    if batch_id and query_id and total.partitions:
        _mark(task, writer, int(batch_id), total.partitions)
    visible_log().info(
        "table=%s batch=%s rows=%d records=%d bytes=%d tasks=%d slowest_task_s=%.3f",
        task.options.table,
        batch_id or "-",
        total.rows,
        total.records,
        total.payload_bytes,
        len(done),
        max((message.written.seconds for message in done), default=0.0),
    )


def _mark(task: SinkTask, writer: str, batch_id: int, partitions: frozenset[int]) -> None:
    """Mark the batch's end; a failure fails the batch, which Spark then replays.

    A batch without its mark would look as if readers were not behind. While some node is of a
    version that could not read marks, nobody else's are written either: the rows matter more.
    """
    try:
        task.mark(writer, batch_id, partitions)
    except StoreTooOldError as error:
        query_id = writer.partition("#")[0]
        if query_id in _warned_unmarked:
            return
        _warned_unmarked[query_id] = None
        visible_log().warning(
            "table=%s batch=%d is written but not marked, nor are the next ones: %s; until then "
            "max_batches_behind counts none of them",
            task.options.table,
            batch_id,
            error,
        )
    except RaftstoreError as error:
        raise bracketed(error, task.options.table) from None


def _log_abort(
    task: SinkTask, messages: Sequence[WriterCommitMessage | None], batch_id: str
) -> None:
    done = [message for message in messages if isinstance(message, WrittenMessage)]
    visible_log().warning(
        "table=%s batch=%s was given up: %d of %d tasks had written %d rows, which stay until they "
        "are written again",
        task.options.table,
        batch_id or "-",
        len(done),
        len(messages),
        sum(message.written.rows for message in done),
    )
