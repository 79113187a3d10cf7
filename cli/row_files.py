"""``raftstore export|import``: all rows of a table to a file, and rows of a file to a table."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from raftstore.cli.common import Context, json_text, pass_context, rows_of
from raftstore.cli.expiries import NOT_STATED, columns_of_line, line_of, ttl_of
from raftstore.cli.names import TABLE
from raftstore.cli.parquet_files import ExpiringPage, parquet_rows, parquet_writer
from raftstore.cli.row_import import CheckedRow, RowImport, now_ms
from raftstore.client.blocking.snapshots import Snapshot
from raftstore.config import MIB
from raftstore.errors import PayloadTooLargeError, RaftstoreError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.key_text import JSON_ERRORS
from raftstore.rows.schema import TableSchema

ROWS_AT_ONCE: Final = 5_000
"""Rows of a file that are checked and written together."""
LINE_BYTES_MAX: Final = 16 * MIB
"""Of a file that is imported: several times what the largest row takes as JSON."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""Some editors write it in front of UTF-8."""
STDIO: Final = "-"
PROGRESS_S: Final = 0.5
FORMATS: Final = ("jsonl", "parquet")
UNFINISHED: Final = ".unfinished"
"""Behind the name of a file that is being written."""

Rows = Iterator[tuple[int, dict[str, Any], int]]
"""Rows with the number of their line, or of their row, in a file, from 1 on; and their expiry in ms
since 1970 (``expiries.FOR_EVER``, ``expiries.NOT_STATED``)."""
ExpiringRow = tuple[dict[str, Any], int]
"""A row and its expiry likewise."""
Tell = Callable[[int], None]
"""Called with how many rows are done."""


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
    complete. Where rows may expire, each says when, as "$expires" beside its columns; null: it
    does not.

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
            expires = info.settings.ttl_ms is not None or snapshot.has_expiries()
            with rows_progress("rows written") as tell:
                if pages_of is not None:
                    pages = _pages(info, snapshot, expires=expires)
                    rows = in_place(
                        Path(file), lambda path: pages_of(pages, path, tell, expires=expires)
                    )
                else:
                    found = _rows(snapshot, expires=expires)
                    rows = write_lines(info, found, file, tell)
            reported = {
                "table": table,
                "file": file,
                "rows": rows,
                "position": str(snapshot.position),
            }
    if file == STDIO:
        context.say(f"{rows} rows of table {table} at position {reported['position']}")
    else:
        context.show(reported, [{"table": table, "file": file, "rows": rows}])


@click.command("import")
@click.argument("table", type=TABLE)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@format_option
@pass_context
def import_rows(context: Context, /, table: str, file: str, *, shape: str | None) -> None:
    """Write the rows of a file to a table; a row whose key exists already is replaced.

    The table must exist. The first row that does not fit ends it, with the number of its line; the
    rows before it may be written. Importing a file again is harmless. Rows that had a lifetime
    expire when they would have (the member, or column, "$expires" of an export); those that have
    expired since are passed over, and counted. Of a file that says nothing of it the rows live as
    long as the table's ttl says.

    \b
    Example:
      raftstore import orders orders.jsonl
      gzip -dc orders.jsonl.gz | raftstore import orders -
    """
    shape = shape_of(file, shape)
    if file == STDIO and shape == "parquet":
        raise click.UsageError("Parquet is not read from stdin; name a file.")
    unit = "row" if shape == "parquet" else "line"
    with context.connect() as client:
        info = client.table_info(table)
        found = parquet_rows(info, Path(file)) if shape == "parquet" else _lines(info, file)
        rows = _checked(info, found, unit)
        import_ = RowImport(client.table(table))
        try:
            with rows_progress("rows written") as tell:
                while chunk := list(islice(rows, ROWS_AT_ONCE)):
                    import_.write(chunk)
                    tell(import_.written)
        except RaftstoreError as error:
            is_all = not import_.is_writing or isinstance(error, SchemaError)
            context.say(_what_is_written(import_.written, is_all=is_all))
            raise
    reported = {"table": table, "file": file, "rows": import_.written}
    if import_.expired:
        reported["expired"] = import_.expired
        context.say(f"{import_.expired} rows of the file have expired and are not written")
    context.show(reported)


