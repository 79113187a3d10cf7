"""A world of several electors on virtual time.

It loses, repeats, delays and reorders messages, cuts nodes off, restarts them with a random
prefix of what was not yet durable, and evicts pysyncobj instances at random. After every event:

* at most one leader per term (O1);
* a node that revealed a vote (a grant, or its own candidacy) never reveals another one in that
  term, before or after a restart (S1.3, S0.5);
* a node's term never decreases while it runs, and a restart never falls below a term it revealed.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from raftstore.election.pysyncobj_elector import PySyncObjElector
from raftstore.protocol.election import ElectionMessage, LeaderAnnounce, RequestVote, VoteReply
from raftstore.types import (
    EMPTY_HISTORY,
    FOUNDING_NUMBER,
    ChannelConfig,
    History,
    NodeId,
    Role,
    Seq,
    Term,
)
from tests.unit.election.election_hosts import CHANNEL, SETTINGS, node, stale


@dataclass(frozen=True)
class WorldOptions:
    """How bad the weather is until ``World.heal``."""

    nodes: int = 3
    joint: bool = False
    loss: float = 0.1
    duplicates: float = 0.1
    delay_ms_max: int = 30
    late_ms_max: int = 2_000
    fsync_ms_max: int = 10
    fault_every_ms: int = 400
    evict: float = 0.1


class Violation(AssertionError):
    """An invariant of elections does not hold."""


@dataclass
class Disk:
    """The durable state of a voter: term, vote, and the end of the log."""

    term: Term = Term(0)
    voted_for: NodeId | None = None
    end: History = EMPTY_HISTORY


class Replica:
    """One node's replica of the channel: ElectionHost, barrier (S0.5) and a plain node detector."""

    def __init__(self, world: World, me: NodeId) -> None:
        self.world, self.me, self.alive = world, me, True
        self.number = FOUNDING_NUMBER
        self.disk = world.disks[me]
        self.end = self.disk.end
        self.operations: list[tuple[str, object]] = []
        self.written = self.durable = 0
        self.syncing = False
        self.wake: int | None = None
        self.outbox: list[tuple[int, NodeId, object]] = []
        self.heard_node: dict[NodeId, int] = {}
        self.heard_claim: dict[NodeId, int] = {}
        self.contact: dict[NodeId, int] = {}
        self.elector = PySyncObjElector(
            self, CHANNEL, self.disk.term, self.disk.voted_for, settings=SETTINGS
        )
        self.elector.suspect(world.now, world.random.randrange(200))
        world.after(world.random.randrange(100), self.tick)

    # ElectionHost
    def history(self) -> History:
        return self.end

    def config(self) -> ChannelConfig:
        return self.world.config

    def config_before(self) -> ChannelConfig:
        return self.world.config

    def may_vote(self, candidate: History) -> bool:
        return True

    def may_stand(self) -> bool:
        return True

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        self._operation("vote", (term, voted_for))

    def send_election(self, to: NodeId, message: object) -> None:
        self.outbox.append((self.written, to, message))

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        self.world.note("role", self.me, term, role.value, leader)
        if role is Role.LEADER:
            self.world.on_leader(self.me, term)
            self.contact = dict.fromkeys(self.world.names, self.world.now)
            self._operation("end", History(term, Seq(self.end.seq + 1)))

    def leader_last_heard_ms(self, leader: NodeId) -> int | None:
        if self.world.now - self.heard_node.get(leader, -10_000) > 300:
            return None
        return self.heard_claim.get(leader)

    def backoff_ms(self) -> int:
        return self.world.random.randrange(150, 450)

    # disk
    def _operation(self, kind: str, value: object) -> None:
        self.operations.append((kind, value))
        self.written += 1
        if kind == "end":
            self.end = value

    def apply(self, count: int) -> None:
        for kind, value in self.operations[:count]:
            if kind == "vote":
                self.disk.term, self.disk.voted_for = value
            else:
                self.disk.end = value
        del self.operations[:count]
        self.durable += count

    def flush(self) -> None:
        if self.alive and (self.operations or self.outbox) and not self.syncing:
            self.syncing = True
            slow = self.world.random.randrange(1, self.world.options.fsync_ms_max + 1)
            self.world.after(slow if self.operations else 0, self.synced, len(self.operations))

    def synced(self, count: int) -> None:
        if not self.alive:
            return
        self.syncing = False
        self.apply(count)
        ready = [entry for entry in self.outbox if entry[0] <= self.durable]
        self.outbox = [entry for entry in self.outbox if entry[0] > self.durable]
        for _, to, message in ready:
            self.world.reveal(self.me, to, message)
            self.world.send(self.me, to, message)
        self.flush()

    # time and messages
    def tick(self) -> None:
        if not self.alive:
            return
        world, elect, now = self.world, self.elector, self.world.now
        world.after(world.random.randrange(45, 55), self.tick)
        claim = elect.term if elect.role is Role.LEADER else None
        for peer in world.names:
            if peer != self.me:
                world.send(self.me, peer, ("beat", claim, self.end))
        if elect.role is Role.LEADER:
            votes = {peer for peer, at in self.contact.items() if now - at < 1_500}
            if not all(2 * len(votes & set(s)) > len(s) for s in self.config().voter_sets):
                elect.step_down("no quorum in contact")
        elif elect.leader is None or self.leader_last_heard_ms(elect.leader) is None:
            elect.suspect(now, world.random.randrange(20))
        if world.random.random() < world.options.evict:
            elect.evict()
        self.run_timers()

    def run_timers(self) -> None:
        if self.alive:
            due = self.elector.next_deadline_ms()
            if due is not None and due <= self.world.now:
                self.elector.poll(self.world.now)
            due = self.elector.next_deadline_ms()
            if due is not None and (self.wake is None or due < self.wake):
                self.wake = max(self.world.now + 1, due)
                self.world.after(self.wake - self.world.now, self.woken)
            self.flush()
            self.world.check(self)

    def woken(self) -> None:
        self.wake = None
        self.run_timers()

    def receive(self, sender: NodeId, message: object) -> None:
        now = self.world.now
        self.heard_node[sender] = now
        if isinstance(message, tuple):
            _, claim, end = message
            if self.elector.role is Role.LEADER:
                self.contact[sender] = now
            if claim is not None:
                self.on_claim(sender, claim, end)
        else:
            if isinstance(message, LeaderAnnounce):
                self.heard_claim[sender] = now
            self.elector.on_message(sender, message, now)
        self.run_timers()

    def on_claim(self, sender: NodeId, term: Term, end: History) -> None:
        if term >= self.elector.term:
            self.heard_claim[sender] = self.world.now
        if not self.elector.on_leader(sender, term, self.world.now):
            self.send_election(sender, stale(self.elector.term))
        elif self.end != end and self.world.random.random() < 0.7:
            self._operation("end", end)  # stands for replication


