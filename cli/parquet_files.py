"""Parquet files of a table's rows; needs the extra ``spark``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from raftstore.client.scans.scanning import Item
from raftstore.errors import ConfigError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema

BATCH_ROWS: Final = 5_000
"""Rows of a file that are decoded at once."""


def parquet_writer(
    info: TableInfo,
) -> Callable[[Iterable[Sequence[Item]], Path, Callable[[int], None]], int]:
    """Return what writes pages of rows to a Parquet file; SchemaError without declared columns."""
    parquet = _parquet()
    from raftstore.spark.codec.decode import RowDecoder

    decoder = RowDecoder(TableSchema(info.key_columns, info.schema_json), _declared(info))

    def write(pages: Iterable[Sequence[Item]], path: Path, tell: Callable[[int], None]) -> int:
        written = 0
        with parquet.ParquetWriter(path, decoder.arrow) as writer:
            for page in pages:
                writer.write_batch(decoder.decode(page))
                written += len(page)
                tell(written)
        return written

    return write


def parquet_rows(info: TableInfo, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a Parquet file row by row: values as a row of the table holds them."""
    parquet = _parquet()
    import pyarrow as pa

    from raftstore.spark.codec.arrow import ColumnReader

    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{path} cannot be read as Parquet: {error}") from error
    names = set(file.schema_arrow.names)
    schema = msgspec.json.decode(_declared(info))
    fields = [field for field in schema["fields"] if field["name"] in names]
    strange = names - {field["name"] for field in fields}
    if strange:
        raise SchemaError(
            f"{path} has the columns {', '.join(sorted(strange))}, which table {info.name!r} does "
            "not declare; leave them out, or import JSON lines"
        )
    ordered = [field["name"] for field in fields]
    reader = ColumnReader(msgspec.json.encode({**schema, "fields": fields}).decode())
    number = 0
    batches = file.iter_batches(batch_size=BATCH_ROWS, columns=ordered)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise SchemaError(f"{path} is damaged behind row {number}: {error}") from error
        if batch is None:
            return
        columns = reader.read(batch.select(ordered))
        for values in zip(*columns.values(), strict=True):
            number += 1
            yield number, dict(zip(columns, values, strict=True))


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
