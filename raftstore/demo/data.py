"""The demo's input: real rows, written as the files of a stream, and what shall be counted.

Each file is one micro-batch of Spark's file source. Rows are dealt out to the files in turn, so
every micro-batch touches keys all over the table and most groups of the aggregate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import compute, csv, json, parquet

from raftstore.demo.sources import Measure, SourceRows, find_rows
from raftstore.errors import ConfigError

ROWS_MIN: Final = 50_000
"""A source with fewer rows than this is passed over for the next one."""
ROWS_WANTED: Final = 100_000
"""About so many rows are taken: the whole demo shall end within four minutes on two cores."""
ROWS_WANTED_SHORT: Final = 55_000
FILES: Final = 12
FILES_SHORT: Final = 8


class Aggregate(msgspec.Struct, frozen=True):
    """A groupBy over the rows: one output row a group, with ``group_by`` as its key."""

    table: str
    group_by: str
    measures: tuple[Measure, ...]
    groups: int
    hot_key: Any
    hot_rows: int
    """Rows of the largest group: every micro-batch changes it."""


class DemoData(msgspec.Struct, frozen=True):
    """The data in ``directory``: one Parquet file a micro-batch, in order of their times."""

    source: str
    description: str
    table: str
    key: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """Name and type of each column, to show."""
    directory: str
    files: tuple[str, ...]
    rows: int
    aggregate: Aggregate


def prepare_data(
    directory: Path,
    *,
    short: bool = False,
    source: str = "",
    input_path: Path | None = None,
    key: Sequence[str] = (),
    group_by: str = "",
) -> DemoData:
    """Find or read the rows and write the stream's files into ``directory``.

    ``source`` (packages, files, characters) picks one by name; ``input_path`` takes a csv, json or
    parquet file of the user's, whole, with its ``key``. Raises ConfigError for unusable input.
    """
    if input_path is not None:
        rows = _read_input(input_path, tuple(key), group_by)
    else:
        rows = find_rows(ROWS_WANTED_SHORT if short else ROWS_WANTED, ROWS_MIN, source)
    files = _write_files(directory, rows.columns, FILES_SHORT if short else FILES)
    groups = compute.value_counts(rows.columns[rows.group_by].combine_chunks())
    hot = groups.take(compute.top_k_unstable(groups.field("counts"), 1))[0].as_py()
    return DemoData(
        source=rows.source,
        description=rows.description,
        table=rows.table,
        key=rows.key,
        columns=tuple((field.name, str(field.type)) for field in rows.columns.schema),
        directory=str(directory),
        files=files,
        rows=rows.count,
        aggregate=Aggregate(
            table=rows.aggregate_table,
            group_by=rows.group_by,
            measures=rows.measures,
            groups=len(groups),
            hot_key=hot["values"],
            hot_rows=hot["counts"],
        ),
    )


def _write_files(directory: Path, table: Any, count: int) -> tuple[str, ...]:
    directory.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(count):
        path = directory / f"part-{number:04}.parquet"
        part = table.take(pa.array(range(number, table.num_rows, count)))
        # Microseconds are what Spark's timestamps hold; it does not read nanoseconds.
        parquet.write_table(part, path, coerce_timestamps="us")
        # The file source goes by modification time: one second apart, oldest first.
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
        names.append(path.name)
    return tuple(names)


# --- input of the user's own ---------------------------------------------------------------------


def _read_input(path: Path, key: tuple[str, ...], group_by: str) -> SourceRows:
    """Read a csv, json (one object a line) or parquet file and check that its key is one."""
    readers = {
        ".csv": csv.read_csv,
        ".json": json.read_json,
        ".jsonl": json.read_json,
        ".parquet": parquet.read_table,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(
            f"--input {path} has the ending {path.suffix!r}: give {', '.join(readers)}"
        )
    if not path.is_file():
        raise ConfigError(f"--input {path} is no file: give the path of one")
    try:
        table = _for_spark(reader(path))
    except pa.ArrowException as error:
        raise ConfigError(f"--input {path} cannot be read as {path.suffix[1:]}: {error}") from error
    if table.num_rows < FILES:
        raise ConfigError(
            f"--input {path} has {table.num_rows} rows: give a file with at least {FILES}"
        )
    key = key or (table.column_names[0],)
    _check_key(path, table, key)
    group_by = group_by or _group_column(path, table, key)
    if group_by not in table.column_names:
        raise ConfigError(
            f"--group-by is {group_by!r}, but {path} has {', '.join(table.column_names)}"
        )
    return SourceRows(
        source="input",
        description=f"{table.num_rows:,} rows of {path.name}",
        table="input_rows",
        key=key,
        columns=table,
        aggregate_table="input_groups",
        group_by=group_by,
        measures=(
            Measure("rows", "count", key[0]),
            Measure("first_key", "min", key[0]),
            Measure("last_key", "max", key[0]),
        ),
    )


def _for_spark(table: Any) -> Any:
    """Replace the types that Spark does not read from Parquet by the nearest it does."""
    fields = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_null(kind) or pa.types.is_time(kind):
            kind = pa.string()
        elif pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif pa.types.is_duration(kind):
            kind = pa.int64()
        fields.append(pa.field(field.name, kind))
    return table.cast(pa.schema(fields))


def _check_key(path: Path, table: Any, key: tuple[str, ...]) -> None:
    for name in key:
        if name not in table.column_names:
            raise ConfigError(f"--key is {name!r}, but {path} has {', '.join(table.column_names)}")
        if table[name].null_count:
            raise ConfigError(
                f"--key {name} is null in {table[name].null_count} rows of {path}: "
                "name columns that are always set"
            )
    distinct = table.group_by(list(key)).aggregate([]).num_rows
    if distinct != table.num_rows:
        raise ConfigError(
            f"--key {','.join(key)} has {distinct} values in the {table.num_rows} rows of {path}: "
            "name columns that are unique together, as in --key tenant,id"
        )


def _group_column(path: Path, table: Any, key: tuple[str, ...]) -> str:
    """Pick the column that repeats itself most without being the same everywhere."""
    repeats: dict[str, int] = {}
    for field in table.schema:
        if pa.types.is_nested(field.type) or pa.types.is_floating(field.type):
            continue
        if key == (field.name,) or table[field.name].null_count:
            continue
        distinct = len(table[field.name].unique())
        if 1 < distinct <= table.num_rows // 2:
            repeats[field.name] = distinct
    if not repeats:
        raise ConfigError(f"no column of {path} has repeated values: name one with --group-by")
    return max(repeats, key=repeats.__getitem__)
