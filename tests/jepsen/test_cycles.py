"""The search for cycles of dependencies, against walking every path of small graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.checker.cycles import RT, RW, WR, WW, Graph, Step, find_cycle
from jepsen_like.checker.txn import CYCLES

Edge = tuple[int, int, int]
"""(kind, source, target)."""


def _cycles(edges: list[Edge], start: int, path: tuple[Edge, ...] = ()) -> Iterator[list[int]]:
    """The kinds of edges of every simple cycle through ``start`` and no smaller node."""
    at = path[-1][2] if path else start
    if path and at == start:
        yield [edge[0] for edge in path]
        return
    seen = {edge[1] for edge in path if edge[1] != start}
    for edge in edges:
        if edge[1] == at and edge[2] >= start and edge[2] not in seen:
            yield from _cycles(edges, start, (*path, edge))


def _name(kinds: list[int]) -> str:
    """The name of a cycle with these kinds of edges."""
    suffix = "-realtime" if RT in kinds else ""
    reads_over = kinds.count(RW)
    if reads_over:
        return ("G-single" if reads_over == 1 else "G2") + suffix
    return ("G1c" if WR in kinds else "G0") + suffix


def _is_cycle(steps: list[Step], edges: list[Edge]) -> bool:
    targets = [step.source for step in steps[1:]] + [steps[0].source]
    return all(
        step.target == target and (step.kind, step.source, step.target) in edges
        for step, target in zip(steps, targets, strict=True)
    )


@given(seed=st.integers(0, 10**9))
def test_search_finds_the_gravest_cycle_there_is(seed: int) -> None:
    """None without a cycle; else one of the gravest kind, made of edges that exist."""
    rng = random.Random(seed)
    count = rng.randint(2, 6)
    kinds = rng.sample([WW, WR, RW, RT], rng.randint(1, 4))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    chosen = rng.sample(pairs, rng.randint(1, min(len(pairs), 9)))
    edges = [(rng.choice(kinds), a, b) for a, b in chosen]
    graph = Graph(count)
    for kind, source, target in edges:
        graph.add(kind, source, target)
    names = {_name(found) for start in range(count) for found in _cycles(edges, start)}
    told = find_cycle(graph)
    assert graph.is_acyclic() is (told is None) is (not names)
    if told is not None:
        gravest = min(names, key=CYCLES.index)
        assert told[0] == gravest
        assert _is_cycle(told[1], edges)


@given(seed=st.integers(0, 10**9))
def test_many_edges_lead_from_each_source_to_every_target_but_itself(seed: int) -> None:
    """Waypoints stand for the product of sources and targets, and for nothing else."""
    rng = random.Random(seed)
    nodes = range(rng.randint(2, 24))
    sources = rng.sample(nodes, rng.randint(1, len(nodes)))
    targets = rng.sample(nodes, rng.randint(1, len(nodes)))
    graph = Graph(len(nodes))
    graph.add_many(RW, sources, targets)
    found = set()
    for source in nodes:
        for edge in graph.out[source]:
            assert edge & 3 == RW
            first = edge >> 2
            ends = [first] if first in nodes else [beyond >> 2 for beyond in graph.out[first]]
            found |= {(source, end) for end in ends}
    assert found == {(a, b) for a in sources for b in targets if a != b}
