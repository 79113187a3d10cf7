"""A follower under one leader in one term: correlates, verifies, appends in order, acknowledges.

A ``Follower`` lives as long as (term, leader) stays the same; a new one starts with nothing
verified and probes (S6.2), so neither an ack nor a live entry of another leadership slips through.
"""

from __future__ import annotations

from enum import Enum

from raftstore.core.catch_up import CatchUp, continues, payload_of, store_verified
from raftstore.core.chain import digest_of
from raftstore.core.live_queue import LiveEntry, LiveQueue
from raftstore.core.missed_writes import OfferingFollower
from raftstore.core.payload_repair import PayloadRepair
from raftstore.core.pending import NO_CLIENT, PendingPayloads
from raftstore.core.state import ChannelState
from raftstore.core.statistics import CatchUpView
from raftstore.protocol.payload_repair import (
    GAPS_MAX,
    PayloadResponse,
    RelayedAck,
    WriteRequest,
)
from raftstore.protocol.publish import PayloadRelay, PubMsg
from raftstore.protocol.records import Record
from raftstore.protocol.replication import (
    AskApplied,
    CommitNotice,
    MsgSync,
    ReadIndexReply,
    ReadIndexRequest,
    RemovedNotice,
    ReplicationMessage,
    StoreAck,
    StoreRequest,
)
from raftstore.types import NO_GUID, FollowerMode, Guid, History, NodeId, Role, Seq


class _Taken(Enum):
    """The verdict on the head of the live queue."""

    DONE = "done"
    WAITS = "waits"
    LEFT_STEADY = "left_steady"


