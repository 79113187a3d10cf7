"""Placement of tables: balanced, complete, and the same for the same question."""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.policy.placement import PlacementError, place_table
from raftstore.types import NodeId

NODES = [NodeId(f"n{number}@{number:02x}") for number in range(1, 8)]
SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 40), st.integers(1, 7)).filter(
    lambda shape: shape[2] <= shape[0]
)


@given(SHAPES, st.randoms())
def test_placement_is_complete_and_balanced(shape: tuple[int, int, int], random: object) -> None:
    """Each partition has its replicas on different nodes; loads differ by at most one."""
    count, partitions, replicas = shape
    nodes = NODES[:count]
    placement = place_table(partitions=partitions, replicas=replicas, nodes=nodes)
    assert len(placement) == partitions
    assert all(len(set(group)) == len(group) == replicas for group in placement)
    held = Counter(dict.fromkeys(nodes, 0)) + Counter(n for group in placement for n in group)
    loads = [held[node] for node in nodes]
    assert max(loads) - min(loads) <= 1
    led = Counter(group[0] for group in placement)
    assert max(led.values()) <= ceil(partitions / count) + 1  # NATS-001
    shuffled = list(nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert placement == place_table(partitions=partitions, replicas=replicas, nodes=shuffled)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_placement_of_many_tables_keeps_leaders_balanced(sizes: list[int]) -> None:
    """Small tables do not all put their first leader on the same node (NATS-001)."""
    placements: list[tuple] = []
    for size in sizes:
        placements.append(
            place_table(partitions=size, replicas=3, nodes=NODES[:3], existing=placements)
        )
    led = Counter(group[0] for placement in placements for group in placement)
    assert max(led.values()) - min(led[node] for node in NODES[:3]) <= 1


def test_placement_fills_a_node_that_joined_later() -> None:
    """The load of existing tables counts, so new ones go where there is room."""
    old = place_table(partitions=6, replicas=1, nodes=NODES[:2])
    new = place_table(partitions=3, replicas=1, nodes=NODES[:3], existing=[old])
    assert new == ((NODES[2],),) * 3


def test_placement_ignores_the_load_of_nodes_that_are_gone() -> None:
    """Replicas on nodes outside the candidates neither count nor fail."""
    old = ((NODES[6], NODES[0]),)
    new = place_table(partitions=1, replicas=1, nodes=NODES[:2], existing=[old])
    assert new == ((NODES[1],),)


def test_placement_stays_as_it_is() -> None:
    """Eight partitions on three nodes: every node leads two or three."""
    a, b, c = NODES[:3]
    assert place_table(partitions=4, replicas=3, nodes=NODES[:3]) == (
        (a, b, c),
        (b, c, a),
        (c, a, b),
        (a, b, c),
    )


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (NODES[:2], r"3 replicas need 3 nodes, but 2 are registered \(n1, n2\); start more nodes"),
        ([NODES[0], NODES[0]], r"but 1 are registered \(n1\)"),
        ([], r"but 0 are registered \(none\)"),
    ],
)
def test_placement_is_refused_with_both_numbers_when_nodes_are_too_few(
    nodes: list[NodeId], text: str
) -> None:
    """Fewer nodes than replicas is an error that names both and the remedy."""
    with pytest.raises(PlacementError, match=text):
        place_table(partitions=1, replicas=3, nodes=nodes)
