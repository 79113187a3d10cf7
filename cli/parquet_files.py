"""Parquet files of a table's rows; needs the extra ``spark``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from raftstore.cli.expiries import EXPIRES, FOR_EVER, NOT_STATED
from raftstore.client.scans.scanning import Item
from raftstore.errors import ConfigError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema

BATCH_ROWS: Final = 5_000
"""Rows of a file that are decoded at once."""


ExpiringPage = tuple[Sequence[Item], Mapping[bytes, int]]
"""A page of rows, and when those of them expire that do, by their keys."""


class WritePages(Protocol):
    """Writes pages of rows to a file, with a column of their expiries if they may have any."""

    def __call__(
        self,
        pages: Iterable[ExpiringPage],
        path: Path,
        tell: Callable[[int], None],
        *,
        expires: bool,
    ) -> int:
        """Return the number of the rows."""


def parquet_writer(info: TableInfo) -> WritePages:
    """Return what writes pages of rows to a Parquet file; SchemaError without declared columns."""
    parquet = _parquet()
    import pyarrow as pa

    from raftstore.spark.codec.decode import RowDecoder

    schema = TableSchema(info.key_columns, info.schema_json)
    decoder = RowDecoder(schema, _declared(info), is_exact=True)

    def write(
        pages: Iterable[ExpiringPage],
        path: Path,
        tell: Callable[[int], None],
        *,
        expires: bool,
    ) -> int:
        schema, written = decoder.arrow, 0
        if expires:
            if EXPIRES in schema.names:
                raise SchemaError(
                    f"table {info.name!r} declares a column {EXPIRES}, which in a Parquet file "
                    "tells when a row expires; use JSON lines (--format jsonl)"
                )
            schema = schema.append(pa.field(EXPIRES, pa.timestamp("ms", tz="UTC")))
        with parquet.ParquetWriter(path, schema) as writer:
            for page, expiries in pages:
                try:
                    batch = decoder.decode(page)
                except SchemaError as error:  # an older version wrote a part of another type
                    text = f"{error}; or use JSON lines, which hold any value (--format jsonl)"
                    raise SchemaError(text) from error
                if expires:
                    moments = pa.array([expiries.get(item[0]) for item in page], schema.types[-1])
                    batch = pa.RecordBatch.from_arrays([*batch.columns, moments], schema=schema)
                writer.write_batch(batch)
                written += len(page)
                tell(written)
        return written

    return write


def parquet_rows(info: TableInfo, path: Path) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Read a Parquet file row by row: values as a row of the table holds them, and the expiry."""
    parquet = _parquet()
    import pyarrow as pa

    from raftstore.spark.codec.arrow import ColumnReader

    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{path} cannot be read as Parquet: {error}") from error
    given = file.schema_arrow.names
    names = set(given)
    if twice := sorted({name for name in names if given.count(name) > 1}):
        raise SchemaError(f"{path} has more than one column {', '.join(twice)}; leave one of them")
    schema = msgspec.json.decode(_declared(info))
    fields = [field for field in schema["fields"] if field["name"] in names]
    strange = names - {field["name"] for field in fields}
    expires = EXPIRES in strange
    strange.discard(EXPIRES)
    if expires and not pa.types.is_timestamp(file.schema_arrow.field(EXPIRES).type):
        raise SchemaError(
            f"column {EXPIRES} of {path} is {file.schema_arrow.field(EXPIRES).type}; give "
            "timestamps, and null for rows that do not expire, or leave it out"
        )
    if strange:
        raise SchemaError(
            f"{path} has the columns {', '.join(sorted(strange))}, which table {info.name!r} does "
            "not declare; leave them out, or import JSON lines"
        )
    ordered = [field["name"] for field in fields]
    reader = ColumnReader(msgspec.json.encode({**schema, "fields": fields}).decode())
    number = 0
    wanted = [*ordered, EXPIRES] if expires else ordered
    batches = file.iter_batches(batch_size=BATCH_ROWS, columns=wanted)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise SchemaError(f"{path} is damaged behind row {number}: {error}") from error
        if batch is None:
            return
        columns = reader.read(batch.select(ordered))
        moments_ms = _expiries(batch.column(EXPIRES)) if expires else [NOT_STATED] * batch.num_rows
        for expires_ms, *values in zip(moments_ms, *columns.values(), strict=True):
            number += 1
            yield number, dict(zip(columns, values, strict=True)), expires_ms


def _expiries(moments: Any) -> list[int]:
    """Expiries in ms since 1970, as ``expiries`` has them."""
    import pyarrow as pa

    moments_ms = moments.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    return [FOR_EVER if at_ms is None else max(1, at_ms) for at_ms in moments_ms]


def _declared(info: TableInfo) -> str:
    """Columns of the table as Spark's JSON; SchemaError if it declares none."""
    from raftstore.spark.read.reader import is_of_key_alone, schema_of

    if is_of_key_alone(info):
        raise SchemaError(
            f"table {info.name!r} declares no columns beside its key, which Parquet needs; use "
            "JSON lines (--format jsonl)"
        )
    return schema_of(info)


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow: pip install 'raftstore[spark]', or choose --format jsonl"
        ) from error
    return pyarrow.parquet
