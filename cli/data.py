"""``raftstore put|get|mget|scan|del``: rows from the shell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from raftstore.cli.common import Context, json_text, pass_context, rows_of
from raftstore.cli.errors import EXIT_NO_ROW, EXIT_UNKNOWN
from raftstore.cli.names import TABLE
from raftstore.client.position import Position
from raftstore.client.results import WriteAck
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.errors import PositionError, SchemaError
from raftstore.node.units import parse_duration_ms
from raftstore.policy.routing import Prefer
from raftstore.rows.key_text import JSON_ERRORS, JsonRows
from raftstore.types import Level

LEVELS = [level.value for level in Level]
A_ROW = 'a row is a JSON object, as in \'{"id": 1, "name": "x"}\''


def _duration(_: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Seconds of a duration such as 500ms."""
    if given is None:
        return None
    try:
        return parse_duration_ms(given) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from error


def _position(_: click.Context, parameter: click.Parameter, given: str | None) -> Position | None:
    """A position that an answer contained."""
    try:
        return None if given is None else Position.parse(given)
    except PositionError as error:
        raise click.BadParameter(str(error), param=parameter) from error


def _guid(_: click.Context, parameter: click.Parameter, given: str) -> str:
    """The guid of a write, well-formed."""
    try:
        parse_guid(given)
    except SchemaError as error:
        raise click.BadParameter(str(error), param=parameter) from error
    return given


def _row(_: click.Context, parameter: click.Parameter, given: str) -> dict[str, Any]:
    """The columns of a row; which values they stand for depends on the table."""
    try:
        columns = msgspec.json.decode(given.encode())
    except JSON_ERRORS as error:
        text = f"{given!r:.60} is not JSON ({error}); {A_ROW}"
        raise click.BadParameter(text, param=parameter) from error
    if not isinstance(columns, dict):
        raise click.BadParameter(f"{given!r:.60} is no object; {A_ROW}", param=parameter)
    return columns


def read_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every read."""
    for option in (
        click.option("--replica", help="Ask this node only (for checks)."),
        click.option(
            "--hedge/--no-hedge",
            default=None,
            help="Ask the two best replicas at once, or one alone.  [default: when one is silent]",
        ),
        click.option(
            "--prefer",
            type=click.Choice([order.value for order in Prefer]),
            help="Which replica within the bound is asked first.  [default: leader]",
        ),
        click.option(
            "--at-least",
            callback=_position,
            help="A position the replica must have applied; waits for it, --timeout at most.",
        ),
        click.option(
            "--max-batches-behind",
            type=click.IntRange(0),
            help="Spark micro-batches a replica may be behind (level bounded).",
        ),
        click.option(
            "--max-staleness",
            callback=_duration,
            help="Time a replica may be behind, as in 2s or 500ms (level bounded).",
        ),
        click.option(
            "--max-lag",
            type=click.IntRange(0),
            help="Rows a replica may be behind what it knows to be committed (level bounded). 0: a "
            "write acknowledged a moment ago may be missing.",
        ),
        click.option(
            "--level",
            type=click.Choice(LEVELS),
            help="How new the answer is.  [default: linearizable; with a bound bounded, with "
            "--at-least any]",
        ),
    ):
        command = option(command)
    return command


def columns_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which columns of each row."""
    return click.option("--columns", help="Only these columns, as in id,total.")(command)


def version_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The condition of a write that nobody was faster."""
    return click.option(
        "--if-position",
        "--if-match",
        callback=_position,
        help="Only if the row still has this version; `get --provenance` shows it.",
    )(command)


def range_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which keys; ``_bounds`` reads them."""
    for option in (
        click.option(
            "--prefix",
            help="Text the first key column begins with, or a JSON list of the first columns.",
        ),
        click.option("--stop", help="Key to stop before, or a JSON list of its first columns."),
        click.option("--start", help="First key, or a JSON list of its first columns."),
    ):
        command = option(command)
    return command


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given on the line; the others keep the client's defaults."""
    given = {name: value for name, value in options.items() if value is not None}
    if "columns" in given:
        given["columns"] = [name.strip() for name in given["columns"].split(",")]
    return given


