"""Which leaderships should move so that every node leads as many channels as the others (NATS-001).

A plan is made of who leads what and of the nodes that may take more. It first lowers the number of
leaders of the nodes with the most, along paths: a node may only give a channel to one of its
replicas, which may have to give another one on to a third node. No path that lowers the sum of the
squares is left out, so the plan is as even as the replicas allow (the optimal semi-matching of
Harvey and others). Among the plans that are as even it takes one in which each failure domain leads
its share. Then channels go to the first node of their placement that may lead, where that makes
nothing less even. Each step can only lower the sum of the squares or, at an equal sum, how far
domains are off their shares or, where these are equal, too, the number of channels that another
than their first node leads: a plan ends, and the state that it leads to has an empty plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from raftstore.policy.placement import NO_DOMAINS, domain_of
from raftstore.types import ChannelId, NodeId

_Path = list[tuple[NodeId, NodeId]]
TOLERANCE: Final = 1
"""Leaders that a node may have more or fewer than the plan gives it, before anything is moved."""


class LedChannel(NamedTuple):
    """A channel, who leads it, and who could."""

    channel: ChannelId
    leader: NodeId
    replicas: tuple[NodeId, ...]
    """In the order of the placement: the first one is preferred."""
    may_move: bool = True


class LeaderMove(NamedTuple):
    """A leadership that should go from one node to another."""

    channel: ChannelId
    source: NodeId
    target: NodeId


@dataclass(frozen=True, slots=True)
class LeaderPlan:
    """Moves, those between the most unequal nodes first, and the leaders that nodes have."""

    moves: tuple[LeaderMove, ...]
    before: Mapping[NodeId, int]
    after: Mapping[NodeId, int]
    """Once all moves are done."""
    is_leaving: bool = False
    """Some of the moves are of nodes that shall lead nothing."""

    @property
    def is_uneven(self) -> bool:
        """Whether some node has so many more, or so many fewer, leaders than it should that moving
        is worth the moment that each channel is without one."""
        return self.is_leaving or any(
            abs(self.after[node] - led) > TOLERANCE for node, led in self.before.items()
        )


def plan_moves(
    channels: Iterable[LedChannel],
    nodes: Collection[NodeId],
    leaving: Collection[NodeId] = (),
    domains: Mapping[NodeId, str] = NO_DOMAINS,
) -> LeaderPlan:
    """Plan for these channels; only ``nodes`` are given more leaders, none of those that are
    ``leaving``, which give all theirs away. ``domains``: what nodes fail together with.

    A channel appears at most once among the moves. The result depends on the arguments only.
    """
    given = sorted(channels)
    loads = dict.fromkeys(sorted({*nodes, *(each.leader for each in given)}), 0)
    for each in given:
        loads[each.leader] += 1
    before = dict(loads)
    staying = [node for node in loads if node not in leaving]
    shares = _DomainShares(staying, loads, domains)
    board = _Board(given, frozenset(nodes).difference(leaving), loads, shares)
    is_leaving = board.relieve(leaving)
    while (path := board.improving_path()) is not None:
        for source, target in reversed(path):  # the last one has room, and makes some
            board.move(board.best_channel(source, target), target)
    board.spread_over_domains()
    board.prefer_first_nodes()
    moves = [
        LeaderMove(each.channel, each.leader, target)
        for each in given
        if (target := board.leaders[each.channel]) != each.leader
    ]
    moves.sort(key=lambda move: (before[move.target] - before[move.source], move.channel))
    return LeaderPlan(tuple(moves), before, dict(loads), is_leaving)


class _DomainShares:
    """Leaders of each failure domain, against the share of its nodes."""

    def __init__(
        self,
        staying: Collection[NodeId],
        loads: Mapping[NodeId, int],
        domains: Mapping[NodeId, str],
    ) -> None:
        """``staying``: nodes that are to lead a share."""
        self._domain = {node: domain_of(node, domains) for node in loads}
        self._nodes = max(1, len(staying))
        self._over: dict[str, int] = dict.fromkeys(self._domain.values(), 0)
        """Leaders above the share, times the number of nodes."""
        total = sum(loads.values())
        for node, led in loads.items():
            self._over[self._domain[node]] += led * self._nodes
        for node in staying:
            self._over[self._domain[node]] -= total
        self.are_shared = len(self._over) < len(self._domain)
        """Whether some nodes fail together: else there is nothing to spread."""

    def gain(self, source: NodeId, target: NodeId) -> int:
        """Above 0: domains are nearer to their shares if a leader goes from one node to the other;
        below: further off."""
        gives, takes = self._domain[source], self._domain[target]
        return 0 if gives == takes else self._over[gives] - self._over[takes] - self._nodes

    def may_give(self, source: NodeId) -> bool:
        """Whether domains can be nearer to their shares if the node gives a leader away."""
        return self._over[self._domain[source]] - min(self._over.values()) > self._nodes

    def move(self, source: NodeId, target: NodeId) -> None:
        """A leader went from one node to another."""
        self._over[self._domain[source]] -= self._nodes
        self._over[self._domain[target]] += self._nodes


class _Board:
    """The leaders of all channels while a plan is made."""

    def __init__(
        self,
        channels: list[LedChannel],
        nodes: frozenset[NodeId],
        loads: dict[NodeId, int],
        shares: _DomainShares,
    ) -> None:
        self.leaders = {each.channel: each.leader for each in channels}
        self._loads = loads
        self._shares = shares
        self._targets = {
            each.channel: tuple(node for node in each.replicas if node in nodes)
            for each in channels
            if each.may_move
        }
        self._movable: dict[NodeId, dict[NodeId, dict[ChannelId, None]]] = {}
        """What each node leads and could give to each other one."""
        self._takers = sorted(nodes)
        for channel in self._targets:
            self._enter(channel)

    def relieve(self, leaving: Collection[NodeId]) -> bool:
        """Channels of these nodes go to the replicas with the fewest leaders; whether any did."""
        is_any = False
        for channel, order in self._targets.items():
            if order and self.leaders[channel] in leaving:
                self.move(channel, min(order, key=lambda node: self._loads[node]))
                is_any = True
        return is_any

    def improving_path(self) -> _Path | None:
        """The hops of a shortest path from a node to one with at least two leaders fewer, the nodes
        with the most first; None: there is no such path."""
        loads = self._loads
        least = min((loads[node] for node in self._takers), default=0)
        for start in sorted(loads, key=lambda node: -loads[node]):
            if loads[start] - least < 2:
                return None
            path = self._path_from(start, loads[start] - 2, lambda _: True)
            if path is not None:
                return path
        return None

    def spread_over_domains(self) -> None:
        """Leaders go from domains above their share to nodes of others with one leader fewer."""
        path: _Path | None = []
        while path is not None and self._shares.are_shared:
            path = self._spreading_path()
            for source, target in reversed(path or ()):
                self.move(self.best_channel(source, target), target)

    def _spreading_path(self) -> _Path | None:
        """A shortest one, so that few channels move."""
        loads, gain = self._loads, self._shares.gain
        paths: list[_Path] = []
        for start in sorted(loads, key=lambda node: -loads[node]):
            if not self._shares.may_give(start):
                continue

            def is_better(node: NodeId, start: NodeId = start) -> bool:
                return gain(start, node) > 0

            path = self._path_from(start, loads[start] - 1, is_better)
            if path is not None and len(path) == 1:
                return path
            if path is not None:
                paths.append(path)
        return min(paths, key=len, default=None)

    def _path_from(
        self, start: NodeId, at_most: int, may_end: Callable[[NodeId], bool]
    ) -> _Path | None:
        came_from: dict[NodeId, NodeId] = {start: start}
        layer = [start]
        while layer:
            found: list[NodeId] = []
            for source in layer:
                for target, channels in self._movable.get(source, {}).items():
                    if channels and target not in came_from:
                        came_from[target] = source
                        found.append(target)
            ends = [node for node in found if self._loads[node] <= at_most and may_end(node)]
            if ends:
                return _hops(came_from, min(ends, key=lambda node: (self._loads[node], node)))
            layer = found
        return None

    def best_channel(self, source: NodeId, target: NodeId) -> ChannelId:
        """The channel that the source gives away: the target comes early in its placement, and the
        source late."""

        def rank(channel: ChannelId) -> tuple[int, ChannelId]:
            order = self._targets[channel]
            held = order.index(source) if source in order else len(order)
            return order.index(target) - held, channel

        return min(self._movable[source][target], key=rank)

    def move(self, channel: ChannelId, target: NodeId) -> None:
        """Let another node lead."""
        source = self.leaders[channel]
        for node in self._targets[channel]:
            if node != source:
                del self._movable[source][node][channel]
        self._loads[source] -= 1
        self._loads[target] += 1
        self._shares.move(source, target)
        self.leaders[channel] = target
        self._enter(channel)

    def _enter(self, channel: ChannelId) -> None:
        source = self.leaders[channel]
        held = self._movable.setdefault(source, {})
        for node in self._targets[channel]:
            if node != source:
                held.setdefault(node, {})[channel] = None

    def prefer_first_nodes(self) -> None:
        """Channels go to the first node of their placement, from nodes that have more than it,
        where domains are as near to their shares then."""
        is_moved = True
        while is_moved:
            is_moved = False
            for channel, order in self._targets.items():
                leader = self.leaders[channel]
                if not order or order[0] == leader or self._shares.gain(leader, order[0]) < 0:
                    continue
                if self._loads[order[0]] < self._loads[leader]:
                    self.move(channel, order[0])
                    is_moved = True


def _hops(came_from: Mapping[NodeId, NodeId], end: NodeId) -> _Path:
    """The way to a node, from its beginning."""
    hops: _Path = []
    while came_from[end] != end:
        hops.append((came_from[end], end))
        end = came_from[end]
    return hops[::-1]
