"""The leader of one term: sequences records, counts durable matches, commits, serves history.

A ``Leader`` lives exactly as long as its leadership, so everything it counts starts at zero when
the term is won (S3.4) and nothing of it survives a step-down.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from raftstore.core.chain import digest_of
from raftstore.core.change import Change
from raftstore.core.effects import ReplicaCannotComplete, ServeSync, StepDown
from raftstore.core.hand_over import HandOver
from raftstore.core.missed_writes import FetchingLeader
from raftstore.core.progress import Progress, ProgressView
from raftstore.core.quorum import quorum_seq, rows_seq
from raftstore.core.reads import ReadRounds
from raftstore.core.sequencer import Sequencer
from raftstore.core.state import ChannelState
from raftstore.errors import NotLeaderError, Refusal, UnavailableError
from raftstore.protocol.payload_repair import PayloadResponse, RelayedWrite, WriteOffer
from raftstore.protocol.publish import PayloadRelay, PubMsg
from raftstore.protocol.records import Record, RecordMeta
from raftstore.protocol.replication import (
    CannotComplete,
    CaughtUp,
    CommitNotice,
    FreshRequest,
    MsgSyncRequest,
    ReadIndexReply,
    RemovedNotice,
    ReplicationMessage,
    StoreAck,
    StoreReject,
    StoreRequest,
)
from raftstore.types import NO_GUID, ChannelConfig, NodeId, RecordKind, ReplicaId, Role, Seq, Term

ONLY_UNTIL: Final = "this replica leads only until a voter can; retry"


class Leader:
    """This replica leads its channel in ``state.term``."""

    def __init__(self, state: ChannelState) -> None:
        assert state.role is Role.LEADER, f"a leader in the role {state.role} (S1.5)"
        assert state.recovering is None, f"a leader lacks {state.recovering} (S0.3)"
        assert state.stopped is None, f"a leader does not serve: {state.stopped} (S13)"
        assert state.leader == state.me, f"a leader that follows {state.leader} (S1.5)"
        self._state = state
        self._term = state.term
        self._progress: dict[NodeId, Progress] = {
            node: Progress(number=state.configs.current.number_of(node))
            for node in state.configs.current.members
            if node != state.me
        }
        self.sequencer = Sequencer(state, self._replicas_holding)
        self.fetching = FetchingLeader(state, self.sequencer)
        self.reads = ReadRounds(state)
        self.hand_over = HandOver(state, self.sequencer, self._progress, self._probe)
        self.change = Change(
            state, self._progress, self.hand_over, self._append_config, self._probe
        )
        self._notice_at_ms: int | None = None
        self.is_ready = False
        """Whether a record of the term is committed (S7.1, first clause)."""
        self._appended: deque[tuple[Seq, int]] = deque()
        """(last seq, when appended) of the records of the term that are not committed."""

    def start(self) -> None:
        """S2.2: a term-start record comes before anything else of the term."""
        state = self._state
        assert state.lineage.last.term < state.term, (
            f"term {state.term} has a record before its leader wrote one (S2.2)"
        )
        record = self._own_record(RecordKind.TERM_START, b"")
        if not state.configs.current.may_lead(state.own_id):
            # M18, W4: elected for its log alone, by voters that one of them may lead with it.
            self.sequencer.refusal = self.hand_over.standing_refusal = ONLY_UNTIL
        self._replicate(record, inlined=True)

    def _own_record(self, kind: RecordKind, payload: bytes) -> Record:
        """The next record of the log, which the leader makes itself: no publisher knows of it."""
        return Record(
            term=self._state.term,
            base_seq=Seq(self._state.last_seq + 1),
            rows=1,
            guid=NO_GUID,
            timestamp_ms=self.sequencer.next_timestamp_ms(),
            digest=digest_of(payload),
            kind=kind,
            payload=payload,
        )

    def stop(self) -> None:
        """The role is lost: pending publishes are in doubt (S4.3), reads must go elsewhere."""
        self.sequencer.on_leadership_lost()
        text = f"the leadership of term {self._term} ended; ask the new leader"
        self.reads.refuse_all(NotLeaderError, text)

    @property
    def knows_position(self) -> bool:
        """Whether it may report how far the channel is committed.

        S7.3: not before a record of the term is committed, and not after the node stood still,
        for another may lead since: a follower that measured its lag against an old position would
        call itself fresh.
        """
        return self.is_ready and self._state.freshness.is_trusted

    @property
    def reported_commit_seq(self) -> Seq:
        """The commit position reported to others: 0 while the leader may not know it."""
        return self._state.commit_seq if self.knows_position else Seq(0)

    def progress(self) -> dict[NodeId, ProgressView]:
        """The progress of every other member."""
        return {node: progress.view() for node, progress in self._progress.items()}

    # --- publishing -------------------------------------------------------------------------------

    def on_publish(self, client: int, message: PubMsg, refusal: Refusal | None = None) -> None:
        """A publish addressed to this leader in this term."""
        state = self._state
        if state.is_witness and state.dedupe.find(message.guid) is not None:
            return  # W4: what came of it the rows say, which the next leader has
        record = self.sequencer.admit(client, message, refusal)
        if record is None:
            return
        for node in dict.fromkeys(message.relay_to):  # once each, however often it is named
            if node in self._progress:
                relay = PayloadRelay(
                    channel=state.channel,
                    term=state.term,
                    guid=message.guid,
                    digest=message.digest,
                    payload=message.payload,
                )
                state.send(node, relay)
        self._replicate(record, inlined=False)
        self.sequencer.await_outcome(client, message)

    def _replicate(self, record: Record, *, inlined: bool) -> None:
        """Send to the followers, then write: in this order on purpose (NATS-049)."""
        state = self._state
        assert record.term == self._term == state.term, (
            f"a record of term {record.term} by the leader of {self._term} in {state.term} (S1.5)"
        )
        assert record.base_seq == state.lineage.last_seq + 1, (
            f"followers would be sent seq {record.base_seq} behind {state.lineage.last_seq}"
        )
        meta = RecordMeta(
            term=record.term,
            base_seq=record.base_seq,
            rows=record.rows,
            guid=record.guid,
            timestamp_ms=record.timestamp_ms,
            digest=record.digest,
            length=len(record.payload),
            kind=record.kind,
            payload=record.payload if inlined else None,
        )
        reported_commit_seq = self.reported_commit_seq
        request = StoreRequest(
            channel=state.channel,
            term=state.term,
            prev_term=state.lineage.term_at(state.last_seq),
            commit_seq=reported_commit_seq,
            records=(meta,),
        )
        for node, progress in self._progress.items():
            state.send(node, request)
            progress.sent_commit = reported_commit_seq
            if progress.resend_at_ms is None:
                progress.arm_resend(state.now_ms, state.settings.resend_interval_ms)
        state.append(record)
        self._appended.append((record.last_seq, state.now_ms))

    # --- configurations ---------------------------------------------------------------------------

    def _append_config(self, config: ChannelConfig, payload: bytes) -> None:
        """M2: it counts from its append on, for this record, too."""
        record = self._own_record(RecordKind.CONFIG, payload)
        self._follow(config)
        self._replicate(record, inlined=True)
        self.change.on_config()
        self.hand_over.on_config()
        self.reads.on_config()
        self.advance_commit()  # M25: fewer may be needed than before

    def _follow(self, config: ChannelConfig) -> None:
        """M25: progress of the members of ``config``, of new lives and new members from nothing."""
        for node, progress in tuple(self._progress.items()):
            if not config.has_member(ReplicaId(node, progress.number)):
                del self._progress[node]
        for node in config.members:
            if node != self._state.me and node not in self._progress:
                self._progress[node] = Progress(number=config.number_of(node))

    def _probe(self, node: NodeId) -> None:
        """A notice makes a follower acknowledge."""
        self._send_notice(node, self._progress[node])

    def _on_config_committed(self, before: ChannelConfig) -> None:
        """M13: replicas that it names no more are notified. M5, W4: a leader that is no voter of it
        or a witness gives up, once the members know of the commit; else the change goes on."""
        state, now = self._state, self._state.configs.committed.config
        for node in before.members:
            replica = ReplicaId(node, before.number_of(node))
            if node != state.me and not now.has_member(replica):
                self.send_removed(replica)
        if state.configs.current is now and not now.may_lead(state.own_id):
            for node, progress in self._progress.items():
                self._send_notice(node, progress)
            if now.has_member(state.own_id) and self.hand_over.yield_lead(ONLY_UNTIL):
                return  # M18, W4: it was elected for its log, and knows who holds all of that
            text = "a committed configuration does not name this replica as a voter with rows"
            state.emit(StepDown(text))
        else:
            self.change.advance()

    # --- messages ---------------------------------------------------------------------------------

    def on_message(self, sender: NodeId, message: ReplicationMessage) -> None:
        """A follower's message of this term."""
        progress = self._progress.get(sender)
        # S3.6, M4: no member, or another life of a member's replica.
        if progress is None or getattr(message, "replica", progress.number) != progress.number:
            self._on_stranger(sender, message)
            return
        match message:
            case StoreAck():
                self._on_ack(sender, progress, message)
            case StoreReject():
                progress.is_catching_up = True
                progress.on_heard(self._state.now_ms)
            case MsgSyncRequest():
                self._on_sync_request(sender, progress, message)
            case CannotComplete(deltas=deltas):
                progress.cannot_complete = True
                progress.on_heard(self._state.now_ms)
                recent = deltas[-self._state.catch_up.slow_windows :]
                self._state.emit(ReplicaCannotComplete(sender, recent))
            case CaughtUp():
                progress.is_catching_up = progress.cannot_complete = False
                progress.on_heard(self._state.now_ms)
            case ReadIndexReply():
                progress.on_heard(self._state.now_ms)
                self._on_read_reply(sender, message)
            case FreshRequest():
                progress.on_heard(self._state.now_ms)
                self.reads.on_fresh_request(sender, message.round_id)
            case WriteOffer() | RelayedWrite() | PayloadResponse():
                progress.on_heard(self._state.now_ms)
                self.fetching.on_message(sender, message)
            case _:
                self._state.halt(f"{sender} acts as a second leader of the term (S13)")

    def _on_stranger(self, sender: NodeId, message: ReplicationMessage) -> None:
        """M13: a removed replica is notified when it acknowledges or asks for history."""
        if isinstance(message, (StoreAck, MsgSyncRequest)):
            replica = ReplicaId(sender, message.replica)
            if self._state.configs.has_dropped(replica):
                self.send_removed(replica)

    def send_removed(self, replica: ReplicaId) -> None:
        """M13: a hint to a replica that the committed configurations have dropped."""
        state = self._state
        notice = RemovedNotice(
            channel=state.channel,
            term=state.term,
            config_seq=state.configs.committed.seq,
            commit_seq=self.reported_commit_seq,
            replica=replica.number,
        )
        state.send_if_known(replica.node, notice)

    def _on_ack(self, sender: NodeId, progress: Progress, ack: StoreAck) -> None:
        state = self._state
        assert ack.term == self._term, f"an ack of term {ack.term} counts in {self._term} (S1.4)"
        last_seq = state.lineage.last_seq
        moved = progress.on_ack(ack, last_seq=last_seq, now_ms=state.now_ms)
        if not progress.needs(last_seq, state.commit_seq):
            progress.resend_at_ms = None
        elif moved or progress.resend_at_ms is None:
            progress.arm_resend(state.now_ms, state.settings.resend_interval_ms)
        if moved:
            self.advance_commit()
        if self.hand_over.deadline_ms is not None:
            self.hand_over.advance()
        if self.change.due_ms is not None:
            self.change.on_ack(sender, progress)

    def _on_read_reply(self, sender: NodeId, reply: ReadIndexReply) -> None:
        knew_position = self.knows_position
        self.reads.on_reply(sender, reply)
        if self.knows_position and not knew_position:
            self._arm_notice()  # followers were sent no position meanwhile

    def on_storage_stalled(self, down: tuple[NodeId, ...]) -> None:
        """S0.4: the disk hangs here, or goes on: lead no longer if anybody else can."""
        reason = self._state.storage_stalled
        if reason is None:
            self.hand_over.stay()
        else:
            self.reads.refuse_all(UnavailableError, reason)
            self.hand_over.leave(reason, down)

    def on_stalled(self) -> None:
        """The node stood still: the leadership is to be confirmed before its position counts."""
        self._arm_notice()
        self.reads.advance()

    def _on_sync_request(self, sender: NodeId, progress: Progress, request: MsgSyncRequest) -> None:
        """S2.6, S6.1: serve history from where the follower's log may equal ours."""
        state = self._state
        progress.on_heard(state.now_ms)
        progress.is_catching_up = True
        from_seq = request.from_seq
        if from_seq == 0:
            from_seq = Seq(state.lineage.match_point(request.lineage) + 1)
        from_seq, first_seq = Seq(min(from_seq, state.last_seq + 1)), Seq(state.base.seq + 1)
        progress.sent_commit = self.reported_commit_seq
        progress.arm_resend(state.now_ms, state.settings.resend_interval_ms)
        serve = ServeSync(
            to=sender,
            request=request,
            term=state.term,
            from_seq=from_seq,
            # S6.6: below the base there is nothing to be served, and never a gap.
            prev_term=state.lineage.term_at(from_seq - 1) if from_seq >= first_seq else Term(0),
            commit_seq=self.reported_commit_seq,
            last_seq=state.last_seq,
            first_seq=first_seq,
        )
        assert 1 <= from_seq <= state.last_seq + 1, f"history from {from_seq} of {state.last_seq}"
        state.emit(serve)

    # --- commit -----------------------------------------------------------------------------------

    def advance_commit(self) -> None:
        """S3: commit what a quorum durably holds, and answer those who wait for it."""
        state = self._state
        if state.commit_seq == state.lineage.last_seq:
            return
        held = quorum_seq(state.configs.current, self._matches())
        if held <= state.commit_seq:
            return
        # S3.1: only a record of this term commits by counting; earlier ones commit with it.
        if state.lineage.term_at(held) != state.term:
            return
        # S1.4: a leader acts only while its term is the one it won.
        assert state.term == self._term, f"term {self._term} was won, {state.term} is present"
        was_ready, self.is_ready = self.is_ready, True
        if not was_ready and state.configs.committed.seq:
            state.emit_config()  # M22: the leader before may not have reported it
        before = state.configs.committed
        for last_seq in state.advance_commit(held):
            self.sequencer.on_committed(last_seq)
        self._learn_freshness(held)
        self.reads.advance()
        self._arm_notice()
        if not was_ready or state.configs.committed is not before:
            self._on_config_committed(before.config)
        if self.hand_over.deadline_ms is not None:
            self.hand_over.advance()

    def _learn_freshness(self, commit_seq: Seq) -> None:
        """S7.3: a quorum stored the record in this term, so when it was appended nobody had
        committed anything in a higher one, and this leader nothing above it."""
        appended_ms: int | None = None
        while self._appended and self._appended[0][0] <= commit_seq:
            appended_ms = self._appended.popleft()[1]
        if appended_ms is not None:
            self._state.freshness.learn(appended_ms, commit_seq)

    def _matches(self) -> dict[NodeId, Seq]:
        """S3.2: one durable match per distinct member id."""
        state = self._state
        match = {node: progress.match_seq for node, progress in self._progress.items()}
        # S3.3, S0.6: the leader counts itself for what it has stored, with its term durable (S0.5),
        # and if it is the replica that the configuration names (M4).
        is_named = state.configs.current.number_of(state.me) == state.number
        if is_named and state.durable_term == state.term:
            match[state.me] = state.stored_seq
        return match

    def rows_seq(self) -> Seq:
        """W6: up to where no witness is needed for what is committed, under each configuration
        that may count."""
        match, entries = self._matches(), self._state.configs.entries
        return min(rows_seq(each.config, match) for each in entries)

    def _replicas_holding(self, seq: Seq) -> int:
        """Voters known to hold ``seq`` durably."""
        match = self._matches()
        return sum([match.get(node, 0) >= seq for node in self._state.configs.current.voters])

    # --- sending followers what nothing else carries (S3.5) --------------------------------------

    def _arm_notice(self) -> None:
        if self._progress:
            interval = self._state.settings.commit_notice_interval_ms
            self._notice_at_ms = self._state.now_ms + interval

    def _send_notice(self, node: NodeId, progress: Progress) -> None:
        state = self._state
        term, last_seq = state.lineage.last
        commit_seq = self.reported_commit_seq
        notice = CommitNotice(
            channel=state.channel,
            term=state.term,
            commit_seq=commit_seq,
            last_seq=last_seq,
            last_term=term,
            commit_hash=state.chain.at(commit_seq) or b"",
            commit_batches=state.batches.tell(commit_seq),
        )
        state.send(node, notice)
        progress.sent_commit = commit_seq

    # --- timers -----------------------------------------------------------------------------------

    def on_timer(self) -> None:
        """Run the timers that are due."""
        state, now_ms = self._state, self._state.now_ms
        self.sequencer.on_timer()
        self.reads.on_timer()
        self.hand_over.on_timer()
        self.change.on_timer()
        if self._notice_at_ms is not None and self._notice_at_ms <= now_ms:
            self._notice_at_ms = None
            reported_commit_seq = self.reported_commit_seq
            for node, progress in self._progress.items():
                if progress.sent_commit < reported_commit_seq:
                    self._send_notice(node, progress)
                    if progress.resend_at_ms is None:
                        progress.arm_resend(now_ms, state.settings.resend_interval_ms)
        for node, progress in self._progress.items():
            if progress.resend_at_ms is None or progress.resend_at_ms > now_ms:
                continue
            if progress.needs(state.last_seq, state.commit_seq):
                self._send_notice(node, progress)
                interval = state.settings.resend_interval_ms
                progress.arm_resend(now_ms, interval, again=True)
            else:
                progress.resend_at_ms = None

    def next_deadline_ms(self) -> int | None:
        """The earliest of all timers."""
        due = self._notice_at_ms
        for progress in self._progress.values():
            resend = progress.resend_at_ms
            if resend is not None and (due is None or resend < due):
                due = resend
        for other in (
            self.sequencer.next_deadline_ms(),
            self.reads.next_deadline_ms(),
            self.hand_over.due_ms,
            self.change.due_ms,
        ):
            if other is not None and (due is None or other < due):
                due = other
        return due
