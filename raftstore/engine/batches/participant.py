"""Micro-batches at the channels they touch: staged rows come in, decided batches are applied.

A decided batch arrives from the coordinator, late, twice or from an earlier leader of it; that does
no harm, for it carries what was decided once and for all. The channel's leader makes a record of
it, and every replica judges that record alike when it is applied (S10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from raftstore.config import BatchSettings
from raftstore.engine.batches.batch_sender import BatchSender
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.channel.applied_state import AppliedState
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.reads.reader import Reader
from raftstore.errors import AttemptClosedError, OverloadedError, Refusal
from raftstore.ports.tables import TableStore
from raftstore.protocol.batches import (
    APPLIED,
    BUSY,
    MISSING,
    NOT_LEADER,
    NOT_YET,
    STAGED,
    ApplyBatch,
    ApplyBatchReply,
    AskStaged,
    ChannelPart,
    ResolvedWriter,
    ResolveWriter,
    StagedReply,
)
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.staged import apply_of, decode_header, encode_apply
from raftstore.state_machines.batches.staging import (
    live_chunks,
    oldest,
    read_head,
    seqs_of,
    staged_of,
)
from raftstore.state_machines.batches.txn_records import Drop, encode_step
from raftstore.types import (
    ChannelId,
    NodeId,
    RecordKind,
    Role,
    Seq,
    channel_id,
    channel_partition,
    channel_table,
)

WRITERS_ASKED_MAX: Final = 256
"""Writers whose floors a channel asks for at a time."""
FLOORS_MAX: Final = 10_000
"""Floors remembered per channel to refuse late chunks early; what is forgotten is dropped later."""
REFS_PER_TURN: Final = 2_048
"""Entries of the index of chunks counted in one turn of the loop."""
CHANNELS_PER_TURN: Final = 32
"""Channels whose chunks are looked at in one turn of the loop."""


@dataclass(slots=True)
class _Led:
    """Volatile state of a channel's leader about its batches; gone with the leadership."""

    runner: ChannelRunner
    state: AppliedState
    applying: dict[int, dict[NodeId, ApplyBatch]] = field(default_factory=dict)
    """Commit number -> who asked for it, by node: a record of it is on its way."""
    floors: dict[str, int] = field(default_factory=dict)
    dropping: set[str] = field(default_factory=set)
    seen: dict[str, int] = field(default_factory=dict)
    """Writers that had staged chunks when they were last looked at, and of which attempt."""
    look_ms: int = 0
    """When old chunks are looked for next."""
    chunks: int = 0
    staged_bytes: int = 0
    counted_to: bytes | None = b""
    """How far the index was counted; None: all of it."""
    count: tuple[int, int] = (0, 0)
    is_full: bool = False
    """A chunk was refused since the last look: what was admitted may never have been staged."""