class Follower:
    """This replica does not lead; ``state.leader`` may be None, then it only waits."""

    def __init__(self, state: ChannelState, payloads: PendingPayloads) -> None:
        assert state.role is not Role.LEADER, f"a follower in the role {state.role} (S1.5)"
        settings = state.settings
        self._state = state
        self._payloads = payloads
        self.queue = LiveQueue(
            messages_max=settings.live_queue_messages_max,
            bytes_max=settings.live_queue_bytes_max,
        )
        self._catch_up = CatchUp(state, self.queue, payloads)
        self._repair = PayloadRepair(state, self.queue, payloads)
        self._offering = OfferingFollower(state, self.queue, payloads)
        self._acked_seq = Seq(0)
        self._is_ack_wanted = False
        self.applied_wanted = Seq(0)
        """It acknowledges once more when it has applied so far; 0: it need not."""
        self._payload_wait: tuple[Seq, int] | None = None  # (base seq of the head, deadline)
        self._read_request: ReadIndexRequest | None = None
        state.verified_seq = Seq(0)

    def start(self, reason: str) -> None:
        """A leader is known (or became known anew): find the match point (S6.2)."""
        assert self._state.leader is not None, "no leader to be followed is known"
        assert self._state.leader != self._state.me, "a replica would follow itself (S1.5)"
        self._catch_up.enter(reason)

    def on_reconnected(self) -> None:
        """Messages in flight to or from the leader are lost."""
        if self._state.leader is None:
            return
        self._state.set_mode(FollowerMode.CATCHING_UP, "reconnected")
        self._payload_wait = None
        self._repair.end()
        self._is_ack_wanted = True
        self._catch_up.restart_probing()

    @property
    def trimmed_to(self) -> Seq:
        """The first seq of the leader's log when it had no more what was asked for; 0: it has."""
        return self._catch_up.trimmed_to

    def catch_up_view(self) -> CatchUpView | None:
        """How far it is; None: it is steady, or knows no leader."""
        state = self._state
        is_under_way = state.mode is FollowerMode.CATCHING_UP and state.leader is not None
        return self._catch_up.view() if is_under_way else None

    @property
    def history_left_bytes(self) -> int | None:
        """About so many bytes of history are ahead; None: not known."""
        return self._catch_up.history_left_bytes

    # --- messages ---------------------------------------------------------------------------------

    def on_message(  # noqa: C901 - one arm per kind
        self, sender: NodeId, message: ReplicationMessage
    ) -> None:
        """A message of this term: only its leader is listened to (S6.1)."""
        state = self._state
        if type(message) is PayloadResponse:
            self._on_payloads(sender, message)  # S5.2: it does not matter who gives a payload
            return
        # S6.1: history, metadata and commit positions come from the leader of the term only.
        if sender != state.leader:
            return
        match message:
            case StoreRequest():
                self._on_store_request(message)
            case CommitNotice():
                self._on_commit_notice(sender, message)
            case MsgSync():
                self._on_sync(message)
            case PayloadRelay():
                self.hold(message.guid, message.digest, message.payload)
            case ReadIndexRequest():
                self._read_request = message
            case WriteRequest():
                self._offering.on_request(message)
            case RelayedAck():
                self._offering.on_ack(message)
            case RemovedNotice():
                self._on_removed(message)
            case AskApplied(seq=seq):
                self.applied_wanted = seq
                self.on_applied()
            case _:
                pass  # meant for a leader: a late message to what this node was

    def hold(
        self,
        guid: Guid,
        digest: bytes,
        payload: bytes,
        client: int = NO_CLIENT,
        write: PubMsg | None = None,
    ) -> None:
        """Keep a payload until its StoreRequest names it (NATS-051); both orders are fine."""
        written = self._state.dedupe.find(guid)
        stays_below = max(self._state.commit_seq, self._state.verified_seq)
        if written is not None and written.digest == digest and written.last_seq <= stays_below:
            return  # its record is in the log already, and stays there
        if self._is_far:
            return  # NATS-145: history brings it
        if digest_of(payload) != digest:
            return  # it can never correlate, whatever its sender (S5.2)
        self._payloads.hold(guid, digest, payload, self._state.now_ms, client, write)
        head = self.queue.head
        if head is None or head.meta.guid != guid:
            return
        if self._state.mode is FollowerMode.STEADY:
            self._drain()
        else:
            self._try_live_entry()

    def _on_store_request(self, request: StoreRequest) -> None:
        """NATS-030: every StoreRequest enters the live queue, in both modes."""
        state = self._state
        state.is_removed = False  # M13: a leader counts on it again
        before = request.prev_term
        for meta in request.records:
            # S12: terms never fall along a log and never exceed the leader's: no log holds these.
            if not before <= meta.term <= request.term:
                return
            before = meta.term
        state.leader_commit = max(state.leader_commit, request.commit_seq)
        if state.mode is FollowerMode.STEADY:
            is_complete = self.queue.offer(request)
            self._drain()
            if not is_complete and state.mode is FollowerMode.STEADY:
                self._leave_steady("live_queue_overflow", request.records[-1].last_seq)
            return
        end_seq = request.records[-1].last_seq if request.records else Seq(0)
        if self._is_far and request.records:
            self.queue.pass_over(request)
        else:
            self.queue.offer(request)
            self._try_live_entry()
        self._catch_up.on_live_request(end_seq)

    @property
    def _is_far(self) -> bool:
        """Nothing live is held: the leader's end is too far away (NATS-145)."""
        return self._state.mode is FollowerMode.CATCHING_UP and self._catch_up.is_far

    def _try_live_entry(self) -> None:
        """A live entry that fits our end is a match point too: no need to wait for the probe."""
        state = self._state
        self.queue.drop_through(state.verified_seq)
        head = self.queue.head
        if head is None or not continues(state, head):
            return
        is_held = state.lineage.holds(head.meta.term, head.meta.base_seq)
        if is_held or payload_of(self._payloads, head) is not None:
            self._catch_up.on_live_entry()
        if state.mode is FollowerMode.STEADY:
            self._drain()

    def _on_sync(self, message: MsgSync) -> None:
        state = self._state
        state.leader_commit = max(state.leader_commit, message.commit_seq)
        if self._catch_up.on_sync(message):
            while (early := self._catch_up.next_early()) is not None:
                self._catch_up.on_sync(early)
            self._is_ack_wanted = True
            if state.mode is FollowerMode.STEADY:
                self._drain()

    def _on_commit_notice(self, sender: NodeId, notice: CommitNotice) -> None:
        """S3.5: the leader's positions while nothing else carries them."""
        state = self._state
        state.is_removed = False
        state.leader_commit = max(state.leader_commit, notice.commit_seq)
        state.batches.reported(notice.commit_seq, notice.commit_batches)
        self._is_ack_wanted = True
        # S2.4: a replica with the leader's last (term, seq) holds its whole log.
        if state.lineage.holds(notice.last_term, notice.last_seq):
            state.verified_seq = Seq(max(state.verified_seq, notice.last_seq))
            if state.mode is FollowerMode.CATCHING_UP:
                self.queue.drop_through(state.verified_seq)
                self._catch_up.on_leader_end(notice.last_seq)
                self._drain_if_steady()
        elif state.mode is FollowerMode.CATCHING_UP:
            self._catch_up.on_live_request(notice.last_seq)
            self._catch_up.ask()
        elif self.queue.last_seq < notice.last_seq:
            self._leave_steady("missing_store_request", notice.last_seq)
        self._advance_commit()
        state.check_hash(sender, notice.commit_seq, notice.commit_hash)

    def _on_removed(self, notice: RemovedNotice) -> None:
        """M13: stop standing and asking for history, unless a newer configuration here names it."""
        state, configs = self._state, self._state.configs
        is_newer = configs.current_seq > notice.config_seq
        if notice.replica == state.number and not (
            is_newer and configs.current.has_member(state.own_id)
        ):
            state.is_removed = True

    # --- the live queue ---------------------------------------------------------------------------

    def _drain_if_steady(self) -> None:
        if self._state.mode is FollowerMode.STEADY:
            self._drain()

    def _drain(self) -> None:
        """Take live entries in seq order as far as they are complete (S5.4: no holes)."""
        assert self._state.mode is FollowerMode.STEADY, f"{self._state.mode} drains (S6.3)"
        while (head := self.queue.head) is not None and self._state.halted is None:
            if self._take(head) is not _Taken.DONE:
                return
        self._payload_wait = None

    def _take(self, head: LiveEntry) -> _Taken:
        """S6.3: an entry leaves the live queue only by log matching (S2.4)."""
        state, meta = self._state, head.meta
        if meta.base_seq > state.lineage.last_seq + 1:
            return self._leave_steady("gap", meta.base_seq)
        if not continues(state, head):
            return self._leave_steady("prev_term_mismatch", meta.base_seq)
        if state.lineage.holds(meta.term, meta.base_seq):
            # S12: of one term and seq there is one record, so it cannot be longer than ours is.
            if not state.lineage.holds(meta.term, meta.last_seq):
                return self._leave_steady("prev_term_mismatch", meta.base_seq)
            # S2.4: held already: acknowledge only.
            state.verified_seq = Seq(max(state.verified_seq, meta.last_seq))
            self._is_ack_wanted = True
            self.queue.pop()
            return _Taken.DONE
        payload = payload_of(self._payloads, head)
        if payload is None:
            # S5.1: metadata without its payload is nothing; S5.4: wait for it, in order.
            self._await_payload(meta.base_seq)
            return _Taken.WAITS
        record = Record(
            term=meta.term,
            base_seq=meta.base_seq,
            rows=meta.rows,
            guid=meta.guid,
            timestamp_ms=meta.timestamp_ms,
            digest=meta.digest,
            kind=meta.kind,
            payload=payload,
        )
        if not store_verified(state, record):
            return self._leave_steady("prev_term_mismatch", meta.base_seq)
        self.queue.pop()
        self._payloads.discard(meta.guid, meta.digest)
        return _Taken.DONE

    def _await_payload(self, base_seq: Seq) -> None:
        assert base_seq <= self._state.lineage.last_seq + 1, (
            f"the payload of seq {base_seq} is waited for behind {self._state.lineage.last_seq}"
        )
        if self._payload_wait is None or self._payload_wait[0] != base_seq:
            deadline = self._state.now_ms + self._state.settings.pubmsg_wait_ms
            self._payload_wait = (base_seq, deadline)

    # --- missing payloads (S5.4) ------------------------------------------------------------------

    def _ask_next_source(self, seq: Seq) -> None:
        """NATS-205: replicas that may have the payload come before a catch-up."""
        if self._repair.begin(seq):
            timeout_ms = self._state.settings.payload_request_timeout_ms
            self._payload_wait = (seq, self._state.now_ms + timeout_ms)
        else:
            self._leave_steady("missing_pubmsg", seq)

    def on_payload_source(self, seq: Seq, node: NodeId | None) -> None:
        """The engine chose who is asked; None: nobody can be."""
        wait = self._payload_wait
        if wait is None or wait[0] != seq or not self._repair.awaits_source(seq):
            return  # the payload came meanwhile
        if node is None:
            self._leave_steady("missing_pubmsg", seq)
        else:
            self._repair.ask(node)

    def _on_payloads(self, sender: NodeId, response: PayloadResponse) -> None:
        if not self._repair.on_response(sender, response):
            return
        wait = self._payload_wait
        if self._state.mode is not FollowerMode.STEADY or wait is None:
            return
        self._drain()
        if self._payload_wait == wait:
            self._ask_next_source(wait[0])  # it did not have what is needed first

    def gaps(self) -> tuple[Seq, tuple[tuple[Seq, Seq], ...]]:
        """As ``Replica.gaps``; what is beyond ``GAPS_MAX`` counts with the last gap."""
        end = self._state.last_seq
        gaps: list[tuple[Seq, Seq]] = []
        for entry in self.queue:
            meta = entry.meta
            if meta.last_seq <= end:
                continue
            is_held = payload_of(self._payloads, entry) is not None
            first, last = Seq(end + 1), Seq(meta.base_seq - 1) if is_held else meta.last_seq
            end = meta.last_seq
            if first > last:
                continue
            if gaps and (gaps[-1][1] + 1 == first or len(gaps) == GAPS_MAX):
                gaps[-1] = (gaps[-1][0], last)
            else:
                gaps.append((first, last))
        return end, tuple(gaps)

    def _leave_steady(self, reason: str, seq: Seq) -> _Taken:
        head = self.queue.head
        self._payload_wait = None
        self._repair.end()
        guid = head.meta.guid if head is not None else NO_GUID
        self._catch_up.enter(reason, seq=seq, guid=guid)
        return _Taken.LEFT_STEADY

    # --- durability, commit, acks -----------------------------------------------------------------

    def on_persisted(self) -> None:
        """More is durable: acks may follow at the end of the step."""
        self._catch_up.on_persisted()

    def finish(self) -> None:
        """End of a step: what may be said now about commit and durability."""
        state = self._state
        verified_seq, stored_seq, commit_seq = (
            state.verified_seq,
            state.stored_seq,
            state.commit_seq,
        )
        if state.leader_commit > commit_seq and verified_seq > commit_seq:
            self._advance_commit()
        if state.leader is None or state.stopped is not None or state.durable_term != state.term:
            return  # S0.5: nothing of a term is revealed before the term is durable
        # S3.4: verified against this term's leader, and stored (S0.6); never the end of the log.
        match = verified_seq if verified_seq < stored_seq else stored_seq  # noqa: FURB136 - hot
        if state.recovering is not None:
            self._check_recovered(match)
            if state.recovering is not None:
                return  # S0.3: neither acks nor read confirmations
        if match > self._acked_seq or self._is_ack_wanted:
            self._acknowledge(state.leader, match)
        if self._read_request is not None:
            self._confirm_reads(state.leader, self._read_request)

    def on_applied(self) -> None:
        """FIP-20: the leader waits for the table here before it hands over."""
        if self._state.applied_seq >= self.applied_wanted > 0:
            self.applied_wanted = Seq(0)
            self._is_ack_wanted = True

    def _advance_commit(self) -> None:
        """S3.5: never above what is verified against the leader that reported the position."""
        state = self._state
        commit_seq = Seq(min(state.leader_commit, state.verified_seq))
        if commit_seq > state.commit_seq and state.halted is None:
            state.advance_commit(commit_seq)

    def _check_recovered(self, match: Seq) -> None:
        """S0.3: past the mark in the order of histories, under the leader of this term."""
        state = self._state
        assert state.recovering is not None
        if state.lacks_rows:
            return  # records alone do not bring them back
        if match > 0 and History(state.lineage.term_at(match), match) >= state.recovering:
            state.has_recovered()
            self._is_ack_wanted = True

    def _acknowledge(self, leader: NodeId, match: Seq) -> None:
        state = self._state
        if match == 0:
            return  # there is nothing to say yet
        assert match <= state.verified_seq, (
            f"acks {match}, verified are {state.verified_seq} (S3.4)"
        )
        assert match <= state.stored_seq, f"acks {match}, stored are {state.stored_seq} (S0.5)"
        assert state.durable_term == state.term, f"acks in {state.term} before it is durable (S0.5)"
        assert state.recovering is None, f"acks while it lacks {state.recovering} (S0.3)"
        assert state.stopped is None, f"acks although it stopped: {state.stopped} (S13)"
        self._acked_seq = match
        self._is_ack_wanted = False
        ack = StoreAck(
            channel=state.channel,
            term=state.term,
            match_seq=match,
            applied_seq=state.applied_seq,
            commit_seq=state.commit_seq,
            replica=state.number,
        )
        state.send(leader, ack)

    def _confirm_reads(self, leader: NodeId, request: ReadIndexRequest) -> None:
        """S7.1: this term is still mine and you lead it."""
        state = self._state
        assert state.durable_term == state.term, f"confirms {state.term} before it is durable"
        assert state.recovering is None, f"confirms while it lacks {state.recovering} (S0.3)"
        assert state.stopped is None, f"confirms although it stopped: {state.stopped} (S13)"
        self._read_request = None
        reply = ReadIndexReply(state.channel, state.term, request.round_id, state.number)
        state.send(leader, reply)

    # --- timers -----------------------------------------------------------------------------------

    def on_timer(self) -> None:
        """A payload that did not come is asked for, then fetched by catch-up (S5.4); lost requests
        are repeated."""
        wait = self._payload_wait
        if wait is not None and wait[1] <= self._state.now_ms:
            self._ask_next_source(wait[0])
        self._offering.on_timer()
        self._catch_up.on_timer()

    def next_deadline_ms(self) -> int | None:
        """The earliest of its timers."""
        is_steady = self._state.mode is FollowerMode.STEADY
        due = None if is_steady else self._catch_up.next_deadline_ms()
        if self._payload_wait is None:
            return due
        return self._payload_wait[1] if due is None else min(due, self._payload_wait[1])
