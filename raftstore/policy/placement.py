"""Where the replicas of a new table go: balanced by replicas and by preferred leaders (NATS-001).

The node that creates a table computes its placement once and puts it into the command; nobody ever
recomputes it, so a changed rule moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raftstore.types import NodeId, node_name


class PlacementError(ValueError):
    """The table cannot be placed on the nodes there are; the caller answers "unavailable"."""


def place_table(
    *,
    partitions: int,
    replicas: int,
    nodes: Sequence[NodeId],
    existing: Iterable[Sequence[Sequence[NodeId]]] = (),
) -> tuple[tuple[NodeId, ...], ...]:
    """Return the replicas of each partition, the preferred leader first.

    ``existing`` are the placements of the other tables, whose load counts. Each partition takes the
    nodes with the fewest replicas, and of these the one with the fewest leaderships leads. The
    result depends on the arguments only, not on the order of ``nodes``.
    """
    candidates = sorted(dict.fromkeys(nodes))
    if len(candidates) < replicas:
        names = ", ".join(map(node_name, candidates)) or "none"
        raise PlacementError(
            f"{replicas} replicas need {replicas} nodes, but {len(candidates)} are registered "
            f"({names}); start more nodes or ask for fewer replicas"
        )
    held = dict.fromkeys(candidates, 0)
    led = dict.fromkeys(candidates, 0)
    for placement in existing:
        for group in placement:
            _count(group, held, led)
    placed = []
    for _ in range(partitions):
        chosen = sorted(candidates, key=lambda node: (held[node], led[node]))[:replicas]
        leader = min(chosen, key=lambda node: led[node])
        group = (leader, *(node for node in chosen if node != leader))
        _count(group, held, led)
        placed.append(group)
    return tuple(placed)


def _count(group: Sequence[NodeId], held: dict[NodeId, int], led: dict[NodeId, int]) -> None:
    """Add one partition to the load; nodes that are no candidates do not count."""
    for node in group:
        if node in held:
            held[node] += 1
    if group and group[0] in led:
        led[group[0]] += 1
