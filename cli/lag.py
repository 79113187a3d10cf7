"""``raftstore lag``: how far behind every replica is, as one node knows it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import click

from raftstore.cli.common import Context, pass_context
from raftstore.requests import ChannelView, ClusterViewAnswer, ReplicaHint
from raftstore.types import node_name

WATCH_INTERVAL_S = 2.0


@click.command()
@click.argument("table", required=False)
@click.option("--node", help="Whose viewpoint; default: the first node that answers.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@pass_context
def lag(context: Context, table: str | None, *, node: str | None, watch: bool) -> None:
    """Lag of every replica in rows and time, with the age of that knowledge.

    "?" is unknown, which counts as infinite where a read is bounded.

    \b
    Example:
      raftstore lag
      raftstore lag orders --watch
    """
    with context.connect() as client:
        if table is not None:
            client.table_info(table)  # a typo is told as such
        while True:
            view = client.cluster_view(node)
            rows = list(lag_rows(view, table))
            context.show({"viewpoint": node_name(view.viewpoint), "replicas": rows}, rows)
            if not watch:
                return
            time.sleep(WATCH_INTERVAL_S)
            if context.output == "table":
                click.clear()


def lag_rows(view: ClusterViewAnswer, table: str | None) -> Iterable[dict[str, Any]]:
    """One row per replica, in the order of tables, partitions and replicas."""
    for channel in view.channels:
        if table is None or channel.table == table:
            for hint in channel.replicas:
                yield _row(channel, hint)


def _row(channel: ChannelView, hint: ReplicaHint) -> dict[str, Any]:
    return {
        "channel": f"{channel.table}/{channel.partition}",
        "node": node_name(hint.node),
        "role": "leader" if hint.node == channel.leader else hint.role or "?",
        "applied": hint.applied_seq,
        "end": channel.end_seq,
        "lag": _known(hint.lag),
        "time_lag_ms": _known(hint.time_lag_ms),
        "batches_behind": _known(hint.batches_behind),
        "told_ms_ago": _known(hint.update_ms_ago),
    }


def _known(value: int | None) -> int | str:
    return "?" if value is None else value
