"""Placement of tables: balanced, complete, and the same for the same question."""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.policy.placement import PlacementError, crowded, domain_of, place_table
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
    placements: list[tuple[tuple[NodeId, ...], ...]] = []
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


# --- failure domains ------------------------------------------------------------------------------

DOMAINS = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=7, max_size=7)


@given(SHAPES, DOMAINS)
def test_replicas_are_spread_over_as_many_failure_domains_as_there_are(
    shape: tuple[int, int, int], drawn: list[str]
) -> None:
    """A node without one is one by itself; no domain has two replicas while another has none."""
    count, partitions, replicas = shape
    nodes = NODES[:count]
    domains = {node: name for node, name in zip(nodes, drawn, strict=False) if name}
    there = {domain_of(node, domains) for node in nodes}
    placement = place_table(partitions=partitions, replicas=replicas, nodes=nodes, domains=domains)
    for group in placement:
        assert len(set(group)) == replicas
        used = Counter(domain_of(node, domains) for node in group)
        assert len(used) == min(replicas, len(there))
        assert crowded(group, nodes, domains) is None


def test_node_without_a_failure_domain_is_one_by_itself() -> None:
    """Nothing says that two such nodes fail together."""
    one, two, three, four = NODES[:4]
    domains = {one: "a", four: "a"}
    placement = place_table(partitions=4, replicas=3, nodes=NODES[:4], domains=domains)
    assert all({two, three} < set(group) for group in placement)


def test_nodes_of_equal_domains_hold_and_lead_equally_many() -> None:
    """Spreading comes first, and costs no balance where domains are of one size."""
    domains = dict(zip(NODES[:6], "aabbcc", strict=True))
    placement = place_table(partitions=12, replicas=3, nodes=NODES[:6], domains=domains)
    held = Counter(node for group in placement for node in group)
    assert set(held.values()) == {6}
    assert max(Counter(group[0] for group in placement).values()) <= 3  # NATS-001


def test_leaders_of_few_partitions_are_in_different_domains() -> None:
    """Where nodes lead equally many, the domain with the fewest leaders gets the next one."""
    domains = dict(zip(NODES[:4], "aabb", strict=True))
    placement = place_table(partitions=2, replicas=4, nodes=NODES[:4], domains=domains)
    assert {domains[group[0]] for group in placement} == {"a", "b"}


def test_replicas_in_one_domain_are_crowded_only_if_another_one_is_free() -> None:
    """A placement that cannot be better is not worth a warning."""
    one, two, three, four = NODES[:4]
    domains = {one: "a", two: "a", three: "b"}
    assert crowded((one, two), (one, two), domains) is None
    assert crowded((one, two), (one, two, three), domains) == "a"
    assert crowded((one, two, three), (one, two, three), domains) is None
    assert crowded((one, two, three), (four,), domains) == "a"
    assert crowded((one, three, four), NODES, domains) is None
    assert crowded((), NODES, domains) is None


def by_the_plain_rule(
    partitions: int, replicas: int, domains: dict[NodeId, str]
) -> list[tuple[NodeId, ...]]:
    """Each partition by looking at every node anew."""
    held, led = Counter(dict.fromkeys(domains, 0)), Counter(dict.fromkeys(domains, 0))
    led_in: Counter[str] = Counter()
    placement = []
    for _ in range(partitions):
        used: Counter[str] = Counter()
        chosen: list[NodeId] = []
        order = sorted(domains, key=lambda node: (held[node], led[node], node))
        for _ in range(replicas):
            node = min(order, key=lambda each: used[domain_of(each, domains)])
            order.remove(node)
            chosen.append(node)
            used[domain_of(node, domains)] += 1
        leader = min(chosen, key=lambda node: (led[node], led_in[domain_of(node, domains)]))
        placement.append((leader, *(node for node in chosen if node != leader)))
        held.update(chosen)
        led[leader] += 1
        led_in[domain_of(leader, domains)] += 1
    return placement


@given(SHAPES, st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=7, max_size=7))
def test_nodes_kept_in_order_are_placed_as_by_looking_at_all(
    shape: tuple[int, int, int], names: list[str]
) -> None:
    """Domains of unequal sizes, more of them than replicas or fewer."""
    count, partitions, replicas = shape
    domains = dict(zip(NODES[:count], names, strict=False))
    placement = place_table(
        partitions=partitions, replicas=replicas, nodes=NODES[:count], domains=domains
    )
    assert list(placement) == by_the_plain_rule(partitions, replicas, domains)
