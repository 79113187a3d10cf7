"""The work of ``lookup``: columns of a table for the rows of a DataFrame, read in its tasks.

One multi-get for each Arrow batch. The table's catalog entry is taken on the driver and travels
along, so that a task which finds another table under the name ends instead of mixing the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa

from raftstore.client.reads.read_spec import ReadOptions, spec_of
from raftstore.errors import (
    ArgumentError,
    ConfigError,
    RaftstoreError,
    RequestError,
    RequestTimeoutError,
    SchemaError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.spark.codec.arrow import ColumnReader
from raftstore.spark.codec.decode import arrow_type, column_builder
from raftstore.spark.connections import shared
from raftstore.spark.failures import bracketed_read
from raftstore.spark.options import check_names
from raftstore.spark.read.reader import check_wanted, schema_of
from raftstore.spark.tables import columns_of, refuse_other_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

KEYS_MAX: Final = 10_000
"""Keys of one multi-get; batches of Spark's are no longer unless it is configured so."""
OPTION_NAMES: Final = (
    "level",
    "max_lag",
    "max_staleness",
    "max_batches_behind",
    "prefer_replica",
    "request_timeout_ms",
)
_LATE: Final = ("no_replica_available", "lag_exceeded", "lag_unknown", "unavailable")
"""Codes of reads that a weaker level may get answered."""

EXACT_FLOATS_END: Final = 2.0**53
"""From here on several whole numbers are one float."""
_WHOLE_NUMBERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())

Row = Mapping[str, Any]


class Source(Protocol):
    """A client, as a look-up uses it."""

    def table_info(self, name: str) -> TableInfo:
        """Return the table's catalog entry as it is now; raises UnknownTableError."""

    def definition(self, name: str) -> TableInfo:
        """Return it as it is known here."""

    def get_many(
        self, name: str, keys: Sequence[Any], reading: ReadOptions
    ) -> Sequence[Row | None]:
        """Return one row or None per key, in order."""


Open = Callable[[str, int], AbstractContextManager[Source]]
"""Open a source: servers, request timeout in milliseconds."""


