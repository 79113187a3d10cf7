"""Every order of the messages of read rounds, with nodes that stop, lead, hand over and come back.

The replicas are those of a node; a test moves them. Messages of ReadIndex and FreshRequest rounds
arrive in any order, doubled by repetition or never, and so late that leaders changed meanwhile: a
node that stands still (SIGSTOP) is one whose messages arrive late and whose timers fire late, in
either order when it goes on. All else arrives at once among those that took part in the election,
and never at the leader of before, which is the one that knows nothing.

What is looked at after every step: a linearizable read misses nothing that was acknowledged before
it came (S7.1), and no replica calls a state complete as of a moment at which more had been
acknowledged (S7.3).
"""

from __future__ import annotations

import gc
import io
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from raftstore.config import ElectionSettings, NodeSettings, ReplicationSettings
from raftstore.core.effects import ReadReady, TransferLeadership
from raftstore.core.events import (
    FreshnessRequested,
    HandOverRequested,
    ReadRequested,
    Stalled,
    TimerFired,
)
from raftstore.core.replica import Replica
from raftstore.engine.channel.channel_parts import ChannelNotices
from raftstore.ports.log import Base
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import Bounds
from raftstore.protocol.records import Record
from raftstore.protocol.replication import (
    FreshReply,
    FreshRequest,
    ReadIndexReply,
    ReadIndexRequest,
    StaleTerm,
)
from raftstore.types import (
    ChannelConfig,
    FollowerMode,
    NodeId,
    RecordKind,
    Role,
    Seq,
    node_name,
)
from tests.core_world import N1, N2, N3, FreeRoom, World

OBJECTS_BETWEEN_COLLECTIONS: Final = 2_000
ROUND_MESSAGES = (ReadIndexRequest, ReadIndexReply, FreshRequest, FreshReply, StaleTerm)
LONG_MS = 1_000_000
STATES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Budget:
    """How often each thing may happen in a world."""

    reads: int = 0
    """Linearizable reads at the leader of the first term."""
    asks: int = 0
    """Readers at a follower who need a proof of the present."""
    writes: int = 0
    elections: int = 0
    repeats: int = 0
    """Timers that fire after a stop; what was not answered is sent again."""
    stalls: int = 0
    """Stops that a node notices when it goes on."""
    hand_overs: int = 0
    """With any, leaders change by hand-over alone."""


@dataclass(slots=True)
class RoundWorld:
    """Three replicas in the middle of it, and what has been promised so far."""

    world: World
    left: Budget
    acknowledged: list[tuple[int, Seq]] = field(default_factory=list)
    """(when, seq) of the writes that were acknowledged."""
    needed: dict[int, Seq] = field(default_factory=dict)
    """Read -> what it must not miss."""
    answered: int = 0
    proven: int = 0
    may_change: bool = True
    """Whether N3 may be elected: not before a hand-over is under way, if there is to be one."""


class Found(NamedTuple):
    """A finished search."""

    states: int
    answered: int
    """Reads that were answered, over all states."""
    proven: int
    """States in which the asking replica has a proof."""
    changes: int
    """States in which the leader may change."""
    violation: str | None
    path: tuple[str, ...]


class StaleError(Exception):
    """A promise was broken."""


def begin(budget: Budget) -> RoundWorld:
    """N1 leads term 1, N2 and N3 follow, a record of the term is committed everywhere."""
    settings = ReplicationSettings(
        read_index_timeout_ms=LONG_MS, hand_over_timeout_ms=LONG_MS, resend_interval_ms=LONG_MS
    )
    world = World(settings=settings)
    world.elect(N1)
    world.settle(ticks=2)
    world.trace.clear()
    return RoundWorld(world, budget, may_change=budget.hand_overs == 0)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Worlds are thousands of objects each: looking for rings of them so often as the interpreter
    does, among all objects of a test session, takes longer than the search."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@rare_collections()
def search(budget: Budget) -> Found:
    """Breadth first through all orders, to the first broken promise or to the end."""
    first = begin(budget)
    seen = {key_of(first)}
    waiting: deque[tuple[bytes, tuple[str, ...]]] = deque([(state_of(first), ())])
    answered = proven = changes = 0
    while waiting:
        state, path = waiting.popleft()
        for name, after in moves(state):
            try:
                check(after)
            except StaleError as stale:
                return Found(len(seen), answered, proven, changes, str(stale), (*path, name))
            key = key_of(after)
            if key not in seen:
                seen.add(key)
                assert len(seen) <= STATES_MAX, f"more than {STATES_MAX} states"
                if is_open(after):
                    waiting.append((state_of(after), (*path, name)))
                answered += after.answered
                proven += after.proven
                changes += after.may_change
            forget(after)
    return Found(len(seen), answered, proven, changes, None, ())


