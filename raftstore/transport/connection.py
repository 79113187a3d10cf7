"""One connection: frames in, frames out, a handshake at the start and a Goodbye at the end.

States: a dialled connection is OPENING until the other side's Hello was accepted; an accepted one
is OPEN from the start, since its Hello was read before. CLOSING means that a Goodbye was said or
received: nothing is taken or sent any more. Every connection ends with exactly one ``on_closed``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from raftstore.config import FRAME_BYTES_MAX
from raftstore.errors import DecodeError, RemoteProtocolError, UnsupportedVersionError
from raftstore.protocol.codec import decode, encode_frame_of, unknown_request
from raftstore.protocol.framing import HEADER_BYTES, Body, ReceiveBuffer
from raftstore.protocol.message import Message
from raftstore.protocol.node import Goodbye, Hello
from raftstore.transport.endpoints import tune_socket
from raftstore.transport.handshake import CloseReason, GoodbyeCode, Refusal

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method: Any) -> Any:
        """Mark a method of asyncio.Protocol; typing has it from Python 3.12 on."""
        return method


HELLO_BYTES_MAX: Final = 4_096
"""A first frame is small, or it is no Hello."""
LINGER_MS: Final = 1_000
"""After a Goodbye the other side has this long to read it and close; then we abort."""


class State(Enum):
    """Where a connection is in its life."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Owner(Protocol):
    """The owner of a connection; called on the connection's loop, must not raise."""

    def check_hello(self, hello: Hello) -> Refusal | None:
        """Judge the answer to our own Hello (dialled connections only)."""

    def on_open(self, connection: FramedProtocol) -> None:
        """Both Hellos are through."""

    def on_message(self, connection: FramedProtocol, message: Message, frame_bytes: int) -> None:
        """An allowed message arrived."""

    def on_unknown_request(self, connection: FramedProtocol, kind: int, request_id: int) -> bool:
        """A request of a kind that is not known here arrived; False: the connection ends for it."""

    def on_refused_request(self, connection: FramedProtocol, request_id: int, reason: str) -> bool:
        """A request with a value outside its range arrived; False: the connection ends for it."""

    def on_closed(self, connection: FramedProtocol) -> None:
        """The connection is gone; ``connection.reason`` says why."""

    def on_writable(self, connection: FramedProtocol) -> None:
        """The send buffer fell below the low-water mark."""

    def on_unwritable(self, connection: FramedProtocol) -> None:
        """The send buffer is above the high-water mark."""

    def on_partial(self, connection: FramedProtocol, *, is_new: bool) -> None:
        """Other bytes of an incomplete frame are held than before; ``is_new``: of another frame."""


class FlushQueue:
    """Connections with frames to write; one write per connection and turn of the loop.

    Frames sent during one turn are joined, so a burst of small ones costs one system call. The
    owner of a turn calls ``hold`` at its start and ``flush`` at its end, which saves the loop one
    more round; without it what was sent is written when the loop has done all else.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._marked: list[FramedProtocol] = []
        self._is_held = False

    def hold(self) -> None:
        """``flush`` is certain to be called soon."""
        self._is_held = True

    def mark(self, connection: FramedProtocol) -> None:
        """Write this connection's frames at the end of the turn."""
        if not self._marked and not self._is_held:
            self._loop.call_soon(self.flush)
        self._marked.append(connection)

    def flush(self) -> None:
        """Write now."""
        self._is_held = False
        marked, self._marked = self._marked, []
        for connection in marked:
            connection.write_queued()


