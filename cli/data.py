"""``raftstore put|get|mget|scan|del``: rows from the shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from raftstore.cli.common import Context, parse_json, parse_key, pass_context
from raftstore.cli.errors import EXIT_REFUSED
from raftstore.client.position import Position
from raftstore.errors import SchemaError

LEVELS = ["linearizable", "leader", "bounded", "any"]


def read_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every read."""
    for option in (
        click.option("--replica", help="Ask this node only (for checks)."),
        click.option("--at-least", help="A position the replica must have applied."),
        click.option("--max-lag", type=int, help="Rows a replica may be behind (level bounded)."),
        click.option("--level", type=click.Choice(LEVELS), help="[default: linearizable]"),
    ):
        command = option(command)
    return command


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given on the line; the others keep the client's defaults."""
    return {name: value for name, value in options.items() if value is not None}


@click.command()
@click.argument("table")
@click.argument("row")
@click.option("--if-absent", is_flag=True, help="Only if no row has this key.")
@click.option("--if-position", help="Only if the row still has this position.")
@pass_context
def put(
    context: Context, /, table: str, row: str, *, if_absent: bool, if_position: str | None
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
    position = None if if_position is None else Position.parse(if_position)
    with context.connect() as client:
        ack = client.table(table).put(value, if_absent=if_absent, if_position=position)
    context.show(
        {
            "position": str(ack.position),
            "partition": ack.partition,
            "seq": ack.seq,
            "term": ack.term,
            "durability": ack.durability,
            "replicas_acked": ack.replicas_acked,
        }
    )


@click.command()
@click.argument("table")
@click.argument("key")
@read_options
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
            "applied_seq": result.applied_seq,
        }
    context.show(value)
    return 0


@click.command()
@click.argument("table")
@click.argument("keys", nargs=-1, required=True)
@read_options
@pass_context
def mget(context: Context, /, table: str, keys: tuple[str, ...], **options: Any) -> None:
    """Read several rows by key; absent ones are null.

    \b
    Example:
      raftstore mget orders 1 2 3
    """
    with context.connect() as client:
        info = client.table_info(table)
        parsed = [parse_key(key, info) for key in keys]
        rows = client.table(table).get_many(parsed, **given_options(options))
    context.show(rows, [row if row is not None else {} for row in rows])


@click.command()
@click.argument("table")
@click.option("--start", help="First key.")
@click.option("--stop", help="Key to stop before.")
@click.option("--prefix", help="Text the first key column begins with.")
@click.option("--limit", type=int, default=100, show_default=True)
@read_options
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
