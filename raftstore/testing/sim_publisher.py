"""The production publisher in a simulated world: its links, its loop, and where it learns of
leaders.

What a write is, when it is sent again and what its outcome is (``raftstore.client.writes``) is
decided by the code that real clients run. A link is open while the node lives that it was made to;
it ends a moment after that node, or by chance; a new one is made when the node is back. What the
network loses, delays or doubles is drawn by the network.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from raftstore.client.cluster.route_book import RouteBook
from raftstore.client.cluster.topology import Leader, Topology
from raftstore.client.context import Context
from raftstore.client.settings import ClientSettings
from raftstore.client.writes.kinds import RowWrite, Write
from raftstore.client.writes.publisher import Publisher
from raftstore.errors import ConnectionLostError, RequestError
from raftstore.policy.health import HealthState
from raftstore.protocol.codec import decode
from raftstore.protocol.framing import HEADER_BYTES
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.types import ChannelId, NodeId

if TYPE_CHECKING:
    import asyncio

    from raftstore.testing.sim_cluster import SimCluster

SETTINGS: Final = ClientSettings(resend_ms=400, suspect_ms=100, retry_max_ms=60)
"""A world lasts seconds: what a real client waits for would be most of it."""
NOTICE_MS: Final = 20.0
"""How soon the end of a node, or a new one, is noticed at most."""
RESET_MS: Final = 30_000.0
"""Mean time between two connections of a client that end by themselves."""

Deliver = Callable[[NodeId, PubMsg], None]
"""Puts an attempt for a node on the network."""
OnEnd = Callable[[PubAck | RequestError], None]
"""Called with the outcome of a write, once."""
_Begin = Callable[[], Coroutine[Any, Any, PubAck]]


class SimLink:
    """One connection, as the publisher sees it."""

    is_settled = True
    last_error = "the node does not answer"

    def __init__(self, send: Callable[[NodeId, bytes], None], node: NodeId) -> None:
        self._send = send
        self._node = node
        self.incarnation: int | None = None
        """Of the node that the connection was made to; None: there is no connection."""

    @property
    def is_open(self) -> bool:
        """Whether something can be sent."""
        return self.incarnation is not None

    @property
    def can_send(self) -> bool:
        """There is always room."""
        return self.incarnation is not None

    def start(self) -> None:
        """Connections are made by themselves."""

    def send_frame(self, frame: bytes) -> None:
        """To the simulated network."""
        if self.incarnation is None:
            raise ConnectionLostError(self.last_error)
        self._send(self._node, frame)


class SimLinks:
    """All connections of one client."""

    def __init__(self, nodes: list[NodeId], deliver: Deliver) -> None:
        self.by_node = {node: SimLink(self._send, node) for node in nodes}
        self._deliver = deliver
        self._frame = b""
        self._message: PubMsg | None = None

    def of(self, node: NodeId) -> SimLink | None:
        """The connection to a node."""
        return self.by_node.get(node)

    def made(self, node: NodeId) -> SimLink:
        """The same, also to one that is new."""
        link = self.by_node.get(node)
        if link is None:
            link = self.by_node[node] = SimLink(self._send, node)
        return link

    def _send(self, node: NodeId, frame: bytes) -> None:
        """One frame goes to all replicas: it is decoded once."""
        if frame is not self._frame or self._message is None:
            message = decode(frame[HEADER_BYTES:])
            assert isinstance(message, PubMsg)
            self._frame, self._message = frame, message
        self._deliver(node, self._message)


class WorldTopology(Topology):
    """The production topology, whose catalog is the world's."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def replicas_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """All nodes, of every channel: payloads go to nodes that have no replica, too."""
        del channel
        return tuple(self._cluster.node_ids)


class Guide:
    """Asks around who leads, as ``raftstore.client.cluster.discovery`` does."""

    def __init__(self, cluster: SimCluster, topology: Topology, pause_ms: int) -> None:
        self._cluster = cluster
        self._topology = topology
        self._pause_ms = pause_ms
        self._wanted: dict[ChannelId, None] = {}
        self._is_asking = False

    def follow(self, channel: ChannelId) -> None:
        """This channel is written to from now on."""
        self._wanted[channel] = None

    def want_leaders(self) -> None:
        """News in a moment."""
        if not self._is_asking:
            self._is_asking = True
            self._cluster.loop.call_later(self._pause_ms / 1_000, self._tell)

    def _tell(self) -> None:
        self._is_asking = False
        now_ms = int(self._cluster.scheduler.now_ms)
        for channel in self._wanted:
            found = self._cluster.believed_leader(channel)
            if found is not None:
                self._topology.hint(channel, Leader(*found), now_ms)