class World:
    """Replicas of one channel on virtual time; one seed, one history."""

    def __init__(self, seed: int, options: WorldOptions) -> None:
        self.random = random.Random(seed)
        self.options = options
        self.now = 0
        self.events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self.count = 0
        self.trace = hashlib.sha256()
        self.names = [node(name) for name in "abcde"[: options.nodes]]
        sets = (tuple(self.names),)
        if options.joint:
            sets = (tuple(self.names[:3]), tuple(self.names[-3:]))
        self.config = ChannelConfig(voter_sets=sets)
        self.disks = {name: Disk() for name in self.names}
        self.leaders: dict[Term, NodeId] = {}
        self.revealed_votes: dict[tuple[NodeId, Term], NodeId] = {}
        self.revealed_term: dict[NodeId, Term] = dict.fromkeys(self.names, Term(0))
        self.seen_term: dict[NodeId, Term] = {}
        self.cut: dict[tuple[NodeId, NodeId], None] = {}
        self.replicas: dict[NodeId, Replica] = {}
        self.faults = 0
        self.healed = False
        for name in self.names:
            self.boot(name)
        self.after(500, self.fault)

    # kernel
    def after(self, delay: int, call: Callable[..., None], *arguments: object) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, call, arguments))

    def run(self, until: int) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(self.events)
            call(*arguments)
        self.now = until

    def note(self, *what: object) -> None:
        self.trace.update(repr((self.now, *what)).encode())

    def send(self, sender: NodeId, to: NodeId, message: object) -> None:
        weather, choice = self.options, self.random
        self.note("send", sender, to, message)
        if (sender, to) in self.cut or to not in self.disks:
            return
        if not self.healed and choice.random() < weather.loss:
            return
        copies = 2 if not self.healed and choice.random() < weather.duplicates else 1
        for _ in range(copies):
            delay = choice.randrange(1, 3 if self.healed else weather.delay_ms_max + 1)
            if not self.healed and weather.late_ms_max and choice.random() < 0.03:
                delay += choice.randrange(weather.late_ms_max)
            self.after(delay, self.deliver, sender, to, message)

    def deliver(self, sender: NodeId, to: NodeId, message: object) -> None:
        replica = self.replicas.get(to)
        if replica is not None:
            replica.receive(sender, message)

    # faults
    def boot(self, name: NodeId) -> None:
        if name not in self.replicas:
            self.seen_term.pop(name, None)
            self.replicas[name] = Replica(self, name)
            self.check(self.replicas[name])

    def crash(self, name: NodeId) -> None:
        replica = self.replicas.pop(name, None)
        if replica is not None:
            replica.alive = False
            replica.apply(self.random.randint(0, len(replica.operations)))

    def fault(self) -> None:
        if self.healed:
            return
        self.after(self.random.randrange(self.options.fault_every_ms * 2), self.fault)
        self.faults += 1
        leading = [name for name, r in self.replicas.items() if r.elector.role is Role.LEADER]
        victim = self.random.choice(leading or self.names)
        match self.random.randrange(7):
            case 0 | 1:
                self.crash(victim)
                self.after(self.random.randrange(1_500), self.boot, victim)
            case 2:
                for name in self.names:
                    self.crash(name)
                    self.after(self.random.randrange(1_000), self.boot, name)
            case 3:
                self.cut = {(victim, x): None for x in self.names}
                if self.random.random() < 0.5:
                    self.cut |= {(x, victim): None for x in self.names}
            case 4:
                self.cut = {}
            case 5 if victim in self.replicas:
                self.replicas[victim].elector.transfer(self.random.choice(self.names))
                self.replicas[victim].flush()
            case 6 if victim in self.replicas:
                self.replicas[victim].elector.step_down("test")
                self.replicas[victim].run_timers()

    def heal(self) -> None:
        self.healed = True
        self.cut = {}
        for name in self.names:
            self.boot(name)

    def leader_of_all(self) -> NodeId | None:
        """The leader that every replica follows in one term, if there is one."""
        views = {(r.elector.leader, r.elector.term) for r in self.replicas.values()}
        (leader, _), *others = views
        if others or leader is None or self.replicas[leader].elector.role is not Role.LEADER:
            return None
        return leader

    # oracles
    def on_leader(self, who: NodeId, term: Term) -> None:
        if self.leaders.setdefault(term, who) != who:
            raise Violation(f"two leaders in term {term}: {self.leaders[term]} and {who}")

    def reveal(self, who: NodeId, to: NodeId, message: ElectionMessage) -> None:
        """A message leaves: what it says must never be taken back."""
        if isinstance(message, RequestVote):
            self._reveal_vote(who, message.term, who)
        if isinstance(message, VoteReply) and message.granted:
            self._reveal_vote(who, message.vote_term, to)
        if message.term < self.revealed_term[who]:
            return  # an older message that waited
        self.revealed_term[who] = message.term
        if self.disks[who].term < message.term and self.disks[who].end.term < message.term:
            raise Violation(f"{who} revealed term {message.term} before it was durable")

    def _reveal_vote(self, who: NodeId, term: Term, candidate: NodeId) -> None:
        if self.revealed_votes.setdefault((who, term), candidate) != candidate:
            raise Violation(f"{who} voted twice in term {term}")

    def check(self, replica: Replica) -> None:
        me, elect = replica.me, replica.elector
        if elect.term < self.seen_term.get(me, Term(0)):
            raise Violation(f"{me}: term fell to {elect.term}")
        if elect.term < self.revealed_term[me]:
            raise Violation(f"{me}: restarted in term {elect.term}, revealed a higher one")
        self.seen_term[me] = elect.term
        revealed = self.revealed_votes.get((me, elect.term))
        if revealed is not None and elect.voted_for != revealed:
            raise Violation(f"{me}: vote of term {elect.term} moved to {elect.voted_for}")


def run_world(seed: int, options: WorldOptions, *, weather_ms: int = 10_000) -> World:
    """Bad weather, then heal; returns once all follow one leader, else raises Violation."""
    world = World(seed, options)
    world.run(weather_ms)
    world.heal()
    for _ in range(150):
        world.run(world.now + 20)
        if world.leader_of_all() is not None:
            return world
    raise Violation(f"seed {seed}: no common leader 3 s after healing")


if __name__ == "__main__":
    sys.stdout.write(run_world(11, WorldOptions(nodes=5)).trace.hexdigest())