def _checked(info: TableInfo, found: Rows, unit: str) -> Iterator[CheckedRow]:
    """The rows of a file; SchemaError and PayloadTooLargeError name the line of one that the table
    does not take."""
    schema = TableSchema(info.key_columns, info.schema_json)
    for number, row, expires_ms in found:
        try:
            key, _ = schema.row_to_key_value(row)
            ttl_of(expires_ms, now_ms())  # one that is too long names its line, too
        except SchemaError as error:
            raise SchemaError(f"{unit} {number}: {error}") from error
        except PayloadTooLargeError as error:
            text = f"{unit} {number}: {error}"
            raise PayloadTooLargeError(text, size=error.size, limit=error.limit) from error
        yield CheckedRow(key, row, expires_ms)


def _what_is_written(rows: int, *, is_all: bool) -> str:
    known = f"the first {rows} rows are written" if rows else "no row is written"
    known += "" if is_all else " for certain, some behind them may be"
    return f"{known}; import the file again when this is mended: a row that is there is replaced"


def shape_of(file: str, shape: str | None) -> str:
    """The format of a file: as asked for, else as its name says."""
    return shape or ("parquet" if file.endswith(".parquet") else "jsonl")


# --- JSON lines -----------------------------------------------------------------------------------


def _rows(snapshot: Snapshot, *, expires: bool) -> Iterator[ExpiringRow]:
    if expires:
        return snapshot.scan_with_expiries()
    return ((row, NOT_STATED) for row in snapshot.scan())


def write_lines(info: TableInfo, found: Iterable[ExpiringRow], file: str, tell: Tell) -> int:
    """Write rows to a file, or to stdout; return their number."""
    if file == STDIO:
        return _write_lines(info, found, sys.stdout, tell)

    def write(path: Path) -> int:
        with path.open("w", encoding="utf-8") as to:
            return _write_lines(info, found, to, tell)

    return in_place(Path(file), write)


def _write_lines(info: TableInfo, found: Iterable[ExpiringRow], to: IO[str], tell: Tell) -> int:
    rows, written = rows_of(info), 0
    for row, expires_ms in found:
        to.write(json_text(line_of(rows.row_to_json(row), expires_ms)) + "\n")
        written += 1
        tell(written)
    to.flush()
    return written


def _lines(info: TableInfo, file: str) -> Rows:
    rows = rows_of(info)
    for number, line in _numbered(file):
        shown = line[:60].decode(errors="replace")
        try:
            columns = msgspec.json.decode(line)
        except JSON_ERRORS as error:
            raise SchemaError(f"line {number} is no JSON ({error}): {shown}") from error
        if not isinstance(columns, dict):
            raise SchemaError(f"line {number} is no JSON object: {shown}")
        try:
            columns, expires_ms = columns_of_line(columns)
            yield number, rows.row_from_json(columns), expires_ms
        except SchemaError as error:
            raise SchemaError(f"line {number}: {error}") from error


def _numbered(file: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not empty; SchemaError for one that is too long to be a row."""
    with click.open_file(file, "rb") as lines:
        for number in count(1):
            line = lines.readline(LINE_BYTES_MAX + 1)
            if not line:
                return
            if len(line) > LINE_BYTES_MAX:
                raise SchemaError(
                    f"line {number} has more than {LINE_BYTES_MAX} bytes; give one row, as a JSON "
                    "object, on each line"
                )
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            if line := line.strip():
                yield number, line


# --- Parquet --------------------------------------------------------------------------------------


def _pages(info: TableInfo, snapshot: Snapshot, *, expires: bool) -> Iterator[ExpiringPage]:
    for partition in range(info.partitions):
        for page in snapshot.pages(partition):
            expiries: dict[bytes, int] = {}
            if expires:
                stop = page[-1][0] + b"\0"
                expiries = snapshot.expiries(partition, start=page[0][0], stop=stop)
            yield page, expiries


# --- files and progress ---------------------------------------------------------------------------


def in_place(path: Path, write: Callable[[Path], int]) -> int:
    """Write beside the file, and give it its name when everything is on the disk.

    Under a name of its own: two that write to one file end one after the other, each whole.
    """
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
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
    """Show on a terminal how far it is, twice a second, and how fast."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    started = reported_s = time.monotonic()

    def tell(done: int) -> None:
        nonlocal reported_s
        now = time.monotonic()
        if now - reported_s >= PROGRESS_S:
            reported_s = now
            click.echo(f"\r{done:,} {what}, {done / (now - started):,.0f}/s ", nl=False, err=True)

    try:
        yield tell
    finally:
        if reported_s != started:
            click.echo(err=True)
