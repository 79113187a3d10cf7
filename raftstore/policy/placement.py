"""Where the replicas of a new table go: spread over failure domains, then balanced by replicas and
by preferred leaders (NATS-001).

The node that creates a table computes its placement once and puts it into the command; nobody ever
recomputes it, so a changed rule moves nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from raftstore.types import NodeId, node_name

NO_DOMAINS: Mapping[NodeId, str] = {}


class PlacementError(ValueError):
    """The table cannot be placed on the nodes there are; the caller answers "unavailable"."""


def domain_of(node: NodeId, domains: Mapping[NodeId, str]) -> str:
    """The failure domain of a node. One that did not say is a domain of its own: nothing is
    known that it shares with others, and ids of nodes are no names of domains."""
    return domains.get(node) or node


def doubled(node: NodeId, others: Iterable[NodeId], domains: Mapping[NodeId, str]) -> int:
    """How many of these nodes share the failure domain of one: the fewer the better it would be for
    another replica."""
    domain = domain_of(node, domains)
    return sum(domain_of(other, domains) == domain for other in others)


def place_table(
    *,
    partitions: int,
    replicas: int,
    nodes: Sequence[NodeId],
    existing: Iterable[Sequence[Sequence[NodeId]]] = (),
    domains: Mapping[NodeId, str] = NO_DOMAINS,
) -> tuple[tuple[NodeId, ...], ...]:
    """Return the replicas of each partition, the preferred leader first.

    ``existing`` are the placements of the other tables, whose load counts. Each partition takes
    nodes of different failure domains as far as there are so many, of these the nodes with the
    fewest replicas. Of them the one with the fewest leaderships leads, in the domain with the
    fewest. The result depends on the arguments only, not on the order of ``nodes``.
    """
    candidates = sorted(dict.fromkeys(nodes))
    if len(candidates) < replicas:
        names = ", ".join(map(node_name, candidates)) or "none"
        raise PlacementError(
            f"{replicas} replicas need {replicas} nodes, but {len(candidates)} are registered "
            f"({names}); start more nodes or ask for fewer replicas"
        )
    load = _Load(candidates, domains, existing)
    placed = []
    for _ in range(partitions):
        group = load.group(replicas)
        load.add(group)
        placed.append(group)
    return tuple(placed)


class _Load:
    """Replicas and preferred leaderships of the nodes that are candidates."""

    def __init__(
        self,
        candidates: Sequence[NodeId],
        domains: Mapping[NodeId, str],
        existing: Iterable[Sequence[Sequence[NodeId]]],
    ) -> None:
        self._domain = {node: domain_of(node, domains) for node in candidates}
        self._sizes = Counter(self._domain.values())
        """Candidates in each failure domain."""
        self._held = dict.fromkeys(candidates, 0)
        self._led = dict.fromkeys(candidates, 0)
        self._led_in: Counter[str] = Counter()
        for placement in existing:
            for group in placement:
                self._count(group)
        self._order = sorted(map(self._load, candidates))
        """Those with the fewest replicas first; kept in order, because sorting all nodes anew for
        each partition takes seconds with a thousand of them."""

    def _load(self, node: NodeId) -> tuple[int, int, NodeId]:
        return self._held[node], self._led[node], node

    def _count(self, group: Sequence[NodeId]) -> None:
        """Add one partition; nodes that are no candidates do not count."""
        for node in group:
            if node in self._held:
                self._held[node] += 1
        if group and group[0] in self._led:
            self._led[group[0]] += 1
            self._led_in[self._domain[group[0]]] += 1

    def add(self, group: Sequence[NodeId]) -> None:
        """Add one partition of candidates."""
        for node in group:
            del self._order[bisect_left(self._order, self._load(node))]
        self._count(group)
        for node in group:
            insort(self._order, self._load(node))

    def group(self, replicas: int) -> tuple[NodeId, ...]:
        """The replicas of another partition, the preferred leader first."""
        led = self._led
        chosen: list[NodeId] = []
        used: Counter[str] = Counter()
        for _ in range(replicas):
            least = self._least_used(used)
            node = next(
                node
                for *_, node in self._order
                if used[self._domain[node]] <= least and node not in chosen
            )
            chosen.append(node)
            used[self._domain[node]] += 1
        leader = min(chosen, key=lambda node: (led[node], self._led_in[self._domain[node]]))
        return (leader, *(node for node in chosen if node != leader))

    def _least_used(self, used: Counter[str]) -> int:
        """The fewest replicas in any failure domain that has room for another one."""
        if len(used) < len(self._sizes):
            return 0
        return min(count for domain, count in used.items() if count < self._sizes[domain])


def crowded(
    replicas: Collection[NodeId], nodes: Collection[NodeId], domains: Mapping[NodeId, str]
) -> str | None:
    """The failure domain that two of these replicas share though one of ``nodes`` is in a domain
    that has none of them; None: they are spread as well as these nodes allow."""
    used = Counter(domain_of(node, domains) for node in replicas)
    domain, count = max(used.items(), key=lambda found: found[1], default=("", 0))
    is_free = any(domain_of(node, domains) not in used for node in nodes)
    return domain if count > 1 and is_free else None
