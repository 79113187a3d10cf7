"""A hand-driven world of replicas: the test decides what is delivered, persisted, lost or elected.

Nothing happens by itself: messages lie in ``World.network`` until delivered or dropped, log writes
lie in ``Node.writes`` until persisted, a crash keeps a prefix of them, and who stands when, and
whose votes arrive, is the test's choice. Term, vote and role are the production elector's (the real
pysyncobj), fencing by term is the engine's ``admits`` (S1.4), history is served by its
``history_for``. That no message leaves a node before its term is durable there (S0.5) only follows
the engine: what proves it is tests/unit/engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from raftstore.config import (
    PAYLOAD_BYTES_MAX,
    CatchUpSettings,
    ElectionSettings,
    ReplicationSettings,
)
from raftstore.core.dedupe import CONDITIONED_KINDS
from raftstore.core.effects import (
    Append,
    CommitAdvanced,
    Effect,
    Halt,
    Reply,
    Send,
    ServeSync,
    StepDown,
    Truncate,
)
from raftstore.core.events import (
    Applied,
    Event,
    Persisted,
    PublishReceived,
    Received,
    RoleChanged,
    TimerFired,
)
from raftstore.core.folds import advance
from raftstore.election.pysyncobj_elector import pysyncobj_elector_factory
from raftstore.engine.channel.fence import admits
from raftstore.engine.channel.history_feed import history_for
from raftstore.ports.log import EMPTY_BASE, Base, MessageLog
from raftstore.protocol.election import (
    ElectionMessage,
    PreVote,
    PreVoteReply,
    RequestVote,
    VoteReply,
)
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.records import Record
from raftstore.protocol.replication import (
    StaleTerm,
)
from raftstore.types import (
    ChannelConfig,
    ChannelId,
    History,
    NodeId,
    Role,
    Seq,
    Term,
    node_name,
)
from tests.core_bench import (
    CHANNEL,
    N1,
    N2,
    N3,
    OUTSIDER,
    SESSION,
    TRIO,
    Bench,
    guid,
    lineage_of,
    make_replica,
    meta_of,
    pub_msg,
    record,
    term_start,
)

ELECTORS = pysyncobj_elector_factory(ElectionSettings())
VOTING = PreVote | PreVoteReply | RequestVote | VoteReply
CANDIDACIES_MAX = 6
"""Each but the last fails because a voter tells a higher term, or leads."""


@dataclass(slots=True)
class Envelope:
    """A message on its way."""

    sender: NodeId
    to: NodeId
    message: Any

    def __str__(self) -> str:
        kind = type(self.message).__name__
        return f"{node_name(self.sender)}->{node_name(self.to)} {kind}"


@dataclass(slots=True)
class Disk:
    """The durable state of a node."""

    term: Term = Term(0)
    vote: NodeId | None = None
    records: list[Record] = field(default_factory=list)
    base: Base = EMPTY_BASE

    def write(self, operation: tuple[str, Any]) -> None:
        """Make one buffered operation durable."""
        what, value = operation
        if what == "vote":
            self.term, self.vote = value
        elif what == "append":
            self.records += value
        else:
            self.records = [r for r in self.records if r.base_seq < value]

    @property
    def last_seq(self) -> Seq:
        """End of the durable log."""
        return self.records[-1].last_seq if self.records else self.base.seq

    def trim(self, seq: int) -> None:
        """Move the base up to a seq at which a record ends."""
        gone = [r for r in self.records if r.last_seq <= seq]
        self.base = advance(self.base, gone)
        assert self.base.seq == seq, "a record ends there"
        self.records = self.records[len(gone) :]


class _History:
    """Records of a node's log for sending; at most ``records_max`` at a time."""

    def __init__(self, records: list[Record], records_max: int) -> None:
        self._records = records
        self._records_max = records_max

    def extent(self, _: ChannelId) -> _History:
        """As ``MessageLog.extent``."""
        return self

    def reach(self, from_seq: Seq, *, to_seq: Seq, bytes_max: int, records_max: int) -> Seq:
        """As ``LogExtent.reach``."""
        found = self.read(CHANNEL, from_seq, to_seq=to_seq, bytes_max=bytes_max)[:records_max]
        return found[-1].last_seq if found else Seq(from_seq - 1)

    def read(self, _: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int) -> list[Record]:
        """As ``MessageLog.read``: whole records, at least one, then as many as fit."""
        found: list[Record] = []
        size = 0
        for stored in self._records:
            if stored.base_seq < from_seq or stored.last_seq > to_seq:
                continue
            size += len(stored.payload)
            if found and (size > bytes_max or len(found) >= self._records_max):
                break
            found.append(stored)
        return found


