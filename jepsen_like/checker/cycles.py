"""Cycles of dependencies between transactions, and which anomaly each kind of cycle is.

Nodes below ``Graph.transactions`` are transactions. Nodes above are waypoints: they stand between
many sources and many targets of one kind of edge, so that their product need not be stored. A
waypoint is no step of a cycle: T -> waypoint -> U is one edge from T to U.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WW: Final = 0
"""The second wrote over what the first wrote."""
WR: Final = 1
"""The second read what the first wrote."""
RW: Final = 2
"""The first read what the second wrote over."""
RT: Final = 3
"""The first was answered before the second began."""
KIND_NAMES: Final = ("ww", "wr", "rw", "rt")

_WRITES: Final = 1 << WW
_FLOW: Final = _WRITES | 1 << WR
_ALL: Final = _FLOW | 1 << RW
_CHUNK: Final = 2048
_STARTS: Final = 64
_EFFORT: Final = 500_000

_Edges = Mapping[int, Sequence[int]] | Sequence[Sequence[int]]
"""Node -> its edges; an edge is ``target << 2 | kind``."""


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a cycle, from transaction to transaction."""

    kind: int
    source: int
    target: int
    via: tuple[int, ...] = ()
    """The waypoints between them."""


class Graph:
    """Edges between transactions and waypoints; an edge to itself is dropped."""

    def __init__(self, transactions: int) -> None:
        self.transactions = transactions
        self.out: list[list[int]] = [[] for _ in range(transactions)]

    def add(self, kind: int, source: int, target: int) -> None:
        """One edge."""
        if source != target:
            self.out[source].append(target << 2 | kind)

    def waypoint(self) -> int:
        """A new node that is no transaction."""
        self.out.append([])
        return len(self.out) - 1

    def add_many(self, kind: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        """From each source to each target but itself, in few edges."""
        if len(sources) * len(targets) <= len(sources) + len(targets):
            for source in sources:
                for target in targets:
                    self.add(kind, source, target)
            return
        places = {target: place for place, target in enumerate(targets)}
        outside = [source for source in sources if source not in places]
        if outside:
            self._through_waypoint(kind, outside, targets)
        inside = [source for source in sources if source in places]
        # Two places differ in some bit: a waypoint per bit and value leads to all others.
        for bit in range(len(targets).bit_length() if inside else 0):
            for value in (0, 1):
                here = [source for source in inside if places[source] >> bit & 1 == value]
                there = [target for target in targets if places[target] >> bit & 1 != value]
                if here and there:
                    self._through_waypoint(kind, here, there)

    def _through_waypoint(self, kind: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        between = self.waypoint()
        self.out[between] = [target << 2 | kind for target in targets]
        for source in sources:
            self.out[source].append(between << 2 | kind)

    def is_acyclic(self) -> bool:
        """No node leads back to itself: every node can be put before those it leads to."""
        before = [0] * len(self.out)
        for edges in self.out:
            for edge in edges:
                before[edge >> 2] += 1
        free = [node for node, count in enumerate(before) if not count]
        placed = 0
        while free:
            placed += 1
            for edge in self.out[free.pop()]:
                target = edge >> 2
                before[target] -= 1
                if not before[target]:
                    free.append(target)
        return placed == len(before)


def find_cycle(graph: Graph) -> tuple[str, list[Step]] | None:
    """The gravest kind of cycle there is, with a short one of its kind; None without any.

    From grave to mild: G0 (only ww), G1c (ww and wr), G-single (one rw), G2 (several rw); then
    the same with the order of time, called G0-realtime and so on.
    """
    if graph.is_acyclic():
        return None
    groups = [group for group in components(range(len(graph.out)), graph.out) if len(group) > 1]
    home = {node: number for number, group in enumerate(groups) for node in group}
    inside = {
        node: [edge for edge in graph.out[node] if home.get(edge >> 2) == number]
        for node, number in home.items()
    }
    search = _Search(graph.transactions, inside)
    for time, suffix in ((0, ""), (1 << RT, "-realtime")):
        for name, mask in (("G0", _WRITES), ("G1c", _FLOW), ("G-single", None), ("G2", _ALL)):
            path = search.single(_FLOW | time) if mask is None else search.within(mask | time)
            if path:
                return name + suffix, search.steps(path)
    message = "a strongly connected component without a cycle"
    raise AssertionError(message)


def components(nodes: Iterable[int], edges: _Edges, mask: int = 15) -> list[list[int]]:
    """Strongly connected components over edges of the kinds in ``mask`` (Tarjan, iterative).

    A component comes after those that it leads to: reverse topological order.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: list[int] = []
    done: set[int] = set()
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        open_.append(root)
        work = [(root, iter(edges[root]))]
        while work:
            node, rest = work[-1]
            for edge in rest:
                target = edge >> 2
                if target in done or not mask >> (edge & 3) & 1:
                    continue
                if target not in index:
                    index[target] = low[target] = len(index)
                    open_.append(target)
                    work.append((target, iter(edges[target])))
                    break
                low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work and low[node] < low[work[-1][0]]:
                    low[work[-1][0]] = low[node]
                if low[node] == index[node]:
                    group = _cut(open_, node)
                    done.update(group)
                    found.append(group)
    return found


def _cut(stack: list[int], node: int) -> list[int]:
    """Take ``node`` and all above it from the stack."""
    if stack[-1] == node:
        return [stack.pop()]
    at = len(stack) - 1
    while stack[at] != node:
        at -= 1
    group = stack[at:]
    del stack[at:]
    return group


class _Search:
    """Searches in the part of a graph where cycles are; a path is a list of (source, edge)."""

    def __init__(self, transactions: int, edges: dict[int, list[int]]) -> None:
        self._transactions = transactions
        self._edges = edges
        self._effort = 0

    def within(self, mask: int) -> list[tuple[int, int]]:
        """A short cycle over the kinds in ``mask``; empty if there is none."""
        groups = [g for g in components(self._edges, self._edges, mask) if len(g) > 1]
        if not groups:
            return []
        smallest = min(groups, key=len)
        starts = [node for node in sorted(smallest) if node < self._transactions]
        return self._shortest(
            {
                start: [[(start, e)] for e in self._edges[start] if mask >> (e & 3) & 1]
                for start in starts
            },
            mask,
        )

    def single(self, mask: int) -> list[tuple[int, int]]:
        """A short cycle with one rw edge and else the kinds in ``mask``, which has no cycle."""
        order = [group[0] for group in components(self._edges, self._edges, mask)]
        sources = [
            node
            for node in sorted(self._edges)
            if node < self._transactions and any(e & 3 == RW for e in self._edges[node])
        ]
        for at in range(0, len(sources), _CHUNK):
            closing = self._closing(sources[at : at + _CHUNK], order, mask)
            if closing:
                return self._shortest({node: self._first_rw(node) for node in closing}, mask)
        return []

    def _closing(self, sources: list[int], order: list[int], mask: int) -> list[int]:
        """The sources that an edge rw and then edges of ``mask`` lead back to."""
        bits = {node: 1 << number for number, node in enumerate(sources)}
        reach: dict[int, int] = {}
        for node in order:
            reached = bits.get(node, 0)
            for edge in self._edges[node]:
                if mask >> (edge & 3) & 1:
                    reached |= reach.get(edge >> 2, 0)
            if reached:
                reach[node] = reached
        for node in order:
            if node >= self._transactions:
                beyond = (e >> 2 for e in self._edges[node] if e & 3 == RW)
                for target in beyond:
                    reach[node] = reach.get(node, 0) | reach.get(target, 0)
        return [
            node
            for node in sources
            if any(e & 3 == RW and reach.get(e >> 2, 0) & bits[node] for e in self._edges[node])
        ]

    def _first_rw(self, node: int) -> list[list[tuple[int, int]]]:
        """The ways from ``node`` to a transaction over one rw edge."""
        ways: list[list[tuple[int, int]]] = []
        for edge in self._edges[node]:
            if edge & 3 == RW:
                between = edge >> 2
                if between < self._transactions:
                    ways.append([(node, edge)])
                else:
                    ways += [[(node, edge), (between, e)] for e in self._edges[between]]
        return ways

    def _shortest(
        self, starts: dict[int, list[list[tuple[int, int]]]], mask: int
    ) -> list[tuple[int, int]]:
        """The shortest cycle found from some of the starts; at least one is on a cycle."""
        best: list[tuple[int, int]] = []
        length = len(self._edges) + 1
        self._effort = 0
        for tried, (start, ways) in enumerate(starts.items(), 1):
            path = self._back(start, ways, mask, length)
            if path:
                best, length = path, self._length(path)
            if best and (length == 2 or tried >= _STARTS or self._effort > _EFFORT):
                break
        return best

    def _back(
        self, start: int, ways: list[list[tuple[int, int]]], mask: int, below: int
    ) -> list[tuple[int, int]]:
        """The shortest way that returns to ``start`` in fewer transactions than ``below``."""
        reached: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        queue: deque[tuple[int, int]] = deque()

        def offer(way: list[tuple[int, int]], before: int) -> None:
            target = way[-1][1] >> 2
            step = int(target < self._transactions)
            length = before + step
            if length < below and (target not in reached or length < reached[target][0]):
                reached[target] = (length, way)
                (queue.append if step else queue.appendleft)((length, target))

        for way in ways:
            offer(way, 0)
        while queue:
            length, node = queue.popleft()
            if node == start:
                return self._unwind(start, reached)
            if length == reached[node][0]:
                for edge in self._edges[node]:
                    self._effort += 1
                    if mask >> (edge & 3) & 1:
                        offer([(node, edge)], length)
        return []

    def _unwind(
        self, start: int, reached: dict[int, tuple[int, list[tuple[int, int]]]]
    ) -> list[tuple[int, int]]:
        way = reached[start][1]
        path = list(way)
        while path[0][0] != start:
            path = reached[path[0][0]][1] + path
        return path

    def _length(self, path: list[tuple[int, int]]) -> int:
        return sum(edge >> 2 < self._transactions for _, edge in path)

    def steps(self, path: list[tuple[int, int]]) -> list[Step]:
        """The path from transaction to transaction."""
        steps: list[Step] = []
        via: list[int] = []
        source = path[0][0]
        for _, edge in path:
            target = edge >> 2
            if target < self._transactions:
                steps.append(Step(edge & 3, source, target, tuple(via)))
                source, via = target, []
            else:
                via.append(target)
        return steps
