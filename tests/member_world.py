"""Drawn worlds of one channel whose members change, with the rules of the contract as oracles.

Five nodes with the production core and elector, on the world of ``tests.core_world``; beside them a
catalog: one open order at a time, which each node knows as late as it may, the reports of committed
configurations, and who hosts a replica. A seed draws what is delivered, lost, doubled, persisted,
who crashes, stands, and when an order is given or cancelled. Then everything heals, and the order
has to end. ``python -m tests.member_world 1..2000`` tries these seeds.

* One leader a term (O1); a leader has everything committed in lower terms (O2).
* What is committed at a seq is the same everywhere and stays so (O3); nobody halts, so nothing
  committed is ever cut.
* A confirmed read is at or above everything that was committed when it began (O5).
* At the end there is a leader, it commits, and no order is open (O6).

With ``roles`` orders also name witnesses and readers, and witnesses trim what they may (W6).
``python -m tests.member_world 1..2000 roles``.

* What is committed is held by a majority of each voter set that is committed: by voters with rows
  that have it in their durable logs, and by witnesses that have not trimmed it (O7). Of a joint
  configuration the old voters hold all of it; the new ones what was committed by counting them,
  until they hold everything, which ends it (W2).
* A reader never stands; a witness is in office for its term start alone.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter

import msgspec

from raftstore.core.effects import ConfigCommitted, ReadReady
from raftstore.core.events import ReadRequested, TargetKnown
from raftstore.core.membership import has_rows_enough, is_open
from raftstore.core.quorum import rows_seq
from raftstore.types import (
    ChangeTarget,
    ChannelConfig,
    MemberRole,
    NodeId,
    ReplicaId,
    ReplicaNumber,
    Role,
    Seq,
    Term,
)
from tests.core_bench import N4, N5
from tests.core_world import N1, N2, N3, TRIO, Envelope, Node, World

NODES = (N1, N2, N3, N4, N5)
STEPS = 800
HEAL_ROUNDS = 80
LATE_MAX = 300
"""Messages on their way; beyond it the oldest are lost."""


class Violation(AssertionError):
    """A rule of the contract does not hold."""


@dataclass(slots=True)
class Known:
    """The catalog: the order, and the newest report."""

    target: ChangeTarget | None = None
    seq: Seq = Seq(0)
    config: ChannelConfig = TRIO
    orders: int = 0


class MemberWorld:
    """One seed, one history."""

    def __init__(
        self, seed: int, founders: ChannelConfig = TRIO, *, has_roles: bool = False
    ) -> None:
        self.draw = random.Random(seed)
        self.roles = random.Random(f"roles {seed}") if has_roles else None
        """Draws roles, so that worlds without them stay as they are."""
        self.trimmed: dict[ReplicaId, Seq] = {}
        """Up to where each witness holds nothing any more, or never did."""
        self.reported: dict[NodeId, dict[NodeId, tuple[ReplicaNumber, Seq]]] = {
            node: {} for node in NODES
        }
        """By who knows it: number and applied seq of the others, as they reported it last."""
        self.trims = self.skips = self.late_skips = 0
        self.newest = Seq(0), founders
        """The newest configuration that anybody knows to be committed."""
        self.counted_early: set[int] = set()
        """Committed by the majority of a configuration that was not, and could be cut off."""
        self.world = World(NODES, config=founders)
        self.catalog = Known(config=founders)
        self.copies = dict.fromkeys(NODES, self.catalog.target)
        self.removed: dict[NodeId, ReplicaNumber] = {}
        """The number of each node's last life that was deleted."""
        self.committed: dict[int, tuple[Term, bytes]] = {}
        self.committed_in: dict[int, Term] = {}
        """The term in which each was committed, which may be a later one than that of the record:
        a leader in between, which is cut off by then, need not have it."""
        self.commit_end = 0
        self.leaders: dict[Term, NodeId] = {}
        self.reads: dict[int, int] = {}
        self.seen_effects = 0
        self.counters = 0
        self.done_orders = 0
        self.apart: set[NodeId] = set()
        """These nodes reach each other and nobody else."""
        self.hosting = {node: node in founders.members for node in NODES}
        for node in NODES:
            if not self.hosting[node]:
                self.world[node].crash(0)
        self.world.checks.append(lambda _, node: self.check(node))

    # --- what happens -----------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> None:
        """Bad weather, then healing; raises Violation."""
        self._attempt(N1)
        choices: list[tuple[Callable[[], None], int]] = [
            (self.deliver, 40),
            (self.persist, 16),
            (self.tick, 8),
            (self.publish, 6),
            (self.read, 3),
            (self.learn, 6),
            (self.stand, 1),
            (self.lead, 6),
            (self._deliver_all, 8),
            (self.lose, 3),
            (self.part, 1),
            (self.divide, 4),
            (self.double, 2),
            (self.order, 3),
            (self.cancel, 1),
            (self.crash, 1),
            (self.restart, 4),
            (self.host, 3),
        ]
        acts = [act for act, _ in choices]
        weights = [weight for _, weight in choices]
        for act in self.draw.choices(acts, weights, k=steps):
            act()
            if self.roles is not None and self.roles.random() < 0.3:
                self.roles.choice((self.report_positions, self.trim, self.skip))()
            self.look()
        self.heal()

    def heal(self) -> None:
        """No more faults: everybody is up and knows the catalog; the order has to end."""
        self.apart = set()
        for _ in range(HEAL_ROUNDS):
            for node in NODES:
                self._restart(node)
                self._learn(node, self.catalog.target)
            self.host()
            for _ in range(60):
                if not (self.world.network or self.world.votes):
                    break
                self._deliver_all()
            for me in self._up():
                self.world[me].persist()
            self._deliver_all()
            self.world.tick(self.draw.randrange(20, 150))
            if self.world.leader() is None or self.draw.random() < 0.05:
                self._attempt(self.draw.choice(self._up()))
            self.look()
            if self._is_done():
                return
        leader = self.world.leader()
        what = "no leader" if leader is None else f"{leader.replica.membership()}"
        raise Violation(f"an order does not end: {what}")

    def _is_done(self) -> bool:
        leader = self.world.leader()
        if leader is None or leader.replica.commit_seq != leader.replica.last_seq:
            return False
        config = leader.replica.config()
        return self.catalog.target is None and not config.is_joint

    # --- drawn acts -------------------------------------------------------------------------------

    def _up(self) -> list[NodeId]:
        return [node for node in NODES if self.hosting[node] and self.world[node].is_up]

    def deliver(self) -> None:
        """A few messages, in any order."""
        for _ in range(self.draw.randrange(1, 6)):
            lane = self.draw.choice((self.world.network, self.world.votes))
            if lane:
                self._hand(lane.pop(self.draw.randrange(len(lane))))

    def _deliver_all(self) -> None:
        lanes, self.world.network, self.world.votes = (
            (*self.world.network, *self.world.votes),
            [],
            [],
        )
        for envelope in lanes:
            self._hand(envelope)
        for me in self._up():
            self.world[me].persist()

    def _hand(self, envelope: Envelope) -> None:
        is_cut = (envelope.sender in self.apart) != (envelope.to in self.apart)
        if self.hosting[envelope.to] and not is_cut:
            self.world[envelope.to].receive(envelope.sender, envelope.message)

    def persist(self) -> None:
        """A part of what a disk has to do."""
        if ups := self._up():
            node = self.world[self.draw.choice(ups)]
            node.persist(self.draw.randint(0, len(node.writes)))

    def tick(self) -> None:
        """Time passes."""
        self.world.tick(self.draw.choice((5, 50, 300)))

    def publish(self) -> None:
        """A write, of which not every replica gets the payload."""
        leading = [node for node in self._up() if self.world[node].role is Role.LEADER]
        if leading:
            self.counters += 1
            leader = self.draw.choice(leading)
            getting = {leader, *self.draw.sample(self._up(), self.draw.randint(0, len(self._up())))}
            self.world.publish(
                self.counters,
                to=[node for node in NODES if node in getting],
                leader=leader,
                term=self.world[leader].term,
            )

    def read(self) -> None:
        """A linearizable read."""
        if ups := self._up():
            self.counters += 1
            self.reads[self.counters] = self.commit_end
            self.world[self.draw.choice(ups)].step(ReadRequested(self.counters))

    def learn(self) -> None:
        """A node's copy of the catalog is brought up to date."""
        if ups := self._up():
            self._learn(self.draw.choice(ups), self.catalog.target)

    def _learn(self, me: NodeId, target: ChangeTarget | None) -> None:
        if self.hosting[me] and self.world[me].is_up:
            self.copies[me] = target
            self.world[me].step(TargetKnown(target, self.catalog.seq))

    def stand(self) -> None:
        """Somebody asks for votes, or gives its role up."""
        if ups := self._up():
            node = self.world[self.draw.choice(ups)]
            if node.role is Role.LEADER and self.draw.random() < 0.5:
                node.step_down()
            else:
                node.stand()

    def lead(self) -> None:
        """Without a leader somebody is elected."""
        if self.world.leader() is None and (ups := self._up()):
            self._attempt(self.draw.choice(ups))

    def _attempt(self, me: NodeId) -> None:
        """An election that nothing disturbs."""
        self.world[me].stand()
        for _ in range(8):
            for each in self._up():
                self.world[each].persist()
            if not self.world.votes:
                return
            votes, self.world.votes = self.world.votes, []
            for envelope in votes:
                self._hand(envelope)

    def lose(self) -> None:
        """Messages are lost, of one lane or of one node."""
        if self.draw.random() < 0.5:
            self.world.network = [e for e in self.world.network if self.draw.random() < 0.5]
        else:
            whose = self.draw.choice(NODES)
            self.world.network = [e for e in self.world.network if whose not in (e.to, e.sender)]
            self.world.votes = [e for e in self.world.votes if whose not in (e.to, e.sender)]

    def part(self) -> None:
        """One or two nodes are cut off from the others, or nobody is any more."""
        self.apart = set() if self.apart else set(self.draw.sample(NODES, self.draw.choice((1, 2))))

    def divide(self) -> None:
        """A leader whose newest configuration is not committed is cut off with one or two others;
        each side does what it can."""
        leading = [
            node
            for node in self._up()
            if self.world[node].role is Role.LEADER
            and self.world[node].replica.membership().config_seq
            > self.world[node].replica.commit_seq
        ]
        if not leading:
            return
        leader = self.draw.choice(leading)
        others = [node for node in self._up() if node != leader]
        with_it = self.draw.sample(others, min(len(others), self.draw.choice((0, 1, 1, 2))))
        self.apart = {leader, *with_it}
        for _ in range(self.draw.choice((1, 3, 6))):
            self._deliver_all()
            self.world.tick(20)
        rest = [node for node in others if node not in with_it]
        if rest:
            self._attempt(self.draw.choice(rest))
        for _ in range(self.draw.choice((1, 3, 6))):
            self._deliver_all()
            self.world.tick(20)
        self.publish()

    def double(self) -> None:
        """A message comes twice, the second time late."""
        if self.world.network:
            self.world.network.append(replace(self.draw.choice(self.world.network)))

    def crash(self) -> None:
        """A node stops; a part of what its disk had to do is done."""
        ups = self._up()
        if len(ups) > 1:
            node = self.world[self.draw.choice(ups)]
            node.crash(self.draw.randint(0, len(node.writes)))

    def restart(self) -> None:
        """A node comes back, with the copy of the catalog that it had."""
        down = [n for n in NODES if self.hosting[n] and not self.world[n].is_up]
        if down:
            self._restart(self.draw.choice(down))

    def _restart(self, me: NodeId) -> None:
        if self.hosting[me] and not self.world[me].is_up:
            self.world[me].boot()
            self._learn(me, self.copies[me])

    # --- the catalog ------------------------------------------------------------------------------

    def order(self) -> None:
        """Other replicas: one or two leave, one or two enter, or the number of voters changes."""
        catalog, config = self.catalog, self.catalog.config
        if catalog.target is not None or config.is_joint:
            return
        catalog.orders += 1
        change = 10 * catalog.orders
        nodes = self.draw.sample(NODES, self.draw.choice((1, 2, 3, 3, 3, 4)))
        learners = [n for n in NODES if n not in nodes and self.draw.random() < 0.2]
        numbers = {
            node: config.number_of(node) if node in config.members else ReplicaNumber(change)
            for node in (*nodes, *learners)
        }
        catalog.target = ChangeTarget(change, tuple(nodes), tuple(learners), numbers)
        if self.roles is not None:
            self._draw_roles(self.roles, catalog.target)

    def _draw_roles(self, draw: random.Random, target: ChangeTarget) -> None:
        """Some of the new voters shall have no rows, if the catalog takes the order (W1, W3)."""
        config, roles = self.catalog.config, dict[NodeId, MemberRole]()
        for node in target.voters:
            is_kept = node in config.members
            if config.is_witness(node) if is_kept else draw.random() < 0.6:
                roles[node] = MemberRole.WITNESS
        learners = [node for node in target.learners if not config.is_witness(node)]
        roles |= dict.fromkeys(learners, MemberRole.READER)
        ordered = msgspec.structs.replace(target, learners=tuple(learners), roles=roles)
        if has_rows_enough(target.voters, roles):
            self.catalog.target = ordered
        else:
            self.catalog.target, self.catalog.orders = None, self.catalog.orders - 1

    # --- witnesses --------------------------------------------------------------------------------

    def _held_to(self, me: NodeId) -> Seq:
        """Up to where a node has durably what it knows to be committed."""
        node = self.world[me]
        return Seq(min(node.replica.commit_seq, node.disk.last_seq))

    def report_positions(self) -> None:
        """Some other nodes report to one how far they have applied."""
        if self.roles is not None and (ups := self._up()):
            known = self.reported[self.roles.choice(ups)]
            for node in self.roles.sample(ups, self.roles.randint(1, len(ups))):
                known[node] = (self.world[node].number, self._held_to(node))

    def trim(self) -> None:
        """W6: a witness lets go what enough voters with rows said that they have."""
        for me in self._up():
            core = self.world[me].replica
            if not core.is_witness:
                continue
            floor = self._reported_rows(me, self._held_to(me))
            self._let_go(ReplicaId(me, self.world[me].number), floor)
            self.trims += 1

    def _reported_rows(self, me: NodeId, limit: Seq) -> Seq:
        for _, _, config in self.world[me].replica.known_configs():
            held = {
                node: seq
                for node, (number, seq) in self.reported[me].items()
                if number == config.number_of(node)
            }
            limit = min(limit, rows_seq(config, held))
        return limit

    def skip(self) -> None:
        """W6: a leader lets a witness begin behind what enough voters with rows hold, and the only
        one behind all that is committed: what it holds it judges itself."""
        for leader in self._up():
            node = self.world[leader]
            config, core = node.replica.config(), node.replica
            if node.role is Role.LEADER:
                for each in filter(config.is_witness, config.members):
                    base = min(core.rows_seq(), core.commit_seq)
                    is_only = core.is_only_witness(each)
                    if is_only and self._may_let_go(each, core.commit_seq, core.rows_seq()):
                        base = core.commit_seq
                        self.late_skips += base > core.rows_seq()
                    self._let_go(ReplicaId(each, config.number_of(each)), base)
                    self.skips += 1

    def _may_let_go(self, witness: NodeId, base: Seq, rows_seq: Seq) -> bool:
        """Whether enough voters with rows have what a witness holds, as they said to it or to the
        leader."""
        node = self.world[witness]
        if not (node.is_up and self.hosting[witness]):
            return False
        most = node.replica.held_at_most
        held = base if most is None else min(most, base)
        return max(rows_seq, self._reported_rows(witness, held)) >= held

    def _let_go(self, witness: ReplicaId, seq: Seq) -> None:
        self.trimmed[witness] = max(seq, self.trimmed.get(witness, Seq(0)))

    def check_copies(self) -> None:
        """O7."""
        for me in self._up():
            known = self.world[me].replica.committed_config()
            self.newest = max(self.newest, (known.seq, known.config), key=itemgetter(0))
        joint_seq, config = self.newest
        for number, group in enumerate(config.voter_sets):
            # W2: a joint configuration lasts until the new voters hold what was committed before.
            first_seq = joint_seq if number else 0
            for seq in self.committed.keys() - self.counted_early:
                if seq < first_seq:
                    continue
                holding = [node for node in group if self._holds(config, node, Seq(seq))]
                if 2 * len(holding) <= len(group):
                    raise Violation(f"seq {seq} is held by {holding} of {group} alone (O7)")

    def _holds(self, config: ChannelConfig, me: NodeId, seq: Seq) -> bool:
        node, replica = self.world[me], ReplicaId(me, config.number_of(me))
        if not self.hosting[me] or node.number != replica.number:
            return False
        return self.trimmed.get(replica, Seq(0)) < seq <= node.disk.last_seq

    def cancel(self) -> None:
        """The order is taken back."""
        if self.catalog.target is not None:
            self.catalog.target = msgspec.structs.replace(self.catalog.target, cancelled=True)

    def report(self, committed: ConfigCommitted) -> None:
        """M21: only newer ones; the order ends with the configuration that says so."""
        catalog = self.catalog
        if committed.seq <= catalog.seq:
            return
        catalog.seq, catalog.config = committed.seq, committed.config
        if catalog.target is not None and not is_open(catalog.config, catalog.target):
            catalog.target = None
            self.done_orders += 1

    def host(self) -> None:
        """M12, M14, M23: replicas that are ordered are opened, those that left are deleted."""
        catalog = self.catalog
        for me in NODES:
            if self.hosting[me]:
                self._delete_if_removed(me)
            if self.hosting[me]:
                continue
            named = catalog.target or catalog.config
            is_named = me in catalog.config.members or (
                catalog.target is not None
                and me in (*catalog.target.voters, *catalog.target.learners)
            )
            number = named.number_of(me) or catalog.config.number_of(me)
            if is_named and number > self.removed.get(me, -1):
                node = self.world[me]
                self.hosting[me] = True
                node.begin_life(number)
                self._learn(me, catalog.target)

    def _delete_if_removed(self, me: NodeId) -> None:
        catalog, node = self.catalog, self.world[me]
        own = ReplicaId(me, node.number)
        if not node.is_up or catalog.config.has_member(own):
            return
        target = catalog.target
        if target is not None and me in (*target.voters, *target.learners):
            if target.number_of(me) == node.number:
                return  # A2: it is yet to be added
        stack = node.replica._state.configs._stack
        newest = max((e.seq for e in stack if e.config.has_member(own)), default=Seq(0))
        if newest < catalog.seq:
            self.removed[me] = node.number
            node.crash(len(node.writes))
            self.hosting[me] = False

    # --- oracles ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Effects since the last look, and bounds."""
        if self.roles is not None:
            self.check_copies()
        trace = self.world.trace
        for _, effect in trace[self.seen_effects :]:
            if isinstance(effect, ReadReady):
                began = self.reads.pop(effect.token, 0)
                if effect.read_seq < began:
                    raise Violation(f"a read at {effect.read_seq}, committed were {began} (O5)")
            elif isinstance(effect, ConfigCommitted):
                self.report(effect)
        trace.clear()
        self.seen_effects = 0
        for lane in (self.world.network, self.world.votes):
            del lane[: max(0, len(lane) - LATE_MAX)]

    def check(self, node: Node) -> None:
        """After every step of a node."""
        if node.halted is not None:
            raise Violation(f"{node.me} halted: {node.halted}")
        commit_seq = node.replica.commit_seq
        for record in node.log:
            if record.last_seq > commit_seq:
                break
            fact = (record.term, record.digest)
            if record.last_seq not in self.committed and not node.replica.config_committed():
                self.counted_early.add(record.last_seq)
            self.committed_in.setdefault(record.last_seq, node.term)
            if self.committed.setdefault(record.last_seq, fact) != fact:
                raise Violation(f"two records are committed at seq {record.last_seq} (O3)")
        self.commit_end = max(self.commit_end, commit_seq)
        if node.role is Role.LEADER:
            self._check_leader(node)

    def _check_leader(self, node: Node) -> None:
        if self.leaders.setdefault(node.term, node.me) != node.me:
            raise Violation(f"two leaders in term {node.term} (O1)")
        config = node.replica.config()
        if config.role_of(node.me) is MemberRole.READER:
            raise Violation(f"the reader {node.me} leads term {node.term}")
        if config.is_witness(node.me) and node.replica.last_seq > self._first_of_term(node):
            raise Violation(f"the witness {node.me} goes on in term {node.term}")
        held = {record.last_seq: (record.term, record.digest) for record in node.log}
        for seq, fact in self.committed.items():
            if self.committed_in[seq] < node.term and held.get(Seq(seq)) != fact:
                raise Violation(f"{node.me} leads term {node.term} without seq {seq} (O2)")

    @staticmethod
    def _first_of_term(node: Node) -> Seq:
        return next((r.last_seq for r in node.log if r.term == node.term), node.replica.last_seq)


def run(seed: int, steps: int = STEPS, *, has_roles: bool = False) -> MemberWorld:
    """One world; raises Violation."""
    founders = (TRIO, ChannelConfig(((N1,),)), ChannelConfig(((N1, N2),), (N3,)))[seed % 3]
    made = MemberWorld(seed, founders, has_roles=has_roles)
    made.run(steps)
    return made


if __name__ == "__main__":
    first, last = map(int, sys.argv[1].split(".."))
    ended = broken = 0
    for number in range(first, last + 1):
        try:
            ended += run(number, has_roles="roles" in sys.argv[2:]).done_orders
        except AssertionError as error:
            broken += 1
            sys.stdout.write(f"seed {number}: {type(error).__name__}: {error}\n")
    sys.stdout.write(f"{last - first + 1} seeds, {ended} orders ended, {broken} seeds broken\n")
    sys.exit(7 if broken else 0)
