"""Reading a table as a DataFrame: ``spark.read.format("raftstore")``, one snapshot for all tasks.

The driver opens one snapshot of all partitions and the nodes keep it; every task reads a part of
it. So a task that Spark repeats, or runs twice, reads the same rows as the first, and
each micro-batch is read as a whole or not at all. The end of the job is not reported: what the
nodes keep they forget after ``pinLife`` without a reader. No task may close it either, for Spark
may repeat another one, or run a second action on the same DataFrame, from the same parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from raftstore.client.scans.scanning import Item
from raftstore.client.scans.snapshot_opening import SnapshotToken
from raftstore.errors import RaftstoreError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.spark.codec.decode import RowDecoder
from raftstore.spark.failures import bracketed_read
from raftstore.spark.options import SourceOptions
from raftstore.spark.read.filters import EVERYTHING, KeyRange, plan_filters
from raftstore.spark.store import Connect, Store
from raftstore.spark.tables import columns_of, refuse_other_table

_EVERYTHING_NULLABLE: Final = frozenset({"nullable", "containsNull", "valueContainsNull"})


@dataclass
class ChannelSlice(InputPartition):
    """The share of one task: a partition of the table in the job's snapshot. Pickled by Spark."""

    partition: int
    token: SnapshotToken
    keys: tuple[bytes, ...] | None
    """These keys; None: ``ranges`` of them."""
    ranges: tuple[KeyRange, ...]

    def __post_init__(self) -> None:
        super().__init__(self.partition)

    def pages(self, store: Store, name: str) -> Iterator[Sequence[Item]]:
        """Read it, many rows at a time."""
        if self.keys is not None:
            yield from store.rows_of(name, self.token, self.partition, self.keys)
            return
        for start, stop in self.ranges:
            yield from store.pages(name, self.token, self.partition, start, stop)


