"""Which replicas should move so that nodes hold even shares (FIP-23).

Goals, in this order: no replica on a node that leaves; replicas of a channel in different failure
domains; as many replicas on every node; as many bytes; as many channels that prefer a node as their
leader. Every step lowers a goal without raising one before it, so a plan comes to an end, and what
it leads to has an empty plan. Only the first four move data: which voter is preferred is chosen
among those of the channels that move anyway.

A plan is what remains of all steps: a replica that went to one node and then to another one moves
once. The result depends on the arguments only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from raftstore.types import ChannelId, NodeId

BYTES_PERCENT: Final = 20
"""Bytes move when a node holds so much more than another one, in percent of what nodes hold on
average; and each step makes that less by a tenth of it at least. Copies cost, and tables grow."""
BYTES_MIN: Final = 64 * 1024 * 1024
"""And by so much at least: small tables are as well where they are."""
PATH_HOPS_MAX: Final = 4
PARTNERS_MAX: Final = 16
"""Nodes that one with many bytes is tried to exchange replicas with, those with the fewest first:
where a single table is larger than a node's share, no node of a thousand can make up for it."""


class PlacedChannel(NamedTuple):
    """A channel, where its replicas are, and how large each of them is."""

    channel: ChannelId
    voters: tuple[NodeId, ...]
    """The first one is preferred to lead."""
    learners: tuple[NodeId, ...] = ()
    table_bytes: int = 0
    may_move: bool = True
    """No order is open for it."""


class NodeShare(NamedTuple):
    """Holdings of a node."""

    replicas: int
    table_bytes: int
    preferred: int
    """Channels that prefer it as their leader."""


class ReplicaMove(NamedTuple):
    """Other replicas for a channel."""

    before: PlacedChannel
    after: PlacedChannel

    @property
    def hops(self) -> tuple[tuple[NodeId, NodeId], ...]:
        """From where to where, a pair for each replica that moves."""
        old, new = _members(self.before), _members(self.after)
        gone = [node for node in old if node not in new]
        return tuple(zip(gone, (node for node in new if node not in old), strict=True))

    @property
    def bytes_to_copy(self) -> int:
        """By all new replicas of the channel together."""
        return self.before.table_bytes * len(self.hops)


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """Moves, those from nodes that leave first, and what nodes hold before and after them."""

    moves: tuple[ReplicaMove, ...]
    before: Mapping[NodeId, NodeShare]
    after: Mapping[NodeId, NodeShare]
    crowded_before: int
    """Replicas that share a failure domain with another one of their channel."""
    crowded_after: int
    staying: tuple[tuple[ChannelId, NodeId], ...] = ()
    """Replicas on nodes that leave for which there is no other node."""


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """The nodes of a plan."""

    takers: Collection[NodeId]
    """May be given replicas, and may give theirs away."""
    leaving: Collection[NodeId] = ()
    """Shall hold nothing, dead or alive. Nodes that are neither keep what they hold."""
    domain_of: Mapping[NodeId, str] = field(default_factory=dict)
    """Failure domains; a node without one is a domain by itself."""

    def domain(self, node: NodeId) -> str:
        """The failure domain that counts for the node."""
        return self.domain_of.get(node) or f"\0{node}"


def plan_rebalance(
    channels: Iterable[PlacedChannel], nodes: ClusterNodes, *, bytes_min: int = BYTES_MIN
) -> RebalancePlan:
    """Plan for these channels. ``bytes_min``: a smaller difference in bytes moves nothing."""
    given = {each.channel: each for each in sorted(channels)}
    board = _ReplicaBoard(given, nodes)
    before, crowded = board.shares(), board.crowded()
    staying = board.free_leaving()
    while board.spread_domains() or board.level_counts() or board.level_bytes(bytes_min):
        pass  # each makes one goal better, and none before it worse
    board.prefer_evenly(given)
    return _plan_of(given, board, before, crowded, staying)


def _members(each: PlacedChannel) -> tuple[NodeId, ...]:
    return (*each.voters, *each.learners)


def plan_replacement(channels: Iterable[PlacedChannel], nodes: ClusterNodes) -> RebalancePlan:
    """Plan only what nodes that leave hold; nothing else moves."""
    given = {each.channel: each for each in sorted(channels)}
    board = _ReplicaBoard(given, nodes)
    before, crowded = board.shares(), board.crowded()
    staying = board.free_leaving()
    return _plan_of(given, board, before, crowded, staying)


