"""Whether a quorum's disks have room for a command, before it is proposed (GAP-13).

Behind a proposal that no quorum stores the outcome is unknown. Every node reports what its disk has
room for with its positions; one that never did counts as one that has room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from raftstore.core.quorum import has_quorum, majority
from raftstore.errors import NoSpaceError, Refusal
from raftstore.types import ChannelConfig, DiskRoom, NodeId, node_name


class Disks(Protocol):
    """The disks of all nodes, as they were reported."""

    @property
    def is_disk_full(self) -> bool:
        """Whether any other node's disk is nearly full."""

    def has_room(self, node: NodeId, wanted: DiskRoom) -> bool:
        """Whether the node's disk has room for as much."""


_REMEDY: Final = "free some, or lower storage.min_free_bytes there"


class QuorumRoom:
    """All that is known of the disks of the nodes."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks

    def write_refusal(self, config_of: Callable[[], ChannelConfig]) -> Refusal | None:
        """Code and text if no quorum of a channel stores what this leader would sequence."""
        if not self._disks.is_disk_full:
            return None
        config = config_of()
        full = self._without(config.voters, DiskRoom.RECORDS)
        if has_quorum(config, set(config.voters).difference(full)):
            return None
        return _refusal(full, f"records, which a majority of {_names(config.voters)} has to store")

    def catalog_refusal(self, config: ChannelConfig) -> Refusal | None:
        """Code and text if no quorum of the metadata channel stores changes of the catalog."""
        full = self._without(config.voters, DiskRoom.CATALOG)
        if has_quorum(config, set(config.voters).difference(full)):
            return None
        what = f"changes of the catalog, which a majority of {_names(config.voters)} has to store"
        return _refusal(full, what)

    def table_refusal(self, placement: Iterable[Sequence[NodeId]]) -> Refusal | None:
        """Code and text if some partition would have no quorum that stores its records."""
        for replicas in placement:
            full = self._without(replicas, DiskRoom.RECORDS)
            if len(replicas) - len(full) < majority(len(replicas)):
                what = f"records of a table, which a majority of {_names(replicas)} has to store"
                return _refusal(full, what)
        return None

    def _without(self, nodes: Iterable[NodeId], wanted: DiskRoom) -> list[NodeId]:
        return [node for node in nodes if not self._disks.has_room(node, wanted)]


def _refusal(full: Collection[NodeId], what: str) -> Refusal:
    disks = "disks" if len(full) > 1 else "disk"
    have = "have" if len(full) > 1 else "has"
    text = f"the {disks} of {_names(full)} {have} no room for {what}; {_REMEDY}"
    return Refusal(NoSpaceError, text)


def _names(nodes: Iterable[NodeId]) -> str:
    return ", ".join(sorted(map(node_name, nodes)))
