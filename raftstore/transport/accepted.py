"""Accepted connections of peers, on either loop: they only receive."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from raftstore.config import TransportSettings
from raftstore.protocol.message import Message
from raftstore.protocol.node import Hello
from raftstore.transport.connection import FlushQueue, FramedProtocol
from raftstore.transport.dialer import SILENCE_MS
from raftstore.transport.handshake import (
    TO_ACCEPTOR,
    Identity,
    Purpose,
    Refusal,
    ending,
)
from raftstore.transport.version_notes import VersionNotes
from raftstore.types import NodeId


class AcceptedPeers:
    """Connections that peers dialled to us for one purpose. All methods belong to one loop."""

    def __init__(
        self,
        purpose: Purpose,
        settings: TransportSettings,
        *,
        on_message: Callable[[NodeId, Message], None],
        on_gone: Callable[[NodeId], None],
        knows: Callable[[NodeId], bool],
    ) -> None:
        """``knows``: whether a peer is one of this node's; it may end while it is taken over."""
        self._purpose = purpose
        self._settings = settings
        self._on_message = on_message
        self._on_gone = on_gone
        self._knows = knows
        self._flushes = FlushQueue(asyncio.get_running_loop())
        self._connections: dict[FramedProtocol, NodeId] = {}
        self._notes = VersionNotes()

    async def adopt(self, accepted: socket.socket, hello: Hello, identity: Identity) -> None:
        """Take over an accepted socket. An older connection of the same peer is replaced."""
        peer = NodeId(hello.node)
        for connection, other in tuple(self._connections.items()):
            if other == peer:
                connection.close("replaced", "the same node connected anew")
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(
            lambda: FramedProtocol(
                owner=self,
                hello=identity.hello(self._purpose),
                accepts=TO_ACCEPTOR[self._purpose],
                flushes=self._flushes,
                queue_bytes_max=self._settings.peer_queue_bytes_max,
                silence_ms=SILENCE_MS,
                remote=hello,
            ),
            accepted,
        )
        assert isinstance(connection, FramedProtocol)

    def end(self, peer: NodeId, why: Refusal) -> None:
        """The peer is none any more: end what it has open, and forget what was noted of it."""
        self._notes.forget(peer)
        for connection, other in tuple(self._connections.items()):
            if other == peer:
                connection.close(why.code, why.message)

    async def close(self) -> None:
        """Close every connection."""
        connections = tuple(self._connections)
        for connection in connections:
            connection.close("closing", "the node is stopping")
            connection.abort()
        for connection in connections:
            await connection.closed

    # --- connection.Owner ---

    def check_hello(self, hello: Hello) -> Refusal | None:
        """The Hello was judged when the connection was accepted."""

    def on_open(self, connection: FramedProtocol) -> None:
        """Remember who it is: the id under which everything on it counts (S12)."""
        assert connection.remote is not None
        peer = self._connections[connection] = NodeId(connection.remote.node)
        if not self._knows(peer):
            connection.close(*ending(peer, is_retired=False))  # its next Hello is judged anew

    def on_message(self, connection: FramedProtocol, message: Message, frame_bytes: int) -> None:
        """A peer's message."""
        del frame_bytes
        self._on_message(self._connections[connection], message)

    def on_unknown_request(self, connection: FramedProtocol, kind: int, request_id: int) -> bool:
        """Nodes ask each other by messages that both know."""
        del connection, kind, request_id
        return False

    def on_refused_request(self, connection: FramedProtocol, request_id: int, reason: str) -> bool:
        """Nodes ask each other by messages that both know."""
        del connection, request_id, reason
        return False

    def on_closed(self, connection: FramedProtocol) -> None:
        """A broken connection is the first sign of a dead peer; a replaced one is none."""
        peer = self._connections.pop(connection, None)
        if peer is not None:
            self._notes.on_closed(peer, connection)
        if peer is not None and peer not in self._connections.values():
            self._on_gone(peer)

    def on_writable(self, connection: FramedProtocol) -> None:
        """Nothing is sent on these."""

    def on_unwritable(self, connection: FramedProtocol) -> None:
        """Nothing to do: nothing is sent on these."""

    def on_partial(self, connection: FramedProtocol, *, is_new: bool) -> None:
        """One frame at a time, of few that are known."""
