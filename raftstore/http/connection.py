"""One connection: uvicorn's protocol with bounds that it lacks, and refusals as everywhere else.

Bounded are the time and the size of a request's head, whatever else comes without being part of a
body, how long a connection without a request is kept, and how many there are.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from raftstore.errors import UnavailableError
from raftstore.http.errors import bad_request, describe
from raftstore.http.routes import JSON

logger = logging.getLogger("raftstore.http")

HEAD_TIMEOUT_S: Final = 10.0
"""A connection that has not sent a whole head of a request by then is closed."""
HEAD_BYTES_MAX: Final = 64 * 1024
PIPELINED_MAX: Final = 64
"""Requests of one connection that wait for the answer to the one before them. uvicorn reads on
after each answer, so a client that sends without reading would fill the memory of a node."""
PROBE_CONNECTIONS: Final = 16
"""Beyond http.connections_max, for ``PROBE_PATHS`` alone: a node that has too much to do must not
look dead, or it is killed for it."""
PROBE_PATHS: Final = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the bounds of this module."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # uvicorn's own limit refuses requests of connections that it has accepted, probes included.
        self._connections_max, self.limit_concurrency = self.limit_concurrency, None
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_head_begun = False
        self._without_progress = 0
        """Bytes since the parser last reported the end of a head or request, or a part of a
        body."""
        self.idle_since_s = self.loop.time()
        """When it was accepted, or its last answer given."""
        self.is_made = False
        """It has its transport, which closes its socket."""
        self._opening: dict[Any, Any] = getattr(self.server_state, "opening", {})
        self._is_refused = False

    # --- how many --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection that says nothing is closed after a while, or when others need its place."""
        # asyncio does it for sockets made with a protocol number only. Without it the body of an
        # answer waits some 40 ms for the acknowledgement of its head.
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_made = True
        self._opening.pop(self, None)
        super().connection_made(JoinedWrites(transport, self.loop))
        self._wait_for_head()
        self._find_place()

    def _find_place(self) -> None:
        limit = self._connections_max
        count = len(self.connections) + len(self._opening)
        if limit is None or count <= limit:
            return
        other = longest_idle(self.connections, but=self)
        if other is not None:
            other.give_up_place()
        elif count <= limit + PROBE_CONNECTIONS:
            self.app = _only_probes(self.app, limit)
        else:
            logger.warning(str(no_place(limit)))
            self._refuse(no_place(limit))
            self.transport.close()

    @property
    def is_idle(self) -> bool:
        """No request is under way."""
        cycle: RequestResponseCycle | None = self.cycle
        return (cycle is None or cycle.response_complete) and not self.pipeline

    def worth(self) -> tuple[bool, float]:
        """The least of it goes first: an answer that is still being read is cut last."""
        return self.transport.get_write_buffer_size() > 0, self.idle_since_s

    def give_up_place(self) -> None:
        """End an idle connection for the sake of a new one, without waiting for its reader."""
        self.connections.discard(self)
        self.transport.abort()

    # --- how long and how much -------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came; the parser keeps what it cannot report yet, which has a limit."""
        if self._is_refused:
            return
        keep_alive, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        self._without_progress += len(data)
        super().data_received(data)
        # Most heads come whole: no timer is made and cancelled for those.
        if self._is_head_begun and self._head_timer is None:
            self._wait_for_head()
        if keep_alive is not None and self.is_idle and self._head_timer is None:
            # Line ends, or the rest of a body that was answered already: that is no request.
            self.timeout_keep_alive_task = keep_alive
        elif keep_alive is not None:
            keep_alive.cancel()
        if self._without_progress > HEAD_BYTES_MAX and not self._is_refused:
            self._refuse(bad_request(_TOO_LONG))

    def on_message_begin(self) -> None:
        """A request begins: its head must be whole in time."""
        self._head_bytes = 0
        self._stop_waiting()
        self._is_head_begun = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Part of the path; a head has a limit."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one behind a body; all together have a limit."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole; the body has the request's deadline."""
        self._without_progress = 0
        self._is_head_begun = False
        self._stop_waiting()
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError(_TOO_MANY)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Part of a body, whose limit is that of the request."""
        self._without_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has ended."""
        self._without_progress = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer has been given: the connection is idle unless the next request waits."""
        self.idle_since_s = self.loop.time()
        super().on_response_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError(_TOO_LONG)

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # --- refusals --------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refuses; uvicorn calls it while it handles the parser's error."""
        error = sys.exception()
        reason = None if error is None else error.__context__ or error
        hint = "; a path is percent-encoded" if "url" in str(reason) else ""
        self._refuse(bad_request(f"{msg if reason is None else _described(reason)}{hint}"))

    def _refuse(self, error: Exception) -> None:
        """Answer with the reason, as every other error is answered, and answer nothing more."""
        cycle: RequestResponseCycle | None = self.cycle
        self.pipeline.clear()  # what waited there is answered by nothing, so it does not happen
        if cycle is not None and cycle.response_started and not self.is_idle:
            self.transport.abort()  # half of an answer is out: nothing may follow it
            return
        status, body, headers = describe(error)
        content = msgspec.json.encode(body)
        headers |= {"content-type": JSON, "connection": "close"}
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"content-length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join((*lines, "", "")).encode() + content)
        self._is_refused = True
        if cycle is not None:
            cycle.disconnected = True  # its handler is not heard any more
            cycle.message_event.set()
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closed now, with bytes of the client unread, the answer might never reach it: what it
        # still sends is read and dropped for a while.
        self.transport.write_eof()
        self.flow.resume_reading()
        self._wait_for_head()


