"""``raftstore explain``: what would happen, and why, without doing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from raftstore.cli.common import Context, parse_key, pass_context
from raftstore.cli.data import given_options, read_options
from raftstore.cli.errors import EXIT_UNAVAILABLE


@click.group()
def explain() -> None:
    """Show what a request would meet now.

    \b
    Example:
      raftstore explain get orders 1 --max-lag 100
    """


@explain.command("get")
@click.argument("table")
@click.argument("key")
@read_options
@pass_context
def explain_get(context: Context, /, table: str, key: str, **options: Any) -> int:
    """Every replica of a key's partition: in which order it is asked, or why not.

    Exit code 4 when no replica would serve the read now.

    \b
    Example:
      raftstore explain get orders 1
      raftstore explain get orders 1 --level bounded --max-lag 100
    """
    with context.connect() as client:
        info = client.table_info(table)
        found = client.explain_get(table, parse_key(key, info), **given_options(options))
    rows = [asdict(replica) for replica in found.replicas]
    context.show(asdict(found), rows)
    if context.output == "table":
        bound = "" if found.max_lag is None else f", max_lag {found.max_lag}"
        context.say(f"partition {found.partition} of {table}, level {found.level}{bound}")
        if found.smallest_max_lag is None:
            context.say("no max_lag would be met now: no replica knows its lag")
        else:
            context.say(f"bounded reads succeed now from max_lag {found.smallest_max_lag}")
    return 0 if found.is_servable else EXIT_UNAVAILABLE
