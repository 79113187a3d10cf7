"""``raftstore changes``: what changed in a table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from raftstore.cli.common import Context, json_text, pass_context, rows_of
from raftstore.cli.names import TABLE
from raftstore.client.changes.change_feed import Change
from raftstore.rows.key_text import JsonRows


@click.command()
@click.argument("table", type=TABLE)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    help="earliest, latest, or a position: of a change (its column position), or of a write.",
)
@click.option("--follow", is_flag=True, help="Wait for what is to come, until interrupted.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many changes.")
@pass_context
def changes(context: Context, table: str, *, start: str, follow: bool, limit: int | None) -> None:
    """Show what changed in a table: rows written and removed, each partition in its order.

    With --output json (and always with --follow) each change is a line of JSON as soon as it is
    there, with the position to go on from.

    \b
    Example:
      raftstore changes orders
      raftstore changes orders --from latest --follow
    """
    listed: list[dict[str, Any]] = []
    with context.connect() as client:
        rows = rows_of(client.table_info(table))
        for number, change in enumerate(client.table(table).changes(start, follow=follow), 1):
            shown = _shown(change, rows)
            if follow or context.output == "json":
                click.echo(json_text(shown))
            else:
                listed.append(shown)
            if number == limit:
                break
    if listed:
        context.show(listed, listed)


def _shown(change: Change, rows: JsonRows) -> dict[str, Any]:
    return {
        "change": change.kind,
        "row": None if change.row is None else rows.row_to_json(change.row),
        "partition": change.partition,
        "seq": change.seq,
        "at": datetime.fromtimestamp(change.timestamp_ms / 1000, UTC).isoformat(),
        "writer": change.writer,
        "batch": change.batch_id,
        "position": str(change.position),
    }
