"""A hand-driven world of replicas: the test decides what is delivered, persisted, lost or elected.

Nothing happens by itself: messages lie in ``World.network`` until delivered or dropped, log writes
lie in ``Node.writes`` until persisted, a crash keeps a prefix of them, and leaders are elected by
the test (``World.elect`` checks the voters' histories as S1.1 demands). Fencing by term follows the
engine (S1.4), and no message leaves a node before its term is durable there (S0.5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from raftstore.config import ReplicationSettings
from raftstore.core.chain import digest_of
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
from raftstore.core.history import Lineage
from raftstore.core.replica import Replica
from raftstore.messages import (
    CommitNotice,
    Message,
    MsgSync,
    PayloadRelay,
    PubAck,
    PubMsg,
    PubReject,
    ReadIndexRequest,
    Record,
    RecordMeta,
    StaleTerm,
    StoreRequest,
)
from raftstore.ports import RecoveredChannel
from raftstore.types import (
    NO_GUID,
    ChannelConfig,
    Guid,
    History,
    LineageEntry,
    NodeId,
    RecordKind,
    Role,
    Seq,
    Term,
    channel_id,
    make_guid,
    node_id,
    node_name,
)

CHANNEL = channel_id(bytes(range(16)), 0)
FROM_LEADER = (StoreRequest, CommitNotice, MsgSync, ReadIndexRequest, PayloadRelay)
N1, N2, N3 = (node_id(f"n{i}", bytes([i] * 16)) for i in (1, 2, 3))
STRANGER = node_id("n9", bytes([9] * 16))
TRIO = ChannelConfig(((N1, N2, N3),))
SESSION = b"session1"


def guid(counter: int, session: bytes = SESSION) -> Guid:
    """The GUID of the counter-th write of a test's publisher."""
    return make_guid(session, counter)


def record(
    base_seq: int,
    *,
    term: int = 1,
    rows: int = 1,
    counter: int | None = None,
    payload: bytes | None = None,
    kind: RecordKind = RecordKind.ROWS,
    timestamp_ms: int | None = None,
    session: bytes = SESSION,
) -> Record:
    """A record with a payload and digest that fit each other."""
    body = f"p{base_seq}".encode() if payload is None else payload
    return Record(
        term=Term(term),
        base_seq=Seq(base_seq),
        rows=rows,
        guid=guid(base_seq if counter is None else counter, session),
        timestamp_ms=base_seq * 10 if timestamp_ms is None else timestamp_ms,
        digest=digest_of(body),
        kind=kind,
        payload=body,
    )


def term_start(base_seq: int, term: int) -> Record:
    """The record a leader puts first in its term."""
    return Record(
        Term(term),
        Seq(base_seq),
        1,
        NO_GUID,
        base_seq * 10,
        digest_of(b""),
        RecordKind.TERM_START,
        b"",
    )


def meta_of(stored: Record, *, inlined: bool = False) -> RecordMeta:
    """What a StoreRequest says of a record."""
    return RecordMeta(
        stored.term,
        stored.base_seq,
        stored.rows,
        stored.guid,
        stored.timestamp_ms,
        stored.digest,
        len(stored.payload),
        stored.kind,
        stored.payload if inlined else None,
    )


def pub_msg(
    counter: int,
    *,
    leader: NodeId = N1,
    term: int = 1,
    payload: bytes | None = None,
    rows: int = 1,
    kind: RecordKind = RecordKind.ROWS,
    attempt: int = 0,
    relay_to: tuple[NodeId, ...] = (),
    session: bytes = SESSION,
) -> PubMsg:
    """A publish of the test's publisher."""
    body = f"value {counter}".encode() if payload is None else payload
    return PubMsg(
        channel=CHANNEL,
        term=Term(term),
        leader=leader,
        guid=guid(counter, session),
        digest=digest_of(body),
        rows=rows,
        kind=kind,
        payload=body,
        attempt=attempt,
        relay_to=relay_to,
    )


def lineage_of(records: Iterable[Record]) -> Lineage:
    """The runs of terms of a log."""
    lineage = Lineage()
    for stored in records:
        lineage.append(stored.term, stored.last_seq)
    return lineage