def longest_idle(
    connections: Iterable[object], *, but: BoundedHttpProtocol | None = None
) -> BoundedHttpProtocol | None:
    """Return the connection that makes room for another one, if there is one.

    A connection with a request under way keeps its place; one that says nothing, or leaves
    answers unread, must not keep others out.
    """
    idle = [
        each
        for each in connections
        if isinstance(each, BoundedHttpProtocol) and each is not but and each.is_idle
    ]
    return min(idle, key=BoundedHttpProtocol.worth, default=None)


class JoinedWrites(asyncio.Transport):
    """A transport that sends what is written in one turn of the loop at once.

    uvicorn writes the head and the body of an answer one after the other: two system calls, and
    each of them gives Python's lock away to the engine's thread, which keeps it for a while.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._is_ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it at the end of the turn, behind what was written before.

        After a refusal nothing follows: an earlier request may still be worked on.
        """
        if self._is_ended:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(bytes(data))

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def write_eof(self) -> None:
        """Nothing follows what was written."""
        self._flush()
        self._is_ended = True
        self._transport.write_eof()

    def close(self) -> None:
        """Send what was written, then end."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """End at once."""
        self._parts.clear()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and have not left."""
        return sum(map(len, self._parts)) + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """A fact about the connection, by its asyncio name."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether it was closed, by either side."""
        return self._transport.is_closing()

    def can_write_eof(self) -> bool:
        """TLS cannot."""
        return self._transport.can_write_eof()

    def pause_reading(self) -> None:
        """Nothing more is read for a while."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        self._transport.resume_reading()


_TOO_LONG: Final = f"the head of the request is longer than {HEAD_BYTES_MAX} bytes"
_TOO_MANY: Final = f"more than {PIPELINED_MAX} requests were sent before their answers"
_App = Callable[[Any, Any, Any], Awaitable[None]]


def _described(reason: BaseException) -> str:
    return (
        str(reason)
        if str(reason) in (_TOO_LONG, _TOO_MANY)
        else f"the request is no HTTP/1.1: {reason}"
    )


def no_place(limit: int | None) -> UnavailableError:
    """Return the refusal of a connection that is one too many."""
    return UnavailableError(
        f"all {limit} connections of this node have requests under way; retry later, ask "
        "another node, or raise http.connections_max"
    )


def _only_probes(app: Any, limit: int) -> Any:
    """Return the application for a connection beyond the limit."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in PROBE_PATHS:
            await app(scope, receive, send)
            return
        status, body, headers = describe(no_place(limit))
        headers["connection"] = "close"
        answer = Response(msgspec.json.encode(body), status, headers, JSON)
        await answer(scope, receive, send)

    return serve
