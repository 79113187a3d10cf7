"""Members of a simulated world change all along, together with every other fault (S8).

An operator has nodes join, drain, leave and take the place of others whose disk is lost, orders and
cancels replicas. What it asks for is drawn from a generator of its own. When the world heals it
takes back or finishes what it began; then every order ends, nobody hosts a replica that no
configuration names, and the catalog shows what the logs hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from raftstore.core.configs import decode_config
from raftstore.protocol.members import Drain, JoinAccepted, Retire
from raftstore.protocol.message import Done, Message
from raftstore.protocol.replica_orders import ORDER_ID_BYTES, CancelOrder, OrderReplicas
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT
from raftstore.testing.invariants import InvariantError
from raftstore.testing.settled_members import is_gone, open_orders, runners_of, why_not_settled
from raftstore.testing.sim_network import LATE_MS_MAX
from raftstore.testing.sim_operator import ANSWER_MS, SimJoin, SimOperator, is_final
from raftstore.types import ChannelConfig, ChannelId, NodeId, RecordKind, Role, node_name

if TYPE_CHECKING:
    from raftstore.state_machines.catalog import Catalog
    from raftstore.testing.sim_cluster import SimCluster
    from raftstore.testing.sim_node import SimNode

INTERVAL_MS: Final = 500.0
"""Mean time between two commands."""
NODES_MAX: Final = 6
NODES_MIN: Final = 3
"""That do not drain."""
VOTERS: Final = (1, 2, 3, 3, 3, 4, 5)
"""How many an order asks for."""
SAFE_VOTERS: Final = 3
"""The least in worlds whose disks lose records, and where a disk may be lost as a whole."""
LEARNER_CHANCE: Final = 0.2
UNDO_CHANCE: Final = 0.3
"""Per attempt to remove a node that it is to stay after all."""
TRIES_MAX: Final = 3
"""Of an order or a cancel that got no answer."""
CHANGES_MIN: Final = 4
"""A world with changes has seen at least so many commands that were taken."""


class MemberChanges:
    """Orders and joins that the operator of one world gives."""

    def __init__(self, cluster: SimCluster, boot: Callable[[SimNode], None]) -> None:
        """``boot``: starts a node that is down, again and again until it is up."""
        options = cluster.options
        self._cluster = cluster
        self._boot = boot
        self._rng = random.Random(f"members {options.seed}")
        self._roles = random.Random(f"roles {options.seed}") if options.member_witnesses else None
        """Draws roles, so that worlds without them stay as they are."""
        self._operator = SimOperator(cluster, self._rng)
        self._voters_min = SAFE_VOTERS if options.damage_percent or options.flip_percent else 1
        self._acts: tuple[tuple[Callable[[], None], int], ...] = (
            (self._order, 10),
            (self._cancel, 3),
            (self._join, 3),
            (self._drain, 3),
            # Beside a disk that loses records a whole one may take the last copy.
            (self._lose_disk, 0 if self._voters_min > 1 else 2),
        )
        self._joins: dict[str, SimJoin | None] = {}
        """Name -> the node that is on its way in; None: it begins in a moment."""
        self._tries: dict[str, list[SimJoin]] = {}
        """Nodes that asked to join, by name: one may be entered by a request that came late."""
        self._leaving: dict[NodeId, None] = {}
        """Nodes that drain, to be removed."""
        self._lost: dict[NodeId, None] = {}
        """Nodes whose disk is lost, until nothing names them any more."""
        self.kinds: dict[str, int] = {}
        """Commands that were carried out."""
        self.is_stopped = False
        self._quiet_ms = self._few_ms = 0.0
        """From then on no order is on its way any more, and none for few voters."""

    @property
    def is_done(self) -> bool:
        """Enough has changed for a world."""
        return sum(self.kinds.values()) >= CHANGES_MIN

    def start(self) -> None:
        """Begin after a moment."""
        self._cluster.scheduler.after(INTERVAL_MS, self._next)

    def heal(self) -> None:
        """Order nothing more; what was begun ends, or is taken back."""
        self.is_stopped = True
        self._quiet_ms = self._cluster.scheduler.now_ms + LATE_MS_MAX + ANSWER_MS
        self._end_orders()

    def _next(self) -> None:
        if self.is_stopped:
            return
        self.look()
        acts, weights = zip(*self._acts, strict=True)
        self._rng.choices(acts, weights)[0]()
        self._cluster.scheduler.after(self._rng.expovariate(1.0 / INTERVAL_MS), self._next)

    def _count(self, kind: str, node: str = "") -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self._cluster.trace("members", did=kind, node=node)

    # --- what is known ----------------------------------------------------------------------------

    def _catalog(self) -> Catalog | None:
        """The copy of a random live node, which may be old."""
        live = [node for node in self._cluster.nodes.values() if node.runner is not None]
        if not live:
            return None
        runner = self._rng.choice(live).runner
        assert runner is not None
        return runner.controller.catalog

    def _staying(self) -> list[NodeId]:
        return [node for node in self._cluster.node_ids if node not in self._leaving]

    def _named(self) -> dict[NodeId, None]:
        """Nodes that the newest configuration of any replica's log, or any copy of an open order,
        names."""
        found: dict[NodeId, None] = {}
        for channel in self._cluster.expected_channels():
            for runner in runners_of(self._cluster, channel):
                core = runner.core
                for each in core.known_configs():
                    found |= dict.fromkeys(each.config.members)
                target = core.membership().target
                if target is not None:
                    found |= dict.fromkeys((*target.voters, *target.learners))
        return found

    # --- replicas ---------------------------------------------------------------------------------

    def _order(self) -> None:
        nodes, rng = self._staying(), self._rng
        least = SAFE_VOTERS if self._lost else self._voters_min
        count = min(len(nodes), max(least, rng.choice(VOTERS)))
        if count < least:
            return
        voters = rng.sample(nodes, count)
        rest = [node for node in nodes if node not in voters]
        learners = [node for node in rest if rng.random() < LEARNER_CHANCE]
        channel = rng.choice(self._cluster.table_channels)
        guid, is_forced = rng.randbytes(ORDER_ID_BYTES), rng.random() < 0.3
        witnesses = self._witnesses(channel, voters)

        def build(number: int) -> OrderReplicas:
            if count < SAFE_VOTERS:
                self._few_ms = self._cluster.scheduler.now_ms + LATE_MS_MAX + ANSWER_MS
            return OrderReplicas(
                number, channel, tuple(voters), guid, "drawn", ANSWER_MS, tuple(learners),
                is_forced, witnesses,
            )  # fmt: skip

        self._ask("order_witness" if witnesses else "order", build, TRIES_MAX)

    def _witnesses(self, channel: ChannelId, voters: list[NodeId]) -> tuple[NodeId, ...]:
        """Voters of the order that shall have no rows: some of those that come, as many as a quorum
        bears beside the witnesses that stay (W1, W3)."""
        if self._roles is None:
            return ()
        present: dict[NodeId, bool] = {}
        for runner in runners_of(self._cluster, channel):
            config = runner.core.config()
            present |= {node: config.is_witness(node) for node in config.members}
        stay = [node for node in voters if present.get(node)]
        come = [node for node in voters if node not in present and self._roles.random() < 0.7]
        return tuple(come[: max(0, (len(voters) - 1) // 2 - len(stay))])

    def _cancel(self) -> None:
        catalog = self._catalog()
        targets = [] if catalog is None else open_orders(catalog)
        if targets:
            channel, change = self._rng.choice(targets)
            self._cancel_one(channel, change)

    def _cancel_one(self, channel: ChannelId, change: int) -> None:
        self._ask(
            "cancel", lambda number: CancelOrder(number, channel, change, ANSWER_MS), TRIES_MAX
        )

    def _ask(self, kind: str, build: Callable[[int], object], tries: int) -> None:
        def answered(sender: NodeId, answer: Message | None) -> None:
            del sender
            if isinstance(answer, Done):
                self._count(kind)
            elif tries > 1 and not is_final(answer) and not self.is_stopped:
                self._operator.pause(self._ask, kind, build, tries - 1)

        self._operator.ask(build, answered)  # type: ignore[arg-type]

    def _end_orders(self) -> None:
        """Cancel orders that nobody can carry out any more: a node of theirs has left."""
        self._resume_joins()
        leader = self._operator.metadata_leader()
        if leader is not None and leader.runner is not None:
            catalog = leader.runner.controller.catalog
            for channel, change in open_orders(catalog):
                target = catalog.changes[channel].target
                assert target is not None
                gone = [n for n in (*target.voters, *target.learners) if is_gone(self._cluster, n)]
                if gone and not target.cancelled:
                    self._cancel_one(channel, change)
        self._operator.pause(self._end_orders)

    # --- nodes ------------------------------------------------------------------------------------

    def _join(self) -> None:
        nodes = self._cluster.node_ids
        if len(nodes) + len(self._joins) >= NODES_MAX:
            return
        used = {*map(node_name, nodes), *self._joins}
        name = next(f"n{number}" for number in range(1, 99) if f"n{number}" not in used)
        join = SimJoin(self._operator, name, None, self._joined, self._refused)
        self._joins[name] = join
        self._tries.setdefault(name, []).append(join)

    def _joined(self, node: NodeId, answer: JoinAccepted) -> None:
        del self._joins[node_name(node)]
        self._count("join", node)
        self._boot(self._cluster.add_node(node, answer))

    def _resume_joins(self) -> None:
        """Go on with nodes that gave up and were entered after that, by a request that was late."""
        for name, tries in self._tries.items():
            join = self._entered(tries) if name not in self._joins else None
            if join is not None:
                self._joins[name] = join
                join.go_on()

    def _entered(self, tries: Iterable[SimJoin]) -> SimJoin | None:
        """The one that the catalog has and that is not there yet. One whose disk is lost is in the
        catalog until it is replaced, but its identity never comes back (S0.1)."""
        nodes = self._cluster.nodes
        return next((each for each in tries if each.is_entered and each.node not in nodes), None)

    def _refused(self, join: SimJoin) -> None:
        name = node_name(join.node)
        self._count("join_refused", name)
        entered = self._entered(self._tries.get(name, ()))
        if entered is not None and join.replaces is not None:
            self._joins[name] = entered
            self._operator.pause(entered.go_on)
            return
        if join.replaces is None:
            del self._joins[name]
        else:
            self._operator.pause(self._replace, join.replaces)

    def _drain(self) -> None:
        staying = self._staying()
        if len(staying) > NODES_MIN and not self._leaving:
            node = self._rng.choice(staying)
            self._leaving[node] = None
            self._set_draining(node, drains=True)

    def _set_draining(self, node: NodeId, *, drains: bool) -> None:
        def answered(sender: NodeId, answer: Message | None) -> None:
            del sender
            if is_gone(self._cluster, node):
                self._leaving.pop(node, None)
            elif isinstance(answer, Done):
                self._count("drain" if drains else "undrain", node)
                if drains:
                    self._operator.pause(self._remove, node)
                else:
                    self._leaving.pop(node, None)
            else:
                self._operator.pause(again)

        def again() -> None:
            self._set_draining(node, drains=drains)

        self._operator.ask(
            lambda number: Drain(number, node, drains, ANSWER_MS),
            answered,
        )

    def _remove(self, node: NodeId) -> None:
        """Retire it, once it hosts nothing any more; or let it stay."""

        def answered(sender: NodeId, answer: Message | None) -> None:
            del sender
            if is_gone(self._cluster, node) or isinstance(answer, Done):
                self._leaving.pop(node, None)
                self._count("remove", node)
            elif self._rng.random() < UNDO_CHANCE / 4 or (self.is_stopped and not self._has_room()):
                self._set_draining(node, drains=False)
            else:
                self._operator.pause(self._remove, node)

        self._operator.ask(lambda number: Retire(number, node, ANSWER_MS), answered)

    def _has_room(self) -> bool:
        """Whether the nodes that stay can host what those host that leave."""
        counts = [
            len(runner.core.config().members)
            for channel in self._cluster.table_channels
            for runner in runners_of(self._cluster, channel)
            if runner.elector.role is Role.LEADER
        ]
        return len(self._staying()) >= max(counts, default=0)

    def _lose_disk(self) -> None:
        """A machine is gone with its disk, and another one takes its place: at any time when the
        others hold all that is committed, and can commit without it."""
        if self._lost or self._joins or not (self._sees_all() and self._may_lose_one()):
            return
        node = self._cluster.nodes[self._rng.choice(self._staying())]
        if node.is_up:
            self._lost[node.node] = None
            node.kill("its disk is lost")
            node.lose("its disk is lost")
            self._count("lost_disk", node.node)
            self._joins[node.name] = None
            self._operator.pause(self._replace, node.node)

    def _sees_all(self) -> bool:
        return all(self._cluster.nodes[node].is_up for node in self._cluster.node_ids)

    def _may_lose_one(self) -> bool:
        """No replica anywhere knows of fewer voters than three, now or by an order, none is on its
        way, and no node is of a version in which nobody can take its place."""
        leader = self._operator.metadata_leader()
        if leader is None or leader.runner is None:
            return False
        targets = [each.target for each in leader.runner.controller.catalog.changes.values()]
        has_few = any(each is not None and len(each.voters) < SAFE_VOTERS for each in targets)
        if has_few or self._cluster.scheduler.now_ms < self._few_ms:
            return False
        if leader.runner.controller.refusal_of_format(MEMBERS_FORMAT) is not None:
            return False
        for channel in self._cluster.expected_channels():
            for runner in runners_of(self._cluster, channel):
                core = runner.core
                target = core.membership().target
                sets = [group for each in core.known_configs() for group in each.config.voter_sets]
                if target is not None:
                    sets.append(target.voters)
                if any(len(group) < SAFE_VOTERS for group in sets):
                    return False
        return True

    def _replace(self, lost: NodeId) -> None:
        name = node_name(lost)
        join = SimJoin(self._operator, name, lost, self._joined, self._refused)
        self._joins[name] = join
        self._tries.setdefault(name, []).append(join)

    # --- the end ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Forget lost nodes that nothing names any more; called all along."""
        if self._lost and self._sees_all():  # one that is down may be the only one to know of it
            named = self._named()
            self._lost = {node: None for node in self._lost if node in named}

    def check_history(self) -> None:
        """M6 to M8, B2: every committed configuration may follow the one before it."""
        for channel in self._cluster.expected_channels():
            last: ChannelConfig | None = None
            for known in self._cluster.oracle.truth(channel).records:
                if known.record.kind is RecordKind.CONFIG:
                    config = decode_config(known.record.payload)
                    if last is not None:
                        _check_next(last, config, known.record.last_seq)
                    last = config

    def why_not_settled(self) -> str:
        """The changes that are not over; empty: everything is, everywhere."""
        if self._joins or self._leaving:
            return f"{', '.join((*self._joins, *map(node_name, self._leaving)))} come or go"
        if self._cluster.scheduler.now_ms < self._quiet_ms:
            return "an order may still arrive"
        leader = self._operator.metadata_leader()
        if leader is None or leader.runner is None:
            return "the catalog has no leader"
        return why_not_settled(self._cluster, leader.runner.controller.catalog)


def _check_next(before: ChannelConfig, after: ChannelConfig, seq: int) -> None:
    """Fail unless majorities of both meet and no order came back that had ended."""
    text = f"at seq {seq}: {before}, then {after}"
    if after.change < before.change or (after.change == before.change and before.ended):
        raise InvariantError(f"S8: an order came back {text}")
    old = [_voters(before, group) for group in before.voter_sets]
    new = [_voters(after, group) for group in after.voter_sets]
    if not any(group in new for group in old):
        raise InvariantError(f"S8: no voter set stays {text}")


def _voters(config: ChannelConfig, group: tuple[NodeId, ...]) -> set[tuple[NodeId, int]]:
    return {(node, config.number_of(node)) for node in group}
