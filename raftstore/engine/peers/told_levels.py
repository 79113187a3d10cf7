"""Format levels that nodes told this one when they introduced themselves."""

from __future__ import annotations

from raftstore.policy.levels import LEVEL_OF_BUNDLES
from raftstore.types import NodeId


class ToldLevels:
    """Of one node, since its start. What is not told is not known: a node may be of any version."""

    def __init__(self, me: NodeId, level: int) -> None:
        self._me = me
        self.by_node: dict[NodeId, int] = {me: level}

    def at_least(self, level: int) -> tuple[NodeId, ...]:
        """The other nodes that told at least this level, in a stable order."""
        told = (node for node, own in self.by_node.items() if own >= level)
        return tuple(sorted(node for node in told if node != self._me))

    def takes_bundles(self, node: NodeId) -> bool:
        """Whether the node told a level that knows ReplicationBundle."""
        return self.by_node.get(node, 0) >= LEVEL_OF_BUNDLES
