"""Catching up with the leader of this term: find the match point, fetch, hand over to steady (S6).

Pull only (NATS-148): at most ``catchup.inflight_requests`` are under way. The next leaves as soon
as a batch was appended, while the disk still writes (at most SYNC_BATCHES_UNDURABLE_MAX batches
ahead of it); one more asks from where the leader said that the answer before it will end. In the
meantime StoreRequests gather in the live queue, unless the end is so far away that they would only
be dropped from it (NATS-145). The way back to steady state is the overlap of the two, or the
leader's word that there is no more (NATS-142, NATS-159).

Nothing is asked from below the base of the own log: it was committed, so every leader's log holds
it, or held it (S6.5). A leader whose base is above the match point says so: only a snapshot helps
then (S6.6), and the question is repeated no more often than one that got no answer.

A ``CatchUp`` belongs to one (term, leader): a change of leader starts from match probing (S6.2).
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from raftstore.config import SLOW_IGNORED
from raftstore.core.chain import digest_of
from raftstore.core.effects import (
    CannotCatchUp,
    CatchUpPaced,
    ReplicaFlapping,
    ReplicaSnapshotNeeded,
)
from raftstore.core.live_queue import LiveEntry, LiveQueue
from raftstore.core.pace import Pace
from raftstore.core.pending import PendingPayloads
from raftstore.core.state import ChannelState
from raftstore.core.statistics import CatchUpView
from raftstore.protocol.records import Record
from raftstore.protocol.replication import (
    CannotComplete,
    CaughtUp,
    MsgSync,
    MsgSyncRequest,
    StoreReject,
)
from raftstore.types import NO_GUID, FollowerMode, Guid, LineageEntry, Seq, Term

SYNC_BATCHES_UNDURABLE_MAX = 4
"""Batches fetched ahead of the disk."""
FAR_LIVE_QUEUES: Final = 4
"""A leader's end that is more live queues of records or bytes away than this is far (NATS-145)."""


