"""Protocol levels that nodes reported to this one in their Hello."""

from __future__ import annotations

from raftstore.policy.levels import LEVEL_OF_BUNDLES
from raftstore.types import NodeId


class KnownLevels:
    """Protocol levels that peers reported to one node since its start. Without a Hello a node may
    be of any version."""

    def __init__(self, me: NodeId, level: int) -> None:
        self._me = me
        self.by_node: dict[NodeId, int] = {me: level}

    def at_least(self, level: int) -> tuple[NodeId, ...]:
        """The other nodes that reported at least this level, in a stable order."""
        able = (node for node, own in self.by_node.items() if own >= level)
        return tuple(sorted(node for node in able if node != self._me))

    def below(self, level: int) -> tuple[NodeId, ...]:
        """The other nodes that reported a level below this one; a node that reported none is of any
        version and not among them."""
        return tuple(sorted(node for node, own in self.by_node.items() if own < level))

    def takes_bundles(self, node: NodeId) -> bool:
        """Whether the node reported a level that knows ReplicationBundle."""
        return self.by_node.get(node, 0) >= LEVEL_OF_BUNDLES