def make_replica(
    me: NodeId = N1,
    *,
    records: Iterable[Record] = (),
    term: int | None = None,
    applied_seq: int = 0,
    config: ChannelConfig = TRIO,
    settings: ReplicationSettings | None = None,
    shortfall: History | None = None,
) -> Replica:
    """A replica opened on a log that holds ``records`` durably."""
    held = list(records)
    lineage = lineage_of(held)
    recovered = RecoveredChannel(
        channel=CHANNEL,
        term=lineage.last.term if term is None else Term(term),
        voted_for=None,
        lineage=tuple(reversed(lineage.newest())),
        last_seq=lineage.last_seq,
        shortfall=shortfall,
    )
    return Replica(
        me=me,
        channel=CHANNEL,
        creation_config=config,
        settings=settings or ReplicationSettings(),
        durability="fsync",
        recovered=recovered,
        records=held,
        applied_seq=Seq(applied_seq),
    )


class Bench:
    """One replica on a bench: events go in one by one, effects are looked at."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.now_ms = 1_000
        self.effects: list[Effect] = []
        self.all_effects: list[Effect] = []

    def do(self, event: Event) -> list[Effect]:
        """Step with an event; the effects of this step are returned and kept."""
        self.effects = self.replica.step(event, self.now_ms)
        self.all_effects += self.effects
        return self.effects

    def lead(self, term: int = 1, me: NodeId = N1) -> list[Effect]:
        """Win a term."""
        return self.do(RoleChanged(Term(term), Role.LEADER, me))

    def follow(self, leader: NodeId | None = N2, term: int = 1) -> list[Effect]:
        """Follow a leader, with the term durable at once."""
        effects = self.do(RoleChanged(Term(term), Role.FOLLOWER, leader))
        return effects + self.persist(self.replica.durable_seq, term=term)

    def receive(self, message: Any, sender: NodeId = N2) -> list[Effect]:
        """A message of a peer."""
        return self.do(Received(sender, message))

    def publish(self, counter: int, client: int = 7, **fields: Any) -> list[Effect]:
        """A publish."""
        return self.do(PublishReceived(client, pub_msg(counter, **fields)))

    def hold(self, stored: Record, leader: NodeId = N2, term: int = 1) -> list[Effect]:
        """The publisher's payload of a record arrives, addressed to the leader."""
        message = PubMsg(
            CHANNEL,
            Term(term),
            leader,
            stored.guid,
            stored.digest,
            stored.rows,
            stored.kind,
            stored.payload,
        )
        return self.do(PublishReceived(1, message))

    def persist(self, durable_seq: int | None = None, *, term: int | None = None) -> list[Effect]:
        """The log is durable up to a seq (default: its end)."""
        seq = self.replica.last_seq if durable_seq is None else Seq(durable_seq)
        return self.do(Persisted(seq, self.replica.term if term is None else Term(term)))

    def store_request(
        self,
        *records: Record,
        prev_term: int = 1,
        term: int = 1,
        commit_seq: int = 0,
        sender: NodeId = N2,
        inlined: bool = False,
    ) -> list[Effect]:
        """A StoreRequest of the leader."""
        metas = tuple(meta_of(stored, inlined=inlined) for stored in records)
        request = StoreRequest(CHANNEL, Term(term), Term(prev_term), Seq(commit_seq), metas)
        return self.receive(request, sender)

    def sync(
        self,
        *records: Record,
        request_id: int,
        from_seq: int,
        prev_term: int,
        last_seq: int | None = None,
        term: int = 1,
        commit_seq: int = 0,
        sender: NodeId = N2,
    ) -> list[Effect]:
        """A MsgSync of the leader; ``last_seq`` defaults to the end of the batch."""
        end = records[-1].last_seq if records else from_seq - 1
        last = end if last_seq is None else last_seq
        message = MsgSync(
            channel=CHANNEL,
            term=Term(term),
            request_id=request_id,
            from_seq=Seq(from_seq),
            prev_term=Term(prev_term),
            records=tuple(records),
            commit_seq=Seq(commit_seq),
            last_seq=Seq(last),
            first_seq=Seq(1),
            done=end >= last,
        )
        return self.receive(message, sender)

    def wait(self, ms: int) -> list[Effect]:
        """Let time pass, firing the timer at every deadline on the way."""
        end, effects = self.now_ms + ms, []
        while True:
            due = self.replica.next_deadline_ms()
            if due is None or due > end:
                break
            self.now_ms = max(self.now_ms, due)
            effects += self.do(TimerFired())
        self.now_ms = end
        return effects

    def sent(self, kind: type[Message], effects: list[Effect] | None = None) -> list[Any]:
        """Messages of a kind sent in the last step (or in the given effects)."""
        looked_at = self.effects if effects is None else effects
        return [e.message for e in looked_at if isinstance(e, Send) and isinstance(e.message, kind)]

    def of(self, kind: type[Any], effects: list[Effect] | None = None) -> list[Any]:
        """Effects of a kind in the last step (or in the given effects)."""
        return [e for e in (self.effects if effects is None else effects) if isinstance(e, kind)]

    def appended(self, effects: list[Effect] | None = None) -> list[Record]:
        """Records appended in the last step (or in the given effects)."""
        return [stored for effect in self.of(Append, effects) for stored in effect.records]

    def replies(self, effects: list[Effect] | None = None) -> list[tuple[int, Any]]:
        """(client, answer) of the last step (or of the given effects)."""
        return [(effect.client, effect.message) for effect in self.of(Reply, effects)]

    def steady(self, *records: Record, leader: NodeId = N2, term: int = 1) -> None:
        """Follow a leader whose log equals ours, up to steady state."""
        self.follow(leader, term)
        requests = [m for e in self.all_effects for m in self.sent(Message, [e])]
        request = next(m for m in reversed(requests) if hasattr(m, "max_bytes"))
        last = self.replica.history()
        self.sync(
            request_id=request.request_id,
            from_seq=last.seq + 1,
            prev_term=last.term,
            term=term,
            sender=leader,
        )
        for stored in records:
            self.hold(stored, leader, term)


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
    """What survives a crash."""

    term: Term = Term(0)
    records: list[Record] = field(default_factory=list)

    def write(self, operation: tuple[str, Any]) -> None:
        """Make one buffered operation durable."""
        what, value = operation
        if what == "term":
            self.term = value
        elif what == "append":
            self.records += value
        else:
            self.records = [r for r in self.records if r.base_seq < value]

    @property
    def last_seq(self) -> Seq:
        """End of the durable log."""
        return self.records[-1].last_seq if self.records else Seq(0)


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
        self.term = max(self.disk.term, self.log[-1].term if self.log else Term(0))
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.applied_seq = Seq(min(self.applied_seq, self.disk.last_seq))
        self.replica = make_replica(
            self.me,
            records=self.log,
            term=self.term,
            applied_seq=self.applied_seq,
            config=self.world.config,
            settings=self.world.settings,
        )

    # --- events in, effects out -------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """One step and everything that follows at once (applying, stepping down)."""
        queue: deque[Event] = deque([event])
        while queue:
            for effect in self.replica.step(queue.popleft(), self.world.now_ms):
                follow_up = self._execute(effect)
                if follow_up is not None:
                    queue.append(follow_up)
        self.world.after_step(self)

    def _execute(self, effect: Effect) -> Event | None:
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
                return self._apply(apply_to)
            case ServeSync():
                self._serve(effect)
            case StepDown():
                self.role, self.leader = Role.FOLLOWER, None
                return RoleChanged(self.term, Role.FOLLOWER, None)
            case Halt(reason):
                self.halted, self.is_up = reason, False
            case _:
                pass
        return None

    def _send(self, to: NodeId, message: Message) -> None:
        envelope = Envelope(self.me, to, message)
        if any(what == "term" for what, _ in self.writes):  # S0.5
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
        records: list[Record] = []
        size = 0
        for stored in self.log:
            if stored.base_seq < serve.from_seq or stored.last_seq > serve.last_seq:
                continue
            if records and (
                size + len(stored.payload) > serve.request.max_bytes
                or len(records) >= self.world.sync_records_max
            ):
                break
            records.append(stored)
            size += len(stored.payload)
        end = records[-1].last_seq if records else serve.from_seq - 1
        answer = MsgSync(
            channel=CHANNEL,
            term=serve.term,
            request_id=serve.request.request_id,
            from_seq=serve.from_seq,
            prev_term=serve.prev_term,
            records=tuple(records),
            commit_seq=serve.commit_seq,
            last_seq=serve.last_seq,
            first_seq=Seq(1),
            done=end >= serve.last_seq,
        )
        self._send(serve.to, answer)

    # --- disk -------------------------------------------------------------------------------------

    def persist(self, operations: int | None = None) -> None:
        """Make the oldest buffered operations durable (default: all) and say so."""
        count = len(self.writes) if operations is None else operations
        for operation in self.writes[:count]:
            self.disk.write(operation)
        del self.writes[:count]
        if not any(what == "term" for what, _ in self.writes):
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

    # --- the elector's part -----------------------------------------------------------------------

    def set_role(self, term: Term, role: Role, leader: NodeId | None) -> None:
        """Adopt a term and role; a new term is a buffered write."""
        if term > self.term:
            self.writes.append(("term", term))
        if (term, role, leader) == (self.term, self.role, self.leader):
            return
        self.term, self.role, self.leader = term, role, leader
        self.step(RoleChanged(term, role, leader))

    def receive(self, sender: NodeId, message: Any) -> None:
        """Fence by term (S1.4), then step."""
        if not self.is_up:
            return
        if isinstance(message, StaleTerm):
            if message.term > self.term:
                self.set_role(message.term, Role.FOLLOWER, None)
            return
        if message.term < self.term:
            self._send(sender, StaleTerm(CHANNEL, self.term))
            return
        if isinstance(message, FROM_LEADER):
            if message.term > self.term or self.leader is None:
                self.set_role(message.term, Role.FOLLOWER, sender)
        elif message.term > self.term:
            self.set_role(message.term, Role.FOLLOWER, None)
            return
        if self.is_up:
            self.step(Received(sender, message))


