"""``raftstore explain``: what would happen, and why, without doing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from raftstore.cli.common import Context, pass_context, rows_of
from raftstore.cli.data import given_options, read_options
from raftstore.cli.errors import EXIT_UNAVAILABLE
from raftstore.cli.names import TABLE
from raftstore.client.explanation import ReadExplanation


@click.group()
def explain() -> None:
    """Show what a request would meet now.

    \b
    Example:
      raftstore explain get orders 1 --max-lag 100
    """


@explain.command("get")
@click.argument("table", type=TABLE)
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
        asked = rows_of(client.table_info(table)).key_from_text(key)
        found = client.explain_get(table, asked, **given_options(options))
    return _show(context, found)


@explain.command("query")
@click.argument("name")
@click.argument("key")
@read_options
@pass_context
def explain_query(context: Context, /, name: str, key: str, **options: Any) -> int:
    """The same of a query of a channel set.

    \b
    Example:
      raftstore explain query counters visits --max-lag 100
    """
    with context.connect() as client:
        found = client.explain_query(name, key, **given_options(options))
    return _show(context, found)


def _show(context: Context, found: ReadExplanation) -> int:
    rows = [asdict(replica) for replica in found.replicas]
    context.show(asdict(found), rows)
    if context.output == "table":
        bounds = {
            "max_lag": found.max_lag,
            "max_staleness_ms": found.max_staleness_ms,
            "max_batches_behind": found.max_batches_behind,
        }
        given = "".join(f", {name} {bound}" for name, bound in bounds.items() if bound is not None)
        context.say(f"partition {found.partition} of {found.table}, level {found.level}{given}")
        note = f" ({found.leader_note})" if found.leader_note else ""
        context.say(f"leader: {found.leader or 'none'}{note}")
        smallest = {
            "max_lag": found.smallest_max_lag,
            "max_staleness_ms": found.smallest_max_staleness_ms,
            "max_batches_behind": found.smallest_max_batches_behind,
        }
        for name, bound in smallest.items():
            if bound is None:
                context.say(f"no {name} would be met now: no replica knows it of itself")
            else:
                context.say(f"bounded reads succeed now from {name} {bound}")
    return 0 if found.is_servable else EXIT_UNAVAILABLE