class FramedProtocol(asyncio.Protocol):
    """See the module. Not safe for threads: everything happens on the connection's loop."""

    def __init__(  # noqa: PLR0913 - whose it is, and its bounds
        self,
        *,
        owner: Owner,
        hello: Hello,
        accepts: frozenset[type[Message]],
        flushes: FlushQueue,
        queue_bytes_max: int,
        silence_ms: int,
        remote: Hello | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        high_water_bytes: int | None = None,
        taken_at_once: int = sys.maxsize,
    ) -> None:
        """``hello`` is our own; ``remote`` the other's, if it was read already (accepted ones).

        ``queue_bytes_max`` bounds what waits to be sent; a quarter of it is the high-water mark,
        unless another is given. Frames have at most ``frame_bytes_max``, and before it is known who
        sends them, ``HELLO_BYTES_MAX``. At most ``taken_at_once`` messages are taken in one turn.
        """
        self.state = State.OPENING
        self.remote = remote
        self.reason: CloseReason | None = None
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[None] = loop.create_future()
        """Done when the handshake ended, well or badly."""
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the connection is gone."""
        self._is_paused = False
        self._loop = loop
        self._owner = owner
        self._hello = hello
        self._accepts = accepts
        self._flushes = flushes
        self._queue_bytes_max = queue_bytes_max
        self._high_water_bytes = high_water_bytes or queue_bytes_max // 4
        self._silence_ms = silence_ms
        self._frame_bytes_max = frame_bytes_max
        self._buffer = ReceiveBuffer(HELLO_BYTES_MAX)
        self._was_partial = False
        self._taken_at_once = taken_at_once
        self._pending: deque[Body] = deque()
        """What was received and not taken yet."""
        self._waker: asyncio.TimerHandle | None = None
        self._rest_s = 0.0
        self._is_stopped = False
        self.heard_s = time.monotonic()
        """When the other side sent something for the last time; the loop's own time may be the same
        for all that one wake-up brings."""
        self._queue: list[bytes] = []
        self._queue_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._has_paused = False
        """Nothing is read, until it is taken up again here."""

    # --- sending ---

    @property
    def is_open(self) -> bool:
        """True between the handshake and the first sign of the end."""
        return self.state is State.OPEN

    @property
    def queued_bytes(self) -> int:
        """Bytes given to ``send`` that the kernel has not taken yet."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._queue_bytes + waiting

    @property
    def partial_bytes(self) -> int:
        """Bytes received and not taken yet: of a frame that is not complete, and those behind."""
        return self._buffer.partial_bytes + sum(map(len, self._pending))

    @property
    def is_reading(self) -> bool:
        """False while the other side is not read (back-pressure)."""
        return self._transport is not None and self._transport.is_reading()

    @property
    def is_writable(self) -> bool:
        """False above the high-water mark, and then until the low-water mark is reached.

        When it is False after ``write_queued``, ``on_writable`` will be called.
        """
        return not self._is_paused and self.queued_bytes <= self._high_water_bytes

    def send(self, frame: bytes) -> bool:
        """Queue a whole frame (or several); False if not open or the queue would be over its bound.

        Whether a full queue means dropping the frame or the connection is the owner's decision.
        """
        if self.state is not State.OPEN:
            return False
        size = len(frame)
        if self.queued_bytes + size > self._queue_bytes_max:
            return False
        if not self._queue:
            self._flushes.mark(self)
        self._queue.append(frame)
        self._queue_bytes += size
        return True

    def write_queued(self) -> None:
        """Hand the queued frames to the socket; called by the FlushQueue."""
        if not self._queue:
            return
        frames = self._queue
        self._queue = []
        self._queue_bytes = 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(frames))  # one by itself is not copied

    def pause_reading(self) -> None:
        """Stop taking bytes: the sender meets a full socket (back-pressure)."""
        self._is_stopped = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._is_stopped = False
        self._update_reading()

    def rest(self, seconds: float) -> None:
        """Take nothing more of what was sent for so long; called while a message is taken."""
        self._rest_s = seconds

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        # What was received and not taken yet is taken first, so that it does not grow.
        is_wanted = self._is_ending() or not (self._is_stopped or self._waker is not None)
        if is_wanted and not transport.is_reading():
            self._has_paused = False
            transport.resume_reading()
        elif not is_wanted and transport.is_reading():
            self._has_paused = True
            transport.pause_reading()

    # --- ending ---

    def close(self, code: str, message: str) -> None:
        """Say Goodbye after everything queued, then close once the other side has read it."""
        if self._is_ending():
            return
        self._end(CloseReason(code, message, by_peer=False))
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.write_queued()
        if transport.is_closing():
            return  # what was queued met a reset: uvloop takes nothing more and raises
        transport.write(encode_frame_of(Goodbye(code=code, message=message)))
        # From now on resume_writing means that everything was written.
        transport.set_write_buffer_limits(high=0)
        if not transport.get_write_buffer_size():
            self._write_eof()
        # Keep reading: bytes left unread would turn the close into a reset that overtakes Goodbye.
        self.resume_reading()
        self._linger = self._loop.call_later(LINGER_MS / 1000, transport.abort)

    def _write_eof(self) -> None:
        """End the stream after its last byte, and only then: an end that asyncio keeps for later
        raises into the loop when the other side has reset the connection meanwhile."""
        if self._transport is not None and not self._transport.is_closing():
            with suppress(OSError):  # it was reset just now; connection_lost follows
                self._transport.write_eof()

    def abort(self) -> None:
        """Drop the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    def _is_ending(self) -> bool:
        state = self.state
        return state is State.CLOSING or state is State.CLOSED

    def _end(self, reason: CloseReason) -> None:
        self.state = State.CLOSING
        self.reason = reason
        self._buffer = ReceiveBuffer(HELLO_BYTES_MAX)  # nothing is taken any more
        self._pending.clear()
        self._tell_partial(is_new=True)
        self._settle()

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)

    # --- asyncio.Protocol ---

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._high_water_bytes)
        connected = self._transport.get_extra_info("socket")
        tune_socket(connected, silence_ms=self._silence_ms)
        self._transport.write(encode_frame_of(self._hello))
        if self.remote is not None:
            self._open()
        if self._is_stopped:
            self._loop.call_soon(self._update_reading)  # uvloop begins to read behind this call

    @override
    def data_received(self, data: bytes) -> None:
        state = self.state
        if state is State.CLOSING or state is State.CLOSED:
            return
        self.heard_s = time.monotonic()
        buffer = self._buffer
        try:
            bodies = buffer.feed(data)
        except RemoteProtocolError as error:
            self._refuse(error)
            return
        if self._was_partial or buffer.partial:
            self._tell_partial(is_new=bool(bodies))
            if self._is_ending():
                return
        self._pending.extend(bodies)
        if self._waker is None:
            self._take_some()

    @override
    def eof_received(self) -> bool:
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self.reason is None:
            if exc is None:
                self.reason = CloseReason(
                    GoodbyeCode.EOF, "the other side closed the connection", by_peer=True
                )
            else:
                self.reason = CloseReason(
                    GoodbyeCode.BROKEN, f"the connection broke: {exc}", by_peer=True
                )
        self.state = State.CLOSED
        self._queue.clear()
        self._queue_bytes = 0
        self._pending.clear()
        if self._waker is not None:
            self._waker.cancel()
        if self._linger is not None:
            self._linger.cancel()
        self._settle()
        if not self.closed.done():
            self.closed.set_result(None)
        self._owner.on_closed(self)

    @override
    def pause_writing(self) -> None:
        self._is_paused = True
        self._owner.on_unwritable(self)

    @override
    def resume_writing(self) -> None:
        self._is_paused = False
        if self._is_ending():
            self._loop.call_soon(self._write_eof)
        else:
            self._owner.on_writable(self)

    # --- receiving ---

    def _tell_partial(self, *, is_new: bool) -> None:
        was_partial, self._was_partial = self._was_partial, bool(self.partial_bytes)
        if was_partial or self._was_partial:
            self._owner.on_partial(self, is_new=is_new)

    def _open(self) -> None:
        self._buffer.bytes_max = self._frame_bytes_max
        self.state = State.OPEN
        self._settle()
        self._owner.on_open(self)

    def _take_body(self, body: Body) -> None:
        # Only what arrives is the sender's fault: an error of the owner is not caught here (S0.4).
        try:
            message = decode(body)
        except RemoteProtocolError as error:
            if not self._is_answered(body, error):
                self._refuse(error)
            return
        self._take(message, HEADER_BYTES + len(body))

    def _is_answered(self, body: Body, error: RemoteProtocolError) -> bool:
        """Whether the owner refused the one request, so that the connection goes on."""
        if not isinstance(error, DecodeError) or self.state is not State.OPEN:
            return False
        if error.request_id is not None:
            return self._owner.on_refused_request(self, error.request_id, str(error))
        unknown = unknown_request(body)
        return unknown is not None and self._owner.on_unknown_request(self, *unknown)

    def _take_some(self) -> None:
        """Take messages, a bounded number in one turn: others have theirs in between."""
        self._waker = None
        self._rest_s = 0.0
        pending, left = self._pending, self._taken_at_once
        while pending and left:
            left -= 1
            self._take_body(pending.popleft())
            if self.reason is not None or self._rest_s:
                break
        if self.reason is not None:  # a Goodbye was sent or received meanwhile
            self._pending.clear()
        elif self._pending or self._rest_s:
            self._waker = self._loop.call_later(self._rest_s, self._take_some)
            self._update_reading()
            self._tell_partial(is_new=False)
        elif self._buffer.failure is not None:
            self._refuse(self._buffer.failure)
        elif self._has_paused:
            self._update_reading()
            self._tell_partial(is_new=True)  # it could not go on meanwhile

    def _take(self, message: Message, frame_bytes: int) -> None:
        if self.state is State.OPEN and type(message) in self._accepts:
            self._owner.on_message(self, message, frame_bytes)
        elif isinstance(message, Goodbye):
            self._end(CloseReason(message.code, message.message, by_peer=True))
            if self._transport is not None:
                self._transport.close()
        elif self.state is State.OPENING and isinstance(message, Hello):
            self._take_hello(message)
        else:
            when = "before the handshake" if self.state is State.OPENING else "on this connection"
            self.close(
                GoodbyeCode.UNEXPECTED_MESSAGE,
                f"a {type(message).__name__} is not allowed {when} "
                f"(purpose {self._hello.purpose!r}); the sender is broken",
            )

    def _take_hello(self, hello: Hello) -> None:
        refusal = self._owner.check_hello(hello)
        if refusal is None:
            self.remote = hello
            self._open()
        else:
            self.close(refusal.code, refusal.message)

    def _refuse(self, error: RemoteProtocolError) -> None:
        code = GoodbyeCode.MALFORMED
        if isinstance(error, UnsupportedVersionError):
            code = GoodbyeCode.UNSUPPORTED_VERSION
        self.close(code, str(error))
