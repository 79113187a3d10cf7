"""The replicas of all nodes as one node sees them, its own among them."""

from __future__ import annotations

from collections.abc import Mapping

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.types import ChannelId, NodeId


class SeenReplicas:
    """By the reports of the other nodes, and by what is open here."""

    def __init__(
        self, me: NodeId, watch: PeerWatch, channels: Mapping[ChannelId, ChannelRunner]
    ) -> None:
        self._me = me
        self._watch = watch
        self._channels = channels

    def is_up(self, node: NodeId) -> bool:
        """Whether the node is up."""
        return node == self._me or self._watch.is_up(node)

    def hosts(self, node: NodeId, channel: ChannelId) -> bool:
        """Whether it has a replica of the channel."""
        if node == self._me:
            return channel in self._channels
        return self._watch.reports.hosts(node, channel)

    def last_seq(self, node: NodeId, channel: ChannelId) -> int:
        """The end of its log of the channel, as far as reported; 0: not reported."""
        runner = self._channels.get(channel) if node == self._me else None
        if runner is not None:
            return runner.core.last_seq
        position = self._watch.positions.get(channel, {}).get(node)
        return 0 if position is None else position.last_seq
