"""Writes that followers relayed to this node: their outcomes go back the way they came (S4.4)."""

from __future__ import annotations

from collections.abc import Callable

from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.policy.levels import PAYLOAD_LEVEL
from raftstore.protocol.payload_repair import RelayedAck
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.types import NodeId


class RelayedWrites:
    """Gives each follower a publisher's handle of its own, below all those of clients."""

    def __init__(
        self, outbox: Outbox, nodes_at_level: Callable[[int], tuple[NodeId, ...]] = lambda _: ()
    ) -> None:
        """``nodes_at_level``: the other nodes that reported at least this level."""
        self._outbox = outbox
        self._nodes_at_level = nodes_at_level
        self._handles: dict[NodeId, int] = {}
        self._nodes: dict[int, NodeId] = {}

    def handle_of(self, node: NodeId) -> int:
        """The handle under which the writes that this node relays are published."""
        handle = self._handles.get(node)
        if handle is None:
            handle = CLIENT_HANDLE_SELF - 1 - len(self._handles)
            self._handles[node], self._nodes[handle] = handle, node
        return handle

    def reply(self, handle: int, message: PubAck | PubReject) -> None:
        """Notify the follower that a write is committed.

        A refusal is reported to no one: it answers this copy of the message, and the publisher's
        own attempt stays in doubt until the leader answers it.
        """
        node = self._nodes[handle]
        if isinstance(message, PubAck) and node in self._nodes_at_level(PAYLOAD_LEVEL):
            ack = RelayedAck(channel=message.channel, term=message.term, ack=message)
            self._outbox.send(node, ack, after_operation=0)
