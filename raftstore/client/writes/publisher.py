"""Drives writes over links: one encoded frame to every replica of the channel, then its answer.

The rules of outcomes are in ``publishing``; here are frames, timers and back-pressure. The frame is
encoded once per attempt and goes to the leader first: if that cannot take it, nobody gets it.
Replicas without a connection are listed in ``relay_to``, so that the leader hands them the payload.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from functools import partial

from raftstore.client.cluster.topology import Leader
from raftstore.client.context import Context
from raftstore.client.writes.command_writes import SHARED_BYTES_MAX, CommandWrites
from raftstore.client.writes.in_flight import ByteBudget
from raftstore.client.writes.kinds import ROW_OVERHEAD_BYTES, RecordEnd, RowWrite, Running, Write
from raftstore.client.writes.publishing import Finished, Publishing, PublishTimes, SendAttempt, Wait
from raftstore.client.writes.row_writes import RowWrites
from raftstore.client.writes.session import GUID_LIFE_MS, SESSION_BYTES, ProducerSession
from raftstore.config import PAYLOAD_BYTES_MAX, ROWS_PER_RECORD_MAX
from raftstore.errors import (
    ArgumentError,
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
from raftstore.policy.levels import SHARED_COMMANDS_LEVEL, lowest_level
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.types import DIGEST_BYTES, ChannelId, Guid, NodeId, RecordKind, guid_text


@dataclass(slots=True)
class _ChannelState:
    """Records of this client under way in one channel."""

    session: ProducerSession
    budget: ByteBudget
    rows: RowWrites
    commands: CommandWrites
    running: dict[Guid, Running] = field(default_factory=dict)


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

    async def publish(
        self, write: Write, deadline_ms: int, *, repeats: Guid | None = None
    ) -> PubAck:
        """Publish and return the ack; raise the RequestError that states the outcome.

        ``repeats``: the guid of an earlier write, whose outcome is not known: this is the same one.
        """
        _check_size(write)
        if not self._topology.replicas_of(write.channel):
            raise _dropped(self._topology.name_of(write.channel))
        channel = self._channel(write.channel)
        size = len(write.payload)
        await self._admit(channel, write.channel, size, deadline_ms)
        try:
            if repeats is not None:
                return await self._repeat(repeats, write, deadline_ms)
            guid = await self._reserve_guid(write, channel, deadline_ms)
            return await self._publish(guid, write, deadline_ms)
        finally:
            self._release(channel, size)

    async def write_row(self, write: RowWrite, deadline_ms: int) -> PubAck:
        """Write one row, which may share its record with others; raise as ``publish`` does."""
        if not self._topology.replicas_of(write.channel):
            raise _dropped(self._topology.name_of(write.channel))
        channel = self._channel(write.channel)
        await self._admit(channel, write.channel, write.size, deadline_ms)
        try:
            self._check_open(write.channel, channel)
            if not self._are_links_ready(write.channel):
                await self._prepare_in_time(write.channel, channel, deadline_ms)
            return await channel.rows.write(write, deadline_ms)
        finally:
            self._release(channel, write.size)

    async def command(
        self, channel_id: ChannelId, payload: bytes, deadline_ms: int
    ) -> tuple[PubAck, str]:
        """Have a command of a state machine applied, which may share its record with others.

        Returns its ack and its name; raises as ``publish`` does.
        """
        if not self._topology.replicas_of(channel_id):
            raise _dropped(self._topology.name_of(channel_id))
        if len(payload) > SHARED_BYTES_MAX or not self._may_share_commands():
            write = Write(channel_id, RecordKind.MACHINE_COMMAND, payload, 1)
            ack = await self.publish(write, deadline_ms)
            return ack, guid_text(channel_id, ack.guid)
        channel = self._channel(channel_id)
        size = len(payload) + ROW_OVERHEAD_BYTES
        await self._admit(channel, channel_id, size, deadline_ms)
        try:
            self._check_open(channel_id, channel)
            if not self._are_links_ready(channel_id):
                await self._prepare_in_time(channel_id, channel, deadline_ms)
            return await channel.commands.write(payload, deadline_ms)
        finally:
            self._release(channel, size)

    def _check_open(self, channel_id: ChannelId, channel: _ChannelState) -> None:
        """Raise unless client and table are still there, behind a wait for room."""
        if self._is_closed:
            raise _closed()
        if self._channels.get(channel_id) is not channel:
            raise _dropped(self._topology.name_of(channel_id))

    def _may_share_commands(self) -> bool:
        """Whether every node reads records that commands share."""
        nodes = self._topology.nodes.values()
        return lowest_level(info.level for info in nodes) >= SHARED_COMMANDS_LEVEL

    async def _repeat(self, guid: Guid, write: Write, deadline_ms: int) -> PubAck:
        """Publish under the guid of an earlier call, perhaps of another process."""
        channel = self._channel(write.channel)
        self.check_over(write.channel, guid)
        if not self._are_links_ready(write.channel):
            await self._prepare_in_time(write.channel, channel, deadline_ms)
        return await self._publish(guid, write, deadline_ms, is_repeated=True)

    def check_over(self, channel: ChannelId, guid: Guid) -> None:
        """Raise ArgumentError while the record with this guid is under way here."""
        if guid in self._channel(channel).running:
            raise ArgumentError(
                f"the write {guid_text(channel, guid)} is under way; await it, and repeat it once "
                "its outcome is unknown"
            )

    async def _publish(
        self, guid: Guid, write: Write, deadline_ms: int, *, is_repeated: bool = False
    ) -> PubAck:
        done: asyncio.Future[PubAck | RequestError] = asyncio.get_running_loop().create_future()
        running = self.new_record(guid, write, deadline_ms, done.set_result)
        if is_repeated:
            running.state.doubt("what became of an earlier call with its guid is not known")
        try:
            self.start(running)
            result = await done
        finally:
            self.forget(running)
        if isinstance(result, RequestError):
            result.guid = guid_text(write.channel, guid)
            raise result
        return result

    async def _admit(
        self, channel: _ChannelState, channel_id: ChannelId, size: int, deadline_ms: int
    ) -> None:
        """Wait until there is room for the bytes, in the channel and in the client."""
        await self._acquire(channel.budget, channel_id, size, "the channel", deadline_ms)
        try:
            await self._acquire(self._budget, channel_id, size, "the client", deadline_ms)
        except BaseException:
            channel.budget.release(size)
            raise

    def _release(self, channel: _ChannelState, size: int) -> None:
        self._budget.release(size)
        channel.budget.release(size)

    async def _acquire(
        self, budget: ByteBudget, channel: ChannelId, size: int, whose: str, deadline_ms: int
    ) -> None:
        if budget.try_acquire(size):
            return
        try:
            async with asyncio.timeout_at(deadline_ms / 1000):
                await budget.acquire(size)
        except TimeoutError:
            raise RequestTimeoutError(
                f"{self._topology.name_of(channel)}: nothing was sent before the deadline, "
                f"{whose} has {budget.used} bytes in flight, the limit is {budget.bytes_max}; "
                "write less at once"
            ) from None

    async def _reserve_guid(self, write: Write, channel: _ChannelState, deadline_ms: int) -> Guid:
        if not self._are_links_ready(write.channel):
            await self._prepare_in_time(write.channel, channel, deadline_ms)
        guid = channel.session.try_reserve(self._now_ms())
        if guid is not None:
            return guid
        try:
            async with asyncio.timeout_at(deadline_ms / 1000):
                return await channel.session.reserve(self._now_ms())
        except TimeoutError:
            raise self._nothing_sent(write.channel, channel) from None

    async def _prepare_in_time(
        self, channel_id: ChannelId, channel: _ChannelState, deadline_ms: int
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline_ms / 1000):
                await self._prepare_links(channel_id)
        except TimeoutError:
            raise self._nothing_sent(channel_id, channel) from None

    def _nothing_sent(self, channel_id: ChannelId, channel: _ChannelState) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"{self._topology.name_of(channel_id)}: nothing was sent before the deadline, "
            f"{len(channel.running)} records are waiting for their outcome; write less at once"
        )

    def close(self) -> None:
        """End every write that has no outcome: UNKNOWN if something was sent."""
        self._is_closed = True
        for channel in self._channels.values():
            channel.rows.close(_closed())
            channel.commands.close(_closed())
            for running in list(channel.running.values()):
                running.state.give_up(_closed())
                self._drive(running)

    # --- row_writes.RecordSender -----------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Nothing is begun any more."""
        return self._is_closed

    def new_record(self, guid: Guid, write: Write, deadline_ms: int, on_end: RecordEnd) -> Running:
        """Return a record that is not sent yet."""
        settings = self._settings
        name = self._topology.name_of(write.channel)
        state = Publishing(
            guid=guid,
            write_name=guid_text(write.channel, guid),
            what=name,
            times=PublishTimes(
                deadline_ms=min(deadline_ms, self._now_ms() + GUID_LIFE_MS),
                last_call_ms=settings.last_call_ms,
                grace_ms=settings.grace_ms,
                suspect_ms=settings.suspect_ms,
                resend_ms=settings.resend_ms,
                seek_ms=settings.seek_ms,
            ),
            backoff=self._context.backoff(),
        )
        if self._is_closed:
            state.give_up(_closed())
        digest = hashlib.blake2b(write.payload, digest_size=DIGEST_BYTES).digest()
        return Running(write, name, digest, state, on_end)

    def start(self, running: Running) -> None:
        """Publish it; ``on_end`` is called when it has its outcome, perhaps before this returns."""
        channel = self._channels.get(running.write.channel)
        if channel is not None:  # else its table was dropped meanwhile, which ends it
            channel.running[running.state.guid] = running
        self._drive(running)

    def forget(self, running: Running) -> None:
        """Stop where it is: it has its outcome, or nobody waits for that any more."""
        self._end(running, expired=False)

    def _end(self, running: Running, *, expired: bool) -> None:
        if running.is_over:
            return
        running.is_over = True
        if running.timer is not None:
            running.timer.cancel()
        guid = running.state.guid
        channel = self._channels.get(running.write.channel)
        if channel is not None:
            del channel.running[guid]
            channel.session.release(guid, expired=expired)

    # --- news ------------------------------------------------------------------------------------

    def on_publish_answer(self, node: NodeId, message: PubAck | PubReject) -> None:
        """A node answered; ``node`` is who the connection was opened to, not who claims to be."""
        channel = self._channels.get(message.channel)
        if channel is not None and isinstance(message, PubAck):
            channel.session.on_acked(message.last_seq)
        running = None if channel is None else channel.running.get(message.guid)
        if running is None:
            return  # an outcome nobody waits for any more
        if isinstance(message, PubAck):
            running.state.on_ack(message)
        else:
            # A late answer to an earlier attempt says nothing of the node addressed now: one
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
        """Attempts sent to this node and not answered are in doubt now (S5.6)."""
        now_ms = self._now_ms()
        for running in self._all_running():
            running.state.on_lost(node, reason, now_ms)
            self._drive(running)

    def _on_leader_change(self, channel_id: ChannelId) -> None:
        channel = self._channels.get(channel_id)
        if channel is None:
            return
        is_dropped = not self._topology.replicas_of(channel_id)
        if is_dropped:
            channel.rows.close(_dropped(self._topology.name_of(channel_id)))
            channel.commands.close(_dropped(self._topology.name_of(channel_id)))
        for running in list(channel.running.values()):
            self._drive(running)
        if is_dropped:
            self._channels.pop(channel_id, None)  # all of them have their outcome

    def _learn(self, addressed: Leader, reject: PubReject) -> None:
        """Take what a refusal says about the leader."""
        channel, now_ms = reject.channel, self._now_ms()
        if reject.code in (NotLeaderError.code, UnknownChannelError.code):
            self._topology.refute(channel, addressed, now_ms)
            self._discovery.want_leaders()
        if reject.leader_hint is not None:
            self._topology.hint(channel, Leader(reject.leader_hint, reject.term), now_ms)

    # --- driving ---------------------------------------------------------------------------------

    def _drive(self, running: Running) -> None:
        """Do what the state asks for until it waits or is finished."""
        if running.is_over:
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
                    self._end(running, expired=isinstance(result, GuidExpiredError))
                    running.on_end(result)
                    return
                case SendAttempt(leader, attempt):
                    self._send(running, leader, attempt, now_ms)
                case Wait(until_ms, wants_leader):
                    loop = asyncio.get_running_loop()
                    running.timer = loop.call_at(until_ms / 1000, self._drive, running)
                    if wants_leader:
                        self._discovery.want_leaders()
                    return

    def _send(self, running: Running, leader: Leader, attempt: int, now_ms: int) -> None:
        """Send one attempt; report ``unsent`` only if not a byte of it left."""
        link = self._links.of(leader.node)
        if link is None or not link.is_open:
            if link is not None:
                link.start()
            reason = "its address is not known" if link is None else link.last_error
            running.state.unsent(leader, reason, now_ms)
            return
        if running.state.is_certainly_not_applied:
            running.after_seq = self._channel(running.write.channel).session.after_seq
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
        self, running: Running, leader: Leader, attempt: int, replicas: tuple[NodeId, ...]
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
                after_seq=running.after_seq,
                is_settled=running.state.is_certainly_not_applied,
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

    def _channel(self, channel: ChannelId) -> _ChannelState:
        state = self._channels.get(channel)
        if state is None:
            session = ProducerSession(partial(self._context.token_bytes, SESSION_BYTES))
            rows = RowWrites(
                partial(self._topology.name_of, channel),
                session,
                self,
                self._now_ms,
                self._settings.last_call_ms,
            )
            commands = CommandWrites(
                channel,
                partial(self._topology.name_of, channel),
                session,
                self,
                self._now_ms,
                self._settings.last_call_ms,
            )
            budget = ByteBudget(self._settings.channel_bytes_max)
            state = _ChannelState(session, budget, rows, commands)
            self._channels[channel] = state
        return state

    def _all_running(self) -> list[Running]:
        return [
            running for channel in self._channels.values() for running in channel.running.values()
        ]


def _closed() -> UnavailableError:
    return UnavailableError("the client was closed; connect again")


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
