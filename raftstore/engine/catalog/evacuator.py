"""The metadata leader's part in freeing nodes that leave: it orders their replicas elsewhere (M29).

The catalog says who leaves, who hosts what, and which orders are open.
"""

from __future__ import annotations

from collections.abc import Callable

from raftstore.engine.catalog.order_proposals import OrderProposals
from raftstore.engine.catalog.table_commands import CatalogView
from raftstore.policy.evacuation import plan_evacuations
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT
from raftstore.types import NodeId

DRAINS = "its node drains"
REPLACED = "its node was replaced"


class Evacuator:
    """Orders of one node, while it leads the metadata channel."""

    def __init__(
        self, view: CatalogView, orders: OrderProposals, is_up: Callable[[NodeId], bool]
    ) -> None:
        self._view = view
        self._orders = orders
        self._is_up = is_up

    def look(self, now_ms: int) -> None:
        """Order what can be moved now. The caller leads the metadata channel, and is ready."""
        catalog = self._view.catalog
        leaving = leaving_nodes(catalog)
        if not leaving or self._view.refusal_of_format(MEMBERS_FORMAT) is not None:
            return
        nodes = [node for node in catalog.placeable() if self._is_up(node)]
        if self._orders.are_full(len(nodes)):
            return
        hosted = self._orders.hosted_channels()
        for each in plan_evacuations(hosted, leaving, nodes, catalog.domains()):
            reason = DRAINS if each.leaves in catalog.draining else REPLACED
            members = each.voters, each.learners, each.witnesses
            self._orders.order(each.channel, members, reason, now_ms)


def leaving_nodes(catalog: Catalog) -> dict[NodeId, NodeId | None]:
    """Nodes that are to host nothing, and who takes the place of each, if anybody does."""
    draining: dict[NodeId, NodeId | None] = dict.fromkeys(catalog.draining)
    retired = {
        node: NodeId(entry.replaced_by) if entry.replaced_by else None
        for node, entry in catalog.retired.items()
    }
    return draining | retired
