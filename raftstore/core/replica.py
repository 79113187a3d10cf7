"""One channel on one node: ``Replica.step(event, now_ms)`` returns what must be done about it.

This module only dispatches by role and keeps the order of things; the rules are in ``leader`` and
``follower``, what both know is in ``state``. ``step`` never blocks and never raises for anything a
network or a disk may do; an impossible state is a ``Halt`` (S0.4, S13) or an assertion.

``applied_seq <= commit_seq <= last_seq`` always; ``apply_to <= durable_seq`` always (S10).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from raftstore.config import CatchUpSettings, MembershipSettings, ReplicationSettings
from raftstore.core.chain_views import ChainViews
from raftstore.core.doubt import UNKNOWN_END
from raftstore.core.effects import Effect, HandOverFailed, ReadRefused
from raftstore.core.events import (
    Applied,
    Broken,
    DisputeEnded,
    Event,
    FreshnessRequested,
    HandOverRequested,
    LocalEvent,
    PayloadSource,
    PeerHash,
    Persisted,
    PublishReceived,
    ReadRequested,
    ReadsDropped,
    Received,
    RoleChanged,
    Stalled,
    StorageStalled,
    TargetKnown,
    TimerFired,
    TrimTo,
)
from raftstore.core.follower import Follower
from raftstore.core.found_table import FOUND_TABLE, FoundTable
from raftstore.core.leader import Leader
from raftstore.core.members import MemberViews
from raftstore.core.payload_repair import give_payloads
from raftstore.core.pending import PayloadRoom, PendingPayloads
from raftstore.core.progress import ProgressView
from raftstore.core.proof_requests import ProofRequests
from raftstore.core.sequencer import answer_held, oversized, refuse_not_leader, reject
from raftstore.core.state import ChannelState
from raftstore.core.statistics import CatchUpView, ReplicaStatistics
from raftstore.core.write_outcome import WriteOutcomeFound, write_outcome_of
from raftstore.errors import NoLeaderError, NotLeaderError, UnavailableError
from raftstore.ports.log import Base, RecoveredChannel
from raftstore.protocol.log_ends import AskLogEnd, LogEnd
from raftstore.protocol.payload_repair import PayloadRequest
from raftstore.protocol.records import Record
from raftstore.protocol.replication import FreshReply
from raftstore.types import (
    FOUNDING_NUMBER,
    ChannelConfig,
    ChannelId,
    FollowerMode,
    Guid,
    History,
    NodeId,
    ReplicaNumber,
    Role,
    Seq,
    Term,
)

DISPUTED: Final = (
    "another replica has another history; a quorum has to show which one is right first; retry"
)


class Replica(MemberViews, ChainViews):
    """The replication protocol of one channel on one node.

    ``records`` are the channel's records behind the base of its log, in order (payloads may be
    empty except of CONFIG and BATCH_MARK): what is derived from them goes on from that base.
    ``found``: what the log does not say about the table. ``number``: which life of this node's
    replica it is (M14).
    Raises CorruptRecordError or NewerFormatError when the base cannot be read.
    """

    def __init__(  # noqa: PLR0913 - what is recovered, and what it is to be
        self,
        *,
        me: NodeId,
        channel: ChannelId,
        creation_config: ChannelConfig,
        settings: ReplicationSettings,
        catch_up: CatchUpSettings = ChannelState.catch_up,
        membership: MembershipSettings = ChannelState.membership,
        durability: str,
        recovered: RecoveredChannel,
        records: Iterable[Record],
        applied_seq: Seq,
        found: FoundTable = FOUND_TABLE,
        first_round_id: int = 0,
        room: PayloadRoom | None = None,
        number: ReplicaNumber = FOUNDING_NUMBER,
    ) -> None:
        self._state = ChannelState(
            me=me,
            channel=channel,
            creation_config=creation_config,
            settings=settings,
            durability=durability,
            recovered=recovered,
            records=records,
            applied_seq=applied_seq,
            found=found,
            first_round_id=first_round_id,
            number=number,
        )
        self._state.sync_request_id = first_round_id
        self._state.catch_up, self._state.membership = catch_up, membership
        self._payloads = PendingPayloads(
            messages_max=settings.pending_messages_max,
            bytes_max=settings.pending_bytes_max,
            hold_ms=settings.store_request_timeout_ms,
            offer_ms=settings.write_offer_ms,
            channel=channel,
            room=room,
        )
        self._leader: Leader | None = None
        self._follower = Follower(self._state, self._payloads)
        self._fresh = ProofRequests(self._state, first_round_id)
        self._entry_reason = "restart" if self._state.last_seq else "new"

    # --- the step ---------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event at ``now_ms`` (the driver's monotonic clock); effects are in order."""
        state = self._state
        if state.halted is not None:
            return []
        state.now_ms = now_ms
        match event:
            case Received():
                self._on_received(event)
            case _:
                self._dispatch(event)
        if self._leader is None:
            self._follower.finish()
        return state.take_effects()

    def release_payloads(self) -> None:
        """The channel is closed: what it holds of clients' writes counts no longer."""
        self._payloads.discard_all()

    def next_deadline_ms(self) -> int | None:
        """When ``TimerFired`` must come at the latest; None while nothing waits for time."""
        if self._state.halted is not None:
            return None
        due = (self._leader or self._follower).next_deadline_ms()
        for other in (self._payloads.next_ms, self._state.refused.due_ms):
            if other is not None and (due is None or other < due):
                due = other
        if self._state.doubt is not None:
            other = self._state.doubt.due_ms
            due = other if due is None else min(due, other)
        if self._fresh.until_ms is not None:
            other = self._fresh.next_deadline_ms()
            if other is not None and (due is None or other < due):
                due = other
        return due

    def _dispatch(self, event: LocalEvent) -> None:  # noqa: C901 - one arm per event
        match event:
            case PublishReceived():
                self._on_publish(event)
            case Persisted():
                self._on_persisted(event)
            case Applied(applied_seq, conflicts):
                self._on_applied(applied_seq, conflicts)
            case Broken(reason):
                self._state.stop_serving(reason)
            case DisputeEnded():
                self._state.is_disputed = False
            case RoleChanged():
                self._on_role_changed(event)
            case TimerFired():
                self._on_timer()
            case ReadRequested(token):
                self._on_read(token)
            case ReadsDropped(tokens):
                if self._leader is not None:
                    self._leader.reads.drop(tokens)
            case FreshnessRequested(until_ms):
                self._on_freshness_requested(until_ms)
            case Stalled():
                self._on_stalled()
            case StorageStalled(reason, down):
                self._on_storage_stalled(reason, down)
            case HandOverRequested():
                self._on_hand_over(event)
            case PeerHash(sender, seq, commit_hash, batches):
                self._state.batches.reported(seq, batches)
                self._state.check_hash(sender, seq, commit_hash)
            case TrimTo(base):
                self._state.trim(base)
            case TargetKnown():
                self._on_target(event)
            case PayloadSource(seq, node):
                if self._leader is None:
                    self._follower.on_payload_source(seq, node)
            case _:
                assert_never(event)

    # --- events -----------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> None:
        state, message = self._state, event.message
        if isinstance(message, (AskLogEnd, LogEnd)):
            self._on_log_ends(event.sender, message)
            return
        # S1.4: the engine fences; a message of another term must not be looked at here either.
        if event.message.term != state.term or state.stopped is not None:
            return
        if type(message) is PayloadRequest:
            give_payloads(state, self._payloads, event.sender, message)
        elif self._leader is not None:
            self._leader.on_message(event.sender, message)
        elif type(message) is FreshReply:
            self._fresh.on_reply(event.sender, message)
        else:
            self._follower.on_message(event.sender, message)

    def _on_log_ends(self, sender: NodeId, message: AskLogEnd | LogEnd) -> None:
        """S0.6: what may be wrong says nothing of itself (S13)."""
        state = self._state
        if isinstance(message, LogEnd):
            state.on_log_end(sender, message)
        elif state.stopped is None and not state.is_disputed:
            leads, own = self._leader is not None, state.lineage.last
            answer = LogEnd(state.channel, state.term, message.request_id, own, leads)
            state.send_if_known(sender, answer)

    def _on_publish(self, event: PublishReceived) -> None:
        state, client, message = self._state, event.client, event.message
        if message.leader != state.me:
            # S5.6: addressed to another leader: only ever cache here, never sequenced.
            too_large = oversized(message)
            if too_large is not None:
                reject(state, client, message, *too_large)
            elif self._leader is None and state.stopped is None:
                self._follower.hold(
                    message.guid, message.digest, message.payload, client, write=message
                )
            return
        # S5.6: only the leader addressed, in the term addressed, may give the write a seq.
        if self._leader is None or message.term != state.term:
            refuse_not_leader(state, client, message)
        elif state.stopped is not None:
            text = f"the channel stopped serving: {state.stopped}"
            if state.dedupe.find(message.guid) is None:
                reject(state, client, message, UnavailableError, text)
        elif state.is_disputed and state.dedupe.find(message.guid) is None:
            reject(state, client, message, UnavailableError, DISPUTED)
        else:
            self._leader.on_publish(client, message, event.refusal)

    def _on_persisted(self, event: Persisted) -> None:
        self._state.on_persisted(event.durable_seq, event.durable_term, event.stored_seq)
        if self._leader is None:
            self._follower.on_persisted()
        elif self._state.stopped is None:
            self._leader.advance_commit()

    def _on_applied(self, applied_seq: Seq, conflicts: tuple[tuple[Seq, Seq], ...]) -> None:
        known = self._state.apply_outcomes(applied_seq, conflicts)
        if self._leader is not None:
            for written in known:
                self._leader.sequencer.on_outcome(written)
            self._leader.sequencer.on_applied()
            self._leader.reads.advance()
        elif self._follower.applied_wanted:
            self._follower.on_applied()

    def _on_timer(self) -> None:
        self._payloads.expire(self._state.now_ms)
        answer_held(self._state, self._state.refused.take_overdue(self._state.now_ms))
        self._fresh.on_timer()
        if self._leader is not None:
            self._payloads.take_offers(self._state.now_ms)  # they were addressed to another leader
            self._leader.on_timer()
        else:
            self._follower.on_timer()
        self._state.ask_log_ends()

    def _on_target(self, event: TargetKnown) -> None:
        self._state.target = event.target
        self._state.config_seq_reported = event.config_seq_reported
        if self._leader is not None:
            self._leader.change.advance()

    def _on_read(self, token: int) -> None:
        state = self._state
        if state.stopped is not None:
            text = f"the channel stopped serving: {state.stopped}"
            state.emit(ReadRefused(token, UnavailableError, text))
        elif state.is_disputed:
            state.emit(ReadRefused(token, UnavailableError, DISPUTED))
        elif self._leader is not None and state.storage_stalled is not None:
            # S0.4: what commits from now on cannot be applied here, so it could not be answered.
            state.emit(ReadRefused(token, UnavailableError, state.storage_stalled))
        elif self._leader is not None:
            self._leader.reads.request(token)
        elif state.leader is None:
            text = "the channel has no leader known to this node; retry"
            state.emit(ReadRefused(token, NoLeaderError, text))
        else:
            text = f"the channel is led by {state.leader}, ask there"
            state.emit(ReadRefused(token, NotLeaderError, text))

    def _on_freshness_requested(self, until_ms: int) -> None:
        self._fresh.request(until_ms)
        if self._leader is not None:
            self._leader.reads.request_proof()

    def _on_stalled(self) -> None:
        # S7.3: what waited in buffers is as old as the stop was long, and so is a leadership.
        self._state.freshness.distrust(self._state.now_ms)
        self._fresh.restart()
        if self._leader is not None:
            self._leader.on_stalled()

    def _on_storage_stalled(self, reason: str | None, down: tuple[NodeId, ...]) -> None:
        self._state.storage_stalled = reason
        if self._leader is not None:
            self._leader.on_storage_stalled(down)

    def _on_hand_over(self, event: HandOverRequested) -> None:
        if self._leader is None:
            self._state.emit(HandOverFailed("this node does not lead the channel"))
        else:
            self._leader.hand_over.request(
                event.target, event.reason, down=event.down, keeps_trying=event.keeps_trying
            )

    # --- roles ------------------------------------------------------------------------------------

    def _on_role_changed(self, event: RoleChanged) -> None:
        state = self._state
        assert (event.role is Role.LEADER) == (event.leader == state.me), (
            f"{state.me} is {event.role} of a term led by {event.leader} (S1.5)"
        )
        if event.term < state.term:
            state.halt(f"the elector went back to term {event.term}")
            return
        known = state.term_leader if event.term == state.term else None
        if known is not None and event.leader not in (None, known):
            state.halt(f"{known} and {event.leader} lead the same term (S13)")
            return
        is_same = (event.term, event.leader) == (state.term, state.leader)
        was_leader = self._leader is not None
        if is_same and was_leader == (event.role is Role.LEADER):
            state.role = event.role
            if not was_leader:
                self._follower.on_reconnected()
                self._fresh.restart()
            return
        self._give_up_role(event)
        if event.role is Role.LEADER:
            self._become_leader()
        else:
            self._become_follower()
        if state.leader is not None:
            answer_held(state, state.refused.take_all())

    def _give_up_role(self, event: RoleChanged) -> None:
        """Answer all waiting requests, then take over term, role and leader."""
        state = self._state
        if event.term != state.term:
            state.term_leader = None
        old = self._leader
        self._leader = None
        state.term, state.role, state.leader = event.term, event.role, event.leader
        if event.leader is not None:
            state.term_leader = event.leader
        if old is not None:
            old.stop()

    def _become_leader(self) -> None:
        state = self._state
        if state.recovering is not None:
            state.halt("a recovering replica was elected although it must not stand (S0.3)")
            return
        if state.stopped is not None:
            state.halt(f"a replica that stopped serving was elected: {state.stopped}")
            return
        state.mode, state.mode_reason = FollowerMode.STEADY, "leader"
        state.verified_seq = Seq(0)
        self._entry_reason = "leader_changed"
        state.won(state.term)
        self._leader = Leader(state)
        self._leader.start()
        if state.storage_stalled is not None:
            self._leader.on_storage_stalled(())

    def _become_follower(self) -> None:
        """S6.2: nothing learned from another leadership is continued."""
        self._follower = Follower(self._state, self._payloads)
        reason, self._entry_reason = self._entry_reason, "leader_changed"
        if self._state.leader is None:
            self._state.set_mode(FollowerMode.CATCHING_UP, "no_leader")
            self._entry_reason = reason
        else:
            self._state.set_mode(FollowerMode.CATCHING_UP, reason)
            self._follower.start(reason)
        self._fresh.restart()

    def tell_write_outcome(self, guid: Guid) -> WriteOutcomeFound | None:
        """The outcome of a write (N4); None: this replica does not lead, or stopped serving.

        Only for a question that came before a ReadIndex round was started that is confirmed by
        now. What is reported as not applied is refused from now on.
        """
        state = self._state
        if self._leader is None or state.stopped is not None or state.is_witness:
            return None
        return write_outcome_of(state, guid, self._leader.sequencer.fence)

    # --- views for the engine ---------------------------------------------------------------------

    @property
    def last_timestamp_ms(self) -> int:
        """The time that the newest record states; none behind it states less (S10)."""
        return self._state.tail.last_timestamp_ms

    def history(self) -> History:
        """ACCEPTED history, durable or not: what elections compare (S1.2)."""
        # S1.2: everything accepted may still be acknowledged, so all of it counts in a vote.
        return self._state.lineage.last

    def may_vote(self, candidate: History = UNKNOWN_END) -> bool:
        """S0.3: false while acknowledged records are missing here: no vote and no pre-vote for a
        candidate of this history.

        A replica whose copied table is ahead of its log votes: all that it ever acknowledged is in
        its log, by which votes are judged (S1.1), and it may be what a quorum lacks. One in doubt
        votes for who has come to its target (S0.6).
        """
        if self.may_stand():
            return True
        state, doubt = self._state, self._state.doubt
        is_able = state.storage_stalled is None and state.stopped is None
        if state.is_disputed:
            return False
        if doubt is not None and (doubt.target is None or candidate < doubt.target):
            return False
        return is_able and state.keeps_promises

    def may_stand(self) -> bool:
        """S0.3: false while recovering (and when stopped): no candidacy.
        Nor while the disk hangs (S0.4): nothing would become durable, so nothing could be
        acknowledged."""
        if self._state.storage_stalled is not None:
            return False
        if self._state.is_disputed:
            return False
        return self._state.recovering is None and self._state.stopped is None

    @property
    def wall_offset_ms(self) -> int:
        """Wall clock minus the driver's monotonic clock; record timestamps use it (S10)."""
        return self._state.wall_offset_ms

    @wall_offset_ms.setter
    def wall_offset_ms(self, offset_ms: int) -> None:
        self._state.wall_offset_ms = offset_ms

    @property
    def term(self) -> Term:
        """Term as the core knows it."""
        return self._state.term

    @property
    def role(self) -> Role:
        """Role as the core knows it."""
        return self._state.role

    @property
    def leader(self) -> NodeId | None:
        """Leader of the term, as far as known."""
        return self._state.leader

    @property
    def commit_seq(self) -> Seq:
        """Known commit position."""
        return self._state.commit_seq

    @property
    def last_seq(self) -> Seq:
        """End of the accepted log."""
        return self._state.last_seq

    @property
    def durable_seq(self) -> Seq:
        """End of the durable log."""
        return self._state.durable_seq

    @property
    def base(self) -> Base:
        """The state of the log in front of the first record that it holds (S6.5)."""
        return self._state.base

    @property
    def verified_seq(self) -> Seq:
        """Follower: equal to this term's leader up to here (S3.4)."""
        return self._state.verified_seq

    @property
    def mode(self) -> FollowerMode:
        """How it takes records; a leader counts as steady."""
        return self._state.mode

    def catch_up(self) -> CatchUpView | None:
        """Follower that catches up: how far it is."""
        return None if self._leader is not None else self._follower.catch_up_view()

    @property
    def history_left_bytes(self) -> int | None:
        """Follower that catches up: about how much history is ahead of it; None: not known."""
        return None if self._leader is not None else self._follower.history_left_bytes

    @property
    def is_flapping(self) -> bool:
        """Whether it left steady state again and again (NATS-153)."""
        return self._state.flapping.is_flapping(self._state.now_ms)

    @property
    def is_recovering(self) -> bool:
        """S0.3: acknowledged records are missing here; nothing is served or confirmed."""
        return self._state.recovering is not None

    @property
    def doubt(self) -> str:
        """S0.6: acknowledged records may be lost here; what it waits for, for people. Empty: no."""
        return "" if self._state.doubt is None else self._state.doubt.waits_for

    @property
    def lacks_rows(self) -> bool:
        """S0.3: rows are missing that no log brings back: only a replica snapshot does."""
        return self._state.lacks_rows

    @property
    def trimmed_to(self) -> Seq:
        """Follower: the first seq of the leader's log, which begins above where the two logs agree
        (S6.6); 0: it does not, as far as is known."""
        return Seq(0) if self._leader is not None else self._follower.trimmed_to

    @property
    def stopped_reason(self) -> str | None:
        """S13: why the channel stopped serving here."""
        return self._state.stopped

    @property
    def leader_is_ready(self) -> bool:
        """Leader with a committed record of its own term (S7.1, first clause)."""
        return self._leader is not None and self._leader.is_ready

    @property
    def knows_position(self) -> bool:
        """Leader that may report to others how far the channel is committed (S7.3)."""
        return self._leader is not None and self._leader.knows_position

    @property
    def is_trusting(self) -> bool:
        """S7.3: False from a stop of the node until a proof that was asked for after it."""
        return self._state.freshness.is_trusted

    def fresh_as_of(self, applied: Seq) -> int | None:
        """The newest proven moment at which a state applied so far was complete; None: unknown."""
        return self._state.freshness.as_of(applied)

    @property
    def proven_ms(self) -> int | None:
        """The newest moment for which it is proven how far the channel was committed."""
        return self._state.freshness.newest_ms

    def batches_at(self, applied: Seq) -> int | None:
        """Micro-batches in a state applied so far; None: not known any more (S10)."""
        return self._state.batches.at(applied)

    def tell_batches(self, seq: Seq) -> int:
        """The same as messages say it: -1 for not known."""
        return self._state.batches.tell(seq)

    def batches_between(self, applied: Seq, known_commit: Seq) -> tuple[int, int] | None:
        """The fewest and the most micro-batches from a state to a seq known to be committed."""
        batches, commit_seq = self._state.batches, self._state.commit_seq
        held = batches.at(applied)
        if held is None:
            return None
        fewest = max(0, batches.at_least(commit_seq) - held)
        return fewest, max(fewest, batches.at_most(known_commit, commit_seq) - held)

    @property
    def known_leader_commit_seq(self) -> Seq:
        """Highest commit seq a leader reported, or our own (commits are never taken back)."""
        return max(self._state.leader_commit, self._state.commit_seq)

    def progress(self) -> dict[NodeId, ProgressView]:
        """Leader: what it knows of every other member; empty otherwise."""
        return {} if self._leader is None else self._leader.progress()

    def gaps(self) -> tuple[Seq, tuple[tuple[Seq, Seq], ...]]:
        """The last seq held as a whole record, in the log or in front of it, and what is missing
        before it: metadata without a payload, or neither (NATS-207)."""
        if self._leader is not None:
            return self.last_seq, ()
        return self._follower.gaps()

    def live_queue(self) -> tuple[tuple[Seq, Seq], ...]:
        """(base, last) of the records waiting in the live queue."""
        return () if self._leader is not None else self._follower.queue.seqs()

    def statistics(self) -> ReplicaStatistics:
        """Sizes of everything bounded."""
        state = self._state
        waiting = 0 if self._leader is None else self._leader.sequencer.waiting
        return ReplicaStatistics(
            pending_payloads=self._payloads.statistics(),
            live_queue=self._follower.queue.statistics(),
            uncommitted_records=state.uncommitted_records,
            uncommitted_bytes=state.tail.bytes,
            waiting_publishers=waiting,
            producer_sessions=state.dedupe.sessions,
            outcomes=state.dedupe.outcomes,
            repeated_writes=state.dedupe.repeated,
            payloads_repaired=state.payloads_repaired,
        )
