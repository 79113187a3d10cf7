"""``PeerNetwork``: the node's Transport port over sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from raftstore.config import KIB, HeartbeatSettings, TransportSettings
from raftstore.errors import LocalProtocolError, OverloadedError, PayloadTooLargeError
from raftstore.metrics import DURATIONS_MS, FixedHistogram, Sample
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.node import Hello
from raftstore.transport.accepted import AcceptedPeers
from raftstore.transport.accepting import FileReserve
from raftstore.transport.clients import AcceptedClients
from raftstore.transport.connection import FlushQueue
from raftstore.transport.control import NOTHING_EXPECTED, ControlLoop, Expected
from raftstore.transport.dialer import Dialer
from raftstore.transport.handshake import (
    CLIENT_LANES,
    CloseReason,
    GoodbyeCode,
    Identity,
    Purpose,
    Refusal,
    ending,
    judge_dialler,
)
from raftstore.transport.server import Server
from raftstore.transport.traffic import Traffic
from raftstore.types import NodeId

FOUNDERS_MAX: Final = 64
"""Connections about the birth of a cluster, which has few members then."""
BIRTH_BYTES_MAX: Final = 64 * KIB
"""Of a frame on one of them: they name members and addresses."""


class NetworkHandler(Protocol):
    """The node as the network uses it; everything on the main loop."""

    def on_peer_message(self, peer: NodeId, message: Message, arrived_ms: int) -> None:
        """A message of an authenticated peer."""

    def on_peer_connected(self, peer: NodeId, hello: Hello) -> None:
        """Our bulk connection to the peer is open; what its Hello said."""

    def on_peer_lost(self, peer: NodeId, *, refused: bool) -> None:
        """A connection from or to the peer broke, or nobody listens there."""

    def on_stranger(self, node: NodeId, advertise: str) -> None:
        """A peer of this cluster was refused, since this node does not know it."""

    def on_retired(self) -> None:
        """M27: a node of this cluster says that this one was retired."""

    def on_listened(self, until_ms: int, late_ms: int) -> None:
        """Every heartbeat that had come by then was reported before this; ours were ``late_ms``
        late at worst in the last window."""

    def on_client_message(self, client: int, message: Message) -> None:
        """A client's message."""

    def on_client_gone(self, client: int) -> None:
        """A client's connection ended."""

    def client_waits(self, client: int) -> bool:
        """Whether something is under way for the client."""

    def on_birth_message(self, message: Message) -> Message | None:
        """A founder's message; the answer, if there is one."""