class CatchUp:
    """The catching-up side of one follower under one leader."""

    def __init__(self, state: ChannelState, queue: LiveQueue, payloads: PendingPayloads) -> None:
        self._state = state
        self._queue = queue
        self._payloads = payloads
        self._asked: dict[int, MsgSyncRequest] = {}
        """By request id, in the order of the log."""
        self._early: dict[int, MsgSync] = {}
        """Answers that came before the one in front of them: fewer than are asked for."""
        self._ahead_seq = Seq(0)
        """Where the answer to the last of them will end, and one more; 0: not known."""
        self._resend_at_ms = 0
        self._probe_below: Term | None = None
        self._undurable: deque[Seq] = deque()
        self._waits_for_disk = False
        self.trimmed_to = Seq(0)
        """The first seq of the leader's log when it had no more what was asked for; 0: it has."""
        self._sample = (1, 1, 0)
        """Rows, records and bytes of the last answer that had any: what lies ahead is like it."""
        self._begin()

    # --- entering and leaving ---------------------------------------------------------------------

    def enter(self, reason: str, *, seq: Seq = Seq(0), guid: Guid = NO_GUID) -> None:
        """Leave steady state: report the reason to the leader, and ask for history (NATS-062)."""
        state = self._state
        if state.mode is FollowerMode.STEADY and state.leader is not None:
            reject = StoreReject(state.channel, state.term, reason, seq, guid, state.number)
            state.send(state.leader, reject)
            stay_ms = state.flapping.entered(state.now_ms)
            if stay_ms is not None:
                state.emit(ReplicaFlapping(reason, stay_ms))
        self._begin()
        state.set_mode(FollowerMode.CATCHING_UP, reason)
        self.ask()

    def _begin(self) -> None:
        """All that is reported of this catching-up counts from here."""
        state, settings = self._state, self._state.catch_up
        self._pace = Pace(
            state.now_ms, window_ms=settings.slow_window_ms, windows=settings.slow_windows
        )
        self._began_ms = state.now_ms
        self._began_seq: Seq | None = None
        """Where the match point was found."""
        self._end_seq = Seq(0)
        """The leader's end, as far as it reported it."""
        self._taken_bytes = 0
        self.is_far = False
        """The leader's end is so far away that live requests are not queued (NATS-145)."""
        self._cannot_complete = False

    def leave(self) -> None:
        """Back to steady state (NATS-143); whatever still arrives for the request is discarded."""
        state = self._state
        assert state.leader is not None, "steady without a leader"
        assert state.mode is FollowerMode.CATCHING_UP, "a steady follower catches up (S6.3)"
        assert self._queue_continues(), f"a hole behind seq {state.last_seq} (S6.3, S5.4)"
        self._forget_asked()
        self._probe_below = None
        self.is_far = False
        state.set_mode(FollowerMode.STEADY, "caught_up")
        caught_up = CaughtUp(state.channel, state.term, state.verified_seq, state.number)
        state.send(state.leader, caught_up)

    def restart_probing(self) -> None:
        """The connection to the leader is new: what was asked is lost."""
        self._begin()
        self._forget_asked()
        self.ask()

    def _forget_asked(self) -> None:
        """No answer is waited for any more."""
        self._asked.clear()
        self._early.clear()
        self._ahead_seq = Seq(0)
        self._waits_for_disk = False

    # --- asking -----------------------------------------------------------------------------------

    def ask(self) -> None:
        """Send requests until as many are under way as may be, or the disk is behind."""
        state = self._state
        if state.is_removed:
            return  # M13: no leader has history for it
        while state.leader is not None and len(self._asked) < state.catch_up.inflight_requests:
            if len(self._undurable) + len(self._asked) >= SYNC_BATCHES_UNDURABLE_MAX:
                self._waits_for_disk = True
                return
            if not self._asked:
                self._ask_from(*self._where())
            elif self._ahead_seq:
                from_seq, self._ahead_seq = self._ahead_seq, Seq(0)
                self._ask_from(from_seq, ())
            else:
                return

    def _ask_from(self, from_seq: Seq, lineage: tuple[LineageEntry, ...]) -> None:
        state = self._state
        assert state.mode is FollowerMode.CATCHING_UP, "a steady follower asks for history"
        assert from_seq == 0 or from_seq > state.base.seq, (
            f"history is asked for from seq {from_seq}, the base is {state.base.seq} (S6.5)"
        )
        assert self._asked or from_seq <= state.lineage.last_seq + 1, (
            f"history is asked for from seq {from_seq} behind {state.lineage.last_seq} (S2.4)"
        )
        state.sync_request_id += 1
        request = MsgSyncRequest(
            channel=state.channel,
            term=state.term,
            request_id=state.sync_request_id,
            from_seq=from_seq,
            lineage=lineage,
            max_bytes=state.settings.sync_batch_bytes_max,
            replica=state.number,
        )
        self._asked[request.request_id] = request
        self._send_request(request)

    def _where(self) -> tuple[Seq, tuple[LineageEntry, ...]]:
        """After what is verified; else by lineage (S2.6); from the base is the last resort."""
        state = self._state
        # What a late StoreRequest verified at or below the base is no place to go on from.
        if state.verified_seq > state.base.seq:
            return Seq(state.verified_seq + 1), ()
        lineage = state.lineage.newest(below=self._probe_below, above=state.base.seq)
        return (Seq(0), lineage) if lineage else (Seq(state.base.seq + 1), ())

    def _send_request(self, request: MsgSyncRequest) -> None:
        state = self._state
        assert state.leader is not None, "no node is asked"
        state.send(state.leader, request)
        self._resend_at_ms = state.now_ms + state.settings.sync_request_timeout_ms

    # --- answers ----------------------------------------------------------------------------------

    def on_sync(self, message: MsgSync) -> bool:
        """A batch of the leader of this term; True if it was the answer waited for."""
        state = self._state
        request = self._asked.get(message.request_id)
        if request is None:
            return False  # repeated, late, or of another term or leader (S6.1, S6.2)
        if request.from_seq not in (0, message.from_seq):
            return False  # the answer to another question
        if request is not next(iter(self._asked.values())):
            self._early[request.request_id] = message  # the one in front of it may still come
            return False
        assert state.mode is FollowerMode.CATCHING_UP, "a steady follower waits for history (S6.3)"
        if message.from_seq < message.first_seq:
            self._on_trimmed(message)
            return True
        del self._asked[request.request_id]
        self.trimmed_to = Seq(0)
        # S2.4: nothing is taken before the seq below it is known to be the leader's. What is below
        # the base is: an answer from there is a guess by terms that the leader does not have.
        is_below = message.from_seq <= state.base.seq
        if is_below and request.from_seq:
            self.ask()  # the base moved up since that was asked: what is below it is no question
            return True
        if is_below or not state.lineage.holds(message.prev_term, message.from_seq - 1):
            self._probe_deeper(request)
            return True
        state.verified_seq = Seq(max(state.verified_seq, message.from_seq - 1))
        if self._began_seq is None:
            self._began_seq = state.verified_seq
        end = self._take(message)
        if state.halted is None:
            self._measure(message)
            self._go_on(message, end)
        return True

    def next_early(self) -> MsgSync | None:
        """The answer whose turn it is, if it came before its time."""
        request_id = next(iter(self._asked), None)
        return None if request_id is None else self._early.pop(request_id, None)

    def _go_on(self, message: MsgSync, end: int) -> None:
        """Back to steady state if that is possible, else ask on."""
        state = self._state
        overlaps = self._drop_overlap(message.from_seq)
        if state.halted is not None:
            return
        self._look_ahead(message, end)
        is_done = message.done and end == message.last_seq
        is_end = is_done or (overlaps and self._queue_is_complete())
        if not (is_end and self._queue_continues()):
            self.ask()
        elif not self._stays:
            self.leave()
        elif self._queue.head is not None:
            self.ask()

    def _look_ahead(self, message: MsgSync, end: int) -> None:
        """S6.1: what was asked ahead goes on where this answer ended, or is asked for anew."""
        following = next(iter(self._asked.values()), None)
        if following is not None and following.from_seq != end + 1:
            self._forget_asked()
        next_seq = message.next_seq
        self._ahead_seq = next_seq if end + 1 < next_seq <= message.last_seq else Seq(0)

    def _on_trimmed(self, message: MsgSync) -> None:
        """S6.6: the leader's log begins above the match point. It is asked again in a while."""
        state = self._state
        self._asked = dict(islice(self._asked.items(), 1))
        self._early.clear()
        self._ahead_seq = Seq(0)
        self._resend_at_ms = state.now_ms + state.settings.sync_request_timeout_ms
        self._measure(message)
        if self.trimmed_to != message.first_seq:
            self.trimmed_to = message.first_seq
            state.set_mode(FollowerMode.CATCHING_UP, "history_trimmed")
            state.emit(ReplicaSnapshotNeeded(Seq(message.from_seq - 1), message.first_seq))

    def _probe_deeper(self, request: MsgSyncRequest) -> None:
        """S2.6: the leader's best guess is not in our log; offer older terms."""
        self._forget_asked()
        if request.from_seq != 0:
            self._state.halt(f"the leader lost what it verified below seq {request.from_seq}")
            return
        self._probe_below = request.lineage[-1].term
        self.ask()

    def _take(self, message: MsgSync) -> int:
        """Append what is new, verify what is held, cut what conflicts; return where it ended."""
        state = self._state
        last_seq_before = state.last_seq
        expected: int = message.from_seq
        term = message.prev_term
        for record in message.records:
            # NATS-160: never a hole, and never a payload that is not what its digest says (S5.1).
            if record.base_seq != expected or digest_of(record.payload) != record.digest:
                break
            # S12: terms never fall along a log and never exceed the leader's: no log holds this.
            if not term <= record.term <= message.term:
                break
            if not store_verified(state, record):
                break
            self._payloads.discard(record.guid, record.digest)
            expected, term = record.last_seq + 1, record.term
        if state.last_seq != last_seq_before and state.verified_seq > 0:
            self._undurable.append(state.verified_seq)
            assert len(self._undurable) <= SYNC_BATCHES_UNDURABLE_MAX, (
                f"{len(self._undurable)} batches are ahead of the disk"
            )
        return expected - 1

    def _drop_overlap(self, from_seq: Seq) -> bool:
        """S6.3, NATS-165: discard live entries the log now has; overlap is by (term, seq)."""
        state = self._state
        overlaps = False
        for entry in self._queue.drop_through(state.verified_seq):
            if not state.lineage.holds(entry.meta.term, entry.meta.base_seq):
                state.halt(f"the leader sent two records for seq {entry.meta.base_seq}")
                return False
            overlaps |= entry.meta.base_seq >= from_seq
        return overlaps

    def _queue_is_complete(self) -> bool:
        """Whether the live queue can go on by itself, or the leader had better send payloads."""
        return all(payload_of(self._payloads, entry) is not None for entry in self._queue)

    def _queue_continues(self) -> bool:
        """Whether the live queue goes on where the log ends, with nothing dropped in between."""
        if self._queue.has_gap_above(max(self._state.verified_seq, self._queue.last_seq)):
            return False
        head = self._queue.head
        return head is None or continues(self._state, head)

    # --- other events -----------------------------------------------------------------------------

    def on_leader_end(self, end_seq: Seq) -> None:
        """A CommitNotice showed that our log is equal to the leader's end: nothing to fetch."""
        if end_seq != self._state.verified_seq or not self._queue_continues():
            self.ask()
        elif not self._stays:
            self.leave()

    def on_live_entry(self) -> None:
        """S2.4 holds for the first live entry: what it follows is verified by that alone."""
        head = self._queue.head
        if head is not None and self._queue_continues():
            before = Seq(head.meta.base_seq - 1)
            self._state.verified_seq = max(self._state.verified_seq, before)
            if not self._stays:
                self.leave()

    def on_live_request(self, end_seq: Seq) -> None:
        """The leader has more: a replica that stays with history asks for it (NATS-153)."""
        if self._state.mode is FollowerMode.CATCHING_UP:
            self._end_seq = Seq(max(self._end_seq, end_seq))
            if self._stays:
                self.ask()

    def on_persisted(self) -> None:
        """The disk came nearer: go on asking if it was the reason to wait."""
        while self._undurable and self._undurable[0] <= self._state.durable_seq:
            self._undurable.popleft()
        if self._waits_for_disk and len(self._undurable) < SYNC_BATCHES_UNDURABLE_MAX:
            self._waits_for_disk = False
            self.ask()

    def on_timer(self) -> None:
        """Repeat requests without answer, under the same ids so that late answers still count."""
        state = self._state
        if state.mode is not FollowerMode.CATCHING_UP or state.leader is None or state.is_removed:
            return
        self._note_pace()
        if self._asked and self._resend_at_ms <= state.now_ms:
            for request in self._asked.values():
                self._send_request(request)
        elif not self._asked and not self._stays:
            self.ask()

    def next_deadline_ms(self) -> int | None:
        """When requests are repeated, the time with history is over, or a window ends."""
        state = self._state
        if state.mode is not FollowerMode.CATCHING_UP or state.leader is None or state.is_removed:
            return None
        if self._asked:
            return self._resend_at_ms
        return state.flapping.stays_until_ms if self._stays else None

    # --- how far, and how fast --------------------------------------------------------------------

    @property
    def _stays(self) -> bool:
        """Whether it is flapping, and not yet to go back to steady state (NATS-153)."""
        return self._state.flapping.stays(self._state.now_ms)

    def _measure(self, message: MsgSync) -> None:
        """How far the end is, in records and bytes like those of the last answer (NATS-145)."""
        settings = self._state.settings
        if message.records:
            size = sum(len(record.payload) for record in message.records)
            rows = message.records[-1].last_seq - message.from_seq + 1
            self._sample = (max(1, rows), len(message.records), size)
            self._taken_bytes += size
        self._end_seq = Seq(max(self._end_seq, message.last_seq))
        rows, records, size = self._sample
        left = self._rows_left()
        self.is_far = (
            left * records > FAR_LIVE_QUEUES * settings.live_queue_messages_max * rows
            or left * size > FAR_LIVE_QUEUES * settings.live_queue_bytes_max * rows
        )
        if self.is_far:
            self._queue.clear()
        self._note_pace()

    @property
    def history_left_bytes(self) -> int | None:
        """About so many bytes are ahead, if rows are like those of the last answer; None: it is
        not known where the two logs part."""
        rows, _, size = self._sample
        return None if self._began_seq is None else self._rows_left() * size // rows

    def _rows_left(self) -> int:
        """Between what both logs certainly have and the leader's end, as far as that is known:
        what leaders reported as committed is in every later leader's log (S1.1), too."""
        state = self._state
        end_seq = max(self._end_seq, state.leader_commit)
        return max(0, end_seq - max(state.verified_seq, state.commit_seq))

    def _note_pace(self) -> None:
        """NATS-150: say so when the distance only grows, once in each catching-up."""
        state = self._state
        if not self._pace.note(
            state.now_ms,
            verified=state.verified_seq,
            end=self._end_seq,
            taken_bytes=self._taken_bytes,
        ):
            return
        state.emit(CatchUpPaced(self.view()))
        deltas = self._pace.falls_behind
        if not deltas or self._cannot_complete:
            return
        self._cannot_complete = True
        state.emit(CannotCatchUp(deltas, state.verified_seq))
        if state.catch_up.slow_action != SLOW_IGNORED and state.leader is not None:
            message = CannotComplete(
                channel=state.channel, term=state.term, seq=state.verified_seq, deltas=deltas
            )
            state.send(state.leader, message)

    def view(self) -> CatchUpView:
        """How far it is, for status."""
        state = self._state
        rows, _, size = self._sample
        left = self._rows_left()
        rates = self._pace.rates(
            state.now_ms,
            verified=state.verified_seq,
            end=self._end_seq,
            taken_bytes=self._taken_bytes,
        )
        nearer = rates.rows - rates.written
        return CatchUpView(
            reason=state.mode_reason,
            for_ms=state.now_ms - self._began_ms,
            from_seq=Seq(self._began_seq or 0),
            verified_seq=state.verified_seq,
            end_seq=self._end_seq,
            rows_left=left,
            bytes_left=left * size // rows,
            bytes_taken=self._taken_bytes,
            rows_per_s=rates.rows,
            bytes_per_s=rates.bytes,
            written_per_s=rates.written,
            left_ms=1000 * left // nearer if nearer > 0 else None,
            is_far=self.is_far,
            cannot_complete=self._cannot_complete,
        )


