"""``raftstore export|import``: all rows of a table to a file, and rows of a file to a table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from raftstore.cli.common import Context, json_text, pass_context, rows_of
from raftstore.cli.names import TABLE
from raftstore.cli.parquet_files import parquet_rows, parquet_writer
from raftstore.client.blocking.snapshots import Snapshot
from raftstore.errors import RaftstoreError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.key_text import JSON_ERRORS
from raftstore.rows.schema import TableSchema

ROWS_AT_ONCE: Final = 5_000
"""Rows of a file that are checked and written together."""
STDIO: Final = "-"
PROGRESS_S: Final = 0.5
FORMATS: Final = ("jsonl", "parquet")
UNFINISHED: Final = ".unfinished"
"""Behind the name of a file that is being written."""

Rows = Iterator[tuple[int, dict[str, Any]]]
"""Rows with the number of their line, or of their row, in a file; from 1 on."""
Tell = Callable[[int], None]
"""Told how many rows are done."""


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """How the file is written; its name says it where nothing else does."""
    return click.option(
        "--format",
        "shape",
        type=click.Choice(FORMATS),
        help="JSON lines or Parquet.  [default: parquet if the name ends so, else jsonl]",
    )(command)


@click.command("export")
@click.argument("table", type=TABLE)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default=STDIO)
@format_option
@click.option("--overwrite", is_flag=True, help="Replace the file if there is one.")
@pass_context
def export_rows(
    context: Context, /, table: str, file: str, *, shape: str | None, overwrite: bool
) -> None:
    """Write all rows of a table, as they were at one moment, to a file or to stdout.

    All partitions are read at one position: a micro-batch is in the file as a whole or not at all.
    JSON lines hold every value exactly, as `put` and HTTP take it. Parquet needs a table that
    declares its columns, and `pip install 'raftstore[spark]'`. The file gets its name when it is
    complete.

    \b
    Example:
      raftstore export orders orders.jsonl
      raftstore export orders orders.parquet
      raftstore export orders | gzip > orders.jsonl.gz
    """
    shape = shape_of(file, shape)
    if file == STDIO and shape == "parquet":
        raise click.UsageError("Parquet is not written to stdout; name a file.")
    if file != STDIO and not overwrite and Path(file).exists():
        raise click.UsageError(f"{file} exists; pass --overwrite to replace it.")
    with context.connect() as client:
        info = client.table_info(table)
        # Opened before the file: what the table refuses leaves no file behind.
        pages_of = parquet_writer(info) if shape == "parquet" else None
        with client.table(table).snapshot() as snapshot:
            with rows_progress("rows written") as tell:
                if pages_of is not None:
                    pages = (
                        page
                        for partition in range(info.partitions)
                        for page in snapshot.pages(partition)
                    )
                    rows = in_place(Path(file), lambda path: pages_of(pages, path, tell))
                elif file == STDIO:
                    rows = _write_lines(info, snapshot, sys.stdout, tell)
                else:
                    rows = in_place(
                        Path(file), lambda path: _write_lines_to(info, snapshot, path, tell)
                    )
            told = {"table": table, "file": file, "rows": rows, "position": str(snapshot.position)}
    if file == STDIO:
        context.say(f"{rows} rows of table {table} at position {told['position']}")
    else:
        context.show(told, [{"table": table, "file": file, "rows": rows}])


@click.command("import")
@click.argument("table", type=TABLE)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@format_option
@pass_context
def import_rows(context: Context, /, table: str, file: str, *, shape: str | None) -> None:
    """Write the rows of a file to a table; a row whose key exists already is replaced.

    The table must exist. The first row that does not fit ends it, with the number of its line; the
    rows before it may be written. Importing a file again is harmless.

    \b
    Example:
      raftstore import orders orders.jsonl
      gzip -dc orders.jsonl.gz | raftstore import orders -
    """
    shape = shape_of(file, shape)
    if file == STDIO and shape == "parquet":
        raise click.UsageError("Parquet is not read from stdin; name a file.")
    unit = "row" if shape == "parquet" else "line"
    written = 0
    with context.connect() as client:
        info = client.table_info(table)
        found = parquet_rows(info, Path(file)) if shape == "parquet" else _lines(info, file)
        rows = _checked(info, found, unit)
        try:
            with rows_progress("rows written") as tell:
                while chunk := list(islice(rows, ROWS_AT_ONCE)):
                    written += client.table(table).put_many(chunk).rows
                    tell(written)
        except RaftstoreError as error:
            context.say(_what_is_written(written, is_all=isinstance(error, SchemaError)))
            raise
    context.show({"table": table, "file": file, "rows": written})


def _checked(info: TableInfo, found: Rows, unit: str) -> Iterator[dict[str, Any]]:
    """The rows of a file; SchemaError names the line of one that the table does not take."""
    schema = TableSchema(info.key_columns, info.schema_json)
    for number, row in found:
        try:
            schema.row_to_key_value(row)
        except SchemaError as error:
            raise SchemaError(f"{unit} {number}: {error}") from error
        yield row


def _what_is_written(rows: int, *, is_all: bool) -> str:
    known = f"the first {rows} rows are written" if rows else "no row is written"
    known += "" if is_all else " for certain, some behind them may be"
    return f"{known}; import the file again when this is mended: a row that is there is replaced"


def shape_of(file: str, shape: str | None) -> str:
    """The format of a file: as asked for, else as its name says."""
    return shape or ("parquet" if file.endswith(".parquet") else "jsonl")


# --- JSON lines -----------------------------------------------------------------------------------


def _write_lines(info: TableInfo, snapshot: Snapshot, to: IO[str], tell: Tell) -> int:
    rows, written = rows_of(info), 0
    for row in snapshot.scan():
        to.write(json_text(rows.row_to_json(row)) + "\n")
        written += 1
        tell(written)
    to.flush()
    return written


def _write_lines_to(info: TableInfo, snapshot: Snapshot, path: Path, tell: Tell) -> int:
    with path.open("w", encoding="utf-8") as file:
        return _write_lines(info, snapshot, file, tell)


def _lines(info: TableInfo, file: str) -> Rows:
    rows = rows_of(info)
    with click.open_file(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                columns = msgspec.json.decode(line.encode())
            except JSON_ERRORS as error:
                raise SchemaError(
                    f"line {number} is no JSON ({error}): {line.strip():.60}"
                ) from error
            if not isinstance(columns, dict):
                raise SchemaError(f"line {number} is no JSON object: {line.strip():.60}")
            try:
                yield number, rows.row_from_json(columns)
            except SchemaError as error:
                raise SchemaError(f"line {number}: {error}") from error


# --- files and progress ---------------------------------------------------------------------------


def in_place(path: Path, write: Callable[[Path], int]) -> int:
    """Write beside the file, and give it its name when everything is on the disk."""
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        rows = write(unfinished)
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise click.ClickException(f"{path} cannot be written: {error}") from error
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return rows


@contextmanager
def rows_progress(what: str) -> Iterator[Tell]:
    """Tell on a terminal how far it is, twice a second, and how fast."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    started = told = time.monotonic()

    def tell(done: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= PROGRESS_S:
            told = now
            click.echo(f"\r{done:,} {what}, {done / (now - started):,.0f}/s ", nl=False, err=True)

    try:
        yield tell
    finally:
        if told != started:
            click.echo(err=True)