def _plan_of(
    given: Mapping[ChannelId, PlacedChannel],
    board: _ReplicaBoard,
    before: Mapping[NodeId, NodeShare],
    crowded: int,
    staying: tuple[tuple[ChannelId, NodeId], ...],
) -> RebalancePlan:
    moves = [
        ReplicaMove(old, new)
        for channel, old in given.items()
        if set(_members(new := board.placed[channel])) != set(_members(old))
    ]
    leaving = board.leaving
    moves.sort(key=lambda move: leaving.isdisjoint(_members(move.before)))
    return RebalancePlan(tuple(moves), before, board.shares(), crowded, board.crowded(), staying)


class _ReplicaBoard:
    """The replicas of all channels while a plan is made."""

    def __init__(self, given: Mapping[ChannelId, PlacedChannel], nodes: ClusterNodes) -> None:
        self.placed = dict(given)
        self.leaving = frozenset(nodes.leaving)
        self._takers = sorted(set(nodes.takers) - set(nodes.leaving))
        everywhere = {node for each in given.values() for node in _members(each)}
        every = sorted({*self._takers, *everywhere, *nodes.leaving})
        self._domain = {node: nodes.domain(node) for node in every}
        self._held: dict[NodeId, dict[ChannelId, None]] = {node: {} for node in every}
        self._bytes = dict.fromkeys(every, 0)
        self._preferred = dict.fromkeys(every, 0)
        for each in given.values():
            self._preferred[each.voters[0]] += 1
            for node in _members(each):
                self._held[node][each.channel] = None
                self._bytes[node] += each.table_bytes
        self._by_load = sorted(map(self._load, self._takers))
        """Takers, those with the fewest replicas first."""
        self._taken_by: dict[str, list[NodeId]] = {}
        """Takers of each failure domain."""
        for node in self._takers:
            self._taken_by.setdefault(self._domain[node], []).append(node)
        self._reached: dict[NodeId, dict[str, bool]] = {}
        """Whether a node could give anything to a failure domain, as far as that was asked."""
        self._versions = dict.fromkeys(every, 0)
        """Grows with every change of what a node holds, or of where the others of it are."""
        self._vain: dict[tuple[NodeId, NodeId], tuple[int, int]] = {}
        """Pairs of nodes without an exchange that is worth it, and their versions then."""

    # --- what there is ----------------------------------------------------------------------------

    def shares(self) -> dict[NodeId, NodeShare]:
        """Holdings of every node."""
        return {
            node: NodeShare(len(held), self._bytes[node], self._preferred[node])
            for node, held in self._held.items()
        }

    def crowded(self) -> int:
        """Replicas that share a failure domain with another one of their channel."""
        return sum(self._doubles(_members(each)) for each in self.placed.values())

    def _doubles(self, members: tuple[NodeId, ...]) -> int:
        return len(members) - len({self._domain[node] for node in members})

    def _count(self, node: NodeId) -> int:
        return len(self._held[node])

    def _load(self, node: NodeId) -> tuple[int, int, NodeId]:
        return len(self._held[node]), self._bytes[node], node

    # --- steps ------------------------------------------------------------------------------------

    def _may_go(self, channel: ChannelId, source: NodeId, target: NodeId) -> bool:
        """Whether the move is possible, and puts no more replicas into one failure domain.

        Learners stay where operators have put them, unless their node leaves.
        """
        if target in self.placed[channel].voters or target in self.placed[channel].learners:
            return False
        return self._may_go_to(channel, source, self._domain[target])

    def _may_go_to(self, channel: ChannelId, source: NodeId, domain: str) -> bool:
        each = self.placed[channel]
        if not each.may_move or source not in each.voters:
            return False
        others = [self._domain[node] for node in _members(each) if node != source]
        return domain not in others or self._domain[source] in others

    def _go(self, channel: ChannelId, source: NodeId, target: NodeId) -> None:
        each = self.placed[channel]
        if each.voters[0] == source:
            self._preferred[source] -= 1
            self._preferred[target] += 1

        def with_target(nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
            return tuple(target if node == source else node for node in nodes)

        for node in (target, *_members(each)):
            self._reached.pop(node, None)
            self._versions[node] += 1
        self.placed[channel] = each._replace(
            voters=with_target(each.voters), learners=with_target(each.learners)
        )
        takers = [each for each in (self._load(source), self._load(target)) if self._takes(each)]
        for load in takers:
            del self._by_load[bisect_left(self._by_load, load)]
        del self._held[source][channel]
        self._held[target][channel] = None
        self._bytes[source] -= each.table_bytes
        self._bytes[target] += each.table_bytes
        for *_, node in takers:
            insort(self._by_load, self._load(node))

    def _takes(self, load: tuple[int, int, NodeId]) -> bool:
        at = bisect_left(self._by_load, load)
        return at < len(self._by_load) and self._by_load[at] == load

    def _best_target(self, channel: ChannelId, source: NodeId) -> NodeId | None:
        """The node that the replica goes to: fewest doubles, then fewest replicas, then bytes."""
        members = _members(self.placed[channel])
        used = {self._domain[node] for node in members if node != source}
        is_spread = self._taken_by.keys() <= used
        doubled: NodeId | None = None
        for *_, target in self._by_load:
            if target in members:
                continue
            if self._domain[target] not in used:
                return target
            doubled = doubled or target
            if is_spread:
                break  # no other one is in a failure domain without any
        return doubled

    def free_leaving(self) -> tuple[tuple[ChannelId, NodeId], ...]:
        """Replicas of nodes that leave go elsewhere, the largest ones first; returns those for
        which there is no node."""
        left = [
            (-self.placed[channel].table_bytes, channel, node)
            for node in sorted(self.leaving)
            for channel in self._held[node]
            if self.placed[channel].may_move
        ]
        staying: list[tuple[ChannelId, NodeId]] = []
        for _, channel, node in sorted(left):
            target = self._best_target(channel, node)
            if target is None:
                staying.append((channel, node))
            else:
                self._go(channel, node, target)
        return tuple(staying)

    def spread_domains(self) -> bool:
        """Replicas of a channel go to failure domains of their own, where there are any; whether
        one did."""
        is_changed = False
        for channel, each in tuple(self.placed.items()):
            while each.may_move and (doubles := self._doubles(_members(each))):
                found = min(self._spreading(channel), default=None)
                if found is None or found[0] >= doubles:
                    break
                self._go(channel, *found[-2:])
                each = self.placed[channel]
                is_changed = True
        return is_changed

    def _spreading(self, channel: ChannelId) -> Iterable[tuple[int, int, int, NodeId, NodeId]]:
        """For each replica that may move where it would go, with the doubles that are left."""
        members = _members(self.placed[channel])
        for source in self.placed[channel].voters:
            if source not in self._takers:
                continue
            target = self._best_target(channel, source)
            if target is not None:
                after = tuple(target if node == source else node for node in members)
                gain = self._count(target) - self._count(source)
                yield self._doubles(after), gain, self._count(target), source, target

    # --- as many replicas on every node -----------------------------------------------------------

    def level_counts(self) -> bool:
        """Replicas go from nodes with many to nodes with at least two fewer, also by way of other
        nodes, whose number stays; whether one did.

        It is always the turn of the node with the most that can give one: a node that gave all that
        another one lacks would be given as many by the others then, and each of them is a copy.
        """
        is_changed = False
        is_better = True
        while is_better:
            is_better = False
            turns = [(-self._count(node), node) for node in self._takers]
            heapify(turns)
            while turns:
                count, node = turns[0]
                if count != -self._count(node):
                    heapreplace(turns, (-self._count(node), node))
                elif self._level_from(node):
                    is_better = is_changed = True
                else:
                    heappop(turns)
        return is_changed

    def _level_from(self, start: NodeId) -> bool:
        fewer = bisect_left(self._by_load, (self._count(start) - 1,))
        ends = [node for *_, node in self._by_load[:fewer]]
        for end in ends:
            if self._walk({start: start, end: start}, end):
                return True
        return bool(ends) and self._level_through_others(start, set(ends))

    def _level_through_others(self, start: NodeId, ends: Collection[NodeId]) -> bool:
        came_from = {start: start}
        layer = [start]
        unseen = {domain: dict.fromkeys(nodes) for domain, nodes in self._taken_by.items()}
        unseen[self._domain[start]].pop(start)
        for _ in range(PATH_HOPS_MAX):
            found: list[NodeId] = []
            for source in layer:
                for domain, nodes in unseen.items():
                    if not nodes or not self._reaches(source, domain):
                        continue
                    for target in [node for node in nodes if self._has_movable(source, node)]:
                        came_from[target] = source
                        found.append(target)
                        del nodes[target]
            for end in sorted(found, key=self._load):
                if end in ends and self._walk(came_from, end):
                    return True
            layer = found
        return False

    def _reaches(self, source: NodeId, domain: str) -> bool:
        """Whether any replica of the node may go to the failure domain, if a node there has none
        of its channel. It saves looking at all of them for every node of the domain."""
        known = self._reached.setdefault(source, {})
        found = known.get(domain)
        if found is None:
            found = known[domain] = any(
                self._may_go_to(channel, source, domain) for channel in self._held[source]
            )
        return found

    def _walk(self, came_from: Mapping[NodeId, NodeId], end: NodeId) -> bool:
        """Make every hop of the way to a node; False: one of them is not possible beside the
        others, and nothing was done."""
        done: list[tuple[ChannelId, NodeId, NodeId]] = []
        target = end
        while (source := came_from[target]) != target:
            channel = self._movable(source, target)
            if channel is None:
                for moved, old, new in reversed(done):
                    self._go(moved, new, old)
                return False
            self._go(channel, source, target)
            done.append((channel, source, target))
            target = source
        return True

    def _has_movable(self, source: NodeId, target: NodeId) -> bool:
        return any(self._may_go(each, source, target) for each in self._held[source])

    def _movable(self, source: NodeId, target: NodeId) -> ChannelId | None:
        """The channel that the one gives the other: the size that makes them most even in bytes."""
        if not self._reaches(source, self._domain[target]):
            return None
        able = [each for each in self._held[source] if self._may_go(each, source, target)]
        half = (self._bytes[source] - self._bytes[target]) // 2
        return min(able, key=lambda each: (abs(self.placed[each].table_bytes - half), each),
                   default=None)  # fmt: skip

    # --- as many bytes ----------------------------------------------------------------------------

    def level_bytes(self, bytes_min: int) -> bool:
        """Two replicas change places, or one moves where that leaves the numbers as even; whether
        any did."""
        if not self._takers:
            return False
        limit = sum(self._bytes[node] for node in self._takers) * BYTES_PERCENT
        limit = max(bytes_min, limit // (100 * len(self._takers)))
        is_changed = False
        is_better = True
        while is_better:
            is_better = False
            for node in sorted(self._takers, key=lambda node: (-self._bytes[node], node)):
                while self._give_bytes(node, limit):
                    is_better = is_changed = True
        return is_changed

    def _give_bytes(self, most: NodeId, limit: int) -> bool:
        partners = 0
        for least in sorted(self._takers, key=lambda node: (self._bytes[node], node)):
            surplus = self._bytes[most] - self._bytes[least]
            if surplus <= max(limit, 1) or partners == PARTNERS_MAX:
                return False
            if not self._reaches(most, self._domain[least]):
                continue
            partners += 1
            versions = self._versions[most], self._versions[least]
            if self._vain.get((most, least)) == versions:
                continue
            step = self._best_exchange(most, least, surplus)
            if step is not None and step[0] * 10 >= limit:
                _, given, taken = step
                self._go(given, most, least)
                if taken is not None:
                    self._go(taken, least, most)
                return True
            self._vain[most, least] = versions
        return False

    def _best_exchange(
        self, most: NodeId, least: NodeId, surplus: int
    ) -> tuple[int, ChannelId, ChannelId | None] | None:
        """A pair of channels to exchange, and by how much the difference becomes less."""
        given = [each for each in self._held[most] if self._may_go(each, most, least)]
        taken: list[tuple[int, ChannelId | None]] = [
            (self.placed[each].table_bytes, each)
            for each in self._held[least]
            if self._may_go(each, least, most)
        ]
        if self._count(most) == self._count(least) + 1:
            taken.append((0, None))  # then the numbers change places, too
        taken.sort(key=lambda found: (found[0], found[1] or b""))
        best: tuple[int, ChannelId, ChannelId | None] | None = None
        for one in given:
            size = self.placed[one].table_bytes
            # Half of the surplus should move: of the others the two next to what that leaves.
            at = bisect_left(taken, size - surplus // 2, key=lambda found: found[0])
            for back, other in taken[max(0, at - 1) : at + 1]:
                gain = surplus - abs(surplus - 2 * (size - back))
                if size > back and gain > 0 and (best is None or gain > best[0]):
                    best = gain, one, other
        return best

    # --- leaders ----------------------------------------------------------------------------------

    def prefer_evenly(self, given: Mapping[ChannelId, PlacedChannel]) -> None:
        """Let channels that move prefer the voter as their leader that is preferred least."""
        for channel, old in given.items():
            each = self.placed[channel]
            if _members(each) == _members(old):
                continue
            first = each.voters[0]
            able = [node for node in each.voters if node in self._takers]
            best = min(able, key=lambda node: (self._preferred[node], node), default=first)
            if self._preferred[best] + 1 < self._preferred[first]:
                self._preferred[first] -= 1
                self._preferred[best] += 1
                rest = tuple(node for node in each.voters if node != best)
                self.placed[channel] = each._replace(voters=(best, *rest))