def continues(state: ChannelState, entry: LiveEntry) -> bool:
    """S2.4: the log holds (prev_term, seq - 1) of this entry."""
    return state.lineage.holds(entry.prev_term, entry.meta.base_seq - 1)


def payload_of(payloads: PendingPayloads, entry: LiveEntry) -> bytes | None:
    """The entry's payload: inlined by the leader, or held from the publisher."""
    meta = entry.meta
    if meta.payload is not None:
        return meta.payload
    return payloads.find(meta.guid, meta.digest, meta.length)


def store_verified(state: ChannelState, record: Record) -> bool:
    """Bring the log to hold ``record`` of this term's leader, whose predecessor it holds (S2.4).

    Already held: verified only. Another term there: proof of conflict, cut and append in one batch
    (S2.5). False when the cut would reach below the commit seq, or for a record that no log holds
    beside what is held here (S12).
    """
    if not state.lineage.holds(record.term, record.base_seq):
        if record.base_seq <= state.lineage.last_seq and not state.truncate(record.base_seq):
            return False
        state.append(record)
    elif not state.lineage.holds(record.term, record.last_seq):
        return False
    last_seq = record.last_seq
    assert last_seq <= state.lineage.last_seq, (
        f"verified {last_seq} of a log that ends at {state.lineage.last_seq} (S3.4)"
    )
    state.verified_seq = Seq(max(state.verified_seq, last_seq))
    return True
