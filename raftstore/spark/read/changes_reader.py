"""A table as a stream: ``spark.readStream.format("raftstore")``, each change once.

An offset is a position per partition, behind a whole record or atomic batch, with the table's uuid:
``{"table": "6f1e…", "0": 1234, "1": 88}``. It means the same whenever it is read again, so a
micro-batch that Spark replays holds the same rows. The driver asks how far the table is; each task
reads a stretch of one partition, at any replica.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from raftstore.client.changes.change_feed import DELETE, EXPIRE, TRUNCATE, UPSERT, Ends, pairs_of
from raftstore.errors import ConfigError, RaftstoreError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.changes import ChangePiece
from raftstore.rows.schema import TableSchema
from raftstore.spark.codec.decode import RowDecoder
from raftstore.spark.failures import bracketed_read
from raftstore.spark.options import EARLIEST, LATEST, SourceOptions
from raftstore.spark.read.reader import check_wanted, schema_of
from raftstore.spark.store import Connect, Store

LOGGER: Final = logging.getLogger(__name__)

TABLE: Final = "table"
"""In an offset, where the table's uuid is."""
_FIRST, _LAST = -2, -1
"""In startingOffsets, as in Kafka's: earliest and latest of one partition."""

COLUMNS: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    "_change_type": ("string", pa.string()),
    "_channel": ("integer", pa.int32()),
    "_seq": ("long", pa.int64()),
    "_commit_timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "_writer": ("string", pa.string()),
    "_batch_id": ("long", pa.int64()),
}
"""The facts of each change in a stream besides the table's columns."""

Offset = dict[str, Any]


@dataclass
class ChangeSlice(InputPartition):
    """A stretch of one partition: what is behind ``after``, up to ``to_seq``. Pickled by Spark."""

    partition: int
    after: int
    to_seq: int

    def __post_init__(self) -> None:
        super().__init__(self.partition)


def changes_schema(table: TableInfo, declared_json: str | None = None) -> str:
    """Return the schema of a table's changes as Spark's JSON; any column may be null.

    ``declared_json``: the table's columns, where they are not those that it declares. Raises
    SchemaError for a table that declares no columns, or one that has such a column already.
    """
    schema = msgspec.json.decode(declared_json or schema_of(table))
    taken = [field["name"] for field in schema["fields"] if field["name"] in COLUMNS]
    if taken:
        raise SchemaError(
            f"[RAFTSTORE_SCHEMA_MISMATCH] table {table.name!r} has the column {taken[0]!r}, which "
            "a stream of changes needs for itself: read the changes with the client"
        )
    schema["fields"] += [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, (kind, _) in COLUMNS.items()
    ]
    for field in schema["fields"]:
        field["nullable"] = True
    return msgspec.json.encode(schema).decode()


