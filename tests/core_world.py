"""A hand-driven world of replicas: the test decides what is delivered, persisted, lost or elected.

Nothing happens by itself: messages lie in ``World.network`` until delivered or dropped, log writes
lie in ``Node.writes`` until persisted, a crash keeps a prefix of them, and who stands when, and
whose votes arrive, is the test's choice. A node is the production ``ChannelRunner`` with the
production elector and outbox: fencing by term (S1.4), the order of effects, what waits for the disk
(S0.5) and which history is sent (S6.1) are its rules. Made here are only the ports: a log and a
table in memory, and a transport to ``World.network``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from raftstore.config import (
    CatchUpSettings,
    ElectionSettings,
    MembershipSettings,
    NodeSettings,
    ReplicationSettings,
)
from raftstore.core.dedupe import CONDITIONED_KINDS
from raftstore.core.effects import AskPayloads, Effect, PayloadEffect, SendIfKnown
from raftstore.core.events import Event, PayloadSource, PublishReceived, TimerFired
from raftstore.core.folds import advance
from raftstore.core.replica import Replica
from raftstore.election.pysyncobj_elector import pysyncobj_elector_factory
from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.channel.catch_ups import CatchUps
from raftstore.engine.channel.channel_parts import ChannelNotices, ChannelParts
from raftstore.engine.channel.disk_space import DiskSpace
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.channel.storage_guard import StorageGuard
from raftstore.engine.clock import Clock
from raftstore.errors import Refusal
from raftstore.ports.election import ElectionHost, Elector
from raftstore.ports.log import EMPTY_BASE, Base, MessageLog, RecoveredChannel
from raftstore.ports.tables import Conflicts, TableStore
from raftstore.ports.transport import Transport
from raftstore.protocol.election import PreVote, PreVoteReply, RequestVote, VoteReply
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.records import Record
from raftstore.protocol.replication import RemovedNotice, ReplicationMessage, StaleTerm
from raftstore.record_machine import RecordMachine
from raftstore.state_machines.table import TableMachine
from raftstore.types import (
    FOUNDING_NUMBER,
    ChannelConfig,
    ChannelId,
    Guid,
    History,
    NodeId,
    ReplicaNumber,
    Role,
    Seq,
    StorageStall,
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

ELECTION = ElectionSettings(backoff_min_ms=0, backoff_max_ms=0)
"""The test says when a node stands again."""
PRODUCTION_ELECTORS = pysyncobj_elector_factory(ELECTION)
VOTING = PreVote | PreVoteReply | RequestVote | VoteReply
CANDIDACIES_MAX = 6
"""Each but the last fails because a voter states a higher term, or leads."""


def make_elector(
    host: ElectionHost, channel: ChannelId, term: Term, voted_for: NodeId | None
) -> Elector:
    """As nodes make theirs; a function of the module, so that worlds can be stored."""
    return PRODUCTION_ELECTORS(host, channel, term, voted_for)


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


class HeldLog:
    """ports.MessageLog of one channel in memory: operations are durable when the test says so."""

    def __init__(self, disk: Disk, world: World) -> None:
        self.disk = disk
        self.world = world
        self.held: list[Record] = list(disk.records)
        """Accepted records, durable or not."""
        self.writes: list[tuple[str, Any]] = []
        """Operations that are not durable yet."""
        self._operations = 0

    def open_channel(self, channel: ChannelId, number: int | None = None) -> RecoveredChannel:
        """The contents of the disk."""
        del number
        disk = self.disk
        lineage = lineage_of(self.held)
        end = lineage.last if self.held else disk.base.history
        return RecoveredChannel(
            channel=channel,
            term=max(disk.term, end.term),
            voted_for=disk.vote if disk.term >= end.term else None,
            lineage=tuple(reversed(lineage.newest())),
            last_seq=end.seq,
            base=disk.base,
        )

    def records(self, channel: ChannelId) -> Iterator[Record]:
        """All of them."""
        del channel
        return iter(self.held)

    def may_hold(self, channel: ChannelId, promised: History) -> bool:
        """Tables here never go beyond their log."""
        del channel, promised
        return True

    def unsynced_bytes(self) -> int:
        """Of payloads."""
        appended = [value for what, value in self.writes if what == "append"]
        return sum(len(stored.payload) for records in appended for stored in records)

    def append(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records."""
        del channel
        self.held += records
        return self._buffer("append", list(records))

    def truncate(self, channel: ChannelId, from_seq: Seq) -> int:
        """Buffer a cut."""
        del channel
        self.held = [r for r in self.held if r.base_seq < from_seq]
        return self._buffer("truncate", from_seq)

    def set_vote(self, channel: ChannelId, term: Term, voted_for: NodeId | None) -> int:
        """Buffer term and vote."""
        del channel
        return self._buffer("vote", (term, voted_for))

    def _buffer(self, what: str, value: object) -> int:
        self.writes.append((what, value))
        self._operations += 1
        return self._operations

    def last_operation(self) -> int:
        """Number of the newest operation."""
        return self._operations

    def durable_operation(self) -> int:
        """Number of the newest durable one."""
        return self._operations - len(self.writes)

    def write_out(self, operations: int) -> None:
        """The disk gets the oldest of them done."""
        for operation in self.writes[:operations]:
            self.disk.write(operation)
        del self.writes[:operations]

    def extent(self, channel: ChannelId) -> HeldLog:
        """Itself, as ports.LogExtent."""
        del channel
        return self

    def reach(self, from_seq: Seq, *, to_seq: Seq, bytes_max: int, records_max: int) -> Seq:
        """Where an answer ends; no more records than the world's number."""
        found = self.read(CHANNEL, from_seq, to_seq=to_seq, bytes_max=bytes_max)
        found = found[: min(records_max, self.world.sync_records_max)]
        return found[-1].last_seq if found else Seq(from_seq - 1)

    def read(
        self, channel: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int
    ) -> list[Record]:
        """Whole records, at least one, then as many as fit."""
        del channel
        found: list[Record] = []
        size = 0
        for stored in self.held:
            if stored.base_seq < from_seq or stored.last_seq > to_seq:
                continue
            size += len(stored.payload)
            if found and size > bytes_max:
                break
            found.append(stored)
        return found


