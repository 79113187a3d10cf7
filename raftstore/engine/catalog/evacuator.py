"""The metadata leader's part in freeing nodes that leave: it orders their replicas elsewhere.

Nothing is remembered but what was proposed and not answered: the catalog says who leaves, who hosts
what, and which orders are open, so that any later leader goes on (M20, M29).
"""

from __future__ import annotations

from collections.abc import Callable

from raftstore.engine.catalog.table_commands import CatalogView
from raftstore.engine.channel.proposals import OnOutcome
from raftstore.policy.evacuation import Evacuation, HostedChannel, plan_evacuations
from raftstore.ports.ids import IdSource
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT
from raftstore.state_machines.catalog_replicas import ChangeReplicas, change_replicas_command
from raftstore.types import ChannelId, NodeId, Seq

DRAINS = "its node drains"
REPLACED = "its node was replaced"


class Evacuator:
    """Orders of one node, while it leads the metadata channel."""

    def __init__(self, view: CatalogView, ids: IdSource, is_up: Callable[[NodeId], bool]) -> None:
        self._view = view
        self._ids = ids
        self._is_up = is_up
        self._proposed: dict[ChannelId, Seq] = {}
        """Seq of the row that an order without an answer is to change."""

    def forget(self) -> None:
        """The leader changed: what was proposed is answered or lost."""
        self._proposed.clear()

    def look(self, now_ms: int) -> None:
        """Order what can be moved now. The caller leads the metadata channel, and is ready."""
        catalog = self._view.catalog
        leaving = leaving_nodes(catalog)
        if not leaving or self._view.refusal_of_format(MEMBERS_FORMAT) is not None:
            return
        nodes = [node for node in catalog.placeable() if self._is_up(node)]
        for order in plan_evacuations(hosted_channels(catalog), leaving, nodes):
            self._order(catalog, order, now_ms)

    def _order(self, catalog: Catalog, order: Evacuation, now_ms: int) -> None:
        table = catalog.table_of(order.channel)
        base_seq = catalog.change_seqs.get(order.channel, Seq(0))
        if table is None or self._proposed.get(order.channel) == base_seq:
            return
        self._proposed[order.channel] = base_seq
        command = ChangeReplicas(
            order.channel,
            table.name,
            order.voters,
            base_seq,
            self._ids.uuid(),
            DRAINS if order.leaves in catalog.draining else REPLACED,
            order.learners,
            witnesses=order.witnesses,
        )
        self._view.proposals.propose(
            self._view.metadata,
            change_replicas_command(command),
            self._ordered(order.channel),
            now_ms,
        )

    def _ordered(self, channel: ChannelId) -> OnOutcome:
        def done(answer: PubAck | PubReject, now_ms: int) -> None:
            del now_ms
            if isinstance(answer, PubReject) or answer.conflict:
                self._proposed.pop(channel, None)  # by what the catalog is then, it is tried again

        return done


def leaving_nodes(catalog: Catalog) -> dict[NodeId, NodeId | None]:
    """Nodes that are to host nothing, and who takes the place of each, if anybody does."""
    draining: dict[NodeId, NodeId | None] = dict.fromkeys(catalog.draining)
    retired = {
        node: NodeId(entry.replaced_by) if entry.replaced_by else None
        for node, entry in catalog.retired.items()
    }
    return draining | retired


def hosted_channels(catalog: Catalog) -> list[HostedChannel]:
    """Channels of all tables with the replicas that they have, as far as was reported."""
    hosted: list[HostedChannel] = []
    for channel in catalog.channels():
        entry = catalog.entry_of(channel)
        if entry is not None:
            config, has_order = entry.config, entry.order is not None
            witnesses = tuple(node for node in config.voters if config.is_witness(node))
            hosted.append(
                HostedChannel(channel, config.voters, config.learners, has_order, witnesses)
            )
    return hosted
