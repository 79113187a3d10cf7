"""Where the replicas of a new table go: spread over failure domains, then balanced by replicas and
by preferred leaders (NATS-001).

The node that creates a table computes its placement once and puts it into the command; nobody ever
recomputes it, so a changed rule moves nothing.
"""

from __future__ import annotations

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
    load = _Load(candidates, domains)
    for placement in existing:
        for group in placement:
            load.count(group)
    placed = []
    for _ in range(partitions):
        group = load.group(replicas)
        load.count(group)
        placed.append(group)
    return tuple(placed)


class _Load:
    """Replicas and preferred leaderships of the nodes that are candidates."""

    def __init__(self, candidates: Sequence[NodeId], domains: Mapping[NodeId, str]) -> None:
        self._domain = {node: domain_of(node, domains) for node in candidates}
        self._held = dict.fromkeys(candidates, 0)
        self._led = dict.fromkeys(candidates, 0)
        self._led_in: Counter[str] = Counter()

    def count(self, group: Sequence[NodeId]) -> None:
        """Add one partition; nodes that are no candidates do not count."""
        for node in group:
            if node in self._held:
                self._held[node] += 1
        if group and group[0] in self._led:
            self._led[group[0]] += 1
            self._led_in[self._domain[group[0]]] += 1

    def group(self, replicas: int) -> tuple[NodeId, ...]:
        """The replicas of another partition, the preferred leader first."""
        held, led = self._held, self._led
        chosen: list[NodeId] = []
        used: Counter[str] = Counter()
        order = sorted(held, key=lambda node: (held[node], led[node]))
        for _ in range(replicas):
            node = min(order, key=lambda each: used[self._domain[each]])
            order.remove(node)
            chosen.append(node)
            used[self._domain[node]] += 1
        leader = min(chosen, key=lambda node: (led[node], self._led_in[self._domain[node]]))
        return (leader, *(node for node in chosen if node != leader))


def crowded(
    replicas: Collection[NodeId], nodes: Collection[NodeId], domains: Mapping[NodeId, str]
) -> str | None:
    """The failure domain that two of these replicas share though one of ``nodes`` is in a domain
    that has none of them; None: they are spread as well as these nodes allow."""
    used = Counter(domain_of(node, domains) for node in replicas)
    domain, count = max(used.items(), key=lambda found: found[1], default=("", 0))
    is_free = any(domain_of(node, domains) not in used for node in nodes)
    return domain if count > 1 and is_free else None
