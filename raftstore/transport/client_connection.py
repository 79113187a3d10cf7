"""A client's connection to one node. Correlating answers is the client's own work.

Used by ``raftstore.client`` (purpose "client") and by a node that founds a cluster (purpose
"birth"). Everything runs on the loop that ``connect`` was awaited on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raftstore.config import MIB
from raftstore.errors import ConnectionLostError, ConnectTimeoutError, OverloadedError
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.message import Message
from raftstore.protocol.node import Hello
from raftstore.transport.connection import FlushQueue, FramedProtocol
from raftstore.transport.endpoints import parse_endpoint
from raftstore.transport.handshake import (
    TO_DIALLER,
    CloseReason,
    GoodbyeCode,
    Purpose,
    Refusal,
    check_version,
    client_hello,
)
from raftstore.transport.names import connect
from raftstore.types import NodeId

QUEUE_BYTES_MAX: Final = 64 * MIB
"""Requests waiting for the socket; ``can_send`` turns False at a quarter of it."""
SILENCE_MS: Final = 10_000
"""A node that does not acknowledge bytes for this long is given up."""


class ClientConnection:
    """An open connection to a node; made by ``connect``.

    ``on_message`` gets every answer, in the order sent by the node. ``on_lost`` is called exactly
    once when the connection ends for another reason than ``close``: from then on nothing that was
    sent without an answer will be answered, and whether the node received it is unknown.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        on_message: Callable[[Message], None],
        on_lost: Callable[[ConnectionLostError], None],
    ) -> None:
        self.endpoint = endpoint
        self._on_message = on_message
        self._on_lost = on_lost
        self._connection: FramedProtocol | None = None
        self._is_announced = False
        self._is_closed_by_us = False
        self._drained = asyncio.Event()

    @classmethod
    async def connect(
        cls,
        endpoint: str,
        *,
        timeout_ms: int,
        on_message: Callable[[Message], None],
        on_lost: Callable[[ConnectionLostError], None],
        hello: Hello | None = None,
    ) -> ClientConnection:
        """Dial ``host:port`` and shake hands, all within ``timeout_ms``.

        ``hello`` is given by those who are not plain clients, or who want to be refused by another
        cluster (``handshake.client_hello(cluster_id)``). Raises ConnectTimeoutError after the time,
        ConnectionLostError when nobody listens or the node says Goodbye (its words are in the
        message), ConfigError when ``endpoint`` is not an address.
        """
        host, port = parse_endpoint(endpoint)
        self = cls(endpoint, on_message=on_message, on_lost=on_lost)
        greeting = hello or client_hello()
        loop = asyncio.get_running_loop()

        def new_protocol() -> FramedProtocol:
            return FramedProtocol(
                owner=self,
                hello=greeting,
                accepts=TO_DIALLER[Purpose(greeting.purpose)],
                flushes=FlushQueue(loop),
                queue_bytes_max=QUEUE_BYTES_MAX,
                silence_ms=SILENCE_MS,
            )

        connection: FramedProtocol | None = None
        is_wanted = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await connect(new_protocol, host, port)
                await connection.settled
            is_wanted = True
        except TimeoutError as error:
            raise ConnectTimeoutError(
                f"{endpoint} did not answer within {timeout_ms} ms; "
                f"check that a raftstore node runs there"
            ) from error
        except OSError as error:
            raise ConnectionLostError(
                f"cannot connect to {endpoint}: {error.strerror or error}; "
                f"check that a raftstore node runs there"
            ) from error
        finally:
            # A cancelled caller gets no connection, even if it opened at that very moment.
            if connection is not None and not (is_wanted and connection.is_open):
                connection.abort()
        if not connection.is_open:
            raise _lost(endpoint, connection.reason)
        self._connection = connection
        self._is_announced = True
        return self

    @property
    def peer(self) -> NodeId:
        """The node at the other end, from its Hello."""
        return NodeId(self._remote().node)

    @property
    def level(self) -> int:
        """The protocol level of the node (docs/protocol.md)."""
        return self._remote().level

    @property
    def cluster_id(self) -> bytes:
        """The cluster it belongs to; b"" before its birth."""
        return self._remote().cluster_id

    @property
    def is_open(self) -> bool:
        """False once the connection ended or is ending."""
        return self._connection is not None and self._connection.is_open

    @property
    def can_send(self) -> bool:
        """False while so much waits for the socket that a caller should ``drain`` first."""
        return self.is_open and self._live().is_writable

    def send(self, message: Message) -> None:
        """Encode and queue a message. See ``send_frame``."""
        self.send_frame(encode_frame_of(message))

    def send_frame(self, frame: bytes) -> None:
        """Queue an encoded frame (``protocol.codec.encode_frame_of``; encode once, send to many).

        Raises ConnectionLostError if the connection ended and OverloadedError if ``can_send`` was
        ignored for too long; in both cases nothing of the frame was or will be sent.
        """
        connection = self._live()
        if not connection.send(frame):
            raise OverloadedError(
                f"{connection.queued_bytes} bytes wait to be sent to {self.endpoint}, the limit is "
                f"{QUEUE_BYTES_MAX}; wait for drain() while can_send is False"
            )

    async def drain(self) -> None:
        """Wait until ``can_send``; ConnectionLostError when the connection ends meanwhile."""
        while True:
            connection = self._live()
            connection.write_queued()  # what is too much now waits for the socket, which reports it
            if connection.is_writable:
                return
            self._drained.clear()
            await self._drained.wait()

    def close(self) -> None:
        """End the connection after what was queued. ``on_lost`` is not called any more."""
        self._is_closed_by_us = True
        if self._connection is not None:
            self._connection.close(GoodbyeCode.CLOSING, "the client is done")

    async def wait_closed(self) -> None:
        """Wait until the socket is gone; after ``close`` that is a second at most."""
        if self._connection is not None:
            await asyncio.shield(self._connection.closed)

    def _live(self) -> FramedProtocol:
        connection = self._connection
        if connection is None or not connection.is_open:
            reason = None if connection is None else connection.reason
            raise _lost(self.endpoint, reason)
        return connection

    def _remote(self) -> Hello:
        assert self._connection is not None
        assert self._connection.remote is not None
        return self._connection.remote

    # --- connection.Owner ---

    def check_hello(self, hello: Hello) -> Refusal | None:
        """Accept any node that speaks our version; who it is, is for the client to judge."""
        return check_version(hello)

    def on_open(self, connection: FramedProtocol) -> None:
        """``connect`` goes on from here."""
        self._connection = connection

    def on_message(self, connection: FramedProtocol, message: Message, frame_bytes: int) -> None:
        """Hand an answer to the client."""
        del connection, frame_bytes
        if not self._is_closed_by_us:
            self._on_message(message)

    def on_unknown_request(self, connection: FramedProtocol, kind: int, request_id: int) -> bool:
        """Nodes ask a client nothing."""
        del connection, kind, request_id
        return False

    def on_refused_request(self, connection: FramedProtocol, request_id: int, reason: str) -> bool:
        """Nodes ask a client nothing."""
        del connection, request_id, reason
        return False

    def on_closed(self, connection: FramedProtocol) -> None:
        """Notify the client, unless it wanted this or was never given the connection."""
        self._drained.set()
        if self._is_announced and not self._is_closed_by_us:
            self._on_lost(_lost(self.endpoint, connection.reason))

    def on_writable(self, connection: FramedProtocol) -> None:
        """Wake up who drains."""
        del connection
        self._drained.set()

    def on_unwritable(self, connection: FramedProtocol) -> None:
        """Nothing to do: senders ask first whether they may."""

    def on_partial(self, connection: FramedProtocol, *, is_new: bool) -> None:
        """One frame at a time, of few that are known."""


def _lost(endpoint: str, reason: CloseReason | None) -> ConnectionLostError:
    if reason is None:
        return ConnectionLostError(f"the connection to {endpoint} is not open")
    text = f"the connection to {endpoint} ended ({reason.code}): {reason.message}"
    return ConnectionLostError(text, code=reason.code)
