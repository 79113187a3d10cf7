"""The ``raftstore`` format: what Spark calls, where, and how often.

==========================  ============================================  ========================
method                      runs                                          instance
==========================  ============================================  ========================
``writer``/``streamWriter``  on the driver, once a write or micro-batch;  made here
                            for streams again before ``commit``
``write``                   in a Python worker, once a task attempt       a pickled copy
``commit``/``abort``        on the driver, once a write or micro-batch    the first (batch) or
                                                                          another one (stream)
==========================  ============================================  ========================

So nothing is remembered between these calls but what travels in the pickled writer and in the
commit messages. A task that ``write`` ended for has had every row acknowledged.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from raftstore.errors import ConfigError, RaftstoreError
from raftstore.spark.failures import bracketed
from raftstore.spark.options import parse_options
from raftstore.spark.store import Connect, connect
from raftstore.spark.tasks import SinkTask, Written, plan_write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger("raftstore.spark")


class RaftStoreDataSource(DataSource):
    """Writes DataFrames into raftstore tables: ``df.write.format("raftstore").mode("append")``.

    Every row is an upsert by the table's key (or, with operation=delete, a delete). Options are
    those of ``raftstore.spark.options``.
    """

    connect: ClassVar[Connect] = staticmethod(connect)
    """How a store is opened, on the driver and in tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "raftstore"

    def writer(self, schema: StructType, overwrite: bool) -> RaftStoreWriter:  # noqa: FBT001 - Spark's signature
        """Check options and schema against the cluster; create the table if it is missing."""
        return RaftStoreWriter(self._plan(schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> RaftStoreStreamWriter:
        """Do the same for one micro-batch of a stream in append mode."""
        return RaftStoreStreamWriter(self._plan(schema, overwrite=overwrite))

    def _plan(self, schema: StructType, *, overwrite: bool) -> SinkTask:
        options = parse_options(self.options)
        if overwrite:
            raise ConfigError(
                f"[RAFTSTORE_OVERWRITE_UNSUPPORTED] table {options.table!r} cannot be replaced at "
                'once by this version: write with mode("append"), or outputMode("append") for a '
                "stream (each row is an upsert by key), or drop the table first"
            )
        try:
            return plan_write(options, schema.json(), type(self).connect)
        except RaftstoreError as error:
            raise bracketed(error, options.table) from error


@dataclass
class WrittenMessage(WriterCommitMessage):
    """What one task tells the driver."""

    written: Written
    batch_id: str
    """Of the micro-batch that this write is (part of); "" for a batch job."""
    query_id: str = ""
    """Of the streaming query; "" for a batch job."""


class RaftStoreWriter(DataSourceArrowWriter):
    """Writes the partitions of one DataFrame."""

    def __init__(self, task: SinkTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessage:
        """Send one task's rows; returns when all are acknowledged, raises with the outcome."""
        return _write(self._task, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Mark the end of a micro-batch, if this is one (foreachBatch); log what was written."""
        _mark_and_log(self._task, messages, "")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what stays in the table although the job failed."""
        _log_abort(self._task, messages, "")


class RaftStoreStreamWriter(DataSourceStreamArrowWriter):
    """Writes the partitions of one micro-batch."""

    def __init__(self, task: SinkTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessage:
        """Send one task's rows; returns when all are acknowledged, raises with the outcome."""
        return _write(self._task, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Mark the end of the micro-batch; log what was written: it is visible already."""
        _mark_and_log(self._task, messages, str(batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log what stays in the table until the batch is replayed."""
        _log_abort(self._task, messages, str(batchId))


def _write(task: SinkTask, batches: Iterator[pa.RecordBatch]) -> WrittenMessage:
    context = TaskContext.get()
    batch_id = context.getLocalProperty("streaming.sql.batchId") if context else None
    try:
        written = task.run(batches, monotonic)
    except RaftstoreError as error:
        raise bracketed(error, task.options.table) from error
    query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
    return WrittenMessage(written, batch_id or "", query_id or "")


def _mark_and_log(
    task: SinkTask, messages: Sequence[WriterCommitMessage | None], batch_id: str
) -> None:
    done = [message for message in messages if isinstance(message, WrittenMessage)]
    total = sum((message.written for message in done), Written())
    batch_id = batch_id or next((message.batch_id for message in done), "")
    query_id = next((message.query_id for message in done), "")
    if batch_id and query_id and total.partitions:
        _mark(task, query_id, int(batch_id), total.partitions)
    _visible_log().info(
        "table=%s batch=%s rows=%d records=%d bytes=%d tasks=%d slowest_task_s=%.3f",
        task.options.table,
        batch_id or "-",
        total.rows,
        total.records,
        total.payload_bytes,
        len(done),
        max((message.written.seconds for message in done), default=0.0),
    )


def _mark(task: SinkTask, query_id: str, batch_id: int, partitions: frozenset[int]) -> None:
    """Mark the batch's end; a failure fails the batch, which Spark then replays.

    A batch without its mark would look as if readers were not behind.
    """
    try:
        task.mark(query_id, batch_id, partitions)
    except RaftstoreError as error:
        raise bracketed(error, task.options.table) from error


def _log_abort(
    task: SinkTask, messages: Sequence[WriterCommitMessage | None], batch_id: str
) -> None:
    done = [message for message in messages if isinstance(message, WrittenMessage)]
    _visible_log().warning(
        "table=%s batch=%s was given up: %d of %d tasks had written %d rows, which stay until they "
        "are written again",
        task.options.table,
        batch_id or "-",
        len(done),
        len(messages),
        sum(message.written.rows for message in done),
    )


def _visible_log() -> logging.Logger:
    """Return the logger, heard on stderr where nobody has set up logging.

    ``commit`` runs in a short-lived Python process of Spark's, which no user code can configure.
    """
    if not logging.getLogger().handlers and not _log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
    return _log
