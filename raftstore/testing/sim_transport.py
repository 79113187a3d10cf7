"""The sending side of a simulated node, while it lives."""

from __future__ import annotations

from typing import Protocol

from raftstore.protocol.message import Message
from raftstore.protocol.reads import GetAnswer
from raftstore.protocol.replication import ReplicationBundle, StoreAck
from raftstore.testing.sim_host import SimHost
from raftstore.types import NodeId


class Sender(Protocol):
    """The node that sends."""

    cluster: SimHost
    node: NodeId
    incarnation: int
    failpoint: str | None
    is_dying: bool

    @property
    def is_up(self) -> bool:
        """It lives now."""

    def reach(self, failpoint: str) -> bool:
        """It passes a named place; True when it dies there."""


class SimTransport:
    """ports.Transport of one node's present life."""

    def __init__(self, node: Sender) -> None:
        self._node = node
        self._life = node.incarnation
        self._network = node.cluster.network

    def send(self, to: NodeId, message: Message) -> None:
        """Bulk lane."""
        node = self._node
        acks = type(message) is StoreAck or (
            type(message) is ReplicationBundle and bool(message.store_acks)
        )
        if node.failpoint is not None and acks:
            self._send_ack(to, message)
        elif node.incarnation == self._life and node.is_up and not node.is_dying:
            self._network.send(node.node, to, message)

    send_control = send
    """Control lane; the simulated network treats both alike."""

    def reply(self, client: int, message: Message) -> None:
        """Answer a simulated client."""
        if self._may_send():
            if isinstance(message, GetAnswer):
                cluster = self._node.cluster
                spread = cluster.options.clock_rate_spread
                cluster.oracle.on_served(message.served.channel, message.served, spread)
            self._node.cluster.send_to_client(self._node.node, client, message)

    def end_client(self, client: int, reason: str) -> None:
        """Nothing that a simulated client sends asks for that."""
        raise AssertionError(f"simulated clients are right, but {client} was cut off: {reason}")

    def _send_ack(self, to: NodeId, ack: Message) -> None:
        node = self._node
        node.reach("ack.before-send")
        if self._may_send():
            node.cluster.network.send(node.node, to, ack)
        node.reach("ack.after-send")

    def _may_send(self) -> bool:
        node = self._node
        return node.incarnation == self._life and node.is_up and not node.is_dying
