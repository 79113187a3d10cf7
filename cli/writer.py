"""``raftstore writer``: who writes atomic batches into a table, and how far each is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.names import TABLE
from raftstore.protocol.batches import WriterView


@click.group()
def writer() -> None:
    """List, show, adopt and forget the writers of atomic batches."""


@writer.command("ls")
@click.argument("table", type=TABLE)
@pass_context
def list_writers(context: Context, table: str) -> None:
    """List the writers of a table: their last batch, and the attempt that is open.

    \b
    Example:
      raftstore writer ls page_views
    """
    with context.connect() as client:
        reported = client.table(table).writers()
    rows = [_shown(view) for view in reported.writers]
    context.show(
        {
            "writers": rows,
            "commits": reported.next_commit - 1,
            "applied_everywhere": reported.applied_everywhere,
            "waiting": reported.outbox,
        },
        rows,
    )


@writer.command()
@click.argument("table", type=TABLE)
@click.argument("name")
@pass_context
def show(context: Context, table: str, name: str) -> None:
    """Show one writer.

    \b
    Example:
      raftstore writer show page_views 7b820e4e-5d0e-4f43-9f0e-3ad1c5f0a111
    """
    with context.connect() as client:
        found = client.table(table).writers(name).writers
    if not found:
        raise click.ClickException(f"table {table!r} has no writer {name!r}; see 'writer ls'")
    row = _shown(found[0])
    context.show(row, [row])


@writer.command()
@click.argument("table", type=TABLE)
@click.argument("name")
@click.option("--lineage", help="The checkpoint that goes on; without it, the next that comes.")
@pass_context
def adopt(context: Context, table: str, name: str, *, lineage: str | None) -> None:
    """Let a writer go on with another checkpoint, at any batch number.

    For a checkpoint that was made anew or set back. Batches whose rows are in the table already are
    then written again.

    \b
    Example:
      raftstore --yes writer adopt page_views page-views
    """
    context.confirm(f"Let writer {name} begin at any batch, though it may be written already?")
    with context.connect() as client:
        client.adopt_writer(table, name, lineage=lineage)
    context.say(f"writer {name} of table {table} may begin at any batch")


@writer.command("rm")
@click.argument("table", type=TABLE)
@click.argument("name")
@pass_context
def remove(context: Context, table: str, name: str) -> None:
    """Forget a writer. Its rows stay; should it come back, its batches are not known any more.

    \b
    Example:
      raftstore --yes writer rm page_views nightly-2024
    """
    context.confirm(f"Forget writer {name}, so that its batches are not known any more?")
    with context.connect() as client:
        client.remove_writer(table, name)
    context.say(f"writer {name} of table {table} is forgotten")


def _shown(view: WriterView) -> dict[str, Any]:
    at = datetime.fromtimestamp(view.at_ms / 1000, UTC)
    return {
        "writer": view.writer,
        "last_batch": _number(view.last_batch),
        "commit": _number(view.last_n),
        "open_batch": _number(view.open_batch),
        "open_attempt": _number(view.open_attempt),
        "lineage": view.lineage,
        "one_shot": view.one_shot,
        "at": at.isoformat(timespec="seconds"),
    }


def _number(number: int) -> int | None:
    return None if number < 0 else number