class Node:
    """A replica with its log, its outbox and its role, all moved by hand."""

    def __init__(self, world: World, me: NodeId) -> None:
        self.world = world
        self.me = me
        self.disk = Disk()
        self.is_up = False
        self.applied_seq = Seq(0)
        self.boot()

    def boot(self) -> None:
        """(Re)start on what the disk holds."""
        self.is_up = True
        self.halted: str | None = None
        self.log: list[Record] = list(self.disk.records)
        self.writes: list[tuple[str, Any]] = []
        self.held: list[Envelope] = []
        self.events: deque[Event] = deque()
        self.is_stepping = False
        self.applied_seq = Seq(min(self.applied_seq, self.disk.last_seq))
        term = max(self.disk.term, self.log[-1].term if self.log else self.disk.base.term)
        self.replica = make_replica(
            self.me,
            records=self.log,
            term=term,
            applied_seq=self.applied_seq,
            config=self.world.config,
            settings=self.world.settings,
            catch_up=self.world.catch_up,
            base=self.disk.base,
        )
        self.elector = ELECTORS(self, CHANNEL, self.disk.term, self.disk.vote)

    def __getstate__(self) -> dict[str, Any]:
        """For searches that store worlds: without the pysyncobj instance, which is rebuilt."""
        self.elector.evict()
        return self.__dict__

    @property
    def term(self) -> Term:
        """The elector's."""
        return self.elector.term

    @property
    def role(self) -> Role:
        """The elector's."""
        return self.elector.role

    # --- events in, effects out -------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """One step and everything that follows at once (applying, stepping down)."""
        self.events.append(event)
        self.pump()

    def pump(self) -> None:
        """Step what is queued, as the engine does after each call of its elector."""
        if self.is_stepping or not self.events:
            return
        self.is_stepping = True
        while self.events:
            for effect in self.replica.step(self.events.popleft(), self.world.now_ms):
                self._execute(effect)
        self.is_stepping = False
        self.world.after_step(self)

    def _execute(self, effect: Effect) -> None:
        self.world.trace.append((self.me, effect))
        match effect:
            case Send(to, message):
                self._send(to, message)
            case Append(records):
                self.log += records
                self.writes.append(("append", list(records)))
            case Truncate(from_seq):
                self.log = [r for r in self.log if r.base_seq < from_seq]
                self.writes.append(("truncate", from_seq))
            case Reply(client, answer):
                self.world.on_reply(client, answer)
            case CommitAdvanced(_, apply_to) if apply_to > self.applied_seq:
                self.events.append(self._apply(apply_to))
            case ServeSync():
                self._serve(effect)
            case StepDown(reason):
                self.elector.step_down(reason)
            case Halt(reason):
                self.halted, self.is_up = reason, False
            case _:
                pass

    def _send(self, to: NodeId, message: Message) -> None:
        envelope = Envelope(self.me, to, message)
        if self.has_vote_to_store():  # S0.5
            self.held.append(envelope)
        else:
            self.world.network.append(envelope)

    def _apply(self, apply_to: Seq) -> Event:
        conflicts = []
        for stored in self.log:
            is_new = self.applied_seq < stored.last_seq <= apply_to
            if is_new and stored.kind in CONDITIONED_KINDS:
                if stored.payload.startswith(b"conflict "):
                    conflicts.append((stored.last_seq, Seq(int(stored.payload.split()[1]))))
        self.applied_seq = apply_to
        return Applied(apply_to, tuple(conflicts))

    def _serve(self, serve: ServeSync) -> None:
        log = cast("MessageLog", _History(self.log, self.world.sync_records_max))
        settings = replace(self.world.settings, sync_batch_bytes_max=PAYLOAD_BYTES_MAX)
        self._send(serve.to, history_for(serve, CHANNEL, log, settings))

    def has_vote_to_store(self) -> bool:
        """Term and vote wait for the disk."""
        return any(what == "vote" for what, _ in self.writes)

    # --- disk -------------------------------------------------------------------------------------

    def persist(self, operations: int | None = None) -> None:
        """Make the oldest buffered operations durable (default: all) and say so."""
        count = len(self.writes) if operations is None else operations
        for operation in self.writes[:count]:
            self.disk.write(operation)
        del self.writes[:count]
        if not self.has_vote_to_store():
            self.world.network += self.held
            self.held = []
        durable = self.disk.last_seq
        for what, value in self.writes:
            if what == "truncate":
                durable = Seq(min(durable, value - 1))
        self.step(Persisted(durable, self.disk.term))

    def crash(self, keep: int = 0) -> None:
        """Stop without a word; a prefix of the buffered operations survives."""
        for operation in self.writes[:keep]:
            self.disk.write(operation)
        self.is_up = False
        self.writes, self.held = [], []

    # --- elections: ports.ElectionHost ------------------------------------------------------------

    def history(self) -> History:
        """Accepted history (S1.2)."""
        return self.replica.history()

    def config(self) -> ChannelConfig:
        """The newest configuration."""
        return self.replica.config()

    def config_committed(self) -> bool:
        """Whether it is known to be committed."""
        return self.replica.config_committed()

    def may_vote(self) -> bool:
        """False while recovering (S0.3)."""
        return self.replica.may_vote()

    def may_stand(self) -> bool:
        """False while recovering (S0.3)."""
        return self.replica.may_stand()

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        """A buffered write, as every other."""
        self.writes.append(("vote", (term, voted_for)))

    def send_election(self, to: NodeId, message: ElectionMessage) -> None:
        """Votes are carried by ``World.elect`` alone; what fences is a message like the others."""
        if isinstance(message, StaleTerm):
            self._send(to, message)
        else:
            self.world.votes.append(Envelope(self.me, to, message))

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        """Queue the change for the core."""
        self.events.append(RoleChanged(term, role, leader))

    def leader_last_heard_ms(self, leader: NodeId) -> int | None:
        """None: no heartbeats are sent here."""
        del leader

    def backoff_ms(self) -> int:
        """The test says when somebody stands."""
        return 0

    def follow(self, leader: NodeId, term: Term) -> None:
        """Hear of the leader of a term (S1.8)."""
        assert self.elector.on_leader(leader, term, self.world.now_ms)
        self.pump()

    def receive(self, sender: NodeId, message: Any) -> None:
        """Fence by term as the engine does (S1.4), then step."""
        if not self.is_up:
            return
        now_ms = self.world.now_ms
        if isinstance(message, StaleTerm):
            self.elector.on_message(sender, message, now_ms)
            self.pump()
            return
        is_admitted = admits(
            self.elector, self.replica.config().members, sender, message, now_ms, self._tell_stale
        )
        self.pump()
        if is_admitted and self.is_up:
            self.step(Received(sender, message))

    def _tell_stale(self, to: NodeId) -> None:
        self.send_election(to, StaleTerm(CHANNEL, self.term))