class World:
    """Three nodes (or as many as named), a network and a clock, all moved by the test."""

    def __init__(
        self,
        nodes: Iterable[NodeId] = (N1, N2, N3),
        *,
        settings: ReplicationSettings | None = None,
    ) -> None:
        self.settings = settings or ReplicationSettings()
        members = tuple(nodes)
        self.config = ChannelConfig((members,))
        self.now_ms = 1_000
        self.network: list[Envelope] = []
        self.replies: list[tuple[int, PubAck | PubReject]] = []
        self.trace: list[tuple[NodeId, Effect]] = []
        self.checks: list[Callable[[World, Node], None]] = []
        self.sync_records_max = 1_000
        self.next_client = 1
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
        """What a publisher was told."""
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
        """Elect ``me`` with the votes of ``voters`` (default: everybody up); S1.1 is asserted."""
        chosen = [n for n in self.nodes if self.nodes[n].is_up] if voters is None else list(voters)
        assert me in chosen
        assert 2 * len(chosen) > len(self.nodes), "a minority cannot elect"
        assert self.may_win(me, chosen), "a voter has a higher history (S1.1)"
        term = Term(max(self.nodes[voter].term for voter in chosen) + 1)
        for voter in chosen:
            node = self.nodes[voter]
            if voter != me:
                node.set_role(term, Role.FOLLOWER, None)
            else:
                node.set_role(term, Role.CANDIDATE, None)
            node.persist()  # a vote leaves only when it is durable (S0.5)
        self.nodes[me].set_role(term, Role.LEADER, me)
        return term

    def may_win(self, me: NodeId, voters: Iterable[NodeId]) -> bool:
        """S1.1: no voter has accepted more."""
        mine = self.nodes[me].replica.history()
        return all(
            self.nodes[voter].replica.may_vote() and self.nodes[voter].replica.history() <= mine
            for voter in voters
        )


__all__ = [
    "CHANNEL",
    "N1",
    "N2",
    "N3",
    "STRANGER",
    "TRIO",
    "Bench",
    "Envelope",
    "LineageEntry",
    "Node",
    "World",
    "guid",
    "lineage_of",
    "make_replica",
    "meta_of",
    "pub_msg",
    "record",
    "term_start",
]
