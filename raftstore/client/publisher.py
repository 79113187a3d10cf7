"""Drives writes over links: one encoded frame to every replica of the channel, then its answer.

The rules of outcomes are in ``publishing``; here are frames, timers and back-pressure. The frame is
encoded once per attempt and goes to the leader first: if that cannot take it, nobody gets it.
Replicas without a connection are listed in ``relay_to``, so that the leader hands them the payload.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field

from raftstore.client.context import Context
from raftstore.client.fates import guid_text
from raftstore.client.in_flight import ByteBudget
from raftstore.client.publishing import (
    Finished,
    Publishing,
    PublishTimes,
    SendAttempt,
    Wait,
)
from raftstore.client.session import GUID_LIFE_MS, ProducerSession
from raftstore.client.topology import Leader
from raftstore.config import PAYLOAD_BYTES_MAX, ROWS_PER_RECORD_MAX
from raftstore.errors import (
    GuidExpiredError,
    NotLeaderError,
    OverloadedError,
    PayloadTooLargeError,
    RequestError,
    RequestTimeoutError,
    TransportError,
    UnavailableError,
    UnknownChannelError,
    UnknownTableError,
)
from raftstore.messages import PubAck, PubMsg, PubReject
from raftstore.types import DIGEST_BYTES, ChannelId, Guid, NodeId, RecordKind
from raftstore.wire.codec import encode_frame_of


@dataclass(frozen=True, slots=True)
class Write:
    """What shall be published on a channel."""

    channel: ChannelId
    kind: RecordKind
    payload: bytes
    rows: int


@dataclass(slots=True, eq=False)
class _Running:
    """A publish between its guid and its outcome."""

    write: Write
    name: str
    """Of the channel, as it was called when this began."""
    digest: bytes
    state: Publishing
    done: asyncio.Future[PubAck | RequestError]
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _ChannelState:
    """What this client has going on in one channel."""

    session: ProducerSession
    budget: ByteBudget
    running: dict[Guid, _Running] = field(default_factory=dict)


class Publisher:
    """All writes of one client; see the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._topology = context.topology
        self._links = context.links
        self._discovery = context.discovery
        self._settings = context.settings
        self._now_ms = context.now_ms
        self._channels: dict[ChannelId, _ChannelState] = {}
        self._budget = ByteBudget(context.settings.client_bytes_max)
        self._is_closed = False
        context.topology.on_leader_change(self._on_leader_change)

    # --- publishing ------------------------------------------------------------------------------

    async def publish(self, write: Write, deadline_ms: int) -> PubAck:
        """Publish and return the ack; raise the RequestError that tells the outcome."""
        _check_size(write)
        if not self._topology.replicas_of(write.channel):
            raise _dropped(self._topology.name_of(write.channel))
        channel = self._channel(write.channel)
        size = len(write.payload)
        await self._acquire(channel.budget, write, "the channel", deadline_ms)
        try:
            await self._acquire(self._budget, write, "the client", deadline_ms)
            try:
                guid = await self._reserve_guid(write, channel, deadline_ms)
                return await self._publish(guid, write, channel, deadline_ms)
            finally:
                self._budget.release(size)
        finally:
            channel.budget.release(size)

    async def _publish(
        self, guid: Guid, write: Write, channel: _ChannelState, deadline_ms: int
    ) -> PubAck:
        running = self._new_running(guid, write, deadline_ms)
        channel.running[guid] = running
        result: PubAck | RequestError | None = None
        try:
            self._drive(running)
            result = await running.done
        finally:
            if running.timer is not None:
                running.timer.cancel()
            del channel.running[guid]
            channel.session.release(guid, expired=isinstance(result, GuidExpiredError))
        if isinstance(result, RequestError):
            result.guid = guid_text(write.channel, guid)
            raise result
        return result

    async def _acquire(
        self, budget: ByteBudget, write: Write, whose: str, deadline_ms: int
    ) -> None:
        size = len(write.payload)
        if budget.try_acquire(size):
            return
        try:
            async with asyncio.timeout_at(deadline_ms / 1000):
                await budget.acquire(size)
        except TimeoutError:
            raise RequestTimeoutError(
                f"{self._topology.name_of(write.channel)}: nothing was sent before the deadline, "
                f"{whose} has {budget.used} bytes in flight, the limit is {budget.bytes_max}; "
                "write less at once"
            ) from None

    async def _reserve_guid(self, write: Write, channel: _ChannelState, deadline_ms: int) -> Guid:
        guid = None
        if self._are_links_ready(write.channel):
            guid = channel.session.try_reserve(self._now_ms())
        if guid is not None:
            return guid
        try:
            async with asyncio.timeout_at(deadline_ms / 1000):
                await self._prepare_links(write.channel)
                return await channel.session.reserve(self._now_ms())
        except TimeoutError:
            raise RequestTimeoutError(
                f"{self._topology.name_of(write.channel)}: nothing was sent before the deadline, "
                f"{len(channel.running)} writes are waiting for their outcome; write less at once"
            ) from None

    def close(self) -> None:
        """End every write that has no outcome: UNKNOWN if something was sent."""
        self._is_closed = True
        for channel in self._channels.values():
            for running in channel.running.values():
                running.state.give_up(UnavailableError("the client was closed; connect again"))
                self._drive(running)

    # --- news ------------------------------------------------------------------------------------

    def on_publish_answer(self, node: NodeId, message: PubAck | PubReject) -> None:
        """A node answered; ``node`` is who the connection was opened to, not who claims to be."""
        channel = self._channels.get(message.channel)
        running = None if channel is None else channel.running.get(message.guid)
        if running is None:
            return  # an outcome nobody waits for any more
        if isinstance(message, PubAck):
            running.state.on_ack(message)
        else:
            # A late word on an earlier attempt says nothing of whoever is addressed now: a node
            # that was deposed and leads again would lose its writers for what it was before.
            refused = running.state.on_reject(node, message, self._now_ms())
            if refused is not None:
                self._learn(refused, message)
        self._drive(running)

    def on_link_open(self, node: NodeId) -> None:
        """Writes that waited for this connection go on."""
        for running in self._all_running():
            running.state.on_reachable(node)
            self._drive(running)

    def on_link_lost(self, node: NodeId, reason: str) -> None:
        """What was sent to this node and not answered is in doubt (S5.6)."""
        now_ms = self._now_ms()
        for running in self._all_running():
            running.state.on_lost(node, reason, now_ms)
            self._drive(running)

    def _on_leader_change(self, channel_id: ChannelId) -> None:
        channel = self._channels.get(channel_id)
        if channel is None:
            return
        for running in list(channel.running.values()):
            self._drive(running)
        if not self._topology.replicas_of(channel_id):
            del self._channels[channel_id]  # dropped: all of them have their outcome

    def _learn(self, addressed: Leader, reject: PubReject) -> None:
        """Take what a refusal says about the leader."""
        channel, now_ms = reject.channel, self._now_ms()
        if reject.code in (NotLeaderError.code, UnknownChannelError.code):
            self._topology.refute(channel, addressed, now_ms)
            self._discovery.want_leaders()
        if reject.leader_hint is not None:
            self._topology.hint(channel, Leader(reject.leader_hint, reject.term), now_ms)

    # --- driving ---------------------------------------------------------------------------------

    def _drive(self, running: _Running) -> None:
        """Do what the state asks for until it waits or is finished."""
        if running.done.done():
            return
        if running.timer is not None:
            running.timer.cancel()
            running.timer = None
        if not self._topology.replicas_of(running.write.channel):
            running.state.give_up(_dropped(running.name))
        while True:
            now_ms = self._now_ms()
            match running.state.poll(now_ms, self._topology.leader_of(running.write.channel)):
                case Finished(result):
                    running.done.set_result(result)
                    return
                case SendAttempt(leader, attempt):
                    self._send(running, leader, attempt, now_ms)
                case Wait(until_ms, wants_leader):
                    loop = asyncio.get_running_loop()
                    running.timer = loop.call_at(until_ms / 1000, self._drive, running)
                    if wants_leader:
                        self._discovery.want_leaders()
                    return

    def _send(self, running: _Running, leader: Leader, attempt: int, now_ms: int) -> None:
        """Send one attempt; report ``unsent`` only if not a byte of it left."""
        link = self._links.of(leader.node)
        if link is None or not link.is_open:
            if link is not None:
                link.start()
            reason = "its address is not known" if link is None else link.last_error
            running.state.unsent(leader, reason, now_ms)
            return
        others = self._topology.replicas_of(running.write.channel)
        frame = self._frame(running, leader, attempt, others)
        try:
            link.send_frame(frame)
        except (TransportError, OverloadedError) as error:
            running.state.unsent(leader, str(error), now_ms)
            return
        running.state.sent(leader, now_ms)
        for node in others:
            other = self._links.of(node)
            # A follower that does not keep up catches up at its own pace; nobody waits for it.
            if node != leader.node and other is not None and other.can_send:
                try:
                    other.send_frame(frame)
                except (TransportError, OverloadedError):
                    continue

    def _frame(
        self, running: _Running, leader: Leader, attempt: int, replicas: tuple[NodeId, ...]
    ) -> bytes:
        write = running.write
        return encode_frame_of(
            PubMsg(
                channel=write.channel,
                term=leader.term,
                leader=leader.node,
                guid=running.state.guid,
                digest=running.digest,
                rows=write.rows,
                kind=write.kind,
                payload=write.payload,
                attempt=attempt,
                relay_to=tuple(
                    node
                    for node in replicas
                    if node != leader.node
                    and ((link := self._links.of(node)) is None or not link.is_open)
                ),
            )
        )

    # --- parts -----------------------------------------------------------------------------------

    def _are_links_ready(self, channel: ChannelId) -> bool:
        """Return whether nothing is to be waited for before a write of this channel."""
        for node in self._topology.replicas_of(channel):
            link = self._links.of(node)
            if link is not None and not link.is_settled:
                return False
        leader = self._topology.leader_of(channel)
        link = None if leader is None else self._links.of(leader.node)
        return link is None or link.can_send or not link.is_open

    async def _prepare_links(self, channel: ChannelId) -> None:
        """First write: connect to all replicas. Later: let the leader's socket drain."""
        fresh = []
        for node in self._topology.replicas_of(channel):
            link = self._links.of(node)
            if link is not None and not link.is_settled:
                fresh.append(asyncio.ensure_future(link.open()))
        if fresh:
            try:
                await asyncio.wait(fresh, timeout=self._settings.warm_up_ms / 1000)
            finally:
                for attempt in fresh:
                    attempt.cancel()
        leader = self._topology.leader_of(channel)
        link = None if leader is None else self._links.of(leader.node)
        if link is not None and link.is_open and not link.can_send:
            try:
                await link.drain()
            except TransportError:
                return  # the publish itself finds out and goes elsewhere

    def _new_running(self, guid: Guid, write: Write, deadline_ms: int) -> _Running:
        settings = self._settings
        name = self._topology.name_of(write.channel)
        state = Publishing(
            guid=guid,
            what=name,
            times=PublishTimes(
                deadline_ms=min(deadline_ms, self._now_ms() + GUID_LIFE_MS),
                last_call_ms=settings.last_call_ms,
                grace_ms=settings.grace_ms,
                suspect_ms=settings.suspect_ms,
                resend_ms=settings.resend_ms,
                seek_ms=2 * settings.refresh_min_ms,
            ),
            backoff=self._context.backoff(),
        )
        if self._is_closed:
            state.give_up(UnavailableError("the client was closed; connect again"))
        digest = hashlib.blake2b(write.payload, digest_size=DIGEST_BYTES).digest()
        return _Running(write, name, digest, state, asyncio.get_running_loop().create_future())

    def _channel(self, channel: ChannelId) -> _ChannelState:
        state = self._channels.get(channel)
        if state is None:
            session = ProducerSession(lambda: secrets.token_bytes(8))
            state = _ChannelState(session, ByteBudget(self._settings.channel_bytes_max))
            self._channels[channel] = state
        return state

    def _all_running(self) -> list[_Running]:
        return [
            running for channel in self._channels.values() for running in channel.running.values()
        ]


def _dropped(name: str) -> UnknownTableError:
    return UnknownTableError(
        f"the table of channel {name} was dropped, and its rows with it; create it again, or write "
        "to another"
    )


def _check_size(write: Write) -> None:
    if len(write.payload) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLargeError(
            f"a record of {len(write.payload)} bytes is over the limit of {PAYLOAD_BYTES_MAX}; "
            "write its rows in several records",
            size=len(write.payload),
            limit=PAYLOAD_BYTES_MAX,
        )
    if not 1 <= write.rows <= ROWS_PER_RECORD_MAX:
        raise PayloadTooLargeError(
            f"a record of {write.rows} rows is outside 1..{ROWS_PER_RECORD_MAX}; "
            "write its rows in several records",
            size=write.rows,
            limit=ROWS_PER_RECORD_MAX,
        )