class ChangeDecoder:
    """Turns pieces of changes into Arrow batches of the wanted schema. Build it once per task."""

    def __init__(self, table: TableInfo, schema_json: str) -> None:
        wanted = msgspec.json.decode(schema_json)
        own = [field for field in wanted["fields"] if field["name"] not in COLUMNS]
        schema = TableSchema(table.key_columns, table.schema_json)
        rows_json = msgspec.json.encode(wanted | {"fields": own}).decode()
        self._rows = RowDecoder(schema, rows_json)
        self._names = [field["name"] for field in wanted["fields"]]
        self._kinds = [
            self._rows.arrow.field(name).type if name not in COLUMNS else COLUMNS[name][1]
            for name in self._names
        ]
        self._arrow = pa.schema(zip(self._names, self._kinds, strict=True))

    def decode(self, partition: int, pieces: Sequence[ChangePiece]) -> Iterator[pa.RecordBatch]:
        """Iterate over the changes, in their order."""
        for piece in pieces:
            if piece.truncate:
                absent = {name: [None] for name in self._rows.arrow.names}
                yield self._batch(partition, piece, [TRUNCATE], absent)
            pairs = pairs_of(piece)
            if pairs:
                rows = self._rows.decode(
                    [(key, sealed, piece.seq) for key, sealed in pairs], has_deletes=True
                )
                gone = EXPIRE if piece.expired else DELETE
                kinds = [gone if sealed is None else UPSERT for _, sealed in pairs]
                columns = dict(zip(rows.schema.names, rows.columns, strict=True))
                yield self._batch(partition, piece, kinds, columns)

    def _batch(
        self,
        partition: int,
        piece: ChangePiece,
        kinds: list[str],
        columns: Mapping[str, Any],
    ) -> pa.RecordBatch:
        same = {
            "_channel": partition,
            "_seq": piece.seq,
            "_commit_timestamp": piece.timestamp_ms * 1_000,
            "_writer": piece.writer or None,
            "_batch_id": piece.batch_id if piece.writer else None,
        }
        arrays = []
        for name, kind in zip(self._names, self._kinds, strict=True):
            if name in same:
                arrays.append(pa.repeat(pa.scalar(same[name], kind), len(kinds)))
            elif name == "_change_type":
                arrays.append(pa.array(kinds, kind))
            else:
                column = columns[name]
                arrays.append(column if isinstance(column, pa.Array) else pa.array(column, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


class ChangeStreamReader(DataSourceStreamReader):
    """Reads what changes in one table. One instance on the driver, pickled copies in tasks."""

    def __init__(
        self, options: SourceOptions, table: TableInfo, schema_json: str, connect: Connect
    ) -> None:
        """Raises SchemaError where the schema cannot be that of the table's changes."""
        check_change_schema(table, schema_json)
        self._options = options
        self._table = table
        self._schema_json = schema_json
        self._connect = connect
        self._target: Offset | None = None
        """Where Trigger.AvailableNow ends."""

    # --- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        with self._store() as store:
            return self._starting(self._ends(store))

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        """How far the next micro-batch goes; Spark before 4.2 gives neither start nor limit."""
        with self._store() as store:
            ends = self._ends(store)
            newest = self._target or self._offset(ends.last)
            rows_max = getattr(limit, "max_rows", None)
            if start is None:
                return newest
            first = self._checked(start, ends)
            if newest[TABLE] != first[TABLE]:
                return first
            spans = [
                (number, first[str(number)], newest[str(number)])
                for number in range(self._table.partitions)
            ]
            behind = sum(max(0, last - after) for _, after, last in spans)
            reached = dict(first)
            for number, after, last in spans:
                if last <= after:
                    continue
                reached[str(number)] = last
                if rows_max is not None and behind > rows_max:
                    # Each partition gets its share of what waits, and one record at the least.
                    share = max(1, rows_max * (last - after) // behind)
                    table = self._options.table
                    reached[str(number)] = store.change_limit(table, number, after, last, share)
            return reached

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Newest offsets, for the query's progress."""
        with self._store() as store:
            return self._offset(self._ends(store).last)

    # --- data -------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan a micro-batch: a task per partition that has changes. Runs on the driver."""
        with self._store() as store:
            # A replay may ask for what is no longer there: before any task runs.
            ends = self._ends(store)
            first, last = self._checked(start, ends), self._checked(end, ends)
        return [
            ChangeSlice(number, first[str(number)], last[str(number)])
            for number in range(self._table.partitions)
            if first[str(number)] < last[str(number)]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one stretch. Runs in a task."""
        assert isinstance(partition, ChangeSlice)
        decoder = ChangeDecoder(self._table, self._schema_json)
        number, after, to_seq = partition.partition, partition.after, partition.to_seq
        name = self._options.table
        with self._store() as store:
            self._refuse_other(store.table_info(name))
            for pieces in store.change_pieces(self._options, number, after, to_seq):
                # S0.8: they are of whichever table had the name by then, and of this one's or
                # another's seqs alike; what is known here now is no older than that.
                self._refuse_other(store.definition(name))
                yield from decoder.decode(number, pieces)
            # Another one's stretch may also have been empty.
            self._refuse_other(store.definition(name))

    def commit(self, end: Offset) -> None:
        """Nothing is kept for the query, so nothing is let go."""

    def stop(self) -> None:
        """Nothing is open between calls."""

    # --- inside -----------------------------------------------------------------------------------

    @contextmanager
    def _store(self) -> Iterator[Store]:
        try:
            with self._connect(self._options) as store:
                yield store
        except RaftstoreError as error:
            raise bracketed_read(error, self._options.table) from None

    def _ends(self, store: Store) -> Ends:
        name = self._options.table
        self._refuse_other(store.table_info(name))
        ends = store.change_ends(name)
        self._refuse_other(store.definition(name))
        return ends

    def _refuse_other(self, table: TableInfo) -> None:
        """Raise unless the table that has the name is the one that the query began with."""
        if table.uuid != self._table.uuid:
            raise SchemaError(
                f"[RAFTSTORE_DATA_LOSS] table {table.name!r} was dropped and made anew while the "
                "query ran: start the query again"
            )

    def _offset(self, seqs: Sequence[int]) -> Offset:
        places = {str(number): int(seq) for number, seq in enumerate(seqs)}
        return {TABLE: self._table.uuid.hex(), **places}

    def _starting(self, ends: Ends) -> Offset:
        wanted = self._options.starting_offsets
        if wanted == EARLIEST:
            return self._offset(ends.first)
        if wanted == LATEST:
            return self._offset(ends.last)
        given = starting_places(wanted, self._table)
        special = {_FIRST: ends.first, _LAST: ends.last}
        seqs = [
            special[place][number] if place in special else place
            for number, place in enumerate(given)
        ]
        return self._checked(self._offset(seqs), ends)

    def _checked(self, offset: Offset, ends: Ends) -> Offset:
        """Return the offset if its changes are there, or (failOnDataLoss=false) the next one."""
        if offset.get(TABLE) != self._table.uuid.hex():
            loss = f"the offsets are of another table {self._table.name!r}, which was dropped"
            return self._lost(loss, self._offset(ends.first))
        seqs, loss = [], ""
        for number in range(self._table.partitions):
            seq, first, last = offset[str(number)], ends.first[number], ends.last[number]
            if not first <= seq <= last:
                loss = loss or (
                    f"partition {number} has changes behind seq {first} up to seq {last}, and the "
                    f"offset is {seq}: the store was replaced by an older state, or no longer "
                    "keeps them"
                )
            seqs.append(min(max(seq, first), last))
        return self._lost(loss, self._offset(seqs)) if loss else offset

    def _lost(self, loss: str, instead: Offset) -> Offset:
        if self._options.fail_on_data_loss:
            raise SchemaError(
                f"[RAFTSTORE_DATA_LOSS] {loss} (table {self._table.name!r}); begin with a new "
                "checkpoint, or go on with what is there by failOnDataLoss=false"
            )
        LOGGER.warning("data loss ignored (failOnDataLoss=false): %s; %s", loss, instead)
        return instead


def check_change_schema(table: TableInfo, schema_json: str) -> None:
    """Raise SchemaError unless these columns can be read from the table's changes."""
    schema = msgspec.json.decode(schema_json)
    given = {field["name"]: field["type"] for field in schema["fields"]}
    if "_change_type" not in given:
        # Spark asks for the schema without saying whether it is for a stream.
        raise SchemaError(
            f"[RAFTSTORE_OPTION_MISSING] a stream of table {table.name!r} has changes, whose kind "
            'is in the column _change_type: add .option("readChangeFeed", "true")'
        )
    for name, kind in given.items():
        if name in COLUMNS and kind != COLUMNS[name][0]:
            raise SchemaError(
                f"[RAFTSTORE_SCHEMA_MISMATCH] column {name!r} of changes is {COLUMNS[name][0]} and "
                f"not {kind}: read it as it is and cast it then"
            )
    for field in schema["fields"]:
        if not field["nullable"]:
            raise SchemaError(
                f"[RAFTSTORE_SCHEMA_MISMATCH] column {field['name']!r} is NOT NULL in the schema "
                "given to read, and a delete has only its key: leave NOT NULL out"
            )
    own = [field for field in schema["fields"] if field["name"] not in COLUMNS]
    check_wanted(table, msgspec.json.encode(schema | {"fields": own}).decode())


def starting_places(text: str, table: TableInfo) -> list[int]:
    """Read startingOffsets as JSON; ConfigError names what is wrong with it."""

    def invalid(what: str) -> ConfigError:
        return ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] startingOffsets is {text!r:.120}: {what}, as in "
            '{"0": 1234, "1": -2} (behind which seq; -2 earliest, -1 latest), or use earliest or '
            "latest"
        )

    try:
        given = json.loads(text)
    except ValueError as error:
        raise invalid("give earliest, latest or JSON") from error
    if not isinstance(given, dict):
        raise invalid("give a place for each partition")
    uuid = given.pop(TABLE, table.uuid.hex())
    if uuid != table.uuid.hex():
        raise invalid(f"it is of the table with uuid {uuid}, this one has {table.uuid.hex()}")
    names = [str(number) for number in range(table.partitions)]
    if set(given) != set(names):
        raise invalid(f"name the partitions 0 to {table.partitions - 1}, each once")
    places = [given[name] for name in names]
    if not all(type(place) is int and place >= _FIRST for place in places):
        raise invalid("give whole numbers from -2 on")
    return places
