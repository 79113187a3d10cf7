"""The clients of a run on processes, and what faults do to them.

A client is the real one. Its links alone are of another kind: they know which payload goes where,
can keep it from all replicas but one, and can send what was acknowledged once more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Final, cast

import msgspec

from jepsen_like.checker.repeats import RepeatWatch
from jepsen_like.target.base import FaultUnavailableError
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.cluster.links import NodeLink
from raftstore.client.settings import ClientSettings
from raftstore.protocol.codec import decode, encode_frame_of
from raftstore.protocol.framing import HEADER_BYTES
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.types import Guid, NodeId

ORDER_TIMEOUT_S: Final = 10.0
AGAIN_TIMES: Final = 10
AGAIN_EVERY_S: Final = 0.25


class _Link(NodeLink):
    """Asks its client before a payload leaves."""

    def send_frame(self, frame: bytes) -> None:
        """As it does, if the client lets it."""
        if cast("StruckClient", self._owner).lets_pass(self.node, frame):
            super().send_frame(frame)


class StruckClient(AsyncClient):
    """One process of a workload."""

    _link_type: ClassVar[type[NodeLink]] = _Link

    def __init__(self, endpoints: str | Sequence[str], settings: ClientSettings) -> None:
        super().__init__(endpoints, settings)
        self.repeats = RepeatWatch()
        self._on_reached: Callable[[], None] | None = None
        self._is_dying = False
        self._sent: dict[Guid, PubMsg] = {}
        self._acknowledged: tuple[PubMsg, PubAck] | None = None
        self._repeated: dict[Guid, tuple[PubAck, Callable[[], None]]] = {}

    @property
    def has_acknowledged(self) -> bool:
        """Whether it got OK for a write."""
        return self._acknowledged is not None

    def reach_one(self, on_reached: Callable[[], None]) -> None:
        """Its next payload goes to one follower only (S5.5), which is notified; it shall die
        then."""
        self._on_reached = on_reached

    def disarm(self) -> None:
        """Take that back, if it has not come to it."""
        self._on_reached = None

    async def publish_again(self, on_same: Callable[[], None]) -> None:
        """Send what was acknowledged last to every replica, some times; report when that is,
        too."""
        assert self._acknowledged is not None
        message, ack = self._acknowledged
        self.repeats.sent += 1
        self._repeated[message.guid] = (ack, on_same)
        for _ in range(AGAIN_TIMES):
            # A leader that was killed meanwhile has a successor soon.
            self._send_again(message)
            await asyncio.sleep(AGAIN_EVERY_S)
            if message.guid not in self._repeated:
                return

    def _send_again(self, message: PubMsg) -> None:
        topology, links = self._context.topology, self._context.links
        leader = topology.leader_of(message.channel)
        if leader is not None:
            message = msgspec.structs.replace(message, leader=leader.node, term=leader.term)
        frame = encode_frame_of(message)
        for node in topology.replicas_of(message.channel):
            link = links.of(node)
            if link is not None and link.is_open:
                link.send_frame(frame)

    def lets_pass(self, node: NodeId, frame: bytes) -> bool:
        """Whether this payload leaves for this node."""
        message = decode(frame[HEADER_BYTES:])
        assert isinstance(message, PubMsg)
        self._sent[message.guid] = message
        if self._is_dying:
            return False
        if self._on_reached is None:
            return True
        if node == message.leader:
            return False
        self._is_dying = True
        self._on_reached()
        return True

    def on_publish_answer(self, node: NodeId, message: PubAck | PubReject) -> None:
        """Remember what was acknowledged, and compare what was so twice."""
        if isinstance(message, PubAck):
            first = self._repeated.pop(message.guid, None)
            sent = self._sent.pop(message.guid, None)
            if first is not None:
                ack, on_same = first
                self.repeats.compare(ack, message)
                on_same()
            elif sent is not None:
                self._acknowledged = (sent, message)
        super().on_publish_answer(node, message)


class Clients:
    """All clients of a run. Orders come from any thread; the rest is for the loop they live on."""

    def __init__(self, count: int, repeats: RepeatWatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._repeats = repeats
        self._working: dict[int, tuple[StruckClient, asyncio.Task[None]]] = {}
        self._again: set[asyncio.Future[None]] = set()

    def begin(self, number: int, client: StruckClient, driver: asyncio.Task[None]) -> None:
        """The client of this number works now; cancelling ``driver`` ends it."""
        client.repeats = self._repeats
        self._working[number] = (client, driver)

    def kill(self, number: int) -> None:
        """Its connections are gone at once."""
        self._order(self._kill(number % self._count))

    def reach_one(self, number: int) -> threading.Event:
        """As `StruckClient.reach_one`, then it dies; the event is set when it has come to it."""
        reached = threading.Event()
        self._order(self._reach_one(number % self._count, reached))
        return reached

    def disarm(self) -> None:
        """Clear the order to reach one node only."""
        self._order(self._disarm())

    def publish_again(self, number: int) -> threading.Event:
        """As `StruckClient.publish_again`, of the first from this number on that wrote."""
        answered = threading.Event()
        self._order(self._publish_again(number, answered))
        return answered

    # --- on the loop ------------------------------------------------------------------------------

    def _order(self, order: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(order, self._loop).result(ORDER_TIMEOUT_S)

    async def _kill(self, number: int) -> None:
        if number in self._working:
            self._working[number][1].cancel()

    async def _reach_one(self, number: int, reached: threading.Event) -> None:
        if number not in self._working:
            raise FaultUnavailableError(f"client {number} does not work yet")
        client, driver = self._working[number]

        def on_reached() -> None:
            reached.set()
            # What is on its way to that one replica leaves first: connections end in order.
            self._loop.call_soon(driver.cancel)

        client.reach_one(on_reached)

    async def _disarm(self) -> None:
        for client, _ in self._working.values():
            client.disarm()

    async def _publish_again(self, number: int, answered: threading.Event) -> None:
        for step in range(self._count):
            found = self._working.get((number + step) % self._count)
            if found is not None and found[0].has_acknowledged:
                again = asyncio.ensure_future(found[0].publish_again(answered.set))
                self._again.add(again)
                again.add_done_callback(self._again.discard)
                return
        raise FaultUnavailableError("no client got the answer that its write is done")
