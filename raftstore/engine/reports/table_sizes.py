"""How large the tables of a node are, and how fast copies of tables have arrived there."""

from __future__ import annotations

from typing import Final

from raftstore.engine.reports.node_parts import NodeParts
from raftstore.protocol.rebalance import AskTableSizes, TableSizesAnswer

COPIES_LOOKED_AT: Final = 20
"""The newest ones: the rate is that of these days, not of the life of the node."""


def table_sizes(parts: NodeParts, request: AskTableSizes) -> TableSizesAnswer:
    """Answer for all channels with a replica here, the metadata channel among them."""
    copies = tuple(parts.ring.newest("replica_snapshot_finished", COPIES_LOOKED_AT))
    return TableSizesAnswer(
        request.request_id,
        tuple((channel, parts.tables.table_bytes(channel)) for channel in parts.channels),
        sum(each["table_bytes"] for each in copies),
        sum(each["took_ms"] for each in copies),
        parts.snapshots.sender.second_bytes(),
    )
