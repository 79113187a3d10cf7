"""Whether a world stands still because its faults took the last copy of a committed record.

Then nothing is wrong with the nodes: none may lead, or go on, without that record (S0.3). It is
proven from what each log reported as durable and from what starts after damage no longer found,
never from what nodes say: the record is committed, no log knows it, and damage took each copy that
was durable, those that had been given back included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftstore.types import ChannelId

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster


def last_copy_taken(cluster: SimCluster) -> str | None:
    """Return which record is gone and who held it; None: there is no such record."""
    for channel in cluster.expected_channels():
        found = _taken_of(cluster, channel)
        if found is not None:
            return found
    return None


def _taken_of(cluster: SimCluster, channel: ChannelId) -> str | None:
    stores = [(node.name, node.store) for node in cluster.nodes.values()]
    for known in cluster.oracle.truth(channel).records:
        record = known.record
        taken = [name for name, store in stores if store.truth.was_taken(channel, record)]
        is_there = any(
            store.truth.held(channel, record) or store.log.knows(channel, record)
            for _, store in stores
        )
        if taken and not is_there:
            return (
                f"faults took the last copy of the record at seq {record.base_seq} of channel "
                f"{channel.hex()}, committed in term {record.term}: damage took it from "
                f"{', '.join(taken)}, and nobody else held it"
            )
    return None