class PeerNetwork:
    """Every connection of one node. Made and used on the main loop."""

    def __init__(
        self,
        identity: Identity,
        listener: socket.socket,
        handler: NetworkHandler,
        *,
        transport: TransportSettings,
        heartbeat: HeartbeatSettings,
        files: FileReserve,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self.traffic = Traffic()
        self.beats_late = FixedHistogram(DURATIONS_MS)
        """How late heartbeats were sent, in ms; the control loop counts."""
        self._identity = identity
        self._handler = handler
        self._settings = transport
        self._heartbeat = heartbeat
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._dialers: dict[NodeId, Dialer] = {}
        self._known: dict[NodeId, str] = {}
        self._retired: Collection[NodeId] = ()
        self._control: ControlLoop | None = None
        self._peers = AcceptedPeers(
            Purpose.PEER,
            transport,
            on_message=self._on_peer_message,
            on_gone=self._on_gone,
            knows=self._dialers.__contains__,
        )
        self._flushes = FlushQueue(self._loop)
        self.hold_frames = self._flushes.hold
        """Keep what the main loop sends from now on until ``flush_frames``."""
        self.flush_frames = self._flushes.flush
        """One write per connection, now."""
        self._clients = AcceptedClients(
            transport,
            flushes=self._flushes,
            on_message=handler.on_client_message,
            on_gone=handler.on_client_gone,
            waits=handler.client_waits,
        )
        self._founders = AcceptedClients(
            replace(transport, client_connections_max=FOUNDERS_MAX),
            on_message=self._on_birth_message,
            on_gone=lambda _: None,
            frame_bytes_max=BIRTH_BYTES_MAX,
        )
        self._last_message: Message | None = None
        self._last_frame = b""
        self._server = Server(listener, files=files, judge=self._judge, adopt=self._adopt)

    # --- set-up ---

    def born(self, identity: Identity, endpoints: Mapping[NodeId, str]) -> None:
        """The node belongs to a cluster: from now on peers are dialled and accepted."""
        assert self._control is None
        self._identity = identity
        self._control = ControlLoop(
            identity,
            self._settings,
            self._heartbeat,
            now_ms=self._now_ms,
            wall_ms=self._wall_ms,
            on_message=self._handler.on_peer_message,
            on_lost=self._on_lost,
            on_listened=self._handler.on_listened,
            on_beat=self.beats_late.observe,
        )
        self.set_peers(endpoints)

    def set_peers(self, endpoints: Mapping[NodeId, str], retired: Collection[NodeId] = ()) -> None:
        """Set the other nodes and their addresses, which may change (S0.7), and those that have
        left the cluster (M27). What the peers that are not among them any more have here ends."""
        self._retired = retired
        others = {node: at for node, at in endpoints.items() if node != self._identity.node}
        if others == self._known or self._control is None:
            return
        for gone in [peer for peer in self._known if peer not in others]:
            self._end_peer(gone, self._control, ending(gone, is_retired=gone in retired))
        # A peer that says where it is (Dialer.hurry) is dialled there until it is said anew.
        moved = {peer: at for peer, at in others.items() if at != self._known.get(peer)}
        self._known = others
        for peer, endpoint in moved.items():
            dialer = self._dialers.get(peer)
            if dialer is not None:
                dialer.endpoint = endpoint
                continue
            self._dialers[peer] = Dialer(
                peer,
                endpoint,
                purpose=Purpose.PEER,
                identity=self._identity,
                settings=self._settings,
                on_connected=self._handler.on_peer_connected,
                on_lost=self._on_bulk_lost,
                flushes=self._flushes,
                on_refused=self._on_refused,
            )
        self._control.set_peers(moved)

    def _end_peer(self, peer: NodeId, control: ControlLoop, why: Refusal) -> None:
        control.end_peer(peer, why)
        self._peers.end(peer, why)
        self.traffic.forget(peer)
        dialer = self._dialers.pop(peer, None)
        if dialer is not None:
            task = self._loop.create_task(dialer.close())
            self._tasks[task] = None
            task.add_done_callback(self._adopted)

    def set_heartbeats(
        self, content: Mapping[NodeId, tuple[bytes, bool]], expected: Expected = NOTHING_EXPECTED
    ) -> None:
        """Set what heartbeats say from now on, and which of the peers' say nothing new; also
        shows that the main loop turns."""
        if self._control is not None:
            self._control.set_content(content, expected)

    def client_samples(self) -> Iterable[Sample]:
        """Metrics of the connections of clients."""
        return self._clients.samples()

    def pause_clients(self, *, paused: bool) -> None:
        """Back-pressure on the writes of clients while the disk is behind."""
        self._clients.pause(paused=paused)

    async def close(self) -> None:
        """Close everything; no task and no thread is left."""
        await self._server.close()
        if self._tasks:  # adopted at this moment: they are closed with the others below
            await asyncio.wait(tuple(self._tasks))
        # The engine still runs: from here on its control messages find nobody.
        control, self._control = self._control, None
        for dialer in tuple(self._dialers.values()):
            await dialer.close()
        if control is not None:
            await control.close()
        await self._clients.close()
        await self._founders.close()
        await self._peers.close()

    # --- ports.Transport ---

    def send(self, to: NodeId, message: Message) -> None:
        """Bulk; dropped when the peer is away or its queue is full."""
        dialer = self._dialers.get(to)
        if dialer is None:
            return
        if message is not self._last_message:  # the same object goes to several replicas
            self._last_message, self._last_frame = message, encode_frame_of(message)
        frame = self._last_frame
        sent = dialer.send(frame)
        self.traffic.sent(to, message, len(frame), dropped=not sent)

    def send_control(self, to: NodeId, message: Message) -> None:
        """Elections and node-level messages, on their own connection and thread."""
        if self._control is not None:
            self._control.send(to, message)

    def reply(self, client: int, message: Message) -> None:
        """Answer a client connection; what fits no frame is refused, never the end of the node."""
        try:
            frame = encode_frame_of(message)
        except LocalProtocolError as error:
            request_id: int | None = getattr(message, "request_id", None)
            if request_id is None:
                raise
            frame = encode_frame_of(Failed(request_id, PayloadTooLargeError.code, str(error)))
        self._clients.send(client, frame)
        if isinstance(message, Failed) and message.code == OverloadedError.code:
            self._clients.rest(client)

    def end_client(self, client: int, reason: str) -> None:
        """Say Goodbye to a client that sent what cannot be used."""
        self._clients.end(client, reason)

    # --- accepting ---

    def _judge(self, hello: Hello) -> Refusal | None:
        return judge_dialler(
            hello, self._identity, self._known, self._retired, self._handler.on_stranger
        )

    def _adopt(self, accepted: socket.socket, hello: Hello) -> None:
        purpose = Purpose(hello.purpose)
        if purpose is Purpose.CONTROL:
            if self._control is None:
                accepted.close()
            else:
                self._control.adopt(accepted, hello)
            return
        if purpose is Purpose.PEER:
            dialer = self._dialers.get(NodeId(hello.node))
            if dialer is not None:
                dialer.hurry(hello.advertise)
            adopting = self._peers.adopt(accepted, hello, self._identity)
        elif purpose in CLIENT_LANES:
            adopting = self._clients.adopt(accepted, hello, self._identity)
        else:
            adopting = self._founders.adopt(accepted, hello, self._identity)
        task = self._loop.create_task(adopting)
        self._tasks[task] = None
        task.add_done_callback(self._adopted)

    def _adopted(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # the socket broke while it was adopted: the peer dials again

    def _on_peer_message(self, peer: NodeId, message: Message) -> None:
        self._handler.on_peer_message(peer, message, self._now_ms())

    def _on_gone(self, peer: NodeId) -> None:
        self._on_bulk_lost(peer, False)
        dialer = self._dialers.get(peer)
        if dialer is not None:
            dialer.hurry()

    def _on_refused(self, reason: CloseReason) -> None:
        if reason.by_peer and reason.code == GoodbyeCode.RETIRED:
            self._handler.on_retired()

    def _on_bulk_lost(self, peer: NodeId, refused: bool) -> None:  # noqa: FBT001 - a callback's shape
        if self._control is not None:
            self._control.tell_signs()  # a heartbeat from before the loss is no sign after it
        self._on_lost(peer, refused)

    def _on_lost(self, peer: NodeId, refused: bool) -> None:  # noqa: FBT001 - a callback's shape
        if self._control is not None:
            self._control.expect_nothing()
        self._handler.on_peer_lost(peer, refused=refused)

    def _on_birth_message(self, founder: int, message: Message) -> None:
        answer = self._handler.on_birth_message(message)
        if answer is not None:
            self._founders.send(founder, encode_frame_of(answer))
