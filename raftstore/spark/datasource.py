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
commit messages, and before ``write`` nothing is asked of the store that would change it (but for
making a missing table). What the calls do is in ``writer`` (atomic) and ``row_writer``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from raftstore.errors import RaftstoreError
from raftstore.spark.catalog_tables import (
    check_table_options,
    create_table_options,
    is_create_table,
    read_options,
    refuse_write_by_name,
    source_options_of,
    with_note,
    without_note,
)
from raftstore.spark.failures import bracketed, brief
from raftstore.spark.identity import newest_batch, planned
from raftstore.spark.options import (
    parse_options,
    parse_source_options,
    refuse_overwrite,
)
from raftstore.spark.read.change_streams import stream_reader_class
from raftstore.spark.read.changes_reader import ChangeStreamReader, changes_schema
from raftstore.spark.read.reader import PushingReader, RaftStoreReader, find_schema, find_source
from raftstore.spark.read.stream_options import refuse_batch_options, refuse_stream_options
from raftstore.spark.store import Connect, connect
from raftstore.spark.write.row_writer import RowTask
from raftstore.spark.write.tasks import plan_write
from raftstore.spark.write.writer import BatchTask, TaskPlace, plan_batch

if TYPE_CHECKING:
    import pyarrow as pa

Task = BatchTask | RowTask


class RaftStoreDataSource(DataSource):
    """Writes DataFrames into raftstore tables: ``df.write.format("raftstore").mode("append")``,
    and reads them: ``spark.read.format("raftstore").load("table")``, or what changes in them:
    ``spark.readStream.format("raftstore").option("readChangeFeed", "true").load("table")``.

    Every row is an upsert by the table's key (or, with operation=delete, a delete). Options are
    those of ``raftstore.spark.options``.
    """

    connect: ClassVar[Connect] = staticmethod(connect)
    """How a store is opened, on the driver and in tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "raftstore"

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> RaftStoreWriter:  # noqa: FBT001 - Spark's signature
        """Check options and schema against the cluster; create the table if it is missing."""
        return RaftStoreWriter(self._plan(schema, is_overwrite=overwrite, is_stream=False))

    @brief
    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> RaftStoreStreamWriter:
        """Do the same for one micro-batch of a stream in append or complete mode."""
        return RaftStoreStreamWriter(self._plan(schema, is_overwrite=overwrite, is_stream=True))

    @brief
    def schema(self) -> StructType:
        """Return the table's columns, for ``spark.read`` without a schema."""
        given: Mapping[str, str] = self.options
        to_create = is_create_table(given)
        if to_create:
            given = create_table_options(given)
            check_table_options(given)
        options = parse_source_options(source_options_of(given) if to_create else given)
        table, found = find_schema(options, type(self).connect)
        # Spark does not say whether it asks for a stream.
        if options.read_change_feed:
            found = changes_schema(table, found)
        fields: StructType = StructType.fromJson(json.loads(found))
        return with_note(fields, given) if to_create else fields

    @brief
    def reader(self, schema: StructType) -> RaftStoreReader:
        """Read the table's rows as one snapshot of all partitions."""
        options = parse_source_options(read_options(self.options, schema))
        refuse_stream_options(options)
        connect = type(self).connect
        kind = PushingReader if options.filter_pushdown else RaftStoreReader
        return kind(options, find_source(options, connect), schema.json(), connect)

    @brief
    def streamReader(self, schema: StructType) -> ChangeStreamReader:  # noqa: N802 - Spark's name
        """Read what changes in the table, each change once."""
        options = parse_source_options(read_options(self.options, schema))
        refuse_batch_options(options)
        kind = stream_reader_class(options)
        connect = type(self).connect
        return kind(options, find_source(options, connect), schema.json(), connect)

    def _plan(self, schema: StructType, *, is_overwrite: bool, is_stream: bool) -> Task:
        refuse_write_by_name(self.options)
        options = parse_options(self.options)
        schema_json = without_note(schema).json()
        if is_overwrite:
            refuse_overwrite(options)
        connect = type(self).connect
        checkpoint = self.options.get("checkpointlocation")
        begun = newest_batch(checkpoint) if is_stream else None
        try:
            if options.isolation == "row":
                return RowTask(plan_write(options, schema_json, connect, streamed=begun))
            identity = planned(options, checkpoint=checkpoint, is_stream=is_stream)
            return plan_batch(
                options,
                schema_json,
                connect,
                identity,
                is_overwrite=is_overwrite,
                begun=begun if is_stream else identity.batch_id,
            )
        except RaftstoreError as error:
            raise bracketed(error, options.table, is_atomic=options.isolation == "batch") from None


class RaftStoreWriter(DataSourceArrowWriter):
    """Writes the partitions of one DataFrame."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one task's rows; returns when all are acknowledged, raises with the outcome."""
        return self._task.write(iterator, monotonic, _place())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows visible, all at once (isolation=batch); log what was written."""
        self._task.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the write up; log what that means for its rows."""
        self._task.abort(messages)


class RaftStoreStreamWriter(DataSourceStreamArrowWriter):
    """Writes the partitions of one micro-batch."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one task's rows; returns when all are acknowledged, raises with the outcome."""
        return self._task.write(iterator, monotonic, _place())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the micro-batch visible, all at once (isolation=batch); log what was written."""
        self._task.commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Give the attempt up; Spark replays the batch when the query starts again."""
        self._task.abort(messages, batchId)


def _place() -> TaskPlace:
    context = TaskContext.get()
    if context is None:
        return TaskPlace()
    return TaskPlace(context.partitionId(), context.taskAttemptId(), context.getLocalProperty)