@click.command()
@click.argument("table", type=TABLE)
@click.argument("row", callback=_row)
@click.option("--if-absent", is_flag=True, help="Only if no row has this key.")
@click.option(
    "--ttl",
    callback=_duration,
    metavar="TIME",
    help="The row lives so long, as in 90m or 30d; 0s: for ever. Default: the table's ttl.",
)
@version_option
@pass_context
def put(
    context: Context,
    /,
    table: str,
    row: dict[str, Any],
    *,
    if_absent: bool,
    ttl: float | None,
    if_position: Position | None,
) -> None:
    """Write one row, given as a JSON object.

    What JSON has no word for is written as over HTTP: text where the column's type is declared, as
    in "2024-02-29" for a date, and else an object that says its type.

    \b
    Example:
      raftstore put orders '{"order_id": 1, "total": 9.5}'
      raftstore put prices '{"id": 1, "price": {"$decimal": "9.50"}}'
      raftstore put sessions '{"id": "s1"}' --ttl 30m
    """
    with context.connect() as client:
        values = rows_of(client.table_info(table)).row_from_json(row)
        ack = client.table(table).put(values, if_absent=if_absent, if_position=if_position, ttl=ttl)
    context.show(_shown(ack))


def _shown(ack: WriteAck) -> dict[str, Any]:
    """The outcome of a write that succeeded."""
    return {
        "position": str(ack.position),
        "partition": ack.partition,
        "seq": ack.seq,
        "term": ack.term,
        "durability": ack.durability,
        "replicas_acked": ack.replicas_acked,
        "guid": ack.guid,
    }


@click.command()
@click.argument("table", type=TABLE)
@click.argument("key")
@read_options
@columns_option
@click.option("--provenance", is_flag=True, help="Also by whom and how fresh.")
@pass_context
def get(context: Context, /, table: str, key: str, *, provenance: bool, **options: Any) -> int:
    """Read one row by its key; exit code 1 if there is none, 9 if the read was refused.

    \b
    Example:
      raftstore get orders 1
      raftstore get orders 1 --level bounded --max-lag 100
    """
    with context.connect() as client:
        rows = rows_of(client.table_info(table))
        asked = rows.key_from_text(key)
        given = given_options(options)
        result = client.table(table).get_result(asked, **given)
    if result.value is None:
        context.say(f"no row with key {key} in table {table}")
        return EXIT_NO_ROW
    value = rows.row_to_json(result.value)
    # Of a table that declares its columns an unknown one is refused.
    absent = [name for name in given.get("columns", ()) if name not in result.value]
    if absent:
        context.say(f"the row with key {key} has no column {', '.join(absent)}")
    if provenance:
        value = {
            "row": value,
            "position": str(result.position),
            "node": result.node,
            "level": result.level.value,
            "lag": result.lag,
            "leader_info_age_ms": result.leader_info_age_ms,
            "staleness_ms": result.staleness_ms,
            "batches_behind": result.batches_behind,
            "applied_seq": result.applied_seq,
        }
    context.show(value)
    return 0


@click.command()
@click.argument("table", type=TABLE)
@click.argument("keys", nargs=-1, required=True)
@read_options
@columns_option
@pass_context
def mget(context: Context, /, table: str, keys: tuple[str, ...], **options: Any) -> None:
    """Read several rows by key; absent ones are null in JSON, and named on stderr.

    \b
    Example:
      raftstore mget orders 1 2 3
    """
    with context.connect() as client:
        rows = rows_of(client.table_info(table))
        asked = [rows.key_from_text(key) for key in keys]
        found = client.table(table).get_many(asked, **given_options(options))
    shown = [None if row is None else rows.row_to_json(row) for row in found]
    context.show(shown, [row for row in shown if row is not None])
    absent = [key for key, row in zip(keys, shown, strict=True) if row is None]
    if absent:
        context.say(f"no row with key {', '.join(absent)} in table {table}")


