"""``raftstore status``: nodes and channels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from raftstore.cli.common import Context, now_text, pass_context
from raftstore.cli.watch import watched
from raftstore.client.results import ClusterStatus
from raftstore.types import FollowerMode, MemberRole, Role, node_name


@click.command()
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@pass_context
def status(context: Context, *, watch: bool) -> None:
    """Nodes (id, endpoint, up), channels with role, term and lag per replica, and warnings.

    \b
    Example:
      raftstore status
      raftstore -o json status
    """
    with context.connect() as client:
        watched(context, client.cluster_status, partial(_show, context), again=watch)


def _show(context: Context, found: ClusterStatus) -> None:
    nodes = [
        {
            "node": node.name,
            "endpoint": node.endpoint,
            "up": node.status is not None,
            "pid": None if node.status is None else node.status["pid"],
            "leads": None if node.status is None else _leads(node.status),
            "log_bytes": None if node.status is None else node.status["sizes"]["log_bytes"],
            "note": node.error or "",
        }
        for node in found.nodes
    ]
    channels = _channels(found)
    warnings = sorted(
        {text for node in found.nodes if node.status for text in node.status["warnings"]}
    )
    leader = found.metadata_channel.leader
    whole = {
        "at": now_text(),
        "cluster_id": found.cluster_id,
        "catalog_version": found.version,
        "viewpoint": found.viewpoint,
        "metadata_leader": None if leader is None else node_name(leader),
        "nodes": [
            {**row, "id": node.id, "status": node.status}
            for row, node in zip(nodes, found.nodes, strict=True)
        ],
        "channels": channels,
        "warnings": warnings,
    }
    if context.output != "table":
        context.show(whole)
        return
    context.show(None, [{**row, "up": "yes" if row["up"] else "no"} for row in nodes])
    if channels:
        click.echo()
        context.show(None, channels)
    for text in warnings:
        context.say(f"warning: {text}")
    if (switch := _switch(found)) is not None:
        word = "on" if switch else "off"
        context.say(f"an operator has turned even leaders {word} (`raftstore rebalance leaders`)")


def _switch(found: ClusterStatus) -> bool | None:
    """Whether leaders are made even, as an operator has said; None: settings count, or all nodes
    are of versions that have no switch."""
    reported = (node.status.get("leaders", {}) for node in found.nodes if node.status is not None)
    known = (each.get("switch") for each in reported)
    return next((switch for switch in known if switch is not None), None)


def _leads(status: Mapping[str, Any]) -> int:
    """Partitions that a node leads, by its own report."""
    return sum(channel["role"] == Role.LEADER.value for channel in status["channels"])


def _channels(found: ClusterStatus) -> list[dict[str, Any]]:
    """One row per channel: its leader and each replica's own report."""
    rows: dict[str, dict[str, Any]] = {}
    for node in found.nodes:
        for channel in () if node.status is None else node.status["channels"]:
            name = f"{channel['table']}/{channel['partition']}"
            row = rows.setdefault(name, {"channel": name, "leader": None, "term": 0, "commit": 0})
            if channel["role"] == "leader" and channel["term"] >= row["term"]:
                row["leader"] = node.name
            row["term"] = max(row["term"], channel["term"])
            row["commit"] = max(row["commit"], channel["commit_seq"])
            row[node.name] = _cell(channel)
    return [rows[name] for name in sorted(rows)]


def _cell(channel: Mapping[str, Any]) -> str:
    """A replica in few words, for a line of 80 columns: what is as it should be is left out."""
    if channel["role"] == Role.LEADER.value:
        words = [channel["role"]]
    else:
        lag = "?" if channel["lag"] is None else channel["lag"]
        words = [] if channel["role"] == Role.FOLLOWER.value else [channel["role"]]
        member = channel.get("member", MemberRole.VOTER.value)  # older nodes report none
        words += [] if member in ("", MemberRole.VOTER.value) else [member]
        words += [] if member == MemberRole.WITNESS.value else [f"lag {lag}"]
    if channel["mode"] != FollowerMode.STEADY.value:
        words.append(channel["mode"])
    return " ".join(words)