class _Ballot:
    """An elector's host that asks a node and changes nothing about it."""

    def __init__(self, node: Node, term: Term) -> None:
        self.me = node.me
        self.history, self.config = node.history, node.config
        self.config_committed = node.config_committed
        self.may_vote, self.may_stand = node.may_vote, node.may_stand
        self.sent: list[ElectionMessage] = []
        self.elector = ELECTORS(self, CHANNEL, term, None)

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        """Store nothing."""

    def send_election(self, to: NodeId, message: ElectionMessage) -> None:
        """Keep what would be said."""
        del to
        self.sent.append(message)

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        """A change of the ballot alone."""

    def leader_last_heard_ms(self, leader: NodeId) -> int | None:
        """The leader, if any, is taken for lost."""
        del leader

    def backoff_ms(self) -> int:
        """At once."""
        return 0


class World:
    """Three nodes (or as many as named), a network and a clock, all moved by the test."""

    def __init__(
        self,
        nodes: Iterable[NodeId] = (N1, N2, N3),
        *,
        settings: ReplicationSettings | None = None,
        inflight_requests: int = 2,
    ) -> None:
        self.settings = settings or ReplicationSettings()
        self.catch_up = CatchUpSettings(inflight_requests=inflight_requests)
        members = tuple(nodes)
        self.config = ChannelConfig((members,))
        self.now_ms = 1_000
        self.network: list[Envelope] = []
        self.replies: list[tuple[int, PubAck | PubReject]] = []
        self.trace: list[tuple[NodeId, Effect]] = []
        self.checks: list[Callable[[World, Node], None]] = []
        self.sync_records_max = 1_000
        self.next_client = 1
        self.votes: list[Envelope] = []
        """What electors said and nobody has carried."""
        self.nodes = {node: Node(self, node) for node in members}

    def __getitem__(self, node: NodeId) -> Node:
        return self.nodes[node]

    def after_step(self, node: Node) -> None:
        """Run the test's checks."""
        for check in self.checks:
            check(self, node)

    def on_reply(self, client: int, answer: PubAck | PubReject) -> None:
        """A publisher got an answer."""
        self.replies.append((client, answer))

    # --- publishing -------------------------------------------------------------------------------

    def publish(self, counter: int, *, to: Iterable[NodeId] | None = None, **fields: Any) -> int:
        """A publisher multicasts; only the named replicas get it. Returns its client handle."""
        leader = self.leader()
        addressed = {"leader": leader.me, "term": leader.term} if leader is not None else {}
        message = pub_msg(counter, **{**addressed, **fields})
        client = self.next_client
        self.next_client += 1
        for node in self.nodes if to is None else to:
            if self.nodes[node].is_up:
                self.nodes[node].step(PublishReceived(client, message))
        return client

    def answers(self, client: int) -> list[PubAck | PubReject]:
        """Answers to a publisher."""
        return [answer for to, answer in self.replies if to == client]

    # --- network ----------------------------------------------------------------------------------

    def pick(
        self,
        to: NodeId | None = None,
        kind: str | None = None,
        sender: NodeId | None = None,
    ) -> list[Envelope]:
        """Messages on their way that fit."""
        return [
            e
            for e in self.network
            if (to is None or e.to == to)
            and (kind is None or type(e.message).__name__ == kind)
            and (sender is None or e.sender == sender)
        ]

    def deliver(
        self,
        to: NodeId | None = None,
        kind: str | None = None,
        sender: NodeId | None = None,
        *,
        first: int | None = None,
    ) -> int:
        """Deliver the messages that fit now (not those they cause); return how many."""
        chosen = self.pick(to, kind, sender)[:first]
        for envelope in chosen:
            self.network.remove(envelope)
            self.nodes[envelope.to].receive(envelope.sender, envelope.message)
        return len(chosen)

    def drop(
        self,
        to: NodeId | None = None,
        kind: str | None = None,
        sender: NodeId | None = None,
    ) -> int:
        """Lose the messages that fit."""
        chosen = self.pick(to, kind, sender)
        self.network = [e for e in self.network if not any(e is lost for lost in chosen)]
        return len(chosen)

    def duplicate(self, index: int) -> None:
        """Double one message."""
        self.network.append(replace(self.network[index]))

    def tick(self, ms: int) -> None:
        """Let time pass, firing timers in order of their deadlines."""
        end = self.now_ms + ms
        while True:
            due = [
                (deadline, me)
                for me, node in self.nodes.items()
                if node.is_up and (deadline := node.replica.next_deadline_ms()) is not None
            ]
            if not due or min(due)[0] > end:
                break
            deadline, me = min(due)
            self.now_ms = max(self.now_ms, deadline)
            self.nodes[me].step(TimerFired())
        self.now_ms = end

    def settle(self, *, ticks: int = 0) -> None:
        """Deliver and persist everything until nothing moves; ``ticks`` rounds of 300 ms after."""
        for round_number in range(ticks + 1):
            for _ in range(1_000):
                moved = self.deliver()
                for node in self.nodes.values():
                    if node.is_up and node.writes:
                        node.persist()
                        moved += 1
                if not moved:
                    break
            else:
                raise AssertionError("the world does not come to rest")
            if round_number < ticks:
                self.tick(300)

    # --- elections --------------------------------------------------------------------------------

    def leader(self) -> Node | None:
        """The leader of the highest term, if one is up."""
        leading = [n for n in self.nodes.values() if n.is_up and n.role is Role.LEADER]
        return max(leading, key=lambda node: node.term, default=None)

    def elect(self, me: NodeId, *, voters: Iterable[NodeId] | None = None) -> Term:
        """Elect ``me`` with the votes of ``voters`` (default: everybody up), by the real electors.

        Fails if they do not elect it, say because a voter has a higher history (S1.1). A leader
        among the voters that is needed for their quorum steps down first.
        """
        chosen = [n for n in self.nodes if self.nodes[n].is_up] if voters is None else list(voters)
        assert me in chosen
        candidate = self.nodes[me]
        for attempt in range(CANDIDACIES_MAX):
            for leader in [me] if attempt == 0 else chosen:
                self.nodes[leader].elector.step_down("another election")
                self.nodes[leader].pump()
            candidate.elector.suspect(self.now_ms, 0)
            candidate.elector.poll(self.now_ms)
            self._carry_votes(chosen)
            if candidate.role is Role.LEADER:
                return candidate.term
        raise AssertionError(f"{me} is not elected by {chosen}")

    def _carry_votes(self, chosen: list[NodeId]) -> None:
        """Deliver what is asked and answered among these nodes; the others hear nothing of it."""
        while self.votes:
            envelope = self.votes.pop(0)
            sender, receiver = self.nodes[envelope.sender], self.nodes[envelope.to]
            if isinstance(envelope.message, VOTING) and {envelope.sender, envelope.to} <= {*chosen}:
                if sender.has_vote_to_store():  # a vote leaves only when it is durable (S0.5)
                    sender.persist()
                receiver.elector.on_message(envelope.sender, envelope.message, self.now_ms)
                receiver.pump()

    def may_win(self, me: NodeId, voters: Iterable[NodeId]) -> bool:
        """Whether the electors of all these nodes would vote for ``me`` (S1.1); changes nothing."""
        asked = list(voters)
        term = max(self.nodes[node].term for node in (me, *asked))
        candidate = _Ballot(self.nodes[me], term)
        candidate.elector.suspect(0, 0)
        candidate.elector.poll(0)
        if not candidate.sent:
            return False  # it may not stand itself (S0.3)
        (proposal, *_) = [m for m in candidate.sent if isinstance(m, PreVote)]
        request = RequestVote(CHANNEL, proposal.proposed_term, proposal.history, transfer=False)
        for voter in asked:
            ballot = _Ballot(self.nodes[voter], term)
            if voter != me:
                ballot.elector.on_message(me, request, 0)
                if [m for m in ballot.sent if isinstance(m, VoteReply) and m.granted] == []:
                    return False
        return True


__all__ = [
    "Bench",
    "CHANNEL",
    "Envelope",
    "N1",
    "N2",
    "N3",
    "Node",
    "SESSION",
    "OUTSIDER",
    "TRIO",
    "World",
    "guid",
    "lineage_of",
    "make_replica",
    "meta_of",
    "pub_msg",
    "record",
    "term_start",
]
