"""Whether the addresses of a cluster's members belong to another cluster. Pure.

A node may be started with the data directory of another cluster whose members have the same names
and addresses. Every peer refuses it for ever, so it ends itself. One wrong answer must not end a
node that works: so many members have to be foreign that the others are no quorum, and no member of
its own cluster may have answered since it was started.
"""

from __future__ import annotations

from raftstore.storage.identity import Belonging
from raftstore.types import NodeId


class ForeignCluster:
    """Findings about the founding members of one node's cluster, in one boot."""

    def __init__(self, mine: Belonging) -> None:
        self._mine = mine
        self._foreign: dict[NodeId, bytes] = {}
        self.has_met_own = False
        """A member of this node's cluster answered in this boot."""

    @property
    def others(self) -> tuple[NodeId, ...]:
        """The founding members besides this node."""
        return tuple(node for node, _ in self._mine.members if node != self._mine.node)

    @property
    def members(self) -> tuple[NodeId, ...]:
        """The members at whose addresses another cluster answers."""
        return tuple(self._foreign)

    def on_cluster_of(self, node: NodeId, cluster_id: bytes) -> None:
        """The node at this member's address belongs to a cluster (b"": to none yet)."""
        if cluster_id == self._mine.cluster_id:
            self.on_accepted()
        elif cluster_id and node in self.others:
            self._foreign[node] = cluster_id
        else:
            self._foreign.pop(node, None)

    def on_accepted(self) -> None:
        """A member of this node's cluster is there: from now on nothing ends the node."""
        self.has_met_own = True

    def is_settled(self, unheard: int) -> bool:
        """Whether ``unheard`` further answers cannot change ``verdict`` any more."""
        if self.has_met_own or self.verdict() is not None:
            return True
        return len(self._foreign) + unheard < self._fatal

    def verdict(self) -> bytes | None:
        """The other cluster, when this node can never be part of a quorum; None otherwise."""
        if self.has_met_own or len(self._foreign) < self._fatal:
            return None
        return min(self._foreign.values())

    @property
    def _fatal(self) -> int:
        """The number of foreign members that leaves no quorum (2 of 3, 3 of 5)."""
        members = len(self._mine.members)
        return members - members // 2
