"""How many channels change their replicas at a time: few of a cluster, and few copies to a node.

Each of them copies a table, is without one of its replicas or has one more for a while, and takes
some changes of the catalog, which go to every node. So a larger cluster may change more of them at
a time, as long as they copy to different nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from raftstore.types import NodeId

MOVES_OPEN_MIN: Final = 4
MOVES_OPEN_MAX: Final = 32
MOVES_OF_TAKER_MAX: Final = 4
"""Orders that are open at a time by which one node gets replicas."""


def moves_at_once(nodes: int) -> int:
    """Orders that are open at a time, also those of operators: one for two nodes that may take
    replicas. The next ones wait for one of them."""
    return max(MOVES_OPEN_MIN, min(nodes // 2, MOVES_OPEN_MAX))


def bytes_in_turn(moves: Iterable[tuple[Collection[NodeId], int]], nodes: int) -> float:
    """Bytes that are copied one after the other when everything that may be is copied at a time.

    ``moves``: the nodes that get replicas by each order, and the bytes of all their copies.
    """
    total, longest, taken = 0, 0.0, Counter[NodeId]()
    for takers, size in moves:
        total += size
        longest = max(longest, size)
        taken.update(dict.fromkeys(takers, size // max(1, len(takers))))
    of_taker = max(taken.values(), default=0) / MOVES_OF_TAKER_MAX
    return max(longest, total / moves_at_once(nodes), of_taker)


class OpenMoves:
    """Orders that are open, and what may be ordered beside them."""

    def __init__(self, nodes: int, takers: Iterable[Collection[NodeId]]) -> None:
        """``nodes``: that may take replicas; ``takers``: by each open order the nodes that get
        one."""
        opened = tuple(takers)
        self._left = moves_at_once(nodes) - len(opened)
        self._taking = Counter(node for each in opened for node in each)

    @property
    def is_full(self) -> bool:
        """Whether no further order may be given."""
        return self._left <= 0

    def may_take(self, takers: Collection[NodeId]) -> bool:
        """Whether an order may be given by which these nodes get replicas."""
        free = all(self._taking[node] < MOVES_OF_TAKER_MAX for node in takers)
        return free and not self.is_full

    def add(self, takers: Collection[NodeId]) -> None:
        """Such an order is given."""
        self._left -= 1
        self._taking.update(takers)