class HeldTable:
    """ports.TableStore of one channel: positions alone; what is queued is applied within a call."""

    def __init__(self, log: HeldLog, applied_seq: Seq) -> None:
        self._log = log
        self._applied_seq = applied_seq
        self._queued: deque[list[Record]] = deque()

    def open_channel(self, channel: ChannelId, machine: RecordMachine) -> Seq:
        """How far it came before."""
        del channel, machine
        return self._applied_seq

    def applied_history(self, channel: ChannelId) -> History:
        """Of the log: tables here never go beyond theirs."""
        del channel
        ends = [r for r in self._log.held if r.last_seq == self._applied_seq]
        return History(ends[0].term, ends[0].last_seq) if ends else self._log.disk.base.history

    def base_max(self, channel: ChannelId) -> Seq:
        """No staged rows are needed."""
        del channel
        return self._applied_seq

    def unserved_until(self, channel: ChannelId) -> Seq:
        """There are no pieces."""
        del channel
        return Seq(0)

    def versions(self, channel: ChannelId) -> tuple[int, ...]:
        """Nothing is kept."""
        del channel
        return ()

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Queue them."""
        del channel
        self._queued.append(list(records))

    @property
    def is_idle(self) -> bool:
        """Nothing is queued."""
        return not self._queued

    def apply_queued(self) -> tuple[Seq, Conflicts]:
        """Apply what was queued first; the new applied seq, and which conditions did not hold."""
        conflicts = []
        for stored in self._queued.popleft():
            if stored.kind in CONDITIONED_KINDS and stored.payload.startswith(b"conflict "):
                conflicts.append((stored.last_seq, Seq(int(stored.payload.split()[1]))))
            self._applied_seq = stored.last_seq
        return self._applied_seq, tuple(conflicts)


class FreeRoom:
    """core.pending.PayloadRoom: clients may hold as much as they like."""

    def admit(self, client: int, channel: ChannelId, guid: Guid, digest: bytes, size: int) -> bool:
        """Always."""
        del client, channel, guid, digest, size
        return True

    def release(self, client: int, channel: ChannelId, guid: Guid, digest: bytes) -> None:
        """Nothing was counted."""


ROOM = FreeRoom()
NOTICES = ChannelNotices()
"""There are no other parts of a node here."""


class TracedRunner(ChannelRunner):
    """The production runner of a channel; each effect of its core is noted before it is done."""

    node: Node

    def execute(self, effect: Effect) -> None:
        """Note it, do it."""
        self.node.world.trace.append((self.me, effect))
        super().execute(effect)


class Node:
    """A replica with its log, its outbox and its role, all moved by hand."""

    def __init__(self, world: World, me: NodeId) -> None:
        self.world = world
        self.me = me
        self.disk = Disk()
        self.applied_seq = Seq(0)
        self.number = FOUNDING_NUMBER
        self.boot()

    def begin_life(self, number: ReplicaNumber) -> None:
        """Its data was deleted, and it is opened anew under another number: of the life before only
        term and vote are kept (M14)."""
        self.crash(len(self.writes))
        self.disk = Disk(self.term, self.elector.voted_for)
        self.applied_seq, self.number = Seq(0), number
        self.boot()

    halted: str | None
    """Why it ended for good."""

    def boot(self) -> None:
        """(Re)start on what the disk holds."""
        self.is_up, self.halted = True, None
        self.held_log = HeldLog(self.disk, self.world)
        log = cast("MessageLog", self.held_log)
        self.applied_seq = Seq(min(self.applied_seq, self.disk.last_seq))
        self.table = HeldTable(self.held_log, self.applied_seq)
        self.outbox = Outbox(log, cast("Transport", self), knows_no_bundles)
        settings = NodeSettings(
            node_name(self.me), "", replication=self.world.settings, catchup=self.world.catch_up,
            membership=self.world.membership, election=ELECTION,
        )  # fmt: skip
        self.active = ActiveChannels()
        self.clock = Clock(self.world.wall_ms)
        parts = ChannelParts(
            me=self.me,
            boot_id=bytes(16),
            settings=settings,
            log=log,
            tables=cast("TableStore", self.table),
            ids=self,
            clock=self.clock,
            elector_factory=make_elector,
            outbox=self.outbox,
            guard=StorageGuard(
                self.me,
                log,
                self.outbox,
                ignore,
                unsynced_bytes_max=settings.storage.unsynced_bytes_max,
                space=DiskSpace(self.me, settings.storage, ignore, no_disk, int, ignore),
                stall=no_stall,
            ),
            active=self.active,
            catch_ups=CatchUps(
                settings.catchup, settings.replication.sync_batch_bytes_max, ignore, self.halt
            ),
            notices=NOTICES,
            room=ROOM,
            tell=ignore,
            halt=self.halt,
            reply=self.world.on_reply,
            is_up=is_up,
            stamp_ms=self.stamp_ms,
            heard_leader=never_heard,
            stage_refusal=stages_all,
            repair_payloads=send_or_repair_nothing,
        )
        self.runner = TracedRunner(
            parts,
            channel=CHANNEL,
            name="t/0",
            creation_config=self.world.config,
            machine=TableMachine(),
            durability="fsync",
            number=self.number,
        )
        self.runner.node = self

    def stamp_ms(self, _: ChannelConfig) -> int:
        """All clocks of the world are right."""
        return self.world.wall_ms()

    def __getstate__(self) -> dict[str, Any]:
        """For searches that store worlds: without the pysyncobj instance, which is rebuilt."""
        self.elector.evict()
        return self.__dict__

    # --- what it is made of -----------------------------------------------------------------------

    @property
    def replica(self) -> Replica:
        """The core."""
        return self.runner.core

    @property
    def elector(self) -> Elector:
        """Term, vote and role."""
        return self.runner.elector

    @property
    def term(self) -> Term:
        """The elector's."""
        return self.elector.term

    @property
    def role(self) -> Role:
        """The elector's."""
        return self.elector.role

    @property
    def log(self) -> list[Record]:
        """Accepted records, durable or not."""
        return self.held_log.held

    @property
    def writes(self) -> list[tuple[str, Any]]:
        """Operations of the log that are not durable yet."""
        return self.held_log.writes

    @property
    def held(self) -> list[Message]:
        """Messages that wait for the disk (S0.5)."""
        return [message for _, _, message in (*self.outbox._control, *self.outbox._bulk)]

    @property
    def is_silent(self) -> bool:
        """Messages of its elector wait for the disk (S0.5)."""
        return bool(self.outbox._control)

    # --- inputs -----------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """One step of the core and everything that follows at once (applying, stepping down)."""
        self.runner._step(event, self._now())
        self.settle()

    def settle(self) -> None:
        """The end of a call: what is committed and durable is applied."""
        while not self.table.is_idle:
            self.applied_seq, conflicts = self.table.apply_queued()
            self.runner.on_applied(self.applied_seq, conflicts, self._now())
        self.world.after_step(self)

    def _now(self) -> int:
        self.clock.now_ms = self.world.now_ms
        return self.world.now_ms

    def follow(self, leader: NodeId, term: Term) -> None:
        """Learn of the leader of a term (S1.8)."""
        self.runner.on_leader_claim(leader, term, self._now())
        assert self.elector.leader == leader
        self.settle()

    def receive(self, sender: NodeId, message: Any) -> None:
        """A message of a peer."""
        if not self.is_up:
            return
        if isinstance(message, ReplicationMessage):
            self.runner.on_replication(sender, message, self._now())
        else:
            self.runner.on_election(sender, message, self._now())
        self.settle()

    def stand(self) -> None:
        """Ask for votes now."""
        self.runner.suspect_leader(0, self._now())
        self.runner.on_timer(self._now())
        self.settle()

    def step_down(self) -> None:
        """Give up the role, if it leads."""
        self.runner.step_down("another election", self._now())
        self.settle()

    # --- disk -------------------------------------------------------------------------------------

    def persist(self, operations: int | None = None) -> None:
        """Make the oldest buffered operations durable (default: all) and say so."""
        self.held_log.write_out(len(self.writes) if operations is None else operations)
        durable = self.held_log.durable_operation()
        self.outbox.release(durable)
        self.runner.on_log_durable(durable, self._now())
        self.settle()

    def crash(self, keep: int = 0) -> None:
        """Stop without a word; a prefix of the buffered operations survives."""
        self.held_log.write_out(keep)
        self.is_up = False
        self.writes.clear()

    # --- ports.Transport and ports.IdSource -------------------------------------------------------

    def send(self, to: NodeId, message: Message) -> None:
        """To the network."""
        self.world.network.append(Envelope(self.me, to, message))

    def send_control(self, to: NodeId, message: Message) -> None:
        """Votes are carried by ``World.elect`` alone; what fences is a message like the others."""
        lane = self.world.network if isinstance(message, StaleTerm) else self.world.votes
        lane.append(Envelope(self.me, to, message))

    def below(self, limit: int) -> int:
        """Nothing is random."""
        assert limit > 0
        return 0

    def uuid(self) -> bytes:
        """Likewise."""
        return bytes(16)

    def halt(self, reason: str) -> None:
        """The node ends."""
        self.halted, self.is_up = reason, False


