"""Whether the members of a simulated world are what was asked for, everywhere (S8).

Behind the last fault every order has ended, the catalog shows what the logs hold, and exactly the
members of each channel host it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from raftstore.types import ChannelId, NodeId, channel_id

if TYPE_CHECKING:
    from raftstore.engine.channel.runner import ChannelRunner
    from raftstore.state_machines.catalog import Catalog
    from raftstore.testing.sim_cluster import SimCluster


def runners_of(cluster: SimCluster, channel: ChannelId) -> list[ChannelRunner]:
    """The open replicas of a channel."""
    live = (node.runner for node in cluster.nodes.values() if node.runner is not None)
    return [runner.channels[channel] for runner in live if channel in runner.channels]


def open_orders(catalog: Catalog) -> list[tuple[ChannelId, int]]:
    """Channel and number of every order that has not ended."""
    return [
        (channel, entry.target.change)
        for channel, entry in catalog.changes.items()
        if entry.target is not None
    ]


def why_not_settled(cluster: SimCluster, catalog: Catalog, lost: Collection[NodeId] = ()) -> str:
    """The change that is not over; empty: all are. ``catalog``: the copy of its leader; ``lost``:
    nodes that never start again and may stay members all the same."""
    names = {entry.node for entry in catalog.nodes.values()}
    if names != set(cluster.node_ids):
        return f"the catalog has the nodes {sorted(names)}"
    for channel in cluster.expected_channels():
        found = _why_channel_is_not_settled(cluster, catalog, channel, lost)
        if found:
            return found
    return ""


def _why_channel_is_not_settled(
    cluster: SimCluster, catalog: Catalog, channel: ChannelId, lost: Collection[NodeId]
) -> str:
    node = cluster.leaders().get(channel)
    if node is None or node.runner is None:
        return "a channel has no leader"
    runner = node.runner.channels[channel]
    view, name = runner.core.membership(), runner.name
    entry = catalog.changes.get(channel)
    hosts = {each.me for each in runners_of(cluster, channel)}
    if entry is not None and entry.target is not None:
        return f"order {entry.target.change} of {name} is open; it waits for {view.waits_for}"
    if view.config.is_joint or not view.is_committed:
        return f"{name} is in a change: {view.config}"
    if view.config.change and not view.config.ended:
        return f"order {view.config.change} of {name} ended in the catalog, not in its log"
    if channel != channel_id(cluster.cluster_id, 0):
        reported = catalog.entry_of(channel)
        if reported is None or reported.config != view.config:
            return f"{name} has {view.config}, the catalog {reported}"
    if hosts != set(view.config.members) - set(lost):
        return f"{name} is hosted by {sorted(hosts)} and has {view.config}"
    gone = [each for each in view.config.members if is_gone(cluster, each) and each not in lost]
    return f"{name} still has {gone}" if gone else ""


def is_gone(cluster: SimCluster, node: NodeId) -> bool:
    """Whether it has left, or can never start again."""
    place = cluster.nodes.get(node)
    return place is None or place.refused is not None
