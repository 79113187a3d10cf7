"""PeerNetworks on loopback with a handler that writes everything down."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from raftstore.config import LEVEL, PROTOCOL_VERSION, HeartbeatSettings, TransportSettings
from raftstore.protocol.codec import decode, encode_frame_of
from raftstore.protocol.framing import ReceiveBuffer
from raftstore.protocol.message import Message
from raftstore.protocol.node import Goodbye, Hello
from raftstore.protocol.publish import PayloadRelay, PubMsg
from raftstore.protocol.replication import CaughtUp
from raftstore.transport.accepting import FileReserve
from raftstore.transport.endpoints import format_endpoint, open_listener, parse_endpoint
from raftstore.transport.event_loop import new_event_loop
from raftstore.transport.handshake import Identity, Purpose
from raftstore.transport.peers import PeerNetwork
from raftstore.types import ChannelId, NodeId, RecordKind, Seq, Term, node_id

CLUSTER = b"the one cluster!"
BOOT = b"boot"
PATIENCE_S = 10.0
QUICK = TransportSettings(reconnect_min_ms=5, reconnect_max_ms=20)
BEATS = HeartbeatSettings(send_interval_ms=5, stall_limit_ms=60_000)
CHANNEL = ChannelId(bytes(18))
LOOP = os.environ.get("RAFTSTORE_TEST_EVENT_LOOP", "auto")
"""What runs all scenes: the loop of nodes, unless another is named."""
GUID = bytes(16)
DIGEST = bytes(16)
PUB_MSG = PubMsg(
    CHANNEL,
    Term(1),
    NodeId(""),
    GUID,
    DIGEST,
    1,
    RecordKind.ROWS,
    b"rows",  # type: ignore[arg-type]
)


def note(seq: int) -> CaughtUp:
    """A small bulk message that can be distinguished from others."""
    return CaughtUp(CHANNEL, Term(1), Seq(seq))


def relay(size: int) -> PayloadRelay:
    """A big bulk message."""
    return PayloadRelay(CHANNEL, Term(1), GUID, DIGEST, bytes(size))  # type: ignore[arg-type]


def now_ms() -> int:
    """The clock of all networks."""
    return time.monotonic_ns() // 1_000_000


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run one scene; what it waits for must come soon."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scene()

    runner = asyncio.Runner(loop_factory=partial(new_event_loop, LOOP))
    # Closed only behind a scene that ended well: one that failed left its nodes open, and to be
    # closed uvloop waits for what they have.
    runner.run(bounded())
    runner.close()


def id_of(name: str) -> NodeId:
    """The node's id; the store's UUID is made of its name."""
    return node_id(name, name.encode().ljust(16, b"."))


class Handler:
    """A NetworkHandler that records, and wakes up waiting tests."""

    def __init__(self) -> None:
        self.messages: list[tuple[NodeId, Message, int]] = []
        self.connected: list[tuple[NodeId, str]] = []
        self.levels: dict[NodeId, int] = {}
        self.lost: list[tuple[NodeId, bool]] = []
        self.strangers: list[tuple[NodeId, str]] = []
        self.listened: list[tuple[int, int]] = []
        """(until when, how late)."""
        self.clients: list[tuple[int, Message]] = []
        self.gone: list[int] = []
        self.waiting: set[int] = set()
        self._changed = asyncio.Event()

    async def until(self, is_seen: Callable[[], bool]) -> None:
        """Return when something that happened makes it true."""
        while not is_seen():
            self._changed.clear()
            await self._changed.wait()

    def of_kind(self, kind: type[Message]) -> list[tuple[NodeId, Message]]:
        """Peer messages of one kind."""
        return [(peer, message) for peer, message, _ in self.messages if type(message) is kind]

    def on_peer_message(self, peer: NodeId, message: Message, arrived_ms: int) -> None:
        """See NetworkHandler."""
        self.messages.append((peer, message, arrived_ms))
        self._changed.set()

    def on_peer_connected(self, peer: NodeId, hello: Hello) -> None:
        """See NetworkHandler."""
        self.connected.append((peer, hello.advertise))
        self.levels[peer] = hello.level
        self._changed.set()

    def on_peer_lost(self, peer: NodeId, *, refused: bool) -> None:
        """See NetworkHandler."""
        self.lost.append((peer, refused))
        self._changed.set()

    def on_stranger(self, node: NodeId, advertise: str) -> None:
        """See NetworkHandler."""
        self.strangers.append((node, advertise))

    def on_listened(self, until_ms: int, late_ms: int) -> None:
        """See NetworkHandler."""
        self.listened.append((until_ms, late_ms))
        self._changed.set()

    def on_client_message(self, client: int, message: Message) -> None:
        """See NetworkHandler."""
        self.clients.append((client, message))
        self._changed.set()

    def on_client_gone(self, client: int) -> None:
        """See NetworkHandler."""
        self.gone.append(client)
        self._changed.set()

    def client_waits(self, client: int) -> bool:
        """See NetworkHandler."""
        return client in self.waiting

    def on_birth_message(self, message: Message) -> Message | None:
        """A founder receives its own messages."""
        return message


class Node:
    """A listening PeerNetwork."""

    def __init__(
        self,
        name: str,
        *,
        transport: TransportSettings = QUICK,
        heartbeat: HeartbeatSettings = BEATS,
        level: int = LEVEL,
        files: FileReserve | None = None,
    ) -> None:
        self.id = id_of(name)
        self.level = level
        self.handler = Handler()
        listener = open_listener("127.0.0.1:0", insecure=False)
        self.endpoint = format_endpoint(*listener.getsockname())
        self.network = PeerNetwork(
            Identity(self.id, b"", BOOT, self.endpoint),
            listener,
            self.handler,
            transport=transport,
            heartbeat=heartbeat,
            files=FileReserve.of_process(16) if files is None else files,
            now_ms=now_ms,
            wall_ms=lambda: 1_700_000_000_000,
        )

    def join(self, endpoints: dict[NodeId, str], cluster_id: bytes = CLUSTER) -> None:
        """Belong to a cluster of these nodes."""
        identity = Identity(self.id, cluster_id, BOOT, self.endpoint, self.level)
        self.network.born(identity, {**endpoints, self.id: self.endpoint})


@asynccontextmanager
async def cluster(*names: str, **settings: Any) -> AsyncIterator[list[Node]]:
    """Nodes that are connected with each other."""
    nodes = [Node(name, **settings) for name in names]
    try:
        for node in nodes:
            node.join({each.id: each.endpoint for each in nodes})
        for node in nodes:
            await node.handler.until(
                lambda node=node: len(node.handler.connected) >= len(nodes) - 1
            )
        yield nodes
    finally:
        for node in nodes:
            await node.network.close()


class RawConnection:
    """A bare socket that speaks frames, legal or not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._buffer = ReceiveBuffer()
        self._bodies: list[Any] = []

    async def next(self) -> Message | None:
        """The next message; None at the end of the stream."""
        while not self._bodies:
            data = await self._reader.read(65_536)
            if not data:
                return None
            self._bodies += self._buffer.feed(data)
        return decode(self._bodies.pop(0))

    async def goodbye(self) -> Goodbye:
        """The last message of the node, which must be a Goodbye followed by the end."""
        message: Message | None = None
        while (following := await self.next()) is not None:
            message = following
        assert isinstance(message, Goodbye), message
        return message


def hello(name: str = "", purpose: str = Purpose.CLIENT, **changes: Any) -> Hello:
    """A Hello, right unless changed."""
    facts: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "purpose": purpose,
        "cluster_id": CLUSTER,
        "node": id_of(name) if name else "",
        "boot_id": BOOT,
    }
    return Hello(**(facts | changes))


@asynccontextmanager
async def raw_connection(endpoint: str, greeting: Message | bytes) -> AsyncIterator[RawConnection]:
    """Dial and say the first frame."""
    reader, writer = await asyncio.open_connection(*parse_endpoint(endpoint), limit=2**16)
    try:
        writer.write(greeting if isinstance(greeting, bytes) else encode_frame_of(greeting))
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()