def knows_no_bundles(_: NodeId) -> bool:
    """Each message is delivered or lost by itself."""
    return False


def ignore(_: str, **__: object) -> None:
    """Take an event."""


def no_stall() -> StorageStall | None:
    """The disk never hangs."""
    return None


def is_up(_: NodeId) -> bool:
    """So every node believes of every other."""
    return True


def never_heard(_: ChannelRunner, __: NodeId) -> int | None:
    """No heartbeats are sent here."""
    return None


def send_or_repair_nothing(runner: ChannelRunner, effect: PayloadEffect) -> tuple[Event, ...]:
    """The nodes of these worlds neither give payloads nor ask for them."""
    if isinstance(effect, SendIfKnown) and isinstance(effect.message, RemovedNotice):
        after = runner.term_operation
        runner.parts.outbox.send(effect.to, effect.message, after_operation=after)
    return (PayloadSource(effect.seq, None),) if isinstance(effect, AskPayloads) else ()


def no_disk() -> int | None:
    """Nothing is known of the free space."""
    return None


def stages_all(_: ChannelRunner, __: PubMsg) -> Refusal | None:
    """No micro-batch is refused."""
    return None


class World:
    """Three nodes (or as many as named), a network and a clock, all moved by the test."""

    def __init__(
        self,
        nodes: Iterable[NodeId] = (N1, N2, N3),
        *,
        settings: ReplicationSettings | None = None,
        inflight_requests: int = 2,
        config: ChannelConfig | None = None,
        membership: MembershipSettings | None = None,
    ) -> None:
        """``config``: of the creation; without it all nodes are voters."""
        self.settings = settings or ReplicationSettings()
        self.catch_up = CatchUpSettings(inflight_requests=inflight_requests)
        members = tuple(nodes)
        self.config = config or ChannelConfig((members,))
        self.membership = membership or MembershipSettings()
        self.now_ms = 1_000
        self.network: list[Envelope] = []
        self.replies: list[tuple[int, PubAck | PubReject]] = []
        self.trace: list[tuple[NodeId, Effect]] = []
        self.checks: list[Callable[[World, Node], None]] = []
        self.sync_records_max = 1_000
        self.next_client = 1
        self.votes: list[Envelope] = []
        """Messages of electors that were not carried."""
        self.nodes = {node: Node(self, node) for node in members}

    def wall_ms(self) -> int:
        """Virtual time is the wall clock, too."""
        return self.now_ms

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

        Fails if they do not elect it, say because a voter has a higher history (S1.1).
        """
        term = self.try_to_elect(me, voters=voters)
        assert term is not None, f"{me} is not elected by {voters}"
        return term

    def try_to_elect(self, me: NodeId, *, voters: Iterable[NodeId] | None = None) -> Term | None:
        """The same; None if they do not elect it. A leader among the voters that is needed for
        their quorum steps down first."""
        chosen = [n for n in self.nodes if self.nodes[n].is_up] if voters is None else list(voters)
        assert me in chosen
        candidate = self.nodes[me]
        for attempt in range(CANDIDACIES_MAX):
            for leader in [me] if attempt == 0 else chosen:
                self.nodes[leader].step_down()
            candidate.stand()
            self._carry_votes(chosen)
            if candidate.role is Role.LEADER:
                return candidate.term
        return None

    def _carry_votes(self, chosen: list[NodeId]) -> None:
        """Deliver what is asked and answered among these nodes; the others get nothing of it.

        What electors say waits for the disk (S0.5), which gets all of its work done here.
        """
        while True:
            for node in chosen:
                if self.nodes[node].is_silent:
                    self.nodes[node].persist()
            if not self.votes:
                return
            envelope = self.votes.pop(0)
            if isinstance(envelope.message, VOTING) and {envelope.sender, envelope.to} <= {*chosen}:
                self.nodes[envelope.to].receive(envelope.sender, envelope.message)


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