def is_open(after: RoundWorld) -> bool:
    """Whether anything may still be answered or proven."""
    left, is_proven = after.left, bool(after.proven)
    reads = left.reads > 0 or after.answered < len(after.needed)
    return reads or left.asks > 0 or (not after.needed and not is_proven)


def key_of(after: RoundWorld) -> int:
    """Equal for worlds in which the same things can happen from now on."""
    world = after.world
    nodes = [(facts_of(node.replica), node.held) for node in world.nodes.values()]
    messages = sorted(str((e.sender, e.to, e.message)) for e in world.network)
    promised = (after.left, after.may_change, after.acknowledged, after.needed)
    return hash(str((world.now_ms, nodes, messages, promised)))


def facts_of(replica: Replica) -> tuple[object, ...]:
    """All of a replica that rounds depend on, or change."""
    leader, fresh = replica._leader, replica._fresh
    return (
        (replica.term, replica.role, replica.leader, replica.commit_seq, replica.last_seq),
        vars(replica._state.freshness),
        None if leader is None else [v for k, v in vars(leader.reads).items() if k != "_state"],
        [v for k, v in vars(fresh).items() if k != "_state"],
    )


# --- moves ----------------------------------------------------------------------------------------


FROZEN: Final = frozenset(
    {Base, Bounds, Budget, ChannelConfig, ChannelNotices, ElectionSettings, FollowerMode, FreeRoom}
    | {NodeSettings, Record, RecordKind, ReplicationSettings, Role}
)
"""Types whose objects never change: in all worlds they are the same objects."""


class Shared:
    """The objects that all worlds of a search have in common."""

    def __init__(self) -> None:
        self.objects: list[object] = []
        self._numbers: dict[int, int] = {}

    def number_of(self, value: object) -> int:
        """Where it is kept."""
        number = self._numbers.setdefault(id(value), len(self.objects))
        if number == len(self.objects):
            self.objects.append(value)
        return number


SHARED = Shared()


def shared(number: int) -> object:
    """The object with this number, for worlds that are made of bytes."""
    return SHARED.objects[number]


class Pickler(pickle.Pickler):
    """Writes a number for what all worlds have in common."""

    def reducer_override(self, value: object) -> Any:
        """Called for objects that are no plain values or containers."""
        return (shared, (SHARED.number_of(value),)) if type(value) in FROZEN else NotImplemented


def state_of(world: RoundWorld) -> bytes:
    """The world as it is now."""
    state = io.BytesIO()
    Pickler(state, pickle.HIGHEST_PROTOCOL).dump(world)
    return state.getvalue()


def world_of(state: bytes) -> RoundWorld:
    """A world of its own."""
    made: RoundWorld = pickle.loads(state)
    return made


def forget(after: RoundWorld) -> None:
    """Break the rings of a world that nobody needs any more, so that it is gone at once."""
    for node in after.world.nodes.values():
        vars(node).clear()


def moves(state: bytes) -> Iterator[tuple[str, RoundWorld]]:
    """All that may happen next, each in a world of its own."""
    now = world_of(state)
    made = list(moves_of(now))
    for name, move in made[:-1]:
        after = world_of(state)
        move(after)
        yield name, after
    for name, move in made[-1:]:
        move(now)
        yield name, now


def moves_of(now: RoundWorld) -> Iterator[tuple[str, Callable[[RoundWorld], None]]]:
    """The same moves, for a world like this one."""
    left = now.left
    for index, envelope in enumerate(now.world.network):
        yield f"{envelope}", partial(deliver, index=index)
    if left.reads:
        yield "read at n1", partial(spend, what="reads", move=read)
    if left.asks:
        yield "n2 asks", partial(spend, what="asks", move=ask)
    if left.writes:
        yield "write", partial(spend, what="writes", move=write)
    if left.hand_overs:
        yield "hand over", partial(spend, what="hand_overs", move=hand_over)
    if left.elections and now.may_change:
        yield "n3 wins", partial(spend, what="elections", move=elect)
    node = N1 if left.reads or now.needed else N2  # the one whose requests are under way
    if left.repeats:
        name = f"timers of {node_name(node)}"
        yield name, partial(spend, what="repeats", move=partial(timers, node=node))
    if left.stalls:
        name = f"{node_name(node)} stood still"
        yield name, partial(spend, what="stalls", move=partial(stall, node=node))


