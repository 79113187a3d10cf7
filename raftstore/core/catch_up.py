"""Catching up with the leader of this term: find the match point, fetch, hand over to steady (S6).

Pull only: one MsgSyncRequest is outstanding; the next leaves as soon as a batch was appended, while
the disk still writes (at most SYNC_BATCHES_UNDURABLE_MAX batches ahead of it). While this goes on,
live StoreRequests gather in the live queue. The way back to steady state is the overlap of the two,
or the leader's word that there is no more (NATS-142, NATS-159).

Nothing is asked from below the base of the own log: it was committed, so every leader's log holds
it, or held it (S6.5). A leader whose base is above the match point says so: only a snapshot helps
then (S6.6), and the question is repeated no more often than one that got no answer.

A ``CatchUp`` belongs to one (term, leader): a change of leader starts from match probing (S6.2).
"""

from __future__ import annotations

from collections import deque

from raftstore.core.chain import digest_of
from raftstore.core.effects import ReplicaSnapshotNeeded
from raftstore.core.live_queue import LiveEntry, LiveQueue
from raftstore.core.pending import PendingPayloads
from raftstore.core.state import ChannelState
from raftstore.protocol.records import Record
from raftstore.protocol.replication import CaughtUp, MsgSync, MsgSyncRequest, StoreReject
from raftstore.types import NO_GUID, FollowerMode, Guid, LineageEntry, Seq, Term

SYNC_BATCHES_UNDURABLE_MAX = 4
"""Batches fetched ahead of the disk."""