class ChannelBatches:
    """Staging and applying at the channels that one node leads."""

    def __init__(
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        tables: TableStore,
        controller: CatalogController,
        reader: Reader,
        sender: BatchSender,
        settings: BatchSettings,
    ) -> None:
        self._channels = channels
        self._tables = tables
        self._controller = controller
        self._reader = reader
        self._sender = sender
        self._settings = settings
        self._led: dict[ChannelId, _Led] = {}
        self.deadlines: Deadlines[ChannelId] = Deadlines()
        """Of the next look at old chunks, by channel."""

    # --- staging ----------------------------------------------------------------------------------

    def stage_refusal(self, runner: ChannelRunner, message: PubMsg) -> Refusal | None:
        """Why the leader takes no such chunk now; the payload is known to be well-formed."""
        header, _ = decode_header(message.payload)
        # Levels: an older node reads no header with a lifetime.
        if header.ttl_ms:
            too_new = self._controller.refusal_of(RecordKind.ROWS_WITH_TTL)
            if too_new is not None:
                return too_new
        led = self._led.get(runner.channel)
        if led is None:
            return None
        floor = led.floors.get(header.writer, 0)
        if header.attempt <= floor:  # it would be garbage at once
            text = (
                f"attempt {header.attempt} of writer {header.writer!r} has ended (up to {floor} "
                "they have); its rows are not taken any more"
            )
            return Refusal(AttemptClosedError, text)
        limits = self._settings
        if led.chunks >= limits.chunks_max:
            text = f"{led.chunks} of {limits.chunks_max} chunks are staged in {runner.name}"
        elif led.staged_bytes + len(message.payload) > limits.staged_bytes_max:
            text = (
                f"{led.staged_bytes} of {limits.staged_bytes_max} bytes are staged in {runner.name}"
            )
        else:
            if message.attempt == 0:  # a retry is counted already
                led.chunks += 1
                led.staged_bytes += len(message.payload)
            return None
        led.is_full = True
        return Refusal(OverloadedError, f"{text} (batch.chunks_max, batch.staged_bytes_max); retry")

    # --- before a batch is decided ----------------------------------------------------------------

    def on_ask_staged(self, sender: NodeId, message: AskStaged, now_ms: int) -> None:
        """A coordinator wants to decide a batch that touches a channel of this node."""
        runner = self._channels.get(message.target)
        if runner is None or not _is_of_target(message):
            return  # S0.8: a dropped table; nobody waits for it
        led = self._led.get(message.target)
        if (
            led is None
            or not runner.core.leader_is_ready
            or self._reader.serving_refusal(runner) is not None
        ):
            self._tell_staged(sender, message, NOT_LEADER, hint=runner.elector.leader)
        elif _found(led, message) == message.part:
            self._tell_staged(sender, message, STAGED)
        else:
            # What was acknowledged may not be applied here yet, or by a newer leader (S7.1).
            confirmed = partial(self._confirmed, sender, message)
            runner.request_read(confirmed, _asked_again, now_ms)

    def _confirmed(self, sender: NodeId, message: AskStaged, _: Seq) -> None:
        """The state here holds all that was committed when the question came."""
        led = self._led.get(message.target)
        if led is not None:  # else it is asked again
            found = _found(led, message)
            reason = STAGED if found == message.part else MISSING
            self._tell_staged(sender, message, reason, found=found)

    def _tell_staged(
        self,
        to: NodeId,
        asked: AskStaged,
        reason: str,
        *,
        found: ChannelPart | None = None,
        hint: NodeId | None = None,
    ) -> None:
        reply = StagedReply(
            channel=asked.channel,
            term=asked.term,
            target=asked.target,
            token=asked.token,
            reason=reason,
            chunks=0 if found is None else found.chunks,
            rows=0 if found is None else found.rows,
            leader_hint=hint,
        )
        self._sender.deliver(to, reply)

    # --- applying ---------------------------------------------------------------------------------

    def on_apply_batch(self, sender: NodeId, message: ApplyBatch, now_ms: int) -> None:
        """The coordinator decided a batch that touches a channel of this node."""
        runner = self._channels.get(message.target)
        if runner is None or not _is_of_target(message):
            return  # S0.8: a dropped table; nobody waits for it
        led = self._led.get(message.target)
        if (
            led is None
            or not runner.core.leader_is_ready
            or self._reader.serving_refusal(runner) is not None
        ):
            self._reply(sender, message, NOT_LEADER, 0, runner)
            return
        applied = read_head(led.state).n
        if message.n <= applied:
            self._reply(sender, message, APPLIED, applied, runner)
            return
        if message.n in led.applying:
            led.applying[message.n][sender] = message
            return
        # Rule 4: only the next one along the chain; the record itself is judged again when applied.
        if message.prev != applied:
            self._reply(sender, message, NOT_YET, applied, runner)
            return
        led.applying[message.n] = {sender: message}

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            del at_ms
            if isinstance(answer, PubReject):
                for node, asked in led.applying.pop(message.n, {}).items():
                    self._reply(node, asked, BUSY, applied, runner)

        self._controller.proposals.propose(
            runner,
            encode_apply(apply_of(message)),
            done,
            now_ms,
            kind=RecordKind.BATCH_APPLY,
            rows=seqs_of(message.part.rows),
        )

    def on_applied(self, runner: ChannelRunner, now_ms: int) -> None:
        """Records of a channel were applied here: notify the coordinator of batches among them."""
        led = self._led.get(runner.channel)
        if led is None or not led.applying:
            return
        applied = read_head(led.state).n
        for n in [n for n in led.applying if n <= applied]:
            for node, asked in led.applying.pop(n).items():
                self._reply(node, asked, APPLIED, applied, runner)
            self._recount(led, now_ms)

    def _reply(
        self, to: NodeId, asked: ApplyBatch, reason: str, applied: int, runner: ChannelRunner
    ) -> None:
        reply = ApplyBatchReply(
            channel=asked.channel,
            term=asked.term,
            target=asked.target,
            n=asked.n,
            applied=applied,
            reason=reason,
            leader_hint=runner.elector.leader,
        )
        self._sender.deliver(to, reply)

    # --- garbage ----------------------------------------------------------------------------------

    def on_resolved(self, message: ResolvedWriter, now_ms: int) -> None:
        """Rule 6: the coordinator's state says which attempts are finished for this channel.

        Late and doubled answers do no harm: a floor never falls.
        """
        led = self._led.get(message.target)
        if led is None or channel_table(message.target) != channel_table(message.channel):
            return
        for writer, reported in message.floors:
            floor = max(reported, led.floors.pop(writer, 0))
            led.floors[writer] = floor  # the newest last
            seen = led.seen.get(writer)
            if seen is not None and seen <= floor and writer not in led.dropping:
                self._drop(led, writer, floor, now_ms)
        while len(led.floors) > FLOORS_MAX:
            del led.floors[next(iter(led.floors))]

    def _drop(self, led: _Led, writer: str, floor: int, now_ms: int) -> None:
        led.dropping.add(writer)

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            del answer
            led.dropping.discard(writer)
            self._recount(led, at_ms)

        payload = encode_step(Drop(writer, floor))
        self._controller.proposals.propose(led.runner, payload, done, now_ms, kind=RecordKind.TXN)

    def _look(self, led: _Led) -> None:
        """Ask about writers whose chunks were here at the look before this one already."""
        found = {ref.writer: ref.attempt for ref in oldest(led.state, WRITERS_ASKED_MAX)}
        old = tuple(w for w, attempt in found.items() if led.seen.get(w) == attempt)
        led.seen = found
        if not old:
            return
        coordinator = channel_id(channel_table(led.runner.channel), 0)
        leader, term = self._controller.leader_of(coordinator)
        if leader is not None:
            question = ResolveWriter(
                channel=coordinator, term=term, target=led.runner.channel, writers=old
            )
            self._sender.deliver(leader, question)

    # --- leaderships and timers -------------------------------------------------------------------

    def leader_changed(self, runner: ChannelRunner, now_ms: int) -> None:
        """The channel's leader, role or term is another."""
        if runner.elector.role is not Role.LEADER:
            self._forget(runner.channel)
        elif runner.channel not in self._led:
            state = AppliedState(self._tables, runner.channel)
            led = _Led(runner, state, look_ms=now_ms + self._settings.ask_ms)
            self._led[runner.channel] = led
            self._recount(led, now_ms)

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped."""
        self._forget(runner.channel)

    def _forget(self, channel: ChannelId) -> None:
        self._led.pop(channel, None)
        self.deadlines.cancel(channel)

    def on_timer(self, now_ms: int) -> None:
        """Look after chunks that nobody asks for, a bounded number of channels at a time."""
        for channel in self.deadlines.due(now_ms, CHANNELS_PER_TURN):
            led = self._led[channel]
            if led.counted_to is not None:
                self._count(led)
            elif led.look_ms <= now_ms:
                self._look(led)
                led.look_ms = now_ms + self._settings.ask_ms
                if led.is_full:
                    led.is_full, led.counted_to, led.count = False, b"", (0, 0)
            is_counting = led.counted_to is not None
            self.deadlines.push(channel, now_ms + 1 if is_counting else led.look_ms)

    def _recount(self, led: _Led, now_ms: int) -> None:
        """Chunks were taken away, or nothing is known yet: count what is there, in turns."""
        channel = led.runner.channel
        if self._led.get(channel) is not led:
            return  # the leadership ended meanwhile
        if led.counted_to is None or channel not in self.deadlines:
            self.deadlines.push(channel, now_ms)
        led.counted_to, led.count = b"", (0, 0)

    def _count(self, led: _Led) -> None:
        """Count some more of the index. What comes meanwhile is counted when it is admitted."""
        assert led.counted_to is not None
        refs = live_chunks(led.state, led.counted_to, REFS_PER_TURN)
        chunks, size = led.count
        led.count = (chunks + len(refs), size + sum(ref.size for ref in refs))
        if len(refs) < REFS_PER_TURN:
            led.chunks, led.staged_bytes = led.count
            led.counted_to = None
        else:
            led.counted_to = refs[-1].key


def _is_of_target(message: ApplyBatch | AskStaged) -> bool:
    """Whether coordinator, target and part are of one table and one partition of it."""
    target = message.target
    return (
        channel_table(target) == channel_table(message.channel)
        and channel_partition(target) == message.part.partition
    )


def _asked_again(*_: object) -> None:
    """No quorum confirmed this leader: the coordinator asks again, here or the next one."""


def _found(led: _Led, asked: AskStaged) -> ChannelPart:
    return staged_of(asked.writer, asked.attempt, asked.winners, asked.part, led.state)