@dataclass(frozen=True)
class Lookup:
    """Give it to ``mapInArrow`` or ``mapInPandas``. Made by ``lookup``, pickled into every task."""

    servers: str
    table: TableInfo
    key: tuple[str, ...]
    """The DataFrame's columns that hold the table's key, in the order of the table's."""
    columns: tuple[tuple[str, str], ...]
    """Columns of the table, with their names in the result."""
    types: Mapping[str, Any]
    """Types of the table's columns, as Spark's schema JSON writes them."""
    reading: ReadOptions
    timeout_ms: int
    open: Open

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches with the columns added. Runs in a task."""
        for batch in batches:
            if isinstance(batch, pa.RecordBatch):
                yield self._with_columns(batch)
            else:
                yield self._with_series(batch)

    def schema(self, given: DataFrame | StructType) -> StructType:
        """Return the result's columns for a DataFrame (or its schema): those and the added ones.

        Raises SchemaError when it lacks the key, when a type differs, or when it has a column of an
        added one's name.
        """
        from pyspark.sql.types import StructType

        before: StructType = given if isinstance(given, StructType) else given.schema
        has = columns_of(before.json())
        self._check_columns(has)
        for name, (own, wanted) in zip(self.key, self._key_types(), strict=True):
            if wanted is not None and not _is_like(arrow_type(has[name]), wanted):
                raise self._other_type(own, name, has[name])
        fields = msgspec.json.decode(before.json())["fields"]
        for name, added in self.columns:
            kind = self.types[name]
            fields.append({"name": added, "type": kind, "nullable": True, "metadata": {}})
        after: StructType = StructType.fromJson({"type": "struct", "fields": fields})
        return after

    # --- inside ----------------------------------------------------------------------------------

    def _with_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._check_columns(batch.schema.names)
        keys = [self._key_column(n, batch.column(name)) for n, name in enumerate(self.key)]
        added = self._look_up(keys)
        names = [*batch.schema.names, *(name for _, name in self.columns)]
        return pa.RecordBatch.from_arrays([*batch.columns, *added], names=names)

    def _with_series(self, frame: Any) -> Any:
        import pandas as pd

        self._check_columns(frame.columns)
        keys = [self._key_series(n, frame[name]) for n, name in enumerate(self.key)]
        nullable = {
            pa.int8(): pd.Int8Dtype(),
            pa.int16(): pd.Int16Dtype(),
            pa.int32(): pd.Int32Dtype(),
            pa.int64(): pd.Int64Dtype(),  # without them a null would turn numbers into floats
            pa.bool_(): pd.BooleanDtype(),
        }
        added = {}
        for (_, name), array in zip(self.columns, self._look_up(keys), strict=True):
            series = array.to_pandas(types_mapper=nullable.get, maps_as_pydicts="strict")
            added[name] = series.set_axis(frame.index)
        return frame.assign(**added)

    def _look_up(self, keys: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the added columns, one value for each key."""
        given = ColumnReader(
            msgspec.json.encode(
                {"fields": [{"name": name, "type": "key"} for name in self.table.key_columns]}
            ).decode()
        )
        named = pa.RecordBatch.from_arrays(keys, names=list(self.table.key_columns))
        rows = self._rows(list(zip(*given.read(named).values(), strict=True)))
        arrays = []
        for name, _ in self.columns:
            values = [None if row is None else row.get(name) for row in rows]
            arrays.append(column_builder(name, self.types[name])(values))
        return arrays

    def _rows(self, keys: Sequence[tuple[Any, ...]]) -> list[Row | None]:
        """Return the row of each key, None where there is none or a part of the key is null."""
        wanted = [key for key in dict.fromkeys(keys) if None not in key]
        found: dict[tuple[Any, ...], Row | None] = {}
        if wanted:
            name = self.table.name
            try:
                with self.open(self.servers, self.timeout_ms) as source:
                    refuse_other_table(source.definition(name).uuid, self.table)
                    for start in range(0, len(wanted), KEYS_MAX):
                        part = wanted[start : start + KEYS_MAX]
                        rows = source.get_many(name, part, self.reading)
                        found |= zip(part, rows, strict=True)
            except RaftstoreError as error:
                raise _named(error, name) from error
        return [found.get(key) for key in keys]

    def _key_types(self) -> list[tuple[str, pa.DataType | None]]:
        """The table's key columns with their types; None: any."""
        return [
            (name, arrow_type(self.types[name]) if name in self.types else None)
            for name in self.table.key_columns
        ]

    def _key_column(self, number: int, column: pa.Array) -> pa.Array:
        own, wanted = self._key_types()[number]
        if wanted is None or column.type == wanted:
            return column
        if not _is_like(column.type, wanted):
            raise self._other_type(own, self.key[number], column.type)
        try:
            return column.cast(wanted)
        except pa.ArrowException as error:
            raise self._other_type(own, self.key[number], f"{column.type} ({error})") from error

    def _key_series(self, number: int, series: Any) -> pa.Array:
        own, wanted = self._key_types()[number]
        if getattr(series.dtype, "kind", "") == "M" and wanted != pa.timestamp("us"):
            raise SchemaError(
                f"[RAFTSTORE_KEY_MISMATCH] the key column {self.key[number]!r} is a timestamp, "
                "which pandas has without its zone: use mapInArrow"
            )
        is_rounded = getattr(series.dtype, "kind", "") == "f" and wanted in _WHOLE_NUMBERS
        if is_rounded and (series.abs() >= EXACT_FLOATS_END).any():
            raise SchemaError(
                f"[RAFTSTORE_KEY_MISMATCH] the key column {self.key[number]!r} has nulls and "
                "numbers from 2^53 on, which pandas holds as floats then, so another key would be "
                "looked up: use mapInArrow"
            )
        try:
            # Spark makes floats of integers where some are null.
            return pa.Array.from_pandas(series, type=wanted)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise self._other_type(own, self.key[number], f"{series.dtype} ({error})") from error

    def _check_columns(self, given: Iterable[str]) -> None:
        has = list(given)
        for name in self.key:
            if name not in has:
                raise SchemaError(
                    f"[RAFTSTORE_KEY_MISSING] the DataFrame lacks the key column {name!r} of the "
                    f"look-up in table {self.table.name!r} (it has {', '.join(has)}): name one of "
                    "its columns as key"
                )
        for own, name in self.columns:
            if name in has:
                raise SchemaError(
                    f"[RAFTSTORE_SCHEMA_MISMATCH] the DataFrame has a column {name!r} already: "
                    f'call the one of table {self.table.name!r} otherwise, as in columns={{"{own}":'
                    f' "{self.table.name}_{own}"}}'
                )

    def _other_type(self, own: str, name: str, given: object) -> SchemaError:
        return SchemaError(
            f"[RAFTSTORE_KEY_MISMATCH] the key column {own!r} of table {self.table.name!r} is "
            f"{self.types[own]}, but the DataFrame's column {name!r} is {given}: cast it before "
            "the look-up"
        )