class CatchUp:
    """The catching-up side of one follower under one leader."""

    def __init__(self, state: ChannelState, queue: LiveQueue, payloads: PendingPayloads) -> None:
        self._state = state
        self._queue = queue
        self._payloads = payloads
        self._request: MsgSyncRequest | None = None
        self._resend_at_ms = 0
        self._probe_below: Term | None = None
        self._undurable: deque[Seq] = deque()
        self._waits_for_disk = False
        self.trimmed_to = Seq(0)
        """The first seq of the leader's log when it had no more what was asked for; 0: it has."""

    # --- entering and leaving ---------------------------------------------------------------------

    def enter(self, reason: str, *, seq: Seq = Seq(0), guid: Guid = NO_GUID) -> None:
        """Leave steady state: tell the leader why, and ask for history (NATS-062)."""
        state = self._state
        if state.mode is FollowerMode.STEADY and state.leader is not None:
            reject = StoreReject(
                channel=state.channel, term=state.term, reason=reason, seq=seq, guid=guid
            )
            state.send(state.leader, reject)
        state.set_mode(FollowerMode.CATCHING_UP, reason)
        self.ask()

    def leave(self) -> None:
        """Back to steady state (NATS-143); whatever still arrives for the request is discarded."""
        state = self._state
        assert state.leader is not None, "steady without a leader"
        assert state.mode is FollowerMode.CATCHING_UP, "a steady follower catches up (S6.3)"
        assert self._queue_continues(), f"a hole behind seq {state.last_seq} (S6.3, S5.4)"
        self._request = None
        self._waits_for_disk = False
        self._probe_below = None
        state.set_mode(FollowerMode.STEADY, "caught_up")
        caught_up = CaughtUp(channel=state.channel, term=state.term, seq=state.verified_seq)
        state.send(state.leader, caught_up)

    def restart_probing(self) -> None:
        """The connection to the leader is new: what was asked is lost."""
        self._request = None
        self._waits_for_disk = False
        self.ask()

    # --- asking -----------------------------------------------------------------------------------

    def ask(self) -> None:
        """Send the next request unless one is under way or the disk is behind."""
        if self._request is not None or self._state.leader is None:
            return
        if len(self._undurable) >= SYNC_BATCHES_UNDURABLE_MAX:
            self._waits_for_disk = True
            return
        assert self._state.mode is FollowerMode.CATCHING_UP, "a steady follower asks for history"
        from_seq, lineage = self._where()
        assert from_seq == 0 or from_seq > self._state.base.seq, (
            f"history is asked for from seq {from_seq}, the base is {self._state.base.seq} (S6.5)"
        )
        assert from_seq <= self._state.lineage.last_seq + 1, (
            f"history is asked for from seq {from_seq} behind {self._state.lineage.last_seq} (S2.4)"
        )
        self._state.sync_request_id += 1
        self._request = MsgSyncRequest(
            channel=self._state.channel,
            term=self._state.term,
            request_id=self._state.sync_request_id,
            from_seq=from_seq,
            lineage=lineage,
            max_bytes=self._state.settings.sync_batch_bytes_max,
        )
        self._send_request()

    def _where(self) -> tuple[Seq, tuple[LineageEntry, ...]]:
        """After what is verified; else by lineage (S2.6); from the base is the last resort."""
        state = self._state
        # What a late StoreRequest verified at or below the base is no place to go on from.
        if state.verified_seq > state.base.seq:
            return Seq(state.verified_seq + 1), ()
        lineage = state.lineage.newest(below=self._probe_below, above=state.base.seq)
        return (Seq(0), lineage) if lineage else (Seq(state.base.seq + 1), ())

    def _send_request(self) -> None:
        state = self._state
        assert self._request is not None, "nothing is asked"
        assert state.leader is not None, "no node is asked"
        state.send(state.leader, self._request)
        self._resend_at_ms = state.now_ms + state.settings.sync_request_timeout_ms

    # --- answers ----------------------------------------------------------------------------------

    def on_sync(self, message: MsgSync) -> bool:
        """A batch of the leader of this term; True if it was the answer waited for."""
        state = self._state
        request = self._request
        if request is None or message.request_id != request.request_id:
            return False  # repeated, late, or of another term or leader (S6.1, S6.2)
        if request.from_seq not in (0, message.from_seq):
            return False  # the answer to another question
        assert state.mode is FollowerMode.CATCHING_UP, "a steady follower waits for history (S6.3)"
        if message.from_seq < message.first_seq:
            self._on_trimmed(message)
            return True
        self._request, self.trimmed_to = None, Seq(0)
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
        end = self._take(message)
        if state.halted is not None:
            return True
        is_done = message.done and end == message.last_seq
        overlaps = self._drop_overlap(message.from_seq)
        if (is_done or (overlaps and self._queue_is_complete())) and self._queue_continues():
            self.leave()
        elif state.mode is FollowerMode.CATCHING_UP:
            self.ask()
        return True

    def _on_trimmed(self, message: MsgSync) -> None:
        """S6.6: the leader's log begins above the match point. It is asked again in a while."""
        state = self._state
        self._resend_at_ms = state.now_ms + state.settings.sync_request_timeout_ms
        if self.trimmed_to != message.first_seq:
            self.trimmed_to = message.first_seq
            state.set_mode(FollowerMode.CATCHING_UP, "history_trimmed")
            state.emit(ReplicaSnapshotNeeded(Seq(message.from_seq - 1), message.first_seq))

    def _probe_deeper(self, request: MsgSyncRequest) -> None:
        """S2.6: the leader's best guess is not in our log; offer older terms."""
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
        if end_seq == self._state.verified_seq and self._queue_continues():
            self.leave()
        else:
            self.ask()

    def on_live_entry(self) -> None:
        """S2.4 holds for the first live entry: what it follows is verified by that alone."""
        head = self._queue.head
        if head is not None and self._queue_continues():
            before = Seq(head.meta.base_seq - 1)
            self._state.verified_seq = max(self._state.verified_seq, before)
            self.leave()

    def on_persisted(self) -> None:
        """The disk came nearer: go on asking if it was the reason to wait."""
        while self._undurable and self._undurable[0] <= self._state.durable_seq:
            self._undurable.popleft()
        if self._waits_for_disk and len(self._undurable) < SYNC_BATCHES_UNDURABLE_MAX:
            self._waits_for_disk = False
            self.ask()

    def on_timer(self) -> None:
        """Repeat a request without answer, under the same id so that a late answer still counts."""
        if self._request is not None and self._resend_at_ms <= self._state.now_ms:
            self._send_request()

    def next_deadline_ms(self) -> int | None:
        """When the request is repeated."""
        return None if self._request is None else self._resend_at_ms


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
        if record.base_seq <= state.last_seq and not state.truncate(record.base_seq):
            return False
        state.append(record)
    elif not state.lineage.holds(record.term, record.last_seq):
        return False
    assert record.last_seq <= state.lineage.last_seq, (
        f"verified {record.last_seq} of a log that ends at {state.lineage.last_seq} (S3.4)"
    )
    state.verified_seq = Seq(max(state.verified_seq, record.last_seq))
    return True
