"""``raftstore events``: what the nodes noticed, failovers with their durations among it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from raftstore.cli.common import Context, pass_context

FOLLOW_INTERVAL_S = 1.0
FIRST_COLUMNS = ("at_wall_ms", "node", "type")


@click.command()
@click.option("--type", "types", multiple=True, help="Only these: failover, role, peer_health, …")
@click.option("--limit", type=click.IntRange(1, 4_096), default=1_000, show_default=True)
@click.option("--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@pass_context
def events(context: Context, *, types: tuple[str, ...], limit: int, follow: bool) -> None:
    """Newest events of all nodes, oldest first.

    A failover tells its cause and how long detection, vote, first commit, first read and first
    write took, in ms; it is told after the first read and write, five seconds later at the
    latest. Memory of a node: 4,096 events since it was started.

    \b
    Example:
      raftstore events --type failover
      raftstore events --follow -o json
    """
    with context.connect() as client:
        since: Mapping[str, int] = {}
        while True:
            found = client.events(types, since, limit=limit)
            since = found.next
            _show(context, found.events, is_stream=follow)
            for name, reason in found.errors.items():
                context.say(f"{name} was not asked: {reason}")
            if not follow:
                return
            time.sleep(FOLLOW_INTERVAL_S)


def _show(context: Context, found: Iterable[Mapping[str, Any]], *, is_stream: bool) -> None:
    events_found = list(found)
    if context.output != "table":
        for event in events_found if is_stream else ():
            context.show(event)
        if not is_stream:
            context.show(events_found)
        return
    if events_found:
        context.show(None, [event_row(event) for event in events_found])


def event_row(event: Mapping[str, Any]) -> dict[str, Any]:
    """When, where and what; then everything else as name=value."""
    when = datetime.fromtimestamp(event["at_wall_ms"] / 1000, UTC)
    rest = {
        name: value
        for name, value in event.items()
        if name not in (*FIRST_COLUMNS, "number") and value is not None
    }
    return {
        "time": when.isoformat(timespec="milliseconds"),
        "node": event["node"],
        "type": event["type"],
        "what": " ".join(f"{name}={value}" for name, value in rest.items()),
    }
