"""Rows of a table as Parquet files, and back exactly.

``$key`` and ``$value`` are what nodes store: the encoded key, and the row sealed by its writer with
a checksum over both. They alone are restored, so every value comes back as it was, and damage
anywhere between the writer and here is found. ``$expires`` says when the row expires, null: never.
The other columns are for other readers, Spark before all: the columns that the table declares, or
where it declares none beside its key, ``row``, the row as JSON as `raftstore export` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from raftstore.backup.manifest import TableDefinition
from raftstore.client.reads.key_reads import row_of
from raftstore.client.scans.scanning import Item
from raftstore.errors import BackupError, ConfigError, SchemaError
from raftstore.rows.key_text import JsonRows
from raftstore.rows.schema import TableSchema

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise ConfigError("backups need pyarrow: pip install 'raftstore[backup]'") from error

KEY: Final = "$key"
VALUE: Final = "$value"
EXPIRES: Final = "$expires"
ROW: Final = "row"
OWN: Final = frozenset((KEY, VALUE, EXPIRES))
_OWN_FIELDS: Final = (
    pa.field(KEY, pa.binary(), nullable=False),
    pa.field(VALUE, pa.binary(), nullable=False),
    pa.field(EXPIRES, pa.timestamp("ms", tz="UTC")),
)


class StoredRow(NamedTuple):
    """A row as nodes store it."""

    key: bytes
    sealed: bytes
    expires_ms: int
    """In ms since 1970; 0: it does not expire."""


class TableFiles:
    """Writes the files of one table."""

    def __init__(self, definition: TableDefinition) -> None:
        self._schema = TableSchema(definition.key_columns, definition.schema_json)
        self._json = JsonRows(definition.key_columns, definition.schema_json)
        self._decoder = None
        shown: list[Any] = [pa.field(ROW, pa.string())]
        if self._schema.value_columns:
            # Imported here: it is the Spark side's, though it needs no Spark.
            from raftstore.spark.codec.decode import RowDecoder

            self._decoder = RowDecoder(self._schema, _readable(definition.schema_json))
            shown = list(self._decoder.arrow)
        self._fields: Final = (*_OWN_FIELDS, *shown)

    @property
    def columns(self) -> list[str]:
        """Names of the columns for other readers."""
        return [field.name for field in self._fields if field.name not in OWN]

    def encode(self, items: Sequence[Item], expiries: Mapping[bytes, int]) -> bytes:
        """Return a Parquet file of rows; ``expiries`` of those that expire, by their keys."""
        moments = [expiries.get(item[0]) for item in items]
        own = [[item[0] for item in items], [item[1] for item in items], moments]
        arrays = [
            *(pa.array(each, field.type) for each, field in zip(own, _OWN_FIELDS, strict=True)),
            *self._shown(items),
        ]
        sink = pa.BufferOutputStream()
        table = pa.Table.from_arrays(arrays, schema=pa.schema(self._fields))
        pq.write_table(
            table, sink, compression="zstd", use_dictionary=False, row_group_size=len(items)
        )
        content: bytes = sink.getvalue().to_pybytes()
        return content

    def _shown(self, items: Sequence[Item]) -> list[Any]:
        if self._decoder is None:
            texts = [self._row_text(key, sealed) for key, sealed, _ in items]
            return [pa.array(texts, pa.string())]
        try:
            return list(self._decoder.decode(items).columns)
        except SchemaError:
            # Nodes do not enforce what a table declares: a row that does not fit is null in these
            # columns, and whole in its own.
            batches = [self._row_alone(item) for item in items]
            table = pa.Table.from_batches(batches, self._decoder.arrow).combine_chunks()
            return [column.chunk(0) for column in table.columns]

    def _row_alone(self, item: Item) -> Any:
        assert self._decoder is not None
        try:
            return self._decoder.decode([item])
        except SchemaError:
            arrow = self._decoder.arrow
            return pa.RecordBatch.from_arrays(
                [pa.nulls(1, field.type) for field in arrow], schema=arrow
            )

    def _row_text(self, key: bytes, sealed: bytes | None) -> str:
        row = row_of(self._schema, key, sealed)
        assert row is not None
        return json.dumps(self._json.row_to_json(row), ensure_ascii=False, default=str)


def stored_rows(content: bytes, path: str) -> Iterator[StoredRow]:
    """Iterate over the rows of a file; BackupError when it is none of ours."""
    try:
        table = pq.read_table(pa.BufferReader(content), columns=[KEY, VALUE, EXPIRES])
        missing = OWN.difference(table.column_names)
        if missing:
            raise BackupError(f"{path} lacks the columns {', '.join(sorted(missing))}")
        moments = table.column(EXPIRES).cast(pa.int64()).to_pylist()
        keys, sealed = table.column(KEY).to_pylist(), table.column(VALUE).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise BackupError(f"{path} cannot be read as Parquet: {error}") from error
    for key, value, expires_ms in zip(keys, sealed, moments, strict=True):
        if key is None or value is None:
            raise BackupError(f"{path} has a row without its key or value")
        yield StoredRow(key, value, expires_ms or 0)


def shown_columns(content: bytes) -> list[str]:
    """Return the names of a file's columns for other readers."""
    names: list[str] = pq.read_schema(pa.BufferReader(content)).names
    return [name for name in names if name not in OWN]


def _readable(schema_json: str) -> str:
    """The declared columns that can be written besides ours; all of them may be null."""
    schema = msgspec.json.decode(schema_json)
    fields = [
        {**field, "nullable": True}
        for field in schema["fields"]
        if field["name"] not in OWN and _is_writable(field["type"])
    ]
    return json.dumps({**schema, "fields": fields})


def _is_writable(kind: Any) -> bool:
    """Whether Parquet has the type."""
    from raftstore.spark.codec.decode import arrow_type

    try:
        schema = pa.schema([pa.field("column", arrow_type(kind))])
        pq.write_table(schema.empty_table(), pa.BufferOutputStream())
    except (pa.ArrowException, SchemaError):
        return False
    return True
