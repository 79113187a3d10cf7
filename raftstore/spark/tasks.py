"""A write, as it is planned on the driver and carried out by each task.

Each record is published with its own GUID and retried with it, so the client never applies one
twice; a task that Spark repeats publishes new records with the same rows, which changes nothing.
A record kind for rows staged under a micro-batch is reserved (``RecordKind.STAGED``): a staging
sink would differ here, in how ``SinkTask.run`` sends its chunks and what ``commit`` does, and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from raftstore.errors import SchemaError, UnknownTableError
from raftstore.requests import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.spark.encoding import Chunk, Chunker, RowEncoder
from raftstore.spark.options import SinkOptions
from raftstore.spark.store import Connect, Store
from raftstore.spark.tables import check_fits


@dataclass(frozen=True, slots=True)
class Written:
    """What was acknowledged: rows, their records and bytes, the time, and the partitions hit."""

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


def plan_write(options: SinkOptions, schema_json: str, connect: Connect) -> SinkTask:
    """Find the table, or create it, and check that the DataFrame fits. Runs on the driver.

    Raises ConfigError, SchemaError or UnknownTableError before any task has started.
    """
    with connect(options) as store:
        try:
            table = store.table_info(options.table)
        except UnknownTableError:
            table = _create_table(store, options, schema_json)
    check_fits(table, options, schema_json)
    return SinkTask(options, table, schema_json, connect)


def _create_table(store: Store, options: SinkOptions, schema_json: str) -> TableInfo:
    if not options.create_table:
        raise UnknownTableError(
            f"there is no table {options.table!r} and createTable is false: create it with "
            f"'raftstore table create {options.table} --key …' or set createTable to true"
        )
    if not options.key:
        raise SchemaError(
            f"[RAFTSTORE_KEY_MISSING] table {options.table!r} does not exist and no key is named "
            'to create it with: add .option("key", "column") or .option("key", "column1,column2")'
        )
    TableSchema(options.key, schema_json)
    return store.create_table(options, schema_json)


@dataclass(frozen=True, slots=True)
class SinkTask:
    """What every task of a write is given. Pickled by Spark."""

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
        chunks = self._chunks(batches)
        first = next(chunks, None)
        if first is None:
            return Written()
        rows = records = payload_bytes = 0
        partitions: set[int] = set()
        with self.connect(self.options) as store:
            self._check_same_table(store)
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
        """Tell the partitions that a micro-batch is complete. Runs on the driver."""
        with self.connect(self.options) as store:
            self._check_same_table(store)
            store.mark_batch(self.table.name, query_id, batch_id, partitions)

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        table = TableSchema(self.table.key_columns, self.table.schema_json)
        encoder = RowEncoder(table, self.schema_json, delete=self.options.operation == "delete")
        chunker = Chunker(
            self.table.partitions,
            rows_max=self.options.max_batch_rows,
            bytes_max=self.options.max_batch_bytes,
        )
        for batch in batches:
            yield from chunker.add(encoder.encode(batch))
        yield from chunker.rest()

    def _check_same_table(self, store: Store) -> None:
        """S0.8: refuse a table that was dropped and made anew since the write was planned.

        It may have another number of partitions, so rows split for the old one do not belong there.
        """
        now = store.table_info(self.table.name)
        if now.uuid != self.table.uuid:
            raise UnknownTableError(
                f"table {self.table.name!r} was dropped and created again while it was written "
                "to: start the write again"
            )
