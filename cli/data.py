"""``raftstore put|get|mget|scan|del``: rows from the shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from raftstore.cli.common import Context, parse_json, parse_key, pass_context
from raftstore.cli.errors import EXIT_REFUSED, EXIT_UNKNOWN
from raftstore.client.fates import parse_guid
from raftstore.client.position import Position
from raftstore.cluster.routing import Prefer
from raftstore.errors import PositionError, SchemaError
from raftstore.runtime.units import parse_duration_ms

LEVELS = ["linearizable", "leader", "bounded", "any"]


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
            help="Rows a replica may be behind (level bounded).",
        ),
        click.option("--level", type=click.Choice(LEVELS), help="[default: linearizable]"),
    ):
        command = option(command)
    return command


def columns_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which columns of each row."""
    return click.option("--columns", help="Only these columns, as in id,total.")(command)


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given on the line; the others keep the client's defaults."""
    given = {name: value for name, value in options.items() if value is not None}
    if "columns" in given:
        given["columns"] = [name.strip() for name in given["columns"].split(",")]
    return given


@click.command()
@click.argument("table")
@click.argument("row")
@click.option("--if-absent", is_flag=True, help="Only if no row has this key.")
@click.option(
    "--if-position",
    "--if-match",
    callback=_position,
    help="Only if the row still has this version; `get --provenance` shows it.",
)
@pass_context
def put(
    context: Context, /, table: str, row: str, *, if_absent: bool, if_position: Position | None
) -> None:
    """Write one row, given as a JSON object.

    \b
    Example:
      raftstore put orders '{"order_id": 1, "total": 9.5}'
    """
    remedy = 'a row is a JSON object, as in \'{"id": 1, "name": "x"}\''
    value = parse_json(row, remedy)
    if not isinstance(value, dict):
        raise SchemaError(f"{row!r} is not a JSON object; {remedy}")
    with context.connect() as client:
        ack = client.table(table).put(value, if_absent=if_absent, if_position=if_position)
    context.show(
        {
            "position": str(ack.position),
            "partition": ack.partition,
            "seq": ack.seq,
            "term": ack.term,
            "durability": ack.durability,
            "replicas_acked": ack.replicas_acked,
            "guid": ack.guid,
        }
    )


@click.command()
@click.argument("table")
@click.argument("key")
@read_options
@columns_option
@click.option("--provenance", is_flag=True, help="Also by whom and how fresh.")
@pass_context
def get(context: Context, /, table: str, key: str, *, provenance: bool, **options: Any) -> int:
    """Read one row by its key; exit code 1 if there is none.

    \b
    Example:
      raftstore get orders 1
      raftstore get orders 1 --level bounded --max-lag 100
    """
    with context.connect() as client:
        info = client.table_info(table)
        result = client.table(table).get_result(parse_key(key, info), **given_options(options))
    if result.value is None:
        context.say(f"no row with key {key} in table {table}")
        return EXIT_REFUSED
    value: dict[str, Any] = result.value
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
@click.argument("table")
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
        info = client.table_info(table)
        parsed = [parse_key(key, info) for key in keys]
        rows = client.table(table).get_many(parsed, **given_options(options))
    context.show(rows, [row for row in rows if row is not None])
    absent = [key for key, row in zip(keys, rows, strict=True) if row is None]
    if absent:
        context.say(f"no row with key {', '.join(absent)} in table {table}")


@click.command()
@click.argument("table")
@click.option("--start", help="First key.")
@click.option("--stop", help="Key to stop before.")
@click.option("--prefix", help="Text the first key column begins with.")
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
        info = client.table_info(table)
        rows = list(
            client.table(table).scan(
                start=None if start is None else parse_key(start, info),
                stop=None if stop is None else parse_key(stop, info),
                prefix=prefix,
                limit=limit,
                **given_options(options),
            )
        )
    if context.output == "json":
        for row in rows:
            click.echo(json.dumps(row, default=str))
    else:
        context.show(rows, rows)
    if limit and len(rows) == limit:
        context.say(f"these are the first {limit} rows; there may be more (--limit)")


@click.command()
@click.argument("table")
@click.option("--start", help="First key.")
@click.option("--stop", help="Key to stop before.")
@click.option("--prefix", help="Text the first key column begins with.")
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
        info = client.table_info(table)
        found = client.table(table).count(
            start=None if start is None else parse_key(start, info),
            stop=None if stop is None else parse_key(stop, info),
            prefix=prefix,
            **given_options(options),
        )
    context.show({"rows": found.rows, "position": str(found.position)})


@click.command()
@click.argument("guid", callback=_guid)
@pass_context
def fate(context: Context, /, guid: str) -> int:
    """Tell what became of a write: committed, not_applied (and never will be) or unknown.

    The guid is in the answer of a write, and in its error. Exit code 0 when the fate is told, 2 for
    what is no guid, 3 when it is unknown, 4 when nobody could be asked.

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
@click.argument("table")
@click.argument("key")
@pass_context
def delete(context: Context, /, table: str, key: str) -> None:
    """Delete one row by its key (fine if there is none).

    \b
    Example:
      raftstore del orders 1
    """
    with context.connect() as client:
        info = client.table_info(table)
        ack = client.table(table).delete(parse_key(key, info))
    context.show({"position": str(ack.position), "seq": ack.seq, "term": ack.term})
