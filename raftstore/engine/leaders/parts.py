"""The parts of a node that moves of leaderships work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.channel.channel_parts import ChannelParts
from raftstore.engine.channel.drain import Drain
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.known_levels import KnownLevels
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.policy.levels import LEADER_MOVE_LEVEL
from raftstore.protocol.leader_moves import LeaderMoveMessage
from raftstore.types import ChannelId, NodeId, Role


@dataclass(frozen=True, slots=True)
class LeaderParts:
    """Parts of one node, and what it knows of who plans."""

    node: ChannelParts[ChannelRunner]
    channels: Mapping[ChannelId, ChannelRunner]
    controller: CatalogController
    watch: PeerWatch
    levels: KnownLevels
    drain: Drain

    @property
    def me(self) -> NodeId:
        """This node."""
        return self.node.me

    @property
    def planner(self) -> NodeId | None:
        """The leader of the metadata channel, as far as known here."""
        return self.controller.metadata.elector.leader

    @property
    def is_planner(self) -> bool:
        """Whether this node leads the metadata channel, and has committed a record of its term."""
        metadata = self.controller.metadata
        return metadata.elector.role is Role.LEADER and metadata.core.leader_is_ready

    def knows_moves(self, node: NodeId) -> bool:
        """Whether a node reported the level at which it can be sent messages about moves."""
        return self.levels.by_node.get(node, 0) >= LEADER_MOVE_LEVEL

    def send(self, to: NodeId, message: LeaderMoveMessage) -> None:
        """Send, if the receiver reads it."""
        if self.knows_moves(to):
            self.node.outbox.send_known(to, message)
