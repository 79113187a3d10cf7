"""``raftstore lag``: how far behind every replica is, as one node knows it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import click

from raftstore.cli.common import Context, now_text, pass_context
from raftstore.cli.placed import placed_info
from raftstore.cli.watch import watched
from raftstore.protocol.admin import ChannelView, ClusterViewAnswer, ReplicaHint
from raftstore.types import node_name

UNKNOWN = "?"
NO_BATCHES = "-"


@click.command()
@click.argument("table", required=False)
@click.option("--node", help="Whose viewpoint; default: the first node that answers.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@pass_context
def lag(context: Context, table: str | None, *, node: str | None, watch: bool) -> None:
    """Lag of every replica in rows, time and micro-batches, with the age of that knowledge.

    In tables "?" is unknown, which counts as infinite where a read is bounded, and "-" says that
    nobody marks the ends of micro-batches there, so that none can be missing. JSON has null for
    what is unknown.

    time_lag_ms: everything committed longer ago than that is in the replica's state, up or not.
    Unless somebody reads with a bound in time it is as old as the leader's last report.

    \b
    Example:
      raftstore lag
      raftstore lag orders --watch
    """
    with context.connect() as client:
        if table is not None:
            placed_info(client, table)  # a typo is reported as such
        watched(
            context,
            partial(client.cluster_view, node),
            partial(_show, context, table),
            again=watch,
        )


def _show(context: Context, table: str | None, view: ClusterViewAnswer) -> None:
    viewpoint = node_name(view.viewpoint)
    rows = list(lag_rows(view, table))
    if context.output != "table":
        context.show({"at": now_text(), "viewpoint": viewpoint, "replicas": rows})
        return
    counted = {f"{c.table}/{c.partition}" for c in view.channels if c.batches != 0}
    context.show(None, [_for_people(row, has_batches=row["channel"] in counted) for row in rows])
    if rows:
        context.say(f"as {viewpoint} knows it")
    else:
        context.say("there is no table yet; create one with `raftstore table create`")


def lag_rows(view: ClusterViewAnswer, table: str | None) -> Iterable[dict[str, Any]]:
    """One row per replica, in the order of tables, partitions and replicas."""
    states = {node.node: node.state for node in view.nodes}
    for channel in view.channels:
        if table is None or channel.table == table:
            for hint in channel.replicas:
                yield _row(channel, hint, states.get(hint.node))


def _row(channel: ChannelView, hint: ReplicaHint, state: str | None) -> dict[str, Any]:
    return {
        "channel": f"{channel.table}/{channel.partition}",
        "node": node_name(hint.node),
        "state": state,
        "role": "leader" if hint.node == channel.leader else hint.role or None,
        "applied": hint.applied_seq,
        "end": channel.end_seq,
        "lag": hint.lag,
        "time_lag_ms": hint.time_lag_ms,
        "batches_behind": hint.batches_behind,
        "told_ms_ago": hint.update_ms_ago,
    }


def _for_people(row: dict[str, Any], *, has_batches: bool) -> dict[str, Any]:
    shown = {name: UNKNOWN if value is None else value for name, value in row.items()}
    if not has_batches:
        shown["batches_behind"] = NO_BATCHES
    return shown
