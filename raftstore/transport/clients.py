"""Accepted connections of clients, and of founders while a cluster is born.

What they can make a node hold has bounds for all of them together, too: places, half frames,
answers that nobody reads. Every second the connections are looked through for frames that do not
become complete, and for clients that ask nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from raftstore.config import FRAME_BYTES_MAX, KIB, TransportSettings
from raftstore.errors import SchemaError, UnsupportedRequestError
from raftstore.metrics import Sample
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.node import Hello
from raftstore.transport.client_bytes import HeldBytes
from raftstore.transport.client_places import Places
from raftstore.transport.connection import FlushQueue, FramedProtocol
from raftstore.transport.handshake import (
    CLIENT_LANES,
    TO_ACCEPTOR,
    GoodbyeCode,
    Identity,
    Purpose,
    Refusal,
)
from raftstore.transport.log_fields import fields
from raftstore.version import VERSION

logger = logging.getLogger("raftstore.transport")

SILENCE_MS: Final = 10_000
"""A client that takes no bytes for this long is given up; it may be paused, unlike a peer."""
UNREAD_BYTES: Final = 16 * KIB
"""Answers that wait for a client count for all clients from here on."""
TAKEN_AT_ONCE: Final = 64
"""Messages of one client that are taken before others have their turn."""
REST_S: Final = 0.25
"""A client that was asked to send less is not read for so long: refusing costs, too."""
SWEEP_S: Final = 1.0
"""Between two looks for frames and connections that have waited too long."""

_ENDINGS: Final = (
    GoodbyeCode.SLOW_FRAME,
    GoodbyeCode.SLOW_CLIENT,
    GoodbyeCode.IDLE,
    GoodbyeCode.TOO_MANY_CLIENTS,
)
"""Why a client is sent away for what it makes the node hold."""


class AcceptedClients:
    """Client connections by handle (from 1), on the main loop; both lanes of a client count."""

    def __init__(
        self,
        settings: TransportSettings,
        *,
        on_message: Callable[[int, Message], None],
        on_gone: Callable[[int], None],
        waits: Callable[[int], bool] = lambda _: False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        flushes: FlushQueue | None = None,
    ) -> None:
        """``waits`` returns whether a client waits for something; ``flushes``: who writes
        answers."""
        self._settings = settings
        self._on_message = on_message
        self._on_gone = on_gone
        self._waits = waits
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._flushes = flushes or FlushQueue(self._loop)
        self._by_handle: dict[int, FramedProtocol] = {}
        self._handles: dict[FramedProtocol, int] = {}
        self._last_handle = 0
        self._paused = False
        self._places = Places(settings.client_connections_max, self._is_idle, time.monotonic)
        self._operators = Places(settings.operator_connections_max, self._is_idle, time.monotonic)
        self._partial = HeldBytes[FramedProtocol](
            settings.partial_frames_bytes_max,
            bytes_of=lambda connection: connection.partial_bytes,
            now_s=time.monotonic,
            end=self._end_partial,
        )
        self._unread = HeldBytes[FramedProtocol](
            settings.unread_answers_bytes_max,
            bytes_of=lambda connection: connection.queued_bytes,
            now_s=time.monotonic,
            end=self._end_unread,
        )
        self._ended = Counter({str(reason): 0 for reason in _ENDINGS})
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def samples(self) -> Iterator[Sample]:
        """Totals of what clients make this node hold, and of clients that were ended for it."""
        yield "raftstore_client_connections", (), float(self.count)
        yield "raftstore_partial_frame_bytes", (), float(self.partial_bytes)
        yield "raftstore_unread_answer_bytes", (), float(self.unread_bytes)
        for reason, count in self._ended.items():
            yield "raftstore_clients_ended_total", (("reason", reason),), float(count)

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._by_handle)

    @property
    def partial_bytes(self) -> int:
        """Bytes of incomplete frames."""
        return self._partial.total

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that slow clients have not taken, about."""
        return self._unread.total

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
                frame_bytes_max=self._frame_bytes_max,
                high_water_bytes=UNREAD_BYTES,
                taken_at_once=TAKEN_AT_ONCE,
            ),
            accepted,
        )

    def send(self, handle: int, frame: bytes) -> None:
        """Answer a client; one that does not read its answers is closed."""
        connection = self._by_handle.get(handle)
        if connection is None:
            return
        if connection.send(frame):
            if connection in self._unread:
                self._unread.look(connection)
        elif connection.is_open:
            self._ended[GoodbyeCode.SLOW_CLIENT] += 1
            connection.close(
                GoodbyeCode.SLOW_CLIENT,
                f"more than {self._settings.client_queue_bytes_max} bytes of answers wait for this "
                "client; read them faster or ask for less at a time",
            )

    def rest(self, handle: int) -> None:
        """Read a client later, whose message was refused just now since it asks too much."""
        connection = self._by_handle.get(handle)
        if connection is not None:
            connection.rest(REST_S)

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
                self._partial.look(connection, is_new=True)  # it could not go on meanwhile

    async def close(self) -> None:
        """Say Goodbye to everybody."""
        self._sweeper.cancel()
        connections = tuple(self._handles)
        for connection in connections:
            connection.close("closing", "the node is stopping; go on with another node")
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=0.5)
        for connection in connections:
            connection.abort()
            await connection.closed

    # --- how many, how much, how long -------------------------------------------------------------

    def _is_idle(self, handle: int, connection: FramedProtocol) -> bool:
        """Whether a client asks nothing, waits for nothing, and has taken all of its answers."""
        return not (connection.partial_bytes or connection.queued_bytes or self._waits(handle))

    def _has_place(self, places: Places) -> bool:
        if not places.are_full:
            return True
        handle = places.longest_idle()
        if handle is None:
            return False
        self._end_idle(handle, "others needed its place")
        return True

    def _end_idle(self, handle: int, reason: str) -> None:
        connection = self._by_handle[handle]
        self._forget(connection)
        self._ended[GoodbyeCode.IDLE] += 1
        text = f"the connection was idle and {reason}; connect again when there is something to ask"
        connection.close(GoodbyeCode.IDLE, text)

    def _end_partial(self, connection: FramedProtocol) -> None:
        limit = self._settings.partial_frames_bytes_max
        self._end_slow(
            connection,
            f"this connection has held the most of a frame that is not complete for the longest, "
            f"and all clients together had more than {limit} bytes of such "
            "(transport.partial_frames_bytes_max); send whole frames at once",
        )

    def _end_slow(self, connection: FramedProtocol, text: str) -> None:
        self._ended[GoodbyeCode.SLOW_FRAME] += 1
        logger.warning("slow frame", extra=fields(reason=text))
        connection.close(GoodbyeCode.SLOW_FRAME, text)

    def _end_unread(self, connection: FramedProtocol) -> None:
        # Its answers have to leave memory at once; a Goodbye would wait behind them.
        self._ended[GoodbyeCode.SLOW_CLIENT] += 1
        logger.warning(
            "slow client",
            extra=fields(
                reason=f"{connection.queued_bytes} bytes of answers were not read, and all clients "
                f"together left more than {self._settings.unread_answers_bytes_max} unread "
                "(transport.unread_answers_bytes_max)"
            ),
        )
        connection.abort()

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        now_s = time.monotonic()
        frame_ms, idle_ms = self._settings.frame_timeout_ms, self._settings.client_idle_ms
        for connection, since_s in self._partial:
            # While it is not read it cannot go on.
            if connection.is_reading and 1000 * (now_s - since_s) > frame_ms:
                text = f"a frame was not complete {frame_ms} ms after it began"
                self._end_slow(connection, f"{text} (transport.frame_timeout_ms); send it faster")
        for places in (self._places, self._operators):
            for handle in places.idle_since(now_s - idle_ms / 1000):
                self._end_idle(handle, f"asked nothing for {idle_ms} ms (transport.client_idle_ms)")

    # --- connection.Owner ---

    def check_hello(self, hello: Hello) -> Refusal | None:
        """The Hello was judged when the connection was accepted."""

    def on_open(self, connection: FramedProtocol) -> None:
        """Give it a handle, or send it away when there are too many."""
        places = self._places_of(connection)
        if not self._has_place(places):
            self._ended[GoodbyeCode.TOO_MANY_CLIENTS] += 1
            connection.close(
                GoodbyeCode.TOO_MANY_CLIENTS,
                f"{len(places)} clients are connected, the limit is {places.places_max}, and all "
                "have requests under way; share connections or raise it",
            )
            return
        self._last_handle += 1
        self._by_handle[self._last_handle] = connection
        self._handles[connection] = self._last_handle
        places.take(self._last_handle, connection)
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

    def on_closed(self, connection: FramedProtocol) -> None:
        """Answers for it are dropped from now on."""
        self._partial.forget(connection)
        self._unread.forget(connection)
        self._forget(connection)

    def on_writable(self, connection: FramedProtocol) -> None:
        """Go on with a client that has taken its answers."""
        self._unread.forget(connection)

    def on_unwritable(self, connection: FramedProtocol) -> None:
        """Answers wait in the connection's own bounded queue, and count for all."""
        self._unread.look(connection)

    def on_partial(self, connection: FramedProtocol, *, is_new: bool) -> None:
        """A frame grew, was completed, or begins."""
        self._partial.look(connection, is_new=is_new)

    def _forget(self, connection: FramedProtocol) -> None:
        handle = self._handles.pop(connection, None)
        if handle is not None:
            del self._by_handle[handle]
            self._places_of(connection).give(handle)
            self._on_gone(handle)

    def _places_of(self, connection: FramedProtocol) -> Places:
        assert connection.remote is not None
        is_operator = connection.remote.purpose == Purpose.OPERATOR
        return self._operators if is_operator else self._places


def _may_write(connection: FramedProtocol) -> bool:
    """Queries do not wait for a disk that is behind with writes (P16)."""
    assert connection.remote is not None
    return connection.remote.purpose not in (Purpose.QUERY, Purpose.OPERATOR)