class RaftStoreReader(DataSourceReader):
    """Reads one table. Made on the driver, pickled into every task."""

    def __init__(
        self, options: SourceOptions, table: TableInfo, schema_json: str, connect: Connect
    ) -> None:
        """``schema_json``: of the DataFrame; raises SchemaError where the table differs."""
        check_wanted(table, schema_json)
        self._options = options
        self._table = table
        self._schema_json = schema_json
        self._connect = connect
        self._plan = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """Open the snapshot. Runs on the driver."""
        options, plan = self._options, self._plan
        if plan.is_of_nothing:
            return []
        try:
            with self._connect(options) as store:
                refuse_other_table(store.table_info(options.table).uuid, self._table)
                token = store.open_snapshot(options.table, options)
                # It is of whichever table had the name by then.
                refuse_other_table(token.table_uuid, self._table)
                if plan.keys is None:
                    return self._slices(store, token)
        except RaftstoreError as error:
            raise bracketed_read(error, options.table) from None
        keys = plan.keys_of(self._table.partitions)
        return [ChannelSlice(number, token, keys[number], ()) for number in keys]

    def _slices(self, store: Store, token: SnapshotToken) -> list[InputPartition]:
        """Every partition's ranges, cut into as many slices as shall read them."""
        ranges, parts = self._plan.ranges, self._options.splits_per_channel
        numbers = range(self._table.partitions)
        if parts == 1:
            return [ChannelSlice(number, token, None, ranges) for number in numbers]
        if len(ranges) > 1:
            some = -(-len(ranges) // parts)
            groups = [ranges[at : at + some] for at in range(0, len(ranges), some)]
            return [ChannelSlice(n, token, None, group) for n in numbers for group in groups]
        ((start, stop),) = ranges
        slices: list[InputPartition] = []
        for number, cuts in enumerate(store.cuts(self._table.name, token, start, stop, parts)):
            bounds = [start, *cuts, stop]
            pieces = map(KeyRange, bounds[:-1], bounds[1:])
            slices += [ChannelSlice(number, token, None, (piece,)) for piece in pieces]
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of the snapshot. Runs in a task."""
        if not isinstance(partition, ChannelSlice):
            return  # Spark's own, where there is none to read
        options, table = self._options, self._table
        schema = TableSchema(table.key_columns, table.schema_json)
        decoder = RowDecoder(schema, self._schema_json)
        try:
            with self._connect(options) as store:
                for page in partition.pages(store, options.table):
                    yield decoder.decode(page)
        except RaftstoreError as error:
            raise bracketed_read(error, options.table) from None


class PushingReader(RaftStoreReader):
    """The same, with the filters of the query.

    A class of its own: Spark refuses to plan a reader that takes filters while its setting
    spark.sql.python.filterPushdown.enabled is off, which is the remedy for who asked for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read only the keys that the filters leave; return those that Spark has to apply."""
        self._plan, left = plan_filters(filters, self._table)
        return left


def find_source(options: SourceOptions, connect: Connect) -> TableInfo:
    """Find the table to read. Runs on the driver."""
    try:
        with connect(options) as store:
            return store.table_info(options.table)
    except RaftstoreError as error:
        raise bracketed_read(error, options.table) from None


def find_schema(options: SourceOptions, connect: Connect) -> tuple[TableInfo, str]:
    """Find the table to read, and its columns as Spark's JSON. Runs on the driver.

    A table that declares its key alone takes any columns. One whose rows have none is read as what
    it is, a table of keys; one row shows it, for they are not looked at before the job runs.
    """
    try:
        with connect(options) as store:
            table = store.table_info(options.table)
            is_of_keys = False
            if table.schema_json and is_of_key_alone(table):
                row = store.some_row(options.table)
                is_of_keys = row is None or row.keys() <= set(table.key_columns)
    except RaftstoreError as error:
        raise bracketed_read(error, options.table) from None
    return table, schema_of(table, may_be_keys=is_of_keys)


def is_of_key_alone(table: TableInfo) -> bool:
    """Whether the table declares no column beside its key."""
    return not TableSchema(table.key_columns, table.schema_json).value_columns


def schema_of(table: TableInfo, *, may_be_keys: bool = False) -> str:
    """Return the table's schema as Spark's JSON; SchemaError when it declares too little.

    All but the key may be null: nodes do not enforce what a writer once declared. ``may_be_keys``:
    the key alone is enough.
    """
    if is_of_key_alone(table) and not may_be_keys:
        raise SchemaError(
            f"[RAFTSTORE_SCHEMA_MISSING] table {table.name!r} takes any columns and declares none "
            'to read: name them with spark.read.schema("id LONG, …")'
        )
    schema = _nullable(msgspec.json.decode(table.schema_json))
    for field in schema["fields"]:
        field["nullable"] = field["name"] not in table.key_columns
    return msgspec.json.encode(schema).decode()


def check_wanted(table: TableInfo, schema_json: str) -> None:
    """Raise SchemaError unless the DataFrame's columns are columns of the table."""
    declared = columns_of(table.schema_json) if table.schema_json else {}
    takes_any = not declared or declared.keys() == frozenset(table.key_columns)
    for name, kind in columns_of(schema_json).items():
        if name not in declared:
            if takes_any:
                continue
            raise SchemaError(
                f"[RAFTSTORE_SCHEMA_MISMATCH] table {table.name!r} has no column {name!r}; "
                f"there are {', '.join(declared)}"
            )
        if _nullable(kind) != _nullable(declared[name]):
            raise SchemaError(
                f"[RAFTSTORE_SCHEMA_MISMATCH] column {name!r} of table {table.name!r} is "
                f"{_text(declared[name])} and not {_text(kind)}: read it as it is and cast it then"
            )


def _nullable(spec: Any) -> Any:
    """Return a type with nulls allowed everywhere in it."""
    if isinstance(spec, dict):
        return {
            name: True if name in _EVERYTHING_NULLABLE else _nullable(part)
            for name, part in spec.items()
        }
    if isinstance(spec, list):
        return [_nullable(part) for part in spec]
    return spec


def _text(spec: Any) -> str:
    return spec if isinstance(spec, str) else msgspec.json.encode(spec).decode()
