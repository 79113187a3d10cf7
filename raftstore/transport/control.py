"""The control loop: heartbeats and elections in a thread and on sockets of their own.

A stalled disk, a large frame or a long turn of the main loop delays nothing here. Heartbeats are
sent from a snapshot that the main loop replaces, and stamped on arrival before the main loop sees
them. If the main loop has not turned for ``stall_limit_ms`` they stop: a node that cannot work must
not look alive. What else arrives then is dropped: nobody may wait that long for an election, and
all of it is said again, but it would fill the memory for as long as the disk stands still.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any, Final

from raftstore.config import HeartbeatSettings, TransportSettings
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.message import Message
from raftstore.protocol.node import Heartbeat, Hello
from raftstore.transport.accepted import AcceptedPeers
from raftstore.transport.dialer import Dialer, tell_failure
from raftstore.transport.event_loop import another_like
from raftstore.transport.handshake import Identity, Purpose, Refusal
from raftstore.types import NodeId

Expected = Mapping[NodeId, tuple[bytes, bytes, bool]]
"""Per peer boot id, leading digest and heard_receiver of heartbeats that say nothing new."""
NOTHING_EXPECTED: Final[Expected] = {}
_News = deque[tuple[Callable[..., None], tuple[object, ...]]]

NEWS_AT_ONCE: Final = 64
"""Messages that the main loop gets in one turn; others of its work come in between. Signs
of life come first: elections of a thousand channels are minutes of its time, and a heartbeat that
waits behind them is a missed one, which makes more elections, without end."""
SIGNS_MAX: Final = 4_096
"""Signs of life and losses that wait for the main loop, the newest; a window has fewer unless the
cluster has hundreds of nodes. A loss that is forgotten is found by the silence that follows."""
_READING_TURNS: Final = 2
"""Of the control loop: one asks the kernel what has come, the next one reads it."""


class ControlLoop:
    """Owned by the main loop; methods say where they run."""

    def __init__(  # noqa: PLR0913 - two sides that call each other
        self,
        identity: Identity,
        transport: TransportSettings,
        heartbeat: HeartbeatSettings,
        *,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        on_message: Callable[[NodeId, Message, int], None],
        on_lost: Callable[[NodeId, bool], None],
        on_listened: Callable[[int, int], None],
        on_beat: Callable[[int], None],
    ) -> None:
        """``on_message(peer, message, arrived_ms)`` and ``on_lost(peer, refused)`` are called on
        the loop that is running now (the main loop), and ``on_listened(until_ms, late_ms)`` behind
        every heartbeat that had come by then, with how late our own were at worst in the last
        window. ``on_beat(late_ms)`` is called on the control loop: how late the heartbeats were
        sent."""
        self._on_beat = on_beat
        self._identity = identity
        self._settings = transport
        self._heartbeat = heartbeat
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._main = asyncio.get_running_loop()
        self._tell_message = on_message
        self._tell_lost = on_lost
        self._tell_listened = on_listened
        self._content: Mapping[NodeId, tuple[bytes, bool]] = {}
        self._expected: Expected = NOTHING_EXPECTED
        self._progress_ms = now_ms()
        self._outgoing: deque[tuple[NodeId, bytes]] = deque()
        self._last_message: Message | None = None
        self._last_frame = b""
        self._is_woken = False
        """The control loop was notified of ``_outgoing`` and has not looked yet."""
        self._news: _News = deque()
        self._signs: _News = deque(maxlen=SIGNS_MAX)
        """News of who lives, heartbeats and losses in their order: handed on before all others."""
        self._is_telling = False
        """The main loop was notified of these and has not looked yet."""
        self._listened: tuple[int, int] | None = None
        """Every sign that had come by the first is in ``_signs``, or was handed on."""
        self._lates: deque[tuple[int, int]] = deque()
        """When heartbeats of the last window left, and how late."""
        self._counter = 0
        self._dialers: dict[NodeId, Dialer] = {}
        self._loop = another_like(self._main)
        self._loop.set_exception_handler(self._failed)
        self._thread = Thread(target=self._run, name="raftstore-control", daemon=True)
        self._stopping: asyncio.Event | None = None
        self._accepted: AcceptedPeers | None = None
        self._adopting: dict[asyncio.Task[None], None] = {}
        self._thread.start()

    # --- called on the main loop ---

    def set_peers(self, endpoints: Mapping[NodeId, str]) -> None:
        """Dial these peers at these addresses, besides those named earlier."""
        self._loop.call_soon_threadsafe(self._set_peers, dict(endpoints))

    def end_peer(self, peer: NodeId, why: Refusal) -> None:
        """The peer is none any more: dial it no more, and end what is open."""
        self._loop.call_soon_threadsafe(self._end_peer, peer, why)

    def set_content(
        self, content: Mapping[NodeId, tuple[bytes, bool]], expected: Expected = NOTHING_EXPECTED
    ) -> None:
        """Per peer (leading digest, heard_receiver) of the heartbeats from now on, and the
        heartbeats that change nothing when they come."""
        self._content = content
        self._expected = expected
        self._progress_ms = self._now_ms()

    def expect_nothing(self) -> None:
        """A peer was lost: whatever a heartbeat says is news until ``expect`` says what is none."""
        self._expected = NOTHING_EXPECTED

    def tell_signs(self) -> None:
        """Hand on all that came of who lives, before something else of it is handed on."""
        while self._signs:
            tell, args = self._signs.popleft()
            tell(*args)

    def send(self, to: NodeId, message: Message) -> None:
        """Send an election or node-level message; dropped when the peer is away."""
        if message is not self._last_message:  # a report goes to every node
            self._last_message, self._last_frame = message, encode_frame_of(message)
        self._outgoing.append((to, self._last_frame))
        # An election sends thousands of messages: to wake the other thread takes longer than one.
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._send)

    def adopt(self, accepted: socket.socket, hello: Hello) -> None:
        """Take over an accepted control connection."""
        self._loop.call_soon_threadsafe(self._adopt, accepted, hello)

    async def close(self) -> None:
        """Close all connections and end the thread."""
        self._loop.call_soon_threadsafe(self._stop)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    # --- on the control loop ---

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._accepted = AcceptedPeers(
            Purpose.CONTROL,
            self._settings,
            on_message=self._arrived,
            on_gone=self._gone,
            knows=self._dialers.__contains__,
        )
        beats = asyncio.get_running_loop().create_task(self._beat())
        beats.add_done_callback(tell_failure)
        await self._stopping.wait()
        beats.cancel()
        for dialer in tuple(self._dialers.values()):
            await dialer.close()
        if self._adopting:
            await asyncio.wait(tuple(self._adopting))
        await self._accepted.close()

    def _stop(self) -> None:
        if self._stopping is None:  # asked before the loop's first turn
            self._loop.call_soon(self._stop)
        else:
            self._stopping.set()

    async def _beat(self) -> None:
        interval_s = self._heartbeat.send_interval_ms / 1000
        # Not the loop's own time, which may stand still while the loop waits for the interpreter.
        due = time.monotonic()
        while True:
            began = time.monotonic()
            late_ms = round(1000 * (began - due))
            self._on_beat(late_ms)
            if not self._is_stalled(self._now_ms()):
                self._beat_once()
            await self._listen(late_ms)
            due = max(due + interval_s, began)  # from here on the next one is late
            await asyncio.sleep(due - time.monotonic())

    def _is_stalled(self, now_ms: int) -> bool:
        """The main loop has not turned for so long that this node counts as dead."""
        return now_ms - self._progress_ms > self._heartbeat.stall_limit_ms

    def _beat_once(self) -> None:
        self._counter += 1
        content = self._content
        for peer, dialer in self._dialers.items():
            digest, hears = content.get(peer, (b"", False))
            beat = Heartbeat(
                boot_id=self._identity.boot_id,
                counter=self._counter,
                sent_ms=self._wall_ms(),
                leading_digest=digest,
                heard_receiver=hears,
            )
            dialer.send(encode_frame_of(beat))

    async def _listen(self, late_ms: int) -> None:
        """A peer is silent only if nothing of it waits unread here or waits for the main loop."""
        until_ms, lates = self._now_ms(), self._lates
        for _ in range(_READING_TURNS):
            await asyncio.sleep(0)
        lates.append((until_ms, late_ms))
        while lates[0][0] < until_ms - self._heartbeat.window_ms:
            lates.popleft()
        self._listened = until_ms, max(late for _, late in lates)
        self._wake()

    def _set_peers(self, endpoints: dict[NodeId, str]) -> None:
        if self._stopping is None:
            self._loop.call_soon(self._set_peers, endpoints)
            return
        for peer, endpoint in endpoints.items():
            dialer = self._dialers.get(peer)
            if dialer is not None:
                dialer.endpoint = endpoint
                continue
            self._dialers[peer] = Dialer(
                peer,
                endpoint,
                purpose=Purpose.CONTROL,
                identity=self._identity,
                settings=self._settings,
                on_connected=lambda _peer, _hello: None,
                on_lost=self._lost,
            )

    def _end_peer(self, peer: NodeId, why: Refusal) -> None:
        if self._accepted is None:  # asked before the loop's first turn
            self._loop.call_soon(self._end_peer, peer, why)
            return
        self._accepted.end(peer, why)
        dialer = self._dialers.pop(peer, None)
        if dialer is not None:
            task = self._loop.create_task(dialer.close())
            self._adopting[task] = None
            task.add_done_callback(self._adopted)

    def _send(self) -> None:
        self._is_woken = False  # before looking: what is put there from now on wakes again
        while self._outgoing:
            to, frame = self._outgoing.popleft()
            dialer = self._dialers.get(to)
            if dialer is not None:
                dialer.send(frame)

    def _adopt(self, accepted: socket.socket, hello: Hello) -> None:
        if self._accepted is None:  # asked before the loop's first turn
            self._loop.call_soon(self._adopt, accepted, hello)
            return
        peer = NodeId(hello.node)
        if peer in self._dialers:
            self._dialers[peer].hurry(hello.advertise)
        task = self._loop.create_task(self._accepted.adopt(accepted, hello, self._identity))
        self._adopting[task] = None
        task.add_done_callback(self._adopted)

    def _adopted(self, task: asyncio.Task[None]) -> None:
        del self._adopting[task]
        if not task.cancelled():
            task.exception()  # the socket broke while it was adopted: the peer dials again

    def _arrived(self, peer: NodeId, message: Message) -> None:
        # The stamp is taken here: the main loop may be busy for a while.
        now_ms = self._now_ms()
        is_sign = type(message) is Heartbeat
        if is_sign and self._says_nothing_new(peer, message):
            # Goes with the next report of having listened: it costs the main loop no turn of its
            # own.
            self._signs.append((self._tell_message, (peer, message, now_ms)))
        elif is_sign or not self._is_stalled(now_ms):
            lane = self._signs if is_sign else self._news
            self._post(lane, self._tell_message, peer, message, now_ms)

    def _says_nothing_new(self, peer: NodeId, beat: Message) -> bool:
        assert isinstance(beat, Heartbeat)
        said = beat.boot_id, beat.leading_digest, beat.heard_receiver
        return self._expected.get(peer) == said

    def _gone(self, peer: NodeId) -> None:
        self._post(self._signs, self._tell_lost, peer, False)

    def _lost(self, peer: NodeId, refused: bool) -> None:  # noqa: FBT001 - a callback's shape
        self._post(self._signs, self._tell_lost, peer, refused)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody caught here is the main loop's to judge."""
        if context.get("exception") is None:
            loop.default_exception_handler(context)
        else:
            self._post(self._news, self._main.call_exception_handler, context)

    def _post(
        self,
        lane: _News,
        tell: Callable[..., None],
        *args: object,
    ) -> None:
        lane.append((tell, args))
        self._wake()

    def _wake(self) -> None:
        if not self._is_telling and not self._main.is_closed():
            self._is_telling = True
            self._main.call_soon_threadsafe(self._tell)

    # --- on the main loop again ---

    def _tell(self) -> None:
        self._is_telling = False  # before looking: what is put there from now on wakes again
        # Before the signs: those that come meanwhile are after the next word.
        listened = self._listened
        self._tell_next()
        if listened is not None:
            self._tell_listened(*listened)
        if (self._news or self._signs) and not self._is_telling:
            self._is_telling = True
            self._main.call_soon(self._tell)

    def _tell_next(self) -> None:
        self.tell_signs()
        for _ in range(min(NEWS_AT_ONCE, len(self._news))):
            tell, args = self._news.popleft()
            tell(*args)
