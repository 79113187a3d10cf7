"""A write row by row (isolation=row), as it is planned on the driver and carried out by each task.

Each record is published with its own GUID and retried with it, so the client never applies one
twice; a task that Spark repeats publishes new records with the same rows, which changes nothing.
Atomic writes (``writer``) share what finds the table and encodes its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from raftstore.errors import SchemaError, TableExistsError, UnknownTableError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.spark.codec.column_rows import ColumnEncoder
from raftstore.spark.codec.encoding import Chunk, Chunker, RowEncoder
from raftstore.spark.options import SinkOptions
from raftstore.spark.store import Connect, Store
from raftstore.spark.tables import check_fits, columns_to_append, refuse_other_table
from raftstore.spark.write.row_operations import ChangeEncoder, stored_schema


@dataclass(frozen=True, slots=True)
class Written:
    """Acknowledged rows, their records and bytes, the time, and the partitions hit."""

    rows: int = 0
    records: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    partitions: frozenset[int] = frozenset()

    def __add__(self, other: Written) -> Written:
        """Return the sum of two tasks."""
        return Written(
            self.rows + other.rows,
            self.records + other.records,
            self.payload_bytes + other.payload_bytes,
            self.seconds + other.seconds,
            self.partitions | other.partitions,
        )


def plan_write(
    options: SinkOptions, schema_json: str, connect: Connect, *, streamed: int | None = None
) -> SinkTask:
    """Plan a write with isolation=row. Runs on the driver."""
    table = find_table(options, schema_json, connect, streamed=streamed)
    return SinkTask(options, table, schema_json, connect)


def find_table(
    options: SinkOptions, schema_json: str, connect: Connect, *, streamed: int | None = None
) -> TableInfo:
    """Find the table, or create it, and check that the DataFrame fits. Runs on the driver.

    ``streamed``: the micro-batch that a stream is at, where its driver can know it. Raises
    ConfigError, SchemaError, StoreTooOldError or UnknownTableError before any task has started.
    """
    schema_json = stored_schema(options, schema_json)
    with connect(options) as store:
        if options.isolation == "batch":
            store.check_batches(options.table)
        try:
            table = store.table_info(options.table)
        except UnknownTableError:
            if streamed:
                raise _lost(options, streamed) from None
            table = _create_table(store, options, schema_json)
        check_fits(table, options, schema_json)
        return _append_columns(store, table, schema_json) if options.merge_schema else table


def _append_columns(store: Store, table: TableInfo, schema_json: str) -> TableInfo:
    """Give the table the DataFrame's columns that it lacks. Two who do so at once agree, or one is
    refused: the catalog appends to what is there when its turn comes."""
    columns = columns_to_append(table, schema_json)
    if not columns:
        return table
    grown = store.add_columns(table.name, columns)
    refuse_other_table(grown.uuid, table)
    return grown


def _lost(options: SinkOptions, streamed: int) -> UnknownTableError:
    """Batch 0 of a stream makes its table. A later one would begin a table that lacks what those
    before it wrote, and the stream would go on as if nothing had happened."""
    return UnknownTableError(
        f"[RAFTSTORE_TABLE_NOT_FOUND] there is no table {options.table!r}, and the stream's "
        f"checkpoint is at batch {streamed}: a new table would lack what the batches before it "
        "wrote. Start the stream from a new checkpoint; or, to go on without them, create the "
        f"table first with 'raftstore table create {options.table} --key …', and let the stream "
        "have a writerId that it never had"
    )


def _create_table(store: Store, options: SinkOptions, schema_json: str) -> TableInfo:
    if not options.create_table:
        raise UnknownTableError(
            f"[RAFTSTORE_TABLE_NOT_FOUND] there is no table {options.table!r} and createTable is "
            f"false: create it with 'raftstore table create {options.table} --key …', or set "
            "createTable to true"
        )
    if not options.key:
        raise SchemaError(
            f"[RAFTSTORE_KEY_MISSING] table {options.table!r} does not exist and no key is named "
            'to create it with: add .option("key", "column") or .option("key", "column1,column2")'
        )
    TableSchema(options.key, schema_json)
    try:
        return store.create_table(options, schema_json)
    except TableExistsError:
        # Somebody was faster, with other columns: then it is a table like any other.
        return store.table_info(options.table)


@dataclass(frozen=True, slots=True)
class SinkTask:
    """Input of every task of a write row by row. Pickled by Spark."""

    options: SinkOptions
    table: TableInfo
    schema_json: str
    """Of the DataFrame, as in ``df.schema.json()``."""
    connect: Connect

    def run(self, batches: Iterator[pa.RecordBatch], clock: Callable[[], float]) -> Written:
        """Write the rows of one task; return when all are acknowledged.

        Raises SchemaError for a row that cannot be stored, and whatever the client concludes of a
        record: UNKNOWN or NOT_APPLIED. Spark then repeats the task.
        """
        started = clock()
        chunks = chunks_of(self.options, self.table, self.schema_json, batches)
        first = next(chunks, None)
        if first is None:
            return Written()
        rows = records = payload_bytes = 0
        partitions: set[int] = set()
        with self.connect(self.options) as store:
            refuse_other_table(store.table_info(self.table.name).uuid, self.table)
            with store.writer(self.table.name, self.options.max_in_flight) as writer:
                for chunk in chain((first,), chunks):
                    writer.add(chunk.partition, chunk.payload, chunk.rows)
                    partitions.add(chunk.partition)
                    rows += chunk.rows
                    records += 1
                    payload_bytes += len(chunk.payload)
                # S4.4: only an acknowledged record counts as written.
                writer.flush()
        return Written(rows, records, payload_bytes, clock() - started, frozenset(partitions))

    def mark(self, query_id: str, batch_id: int, partitions: frozenset[int]) -> None:
        """Announce to the partitions that a micro-batch is complete. Runs on the driver."""
        with self.connect(self.options) as store:
            refuse_other_table(store.table_info(self.table.name).uuid, self.table)
            store.mark_batch(self.table.name, query_id, batch_id, partitions)


def chunks_of(
    options: SinkOptions, table: TableInfo, schema_json: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[Chunk]:
    """Encode the rows of a task as chunks of bounded size, each of one partition."""
    schema = TableSchema(table.key_columns, table.schema_json)
    encoder = (
        ChangeEncoder(schema, options, schema_json)
        if options.operation == "column"
        else RowEncoder(schema, schema_json, delete=options.operation == "delete")
    )
    chunker = Chunker(
        table.partitions,
        rows_max=options.max_batch_rows,
        bytes_max=options.max_batch_bytes,
        mode=options.mode,
    )
    by_columns = (
        None if options.operation in ("column", "delete") else ColumnEncoder(schema, schema_json)
    )
    for batch in batches:
        rows = by_columns.encode(batch) if by_columns else None
        yield from chunker.add(encoder.encode(batch) if rows is None else rows)
    yield from chunker.rest()
