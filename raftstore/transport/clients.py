"""Accepted connections of clients, and of founders while a cluster is born."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from raftstore.config import TransportSettings
from raftstore.errors import SchemaError, UnsupportedRequestError
from raftstore.messages import Hello, Message
from raftstore.requests import Failed
from raftstore.transport.connection import FlushQueue, FramedProtocol
from raftstore.transport.handshake import (
    CLIENT_LANES,
    TO_ACCEPTOR,
    GoodbyeCode,
    Identity,
    Purpose,
    Refusal,
)
from raftstore.version import VERSION
from raftstore.wire.codec import encode_frame_of

SILENCE_MS: Final = 10_000
"""A client that takes no bytes for this long is given up; it may be paused, unlike a peer."""


class AcceptedClients:
    """Client connections by handle (from 1), on the main loop; both lanes of a client count."""

    def __init__(
        self,
        settings: TransportSettings,
        *,
        on_message: Callable[[int, Message], None],
        on_gone: Callable[[int], None],
        on_batch: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_batch = on_batch
        self._flushes = FlushQueue(asyncio.get_running_loop())
        self._by_handle: dict[int, FramedProtocol] = {}
        self._handles: dict[FramedProtocol, int] = {}
        self._last_handle = 0
        self._paused = False

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._by_handle)

    async def adopt(self, accepted: socket.socket, hello: Hello, identity: Identity) -> None:
        """Take over an accepted socket, for the purpose that its Hello named."""
        purpose = Purpose(hello.purpose)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: FramedProtocol(
                owner=self,
                hello=identity.hello(purpose),
                accepts=TO_ACCEPTOR[purpose],
                flushes=self._flushes,
                queue_bytes_max=self._settings.client_queue_bytes_max,
                silence_ms=SILENCE_MS,
                remote=hello,
            ),
            accepted,
        )

    def send(self, handle: int, frame: bytes) -> None:
        """Answer a client; one that does not read its answers is closed."""
        connection = self._by_handle.get(handle)
        if connection is None or connection.send(frame) or not connection.is_open:
            return
        connection.close(
            GoodbyeCode.SLOW_CLIENT,
            f"more than {self._settings.client_queue_bytes_max} bytes of answers wait for this "
            "client; read them faster or ask for less at a time",
        )

    def end(self, handle: int, reason: str) -> None:
        """Close a client's connection after what was sent to it."""
        connection = self._by_handle.get(handle)
        if connection is not None:
            connection.close(GoodbyeCode.MALFORMED, reason)

    def pause(self, *, paused: bool) -> None:
        """Back-pressure: stop or go on taking writes from clients; their queries are read on."""
        if paused == self._paused:
            return
        self._paused = paused
        for connection in filter(_may_write, self._by_handle.values()):
            if paused:
                connection.pause_reading()
            else:
                connection.resume_reading()

    async def close(self) -> None:
        """Say Goodbye to everybody."""
        connections = tuple(self._handles)
        for connection in connections:
            connection.close("closing", "the node is stopping; go on with another node")
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=0.5)
        for connection in connections:
            connection.abort()
            await connection.closed

    # --- connection.Owner ---

    def check_hello(self, hello: Hello) -> Refusal | None:
        """The Hello was judged when the connection was accepted."""

    def on_open(self, connection: FramedProtocol) -> None:
        """Give it a handle, or send it away when there are too many."""
        if len(self._by_handle) >= self._settings.client_connections_max:
            connection.close(
                GoodbyeCode.TOO_MANY_CLIENTS,
                f"{len(self._by_handle)} clients are connected, the limit is "
                f"{self._settings.client_connections_max}; share connections or raise it",
            )
            return
        self._last_handle += 1
        self._by_handle[self._last_handle] = connection
        self._handles[connection] = self._last_handle
        if self._paused and _may_write(connection):
            connection.pause_reading()

    def on_message(self, connection: FramedProtocol, message: Message, frame_bytes: int) -> None:
        """A client's message."""
        del frame_bytes
        handle = self._handles.get(connection)
        if handle is not None:
            self._on_message(handle, message)

    def on_unknown_request(self, connection: FramedProtocol, kind: int, request_id: int) -> bool:
        """Refuse the one request: ending the connection would fail all others of the client."""
        if connection.remote is None or connection.remote.purpose not in CLIENT_LANES:
            return False  # founders agree on one version
        text = (
            f"this node (raftstore {VERSION}) knows no request of kind {kind}, so the client is of "
            "a newer version; install the same raftstore version on both sides"
        )
        self._fail(connection, request_id, UnsupportedRequestError.code, text)
        return True

    def on_refused_request(self, connection: FramedProtocol, request_id: int, reason: str) -> bool:
        """Refuse the one request, like one that is refused for what it asks."""
        if connection.remote is None or connection.remote.purpose not in CLIENT_LANES:
            return False
        self._fail(connection, request_id, SchemaError.code, reason)
        return True

    def _fail(self, connection: FramedProtocol, request_id: int, code: str, text: str) -> None:
        handle = self._handles.get(connection)
        if handle is not None:
            self.send(handle, encode_frame_of(Failed(request_id, code, text)))

    def on_batch(self, *, begins: bool) -> None:
        """One turn of the node for all of them."""
        self._on_batch(begins)

    def on_closed(self, connection: FramedProtocol) -> None:
        """Answers for it are dropped from now on."""
        handle = self._handles.pop(connection, None)
        if handle is not None:
            del self._by_handle[handle]
            self._on_gone(handle)

    def on_writable(self, connection: FramedProtocol) -> None:
        """Answers wait in the connection's own bounded queue."""


def _may_write(connection: FramedProtocol) -> bool:
    """Queries do not wait for a disk that is behind with writes (P16)."""
    assert connection.remote is not None
    return connection.remote.purpose != Purpose.QUERY