class SimPublisher:
    """The writes of one simulated client."""

    def __init__(
        self,
        cluster: SimCluster,
        rng: random.Random,
        deliver: Deliver,
        *,
        settings: ClientSettings = SETTINGS,
        reset_ms: float = RESET_MS,
    ) -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self._rng = rng
        self._deliver_one = deliver
        self._reset_ms = reset_ms
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_gone = False
        self._topology = WorldTopology(cluster)
        self._links = SimLinks(cluster.node_ids, self._deliver)
        self._guide = Guide(cluster, self._topology, settings.refresh_min_ms)
        self._publisher = Publisher(
            Context(
                topology=self._topology,
                links=cast("Any", self._links),
                discovery=cast("Any", self._guide),
                settings=settings,
                jitter=rng.random,
                book=RouteBook(lambda _: HealthState.UP),
                now_ms=lambda: int(cluster.scheduler.now_ms),
                token_bytes=rng.randbytes,
            )
        )
        cluster.on_life.append(self._on_life)
        for node in cluster.node_ids:
            self._look_at(node)
        self._await_reset()

    @property
    def is_idle(self) -> bool:
        """No write is without its outcome."""
        return not self._tasks

    def publish(self, write: Write, within_ms: float, on_end: OnEnd) -> asyncio.Task[None]:
        """Publish a record; ``on_end`` is called with its outcome within that time, unless the task
        is cancelled or the process ends before."""
        deadline_ms = int(self._cluster.scheduler.now_ms + within_ms)
        self._guide.follow(write.channel)
        return self._begin(partial(self._publisher.publish, write, deadline_ms), on_end)

    def write_row(self, write: RowWrite, within_ms: float, on_end: OnEnd) -> asyncio.Task[None]:
        """Write one row, which may share its record with others; else as ``publish``."""
        deadline_ms = int(self._cluster.scheduler.now_ms + within_ms)
        self._guide.follow(write.channel)
        return self._begin(partial(self._publisher.write_row, write, deadline_ms), on_end)

    def on_message(self, sender: NodeId, message: Message) -> None:
        """A node answered; anything but answers to writes is passed over."""
        if isinstance(message, PubAck | PubReject) and not self._is_gone:
            with self._loop.running():
                self._publisher.on_publish_answer(sender, message)

    def end(self) -> None:
        """The process ends: no outcome is reported any more, and nothing is sent."""
        if self._is_gone:
            return
        self._is_gone = True
        self._cluster.on_life.remove(self._on_life)
        for task in tuple(self._tasks):
            task.cancel()

    # --- inside -----------------------------------------------------------------------------------

    def _begin(self, write: _Begin, on_end: OnEnd) -> asyncio.Task[None]:
        with self._loop.running():
            task = self._loop.create_task(self._outcome(write, on_end))
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def _outcome(self, write: _Begin, on_end: OnEnd) -> None:
        result: PubAck | RequestError
        try:
            result = await write()
        except RequestError as error:
            result = error
        if not self._is_gone:
            on_end(result)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.result()  # what the client raised ends the world

    def _deliver(self, node: NodeId, message: PubMsg) -> None:
        if not self._is_gone:
            self._deliver_one(node, message)

    # --- connections ------------------------------------------------------------------------------

    def _on_life(self, node: NodeId) -> None:
        self._loop.call_later(self._rng.uniform(0.1, NOTICE_MS) / 1_000, self._look_at, node)

    def _look_at(self, node: NodeId) -> None:
        """A connection ends with its node's life; a new one is made to the next."""
        place, link = self._cluster.nodes[node], self._links.made(node)
        if self._is_gone:
            return
        if link.incarnation is not None and not (
            place.is_up and link.incarnation == place.incarnation
        ):
            link.incarnation = None
            self._publisher.on_link_lost(node, "connection reset by peer")
        if link.incarnation is None and place.is_up:
            link.incarnation = place.incarnation
            self._publisher.on_link_open(node)

    def _await_reset(self) -> None:
        pause_ms = self._rng.expovariate(1.0 / self._reset_ms)
        self._loop.call_later(pause_ms / 1_000, self._reset)

    def _reset(self) -> None:
        """A connection ends just so; both sides live on."""
        if self._is_gone:
            return
        node = self._rng.choice(self._cluster.node_ids)
        link = self._links.made(node)
        if link.incarnation is not None:
            link.incarnation = None
            self._publisher.on_link_lost(node, "connection reset by peer")
            self._on_life(node)
        self._await_reset()