@click.command()
@click.argument("table", type=TABLE)
@range_options
@click.option(
    "--limit", type=click.IntRange(0), default=100, show_default=True, help="Rows at most."
)
@read_options
@columns_option
@pass_context
def scan(
    context: Context,
    /,
    table: str,
    *,
    start: str | None,
    stop: str | None,
    prefix: str | None,
    limit: int,
    **options: Any,
) -> None:
    """Read rows in key order.

    \b
    Example:
      raftstore scan orders --start 10 --stop 20
    """
    with context.connect() as client:
        rows = rows_of(client.table_info(table))
        found = client.table(table).scan(
            **_bounds(rows, start, stop, prefix), limit=limit, **given_options(options)
        )
        shown = [rows.row_to_json(row) for row in found]
    if context.output == "json":
        for row in shown:
            click.echo(json_text(row))
    else:
        context.show(shown, shown)
    if limit and len(shown) == limit:
        context.say(f"these are the first {limit} rows; there may be more (--limit)")


@click.command()
@click.argument("table", type=TABLE)
@range_options
@read_options
@pass_context
def count(
    context: Context,
    /,
    table: str,
    *,
    start: str | None,
    stop: str | None,
    prefix: str | None,
    **options: Any,
) -> None:
    """Count the rows of a table, or of a range of keys.

    \b
    Example:
      raftstore count orders
      raftstore count orders --start 10 --stop 20 --max-lag 100
    """
    with context.connect() as client:
        rows = rows_of(client.table_info(table))
        bounds = _bounds(rows, start, stop, prefix)
        found = client.table(table).count(**bounds, **given_options(options))
    context.show({"rows": found.rows, "position": str(found.position)})


def _bounds(
    rows: JsonRows, start: str | None, stop: str | None, prefix: str | None
) -> Mapping[str, Any]:
    """A range of keys as the shell says it, and as HTTP's query does."""
    is_plain = prefix is None or not prefix.startswith("[")
    return {
        "start": None if start is None else rows.bound_from_text(start),
        "stop": None if stop is None else rows.bound_from_text(stop),
        "prefix": prefix if prefix is None or is_plain else rows.bound_from_text(prefix),
    }


@click.command()
@click.argument("guid", callback=_guid)
@pass_context
def fate(context: Context, /, guid: str) -> int:
    """Show what became of a write: committed, not_applied (and never will be) or unknown.

    The guid is in the answer of a write, and in its error. Exit code 0 when the fate is reported, 2
    for what is no guid, 3 when it is unknown, 4 when nobody could be asked.

    \b
    Example:
      raftstore fate 5b3edd03190e4e40b3a5f2c1d6789ab10000018c2f6d0a4be1c79fd23a6508b4e1f7
    """
    with context.connect() as client:
        found = client.fate(guid)
    context.show(
        {
            "fate": found.fate,
            "seq": found.seq,
            "position": None if found.position is None else str(found.position),
            "condition": found.condition,
            "reason": found.reason,
            "partition": found.partition,
            "node": found.node,
        }
    )
    return EXIT_UNKNOWN if found.fate == "unknown" else 0


@click.command("del")
@click.argument("table", type=TABLE)
@click.argument("key")
@version_option
@pass_context
def delete(context: Context, /, table: str, key: str, *, if_position: Position | None) -> None:
    """Delete one row by its key (fine if there is none).

    \b
    Example:
      raftstore del orders 1
    """
    with context.connect() as client:
        asked = rows_of(client.table_info(table)).key_from_text(key)
        ack = client.table(table).delete(asked, if_position=if_position)
    context.show(_shown(ack))