def plan_lookup(
    place: tuple[str, str],
    key: tuple[str, ...],
    columns: Any,
    options: Mapping[str, Any],
    open_source: Open,
) -> Lookup:
    """Check everything against the catalog. Runs on the driver, as a rule."""
    name, servers = place
    reading, timeout_ms = _parse(options)
    if not servers:
        raise ConfigError("[RAFTSTORE_OPTION_MISSING] bootstrap_servers is empty: name some nodes")
    try:
        with open_source(servers, timeout_ms) as source:
            table = source.table_info(name)
    except RaftstoreError as error:
        raise bracketed_read(error, name) from None
    if len(key) != len(table.key_columns):
        raise SchemaError(
            f"[RAFTSTORE_KEY_MISMATCH] key is {', '.join(key) or 'empty'}, but the key of table "
            f"{name!r} has the columns {', '.join(table.key_columns)}: name one column of the "
            "DataFrame for each, in this order"
        )
    types = columns_of(table.schema_json) if table.schema_json else {}
    if len(types) > len(table.key_columns):
        types = columns_of(schema_of(table))  # nulls may be anywhere in them
    chosen = _chosen(table, types, columns)
    reading["columns"] = tuple(dict.fromkeys(own for own, _ in chosen))
    return Lookup(servers, table, key, chosen, types, reading, timeout_ms, open_source)


def _chosen(table: TableInfo, types: dict[str, Any], columns: Any) -> tuple[tuple[str, str], ...]:
    """Return the wanted columns with their new names, and their types in ``types``."""
    if columns is None:
        declared = columns_of(schema_of(table))
        return tuple((name, name) for name in declared if name not in table.key_columns)
    if hasattr(columns, "fieldNames"):
        check_wanted(table, columns.json())
        wanted = columns_of(columns.json())
        types |= wanted
        return tuple((name, name) for name in wanted)
    named = columns if isinstance(columns, Mapping) else {name: name for name in names_of(columns)}
    for name in named:
        if name not in types:
            declared = columns_of(schema_of(table))  # refuses a table that declares none
            raise SchemaError(
                f"[RAFTSTORE_SCHEMA_MISMATCH] table {table.name!r} has no column {name!r}; there "
                f"are {', '.join(declared)}"
            )
    if len(set(named.values())) != len(named) or not named:
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] columns is {dict(named)}: name at least one column, and "
            "give each a name of its own"
        )
    return tuple(named.items())


def _parse(options: Mapping[str, Any]) -> tuple[ReadOptions, int]:
    """Return how to read, and the time for each multi-get."""
    given = check_names(options, OPTION_NAMES)
    timeout_ms = given.get("request_timeout_ms", 30_000)
    if type(timeout_ms) is not int or not 1 <= timeout_ms <= 3_600_000:
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] request_timeout_ms is {timeout_ms!r}: give a whole number "
            "from 1 to 3600000"
        )
    reading: ReadOptions = {
        "level": given.get("level", "bounded"),
        "max_lag": given.get("max_lag"),
        "max_staleness": given.get("max_staleness"),
        "max_batches_behind": given.get("max_batches_behind"),
        "prefer": given.get("prefer_replica", "any_in_bound"),
        "timeout": timeout_ms / 1000,
    }
    try:
        spec_of(reading)
    except ArgumentError as error:
        raise ConfigError(f"[RAFTSTORE_OPTION_INVALID] {error}") from error
    return reading, timeout_ms


def names_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return names that are given as a list or with commas between."""
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(name for part in parts if (name := part.strip()))


def _is_like(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type are keys of another: text is never taken for a number."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, _is_text, _is_bytes)
    if any(kind(given) and kind(wanted) for kind in kinds):
        return True
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    return bool(given == wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _named(error: RaftstoreError, table: str) -> RaftstoreError:
    reported = bracketed_read(error, table)
    if isinstance(error, RequestTimeoutError) or (
        isinstance(error, RequestError) and error.code in _LATE
    ):
        reported.args = (
            f"{reported}; look up at level=any, or give a larger bound or request_timeout_ms",
        )
    return reported


class ClientSource:
    """The blocking client, with the names of a look-up."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def table_info(self, name: str) -> TableInfo:
        """Ask the catalog."""
        info: TableInfo = self._client.table_info(name)
        return info

    def definition(self, name: str) -> TableInfo:
        """Ask only when it is not known."""
        info: TableInfo = self._client.table(name).definition()
        return info

    def get_many(
        self, name: str, keys: Sequence[Any], reading: ReadOptions
    ) -> Sequence[Row | None]:
        """One request to each partition."""
        rows: Sequence[Row | None] = self._client.table(name).get_many(keys, **reading)
        return rows


@contextmanager
def connected(servers: str, timeout_ms: int) -> Iterator[Source]:
    """Use this process's client of the cluster."""
    with shared(servers, timeout_ms) as client:
        yield ClientSource(client)
