"""How messages leave a node."""

from __future__ import annotations

from typing import Protocol

from raftstore.protocol.message import Message
from raftstore.types import NodeId


class Transport(Protocol):
    """Messages to other nodes and to clients: fire and forget, bounded, may lose (S12)."""

    def send(self, to: NodeId, message: Message) -> None:
        """Bulk connection: replication. Dropped when the peer is away or its queue is full."""

    def send_control(self, to: NodeId, message: Message) -> None:
        """Control connection: elections and node-level messages; never behind bulk traffic."""

    def reply(self, client: int, message: Message) -> None:
        """Answer a client connection handle; dropped when it is gone."""

    def end_client(self, client: int, reason: str) -> None:
        """End a client's connection after what was sent to it."""
