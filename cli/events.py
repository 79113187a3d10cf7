"""``raftstore events``: what the nodes noticed, failovers with their durations among it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from raftstore import Client
from raftstore.cli.common import Context, pass_context, plain_text
from raftstore.client.results import ClusterEvents
from raftstore.errors import RaftstoreError
from raftstore.types import EVENT_TYPES

FOLLOW_INTERVAL_S = 1.0
KEPT_MAX = 4_096
"""Events that a node remembers."""
FIRST_COLUMNS = ("at_wall_ms", "node", "type")


@click.command()
@click.option(
    "--type", "types", multiple=True, type=click.Choice(EVENT_TYPES), help="Only these; repeatable."
)
@click.option(
    "--limit",
    type=click.IntRange(1, KEPT_MAX),
    default=1_000,
    show_default=True,
    help="Only so many, the newest.",
)
@click.option("--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@pass_context
def events(context: Context, *, types: tuple[str, ...], limit: int, follow: bool) -> None:
    """Newest events of all nodes, oldest first.

    A failover states its cause and how long detection, vote, first commit, first read and first
    write took, in ms; it is reported after the first read and write, five seconds later at the
    latest. Memory of a node: 4,096 events since it was started, and the
    newest 1,024 failovers of before; a failover whose leader is down is reported by another
    replica.

    \b
    Example:
      raftstore events --type failover
      raftstore events --follow -o json
    """
    with context.connect() as client:
        found = client.events(types, {}, limit=KEPT_MAX)
        _show(context, found.events[-limit:], is_stream=follow)
        _tell(context, found.errors, {})
        if not found.events and not follow:
            what = f" of type {', '.join(types)}" if types else ""
            context.say(f"no event{what} since the nodes were started")
        while follow:
            time.sleep(FOLLOW_INTERVAL_S)
            found = _next(context, client, types, found)
            _show(context, found.events, is_stream=True)


def _next(
    context: Context, client: Client, types: tuple[str, ...], before: ClusterEvents
) -> ClusterEvents:
    """Events since the last call; none while no node answers."""
    try:
        found = client.events(types, before.next, limit=KEPT_MAX)
    except RaftstoreError as error:
        found = ClusterEvents((), before.next, {"the cluster": str(error)})
    _tell(context, found.errors, before.errors)
    return found


def _tell(context: Context, errors: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Say who cannot be asked once, not every second."""
    for name, reason in errors.items():
        if name not in before:
            context.say(f"{name} was not asked: {reason}")
    for name in before:
        if name not in errors:
            context.say(f"{name} answers again")


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
        if name not in (*FIRST_COLUMNS, "number", "evidence") and value is not None
    }
    return {
        "time": when.isoformat(timespec="milliseconds"),
        "node": event["node"],
        "type": event["type"],
        "what": " ".join(f"{name}={plain_text(value)}" for name, value in rest.items()),
    }
