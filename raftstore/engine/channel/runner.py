"""One channel on one node: fences messages, steps the core, executes its effects.

The order of work on every input: fence by term (S1.4) -> the elector may change role or term ->
those changes reach the core before the input does -> the core's effects run in list order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from raftstore.core.doubt import UNKNOWN_END
from raftstore.core.effects import (
    Append,
    CatchUpNote,
    CommitAdvanced,
    ConfigCommitted,
    DoubtEffect,
    Effect,
    FreshnessProven,
    Halt,
    HandOverFailed,
    HistoriesDiffer,
    PayloadEffect,
    RaiseTerm,
    ReadReady,
    ReadRefused,
    Rebase,
    ReplicaSnapshotNeeded,
    Reply,
    Send,
    ServeSync,
    StepDown,
    StopServing,
    TransferLeadership,
    Truncate,
)
from raftstore.core.events import (
    Applied,
    Broken,
    DisputeEnded,
    Event,
    FreshnessRequested,
    HandOverRequested,
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
from raftstore.core.replica import Replica
from raftstore.core.sequencer import oversized
from raftstore.engine.channel.apply_feed import ApplyFeed
from raftstore.engine.channel.channel_parts import ChannelParts
from raftstore.engine.channel.durable_tracker import ROW_KINDS, tracker_of
from raftstore.engine.channel.fence import admits
from raftstore.engine.channel.finding import found_table
from raftstore.engine.channel.history_feed import history_for
from raftstore.engine.channel.opened_log import recovered_from
from raftstore.engine.channel.outbox import TermOnly
from raftstore.engine.channel.promised_durability import PromisedDurability
from raftstore.engine.channel.read_confirmations import (
    OnConfirmed,
    OnRefused,
    ReadConfirmations,
)
from raftstore.engine.channel.taken_records import asked, taken
from raftstore.engine.channel.user_commands import PublishJudge, commands_of
from raftstore.engine.channel.versions import Versions
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF, METADATA_NAME
from raftstore.errors import CorruptRecordError, DecodeError, Refusal, RequestError, SchemaError
from raftstore.ports.machine import MachineStop
from raftstore.ports.tables import Answers, Conflicts
from raftstore.protocol.election import ElectionMessage
from raftstore.protocol.publish import PubMsg, PubReject
from raftstore.protocol.reads import Bounds
from raftstore.protocol.records import Record
from raftstore.protocol.replication import (
    CommitNotice,
    MsgSync,
    MsgSyncRequest,
    ReplicationMessage,
    StaleTerm,
    StoreRequest,
)
from raftstore.protocol.table_settings import DEFAULT_SETTINGS, TableSettings
from raftstore.record_machine import RecordMachine
from raftstore.types import (
    FOUNDING_NUMBER,
    ChannelConfig,
    ChannelId,
    Durability,
    History,
    NodeId,
    ReplicaNumber,
    Role,
    Seq,
    Term,
    node_name,
)

TIMESTAMPING = frozenset({PublishReceived, RoleChanged})
"""Events on which a leader may make a record: only these need the time (S10)."""
NO_BOUNDS = Bounds()


class ChannelRunner:
    """Core, elector, log and table of one channel. Implements ``ports.election.ElectionHost``."""

    table_damage: str | None = None
    """Why its table cannot be believed; another replica's is being put in its place."""
    leader_info_heard_ms: int | None = None
    is_paused = False
    """It waits to be opened anew from another log or table."""
    is_reopened = False
    """It is closed only to be opened anew at once: the channel goes on."""
    stopped_reason: str | None
    bounds: Bounds
    """Of the table; the catalog may change them at any time."""
    table_settings: TableSettings = DEFAULT_SETTINGS
    """Of the table; the catalog may change them at any time."""

    def __init__(
        self,
        parts: ChannelParts[ChannelRunner],
        *,
        channel: ChannelId,
        name: str,
        creation_config: ChannelConfig,
        machine: RecordMachine,
        durability: str,
        bounds: Bounds = NO_BOUNDS,
        number: ReplicaNumber = FOUNDING_NUMBER,
    ) -> None:
        self.parts = parts
        self.me, self.number = parts.me, number
        self.channel, self.name = channel, name
        self.stopped_reason, self.bounds = None, bounds
        self._now_ms, self._pumping, self.term_operation = 0, False, 0
        self._events: deque[Event] = deque()
        self._compared: dict[NodeId, tuple[Seq, bytes, Seq]] = {}
        self.confirmations = ReadConfirmations()
        recovered = recovered_from(parts.log, channel, name, number)
        self.hole = recovered.hole
        """What the log lacked when it was opened: if anything, the channel ignores its peers until
        it is opened again, which is when all was filled and is durable (S0.3)."""
        applied = parts.tables.open_channel(channel, machine)
        found = found_table(parts.log, parts.tables, channel)
        self.is_table_ahead = found.ahead is not None
        """S6.4: the table is a replica snapshot, and the log has not come so far since."""
        self.has_rows = machine.HOLDS_ROWS
        self.feed = ApplyFeed(
            parts.log, parts.tables, channel, applied, self._on_broken, machine.pieces
        )
        self.commands = commands_of(machine, parts, channel, name, self.feed)
        self._judge = PublishJudge(machine, self, parts.stage_refusal)
        self.versions = Versions(parts.tables, channel, parts.settings.read)
        self.unserved_until = parts.tables.unserved_until(channel)
        """A crash cut the record that ends here: nothing is answered before it is applied."""
        self.durable = tracker_of(recovered, durability)
        self.promised = PromisedDurability(parts.log, channel, self.durable)
        self.core = Replica(
            me=parts.me,
            channel=channel,
            creation_config=creation_config,
            settings=parts.settings.replication,
            catch_up=parts.settings.catchup,
            membership=parts.settings.membership,
            durability=durability,
            recovered=recovered,
            records=parts.log.records(channel),
            applied_seq=applied,
            found=found,
            # 62 bits that no other life of the node has: see ProofRequests and CatchUp.
            first_round_id=int.from_bytes(parts.boot_id[:8], "big") >> 2,
            room=parts.room,
            number=number,
        )
        self._role: tuple[Term, Role, NodeId | None] = (recovered.term, Role.FOLLOWER, None)
        self.elector = parts.elector_factory(self, channel, recovered.term, recovered.voted_for)

    # --- inputs -----------------------------------------------------------------------------------

    def on_publish(
        self,
        client: int,
        message: PubMsg,
        now_ms: int,
        *,
        refusal: Refusal | None = None,
    ) -> None:
        """A publisher's message; ``client`` is the handle to answer it.

        ``refusal``: why it must not be sequenced if it is new (``PublishReceived``).

        A client sends rows, or commands of a channel set: all else is of this node's own proposals.
        What is too large is not even looked into: the core refuses it.
        """
        is_client = client != CLIENT_HANDLE_SELF
        if message.leader == self.me and oversized(message) is None:
            try:
                refusal = self._judge.judged(message, refusal, is_client=is_client)
            except (DecodeError, CorruptRecordError) as error:
                self.reject(client, message, SchemaError, str(error))
                return
        size = len(message.payload)
        refusal = refusal or self.parts.guard.write_refusal(size, is_client=is_client)
        self._step(PublishReceived(client, message, refusal), now_ms)

    def reject(self, client: int, message: PubMsg, error: type[RequestError], text: str) -> None:
        """Answer a publisher whose message never reaches the core."""
        term, leader, attempt = self.elector.term, self.elector.leader, message.attempt
        self.parts.reply(
            client,
            PubReject(self.channel, term, message.guid, error.code, text, leader, attempt),
        )

    def on_election(self, sender: NodeId, message: ElectionMessage, now_ms: int) -> None:
        """An election message of any node of the cluster: who asks may be a member already, though
        the log here does not say so yet (M16, M17)."""
        # S0.3: no vote, no ack and no term before the log is whole.
        if self.ignores_peers:
            return
        self._now_ms = now_ms
        self.elector.on_message(sender, message, now_ms)
        self._pump()

    def on_replication(self, sender: NodeId, message: ReplicationMessage, now_ms: int) -> None:
        """A replication message of a peer: fenced, then stepped."""
        if self.ignores_peers:
            return
        self._now_ms = now_ms
        if not admits(self.elector, sender, message, now_ms, self._tell_stale):
            self._pump()
            return
        found = taken(self.parts.guard, message, is_catalog=self.name == METADATA_NAME)
        if found is None:
            self._pump()  # S0.4: what is not on the disk is bounded; it is caught up with later
            return
        message = found
        # S7.3: a leader that has committed nothing in its term yet reports no position.
        if isinstance(message, (StoreRequest, CommitNotice, MsgSync)) and message.commit_seq:
            self.on_position(now_ms)
        self._step(Received(sender, message), now_ms)

    def on_leader_claim(self, leader: NodeId, term: Term, now_ms: int) -> None:
        """A node's leadership list names this channel (S1.8)."""
        if self.ignores_peers:
            return
        self._now_ms = now_ms
        if not self.elector.on_leader(leader, term, now_ms):
            self._tell_stale(leader)
        self._pump()

    def on_leader_position(self, sender: NodeId, term: Term, arrived_ms: int, now_ms: int) -> None:
        """The leader's lag report arrived: its position is known anew (S7.3)."""
        if sender == self.elector.leader and term == self.elector.term:
            if self.core.is_trusting:
                self.on_position(arrived_ms)
            else:
                wait_ms = self.parts.settings.replication.read_index_timeout_ms
                self.request_proof(now_ms + wait_ms, now_ms)

    def on_position(self, heard_ms: int) -> None:
        """How far the channel is committed was reported at ``heard_ms``, or proven for then."""
        # S7.3: what arrives after a stop of the node may have waited as long as the stop took.
        if self.core.is_trusting:
            self.leader_info_heard_ms = max(heard_ms, self.leader_info_heard_ms or heard_ms)

    def on_stalled(self, now_ms: int) -> None:
        """The node stood still until now: whatever it knew of the leader is of before (S7.3)."""
        self.leader_info_heard_ms = None
        self._step(Stalled(), now_ms)

    def request_proof(self, until_ms: int, now_ms: int) -> None:
        """Ask how far the channel is committed; ``ChannelNotices`` passes on the answer, if any."""
        self._step(FreshnessRequested(until_ms), now_ms)

    def on_peer_hash(
        self, sender: NodeId, seq: Seq, commit_hash: bytes, now_ms: int, batches: int = -1
    ) -> None:
        """A peer's chain hash at one of its committed seqs (S13).

        An idle channel's report says the same every time; what was compared once stays compared.
        """
        compared = (seq, commit_hash, self.core.commit_seq)
        if commit_hash and self._compared.get(sender) != compared:
            self._compared[sender] = compared
            self._step(PeerHash(sender, seq, commit_hash, batches), now_ms)

    def on_leader_reachable_again(self, now_ms: int) -> None:
        """The connection to the leader is new: what was in flight is lost, so probe again."""
        self._events.append(RoleChanged(*self._role))
        self._now_ms = now_ms
        self._pump()

    def on_log_durable(self, operation: int, now_ms: int) -> None:
        """The node's log is durable up to ``operation``."""
        has_moved = self.durable.completed(operation)
        if self.promised.on_durable(operation) or has_moved:
            self._step(self._persisted(), now_ms)

    def on_log_written(self, operation: int, now_ms: int) -> None:
        """The system has the log up to ``operation`` (S0.6)."""
        if self.durable.written(operation):
            self._step(self._persisted(), now_ms)

    def _persisted(self) -> Persisted:
        durable = self.durable
        return Persisted(durable.durable_seq, durable.durable_term, durable.stored_seq)

    def checkpoint(self, done: Callable[[bool], None]) -> None:
        """NATS-017: call ``done`` with True when everything is synced and the mark says so, with
        False if the channel is closed before."""
        self.parts.active.await_log(self.channel)
        self.promised.take_back(done)

    def on_applied(
        self, applied_seq: Seq, conflicts: Conflicts, now_ms: int, answers: Answers = ()
    ) -> None:
        """The table store applied everything up to ``applied_seq``, or a piece of what follows."""
        if self.unserved_until:
            self.unserved_until = self.parts.tables.unserved_until(self.channel)
        if self.commands:
            self._notify_stop(self.commands.on_applied(answers))
        self._step(Applied(applied_seq, conflicts), now_ms)
        self.versions.on_applied(now_ms)
        self.feed.on_applied()
        for notify in self.parts.notices.applied:
            notify(self, answers, now_ms)

    def _notify_stop(self, stop: MachineStop | None) -> None:
        if stop is not None and stop.differs:
            for heeds in self.parts.notices.state_differs:
                heeds(self, stop.reason, self.parts.clock.now_ms)

    def inform(self, event: TrimTo | TargetKnown, now_ms: int) -> None:
        """Have the core know what another part of the node decided about this channel."""
        self._step(event, now_ms)

    def on_storage_stalled(self, reason: str | None, now_ms: int) -> None:
        """The disk of the node hangs, or goes on (S0.4)."""
        self._step(StorageStalled(reason, self._down()), now_ms)

    def request_read(self, on_confirmed: OnConfirmed, on_refused: OnRefused, now_ms: int) -> int:
        """Have a quorum confirm this leader (S7.1): one of the two is called once, maybe before
        this returns the token for ``drop_reads``."""
        token = self.confirmations.add(on_confirmed, on_refused)
        self._step(ReadRequested(token), now_ms)
        return token

    def drop_reads(self, tokens: frozenset[int], now_ms: int) -> None:
        """Their owners wait no longer: nothing is called, and the core has places for others."""
        self.confirmations.drop(tokens)
        self._step(ReadsDropped(tokens), now_ms)

    def request_hand_over(
        self, target: NodeId | None, reason: str, now_ms: int, *, keeps_trying: bool = False
    ) -> None:
        """Leader: give the leadership away (S9); ``keeps_trying``: one voter after another."""
        self._step(HandOverRequested(target, reason, self._down(), keeps_trying), now_ms)

    def _down(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self.config().voters if not self.parts.is_up(node))

    def suspect_leader(self, delay_ms: int, now_ms: int) -> None:
        """The leader is unknown or believed dead: stand after ``delay_ms`` (S1.8)."""
        self._now_ms = now_ms
        self.elector.suspect(now_ms, delay_ms)
        self._pump()

    def close(self, now_ms: int) -> None:
        """The table was dropped: publishers that wait get the answer of a lost leadership (S4.3).
        The owners of reads know it already."""
        self.confirmations.clear()
        self.promised.close()
        if self.core.role is Role.LEADER:
            self._step(RoleChanged(self.core.term, Role.FOLLOWER, None), now_ms)
        self.core.release_payloads()

    def step_down(self, reason: str, now_ms: int) -> None:
        """Leader: no quorum is in contact; give up the role and keep the term."""
        self._now_ms = now_ms
        self.parts.tell("step_down", channel=self.name, term=self.elector.term, reason=reason)
        self.elector.step_down(reason)
        self._pump()

    def on_timer(self, now_ms: int, *, may_stand: bool = True) -> None:
        """Some deadline of the core or the elector may have passed; the elector's may wait."""
        if self.is_paused:
            return
        self._now_ms = now_ms
        due = self.elector.next_deadline_ms()
        if may_stand and due is not None and due <= now_ms:
            self.elector.poll(now_ms)
            self._pump()
        due = self.core.next_deadline_ms()
        if due is not None and due <= now_ms:
            self._step(TimerFired(), now_ms)
        self.versions.on_timer(now_ms)

    def next_deadline_ms(self) -> int | None:
        """The earliest of the deadlines of core, elector and kept versions."""
        if self.is_paused:
            return None
        core, elector = self.core.next_deadline_ms(), self.elector.next_deadline_ms()
        kept = self.versions.next_deadline_ms() if self.versions.kept else None
        if kept is not None:
            core = kept if core is None else min(core, kept)
        if core is None or elector is None:
            return elector if core is None else core
        return min(elector, core)

    @property
    def ignores_peers(self) -> bool:
        """Whether it takes messages of no leader and no candidate."""
        return self.hole is not None or self.is_paused

    def pause(self) -> None:
        """Take part in nothing any more: log or table are about to be replaced, and the channel is
        opened anew then. What was written and queued goes on."""
        self.is_paused = True
        self.parts.active.touch(self.channel)

    def end_dispute(self, now_ms: int) -> None:
        """A quorum has the history that is here (S13)."""
        self._step(DisputeEnded(), now_ms)

    def on_broken(self, reason: str, now_ms: int) -> None:
        """Two histories differ where they must not (S13)."""
        self._step(Broken(reason), now_ms)

    @property
    def awaits_durability(self) -> bool:
        """Operations of this channel are in the log but not durable yet."""
        durable = self.durable
        return bool(durable.pending or durable.term_pending or self.promised.is_awaited)

    # --- ports.ElectionHost -----------------------------------------------------------------------

    def history(self) -> History:
        """Accepted history, durable or not (S1.2)."""
        return self.core.history()

    def config(self) -> ChannelConfig:
        """The newest configuration."""
        return self.core.config()

    def config_before(self) -> ChannelConfig:
        """The one that counts again if that is cut off."""
        return self.core.config_before()

    def may_vote(self, candidate: History = UNKNOWN_END) -> bool:
        """False while acknowledged records are missing here, or may be (S0.3, S0.6)."""
        return self.core.may_vote(candidate)

    def may_stand(self) -> bool:
        """False while recovering (S0.3), or known to be removed (M13)."""
        return self.core.may_stand() and not self.core.is_removed

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        """Term and vote enter the node's log; messages that reveal them wait for it (S0.5)."""
        operation = self.parts.log.set_vote(self.channel, term, voted_for)
        self.term_operation = operation
        self.durable.voted(operation, term)
        self.parts.active.await_log(self.channel)

    def send_election(self, to: NodeId, message: ElectionMessage) -> None:
        """Leaves once every operation so far is durable (S0.5), or the term if it says no more."""
        if isinstance(message, TermOnly):
            self.parts.outbox.send_term(to, message, term_operation=self.term_operation)
        else:
            self.parts.outbox.send_known(to, message)

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        """Queue the change; it reaches the core before the next input does."""
        new = (term, role, leader)
        if new == self._role:
            return
        old, self._role = self._role, new
        self._events.append(RoleChanged(term, role, leader))
        parts = self.parts
        parts.tell(
            "role",
            channel=self.name,
            role=role.value,
            term=term,
            leader=None if leader is None else node_name(leader),
            was=old[1].value,
        )
        parts.active.touch(self.channel)
        for notify in parts.notices.leader_changed:
            notify(self, old, parts.clock.now_ms)

    def leader_last_heard_ms(self, leader: NodeId) -> int | None:
        """The node-level view of the leader (S1.8)."""
        return self.parts.heard_leader(self, leader)

    def backoff_ms(self) -> int:
        """Random delay after a failed round."""
        election = self.parts.settings.election
        return election.backoff_min_ms + self.parts.ids.below(
            election.backoff_max_ms - election.backoff_min_ms + 1
        )

    def _on_broken(self, reason: str) -> None:
        self._step(Broken(reason), self._now_ms)

    # --- the pump ---------------------------------------------------------------------------------

    def _tell_stale(self, to: NodeId) -> None:
        self.send_election(to, StaleTerm(channel=self.channel, term=self.elector.term))

    def _pump(self) -> None:
        """Run what is queued."""
        self._step(None, self._now_ms)

    def _step(self, event: Event | None, now_ms: int) -> None:
        """Run queued events, then this one, until none is left. Not re-entrant: effects only queue
        more.

        Whatever led here, even a suspicion alone, may have moved a deadline: the node looks again.
        """
        self._now_ms = now_ms
        self.parts.active.touched[self.channel] = None
        events = self._events
        if event is not None and (self._pumping or events):
            events.append(event)
            event = None
        if self._pumping:
            return
        self._pumping = True
        try:
            while event is not None or events:
                if event is None:
                    event = events.popleft()
                if type(event) in TIMESTAMPING:
                    self.core.wall_offset_ms = self.parts.stamp_ms(self.config()) - self._now_ms
                for effect in self.core.step(event, self._now_ms):
                    self.execute(effect)
                event = None
        finally:
            self._pumping = False

    def _send(self, to: NodeId, message: ReplicationMessage) -> None:
        """S0.5: no message of a term leaves before the term is durable here."""
        send, after = self.parts.outbox.send, self.term_operation
        if type(message) is MsgSyncRequest:
            ask = partial(send, to, after_operation=after)
            left = self.core.history_left_bytes
            question = asked(self.parts.guard, message)
            self.parts.catch_ups.request(self.channel, question, left, ask)
        else:
            send(to, message, after_operation=after)

    def _notify(self, effect: HistoriesDiffer | ConfigCommitted) -> None:
        if isinstance(effect, ConfigCommitted):
            for heeds in self.parts.notices.config_committed:
                heeds(self, effect)
            return
        for judges in self.parts.notices.histories_differ:
            judges(self, effect.whose, effect.seq, self._now_ms)

    def _count_early(self, records: tuple[Record, ...]) -> None:
        """S0.6: what was appended last may count as stored before it is durable."""
        if self.durable.durability is Durability.FSYNC:
            return
        if all(record.kind in ROW_KINDS for record in records):
            self.promised.want()
            if self.durable.may_count_early():
                self._events.append(self._persisted())

    def _follow_doubt(self, effect: DoubtEffect) -> None:
        """S0.6: ask for a term that nobody led, or note that nothing is missing any more."""
        if isinstance(effect, RaiseTerm):
            self.elector.observe_term(effect.term)
        else:
            self.parts.log.end_doubt(self.channel)
            self.parts.tell("doubt_ended", channel=self.name, last_seq=self.core.last_seq)

    def execute(self, effect: Effect) -> None:  # noqa: C901, PLR0915 - one arm per effect
        """Do what the core of this channel decided; effects come in the order of its list."""
        parts, commands = self.parts, self.commands
        match effect:
            case Send(to, message):
                self._send(to, message)
            case Append(records):
                operation = parts.log.append(self.channel, records)
                self.durable.appended(operation, records[-1].last_seq)
                parts.active.await_log(self.channel)
                self._count_early(records)
            case Truncate(from_seq):
                assert from_seq > self.feed.queued_seq or self.is_table_ahead, "cut below applied"
                parts.tell("truncate", channel=self.name, from_seq=from_seq)
                self.durable.truncated(parts.log.truncate(self.channel, from_seq), from_seq)
                parts.active.await_log(self.channel)
            case Rebase(base):
                parts.log.rebase(self.channel, base)
                parts.active.await_log(self.channel)
            case Reply(client, message):
                parts.reply(client, commands.answer(client, message) if commands else message)
            case CommitAdvanced(_, apply_to):
                self.feed.advance(apply_to)
            case ServeSync(to):
                answer = history_for(effect, self.channel, parts.log, parts.settings.replication)
                parts.outbox.send(to, answer, after_operation=self.term_operation)
            case ReadReady(token, read_seq):
                self.confirmations.confirm(token, read_seq)
            case ReadRefused(token, error, text):
                self.confirmations.refuse(token, error, text)
            case FreshnessProven(known_ms):
                self.on_position(known_ms)
                for notify in parts.notices.freshness_proven:
                    notify(self)
            case StepDown(reason):
                parts.tell("step_down", channel=self.name, term=self.elector.term, reason=reason)
                self.elector.step_down(reason)
            case TransferLeadership(to):
                parts.tell("transfer", channel=self.name, term=self.elector.term, to=to)
                self.elector.transfer(to)
            case HandOverFailed(reason, was_asked):
                parts.tell("hand_over_failed", channel=self.name, reason=reason)
                for refused in () if was_asked else parts.notices.hand_over_refused:
                    refused(self, reason)
            case CatchUpNote():
                parts.catch_ups.note(self.channel, self.name, effect)
            case ReplicaSnapshotNeeded(old, at):
                parts.tell("replica_snapshot_needed", channel=self.name, have_seq=old, first_seq=at)
                for needs in parts.notices.snapshot_needed:
                    needs(self, self._now_ms)
            case HistoriesDiffer() | ConfigCommitted():
                self._notify(effect)
            case DoubtEffect():
                self._follow_doubt(effect)
            case StopServing(reason):
                self.stopped_reason = reason
                parts.tell("stop_serving", channel=self.name, reason=reason)
            case PayloadEffect():
                self._events.extend(parts.repair_payloads(self, effect))
            case Halt(reason):
                parts.halt(f"channel {self.name}: {reason}")