def spend(after: RoundWorld, what: str, move: Callable[[RoundWorld], None]) -> None:
    """Make a move that may happen a number of times, in a moment of its own."""
    after.world.now_ms += 1
    after.left = replace(after.left, **{what: getattr(after.left, what) - 1})
    move(after)


def deliver(after: RoundWorld, index: int) -> None:
    """One message of a round arrives."""
    envelope = after.world.network.pop(index)
    after.world[envelope.to].receive(envelope.sender, envelope.message)


def read(after: RoundWorld) -> None:
    """A linearizable read comes to N1, which may lead or have led."""
    token = len(after.needed) + 1
    after.needed[token] = max((seq for _, seq in after.acknowledged), default=Seq(0))
    after.world[N1].step(ReadRequested(token))


def ask(after: RoundWorld) -> None:
    """A reader at N2 waits for a proof."""
    after.world[N2].step(FreshnessRequested(after.world.now_ms + LONG_MS))


def write(after: RoundWorld) -> None:
    """A write is acknowledged by the leader of the newest term and a quorum with it."""
    leader = after.world.leader()
    assert leader is not None
    told = len(after.world.replies)
    after.world.publish(len(after.acknowledged) + 1)
    settle(after.world, leader.me)
    acks = [answer for _, answer in after.world.replies[told:] if isinstance(answer, PubAck)]
    after.acknowledged += [(after.world.now_ms, ack.last_seq) for ack in acks]


def elect(after: RoundWorld) -> None:
    """N3 wins with the vote of N2; N1 gets nothing of it."""
    after.world.elect(N3, voters=(N2, N3))
    settle(after.world, N3)


def hand_over(after: RoundWorld) -> None:
    """N1 is to give its leadership to N3."""
    after.world[N1].step(HandOverRequested(N3, "operator"))
    settle(after.world, N1)  # FIP-20: N3 answers that its table shows everything
    asked = [e for _, e in after.world.trace if isinstance(e, TransferLeadership)]
    after.may_change = after.may_change or bool(asked)


def timers(after: RoundWorld, node: NodeId) -> None:
    """The node goes on after so long that everything unanswered is sent again."""
    after.world.now_ms += after.world.settings.read_index_retry_ms
    after.world[node].step(TimerFired())


def stall(after: RoundWorld, node: NodeId) -> None:
    """The node notices that it stood still."""
    after.world[node].step(Stalled())


def settle(world: World, leader: NodeId) -> None:
    """Deliver and store what is not of a round, among those that follow this leader."""
    reached = [N2, N3] if leader == N3 else [N1, N2, N3]
    while True:
        due = [e for e in world.network if not isinstance(e.message, ROUND_MESSAGES)]
        world.network = [e for e in world.network if isinstance(e.message, ROUND_MESSAGES)]
        for envelope in due:
            if envelope.to in reached and envelope.sender in reached:
                world[envelope.to].receive(envelope.sender, envelope.message)
        is_writing = False
        for name in reached:
            if world[name].writes:
                world[name].persist()
                is_writing = True
        if not due and not is_writing:
            return


# --- promises -------------------------------------------------------------------------------------


def check(after: RoundWorld) -> None:
    """S7.1 of the reads that were answered now, and S7.3 of everything that is proven."""
    world = after.world
    world.network = [e for e in world.network if isinstance(e.message, ROUND_MESSAGES)]
    for me, effect in world.trace:
        if isinstance(effect, ReadReady):
            after.answered += 1
            if effect.read_seq < after.needed[effect.token]:
                needed = after.needed[effect.token]
                raise StaleError(f"{node_name(me)} reads at {effect.read_seq}, {needed} was there")
    world.trace.clear()
    for node in world.nodes.values():
        for acknowledged_ms, seq in after.acknowledged:
            as_of = node.replica.fresh_as_of(Seq(seq - 1))
            if as_of is not None and as_of > acknowledged_ms:
                raise StaleError(f"{node_name(node.me)} calls {seq - 1} complete after {seq}")
    after.proven = int(world[N2].replica.proven_ms is not None)
