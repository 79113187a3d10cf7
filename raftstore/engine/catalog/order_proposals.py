"""Orders for replicas that the leader of the metadata channel gives by itself, as it proposes them.

Nothing is remembered but what was proposed and not answered: the catalog says which orders are
open, so that any later leader goes on (M20).
"""

from __future__ import annotations

from raftstore.engine.catalog.table_commands import CatalogView
from raftstore.engine.channel.proposals import OnOutcome
from raftstore.policy.evacuation import HostedChannel
from raftstore.policy.open_moves import OpenMoves
from raftstore.ports.ids import IdSource
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_replicas import (
    ChangeReplicas,
    ReplicaEntry,
    cancel_change_command,
    change_replicas_command,
)
from raftstore.types import ChangeNumber, ChannelId, NodeId, Seq


class OrderProposals:
    """Orders of one node, while it leads the metadata channel."""

    def __init__(self, view: CatalogView, ids: IdSource) -> None:
        self._view = view
        self._ids = ids
        self._proposed: dict[ChannelId, tuple[Seq, tuple[NodeId, ...]]] = {}
        """Seq of the row that an order without an answer is to change, and the nodes that get a
        replica by it."""

    def forget(self) -> None:
        """The leader changed: what was proposed is answered or lost."""
        self._proposed.clear()

    def hosted_channels(self) -> list[HostedChannel]:
        """Channels of all tables with the replicas that they have, as far as was reported; those of
        which an order was proposed a moment ago have one already."""
        hosted = hosted_channels(self._view.catalog)
        if not self._proposed:
            return hosted
        return [
            each._replace(has_order=True, takes=each.takes or self._proposed[each.channel][1])
            if self._is_proposed(each.channel)
            else each
            for each in hosted
        ]

    def are_full(self, nodes: int) -> bool:
        """Whether as many orders are open as may be, where so many nodes may take replicas: then
        nothing is to be planned."""
        catalog = self._view.catalog
        opened = (
            entry.takers
            for channel, entry in catalog.changes.items()
            if entry.order is not None and catalog.table_of(channel) is not None
        )
        return OpenMoves(nodes, opened).is_full

    def order(
        self,
        channel: ChannelId,
        members: tuple[tuple[NodeId, ...], tuple[NodeId, ...], tuple[NodeId, ...]],
        reason: str,
        now_ms: int,
    ) -> None:
        """Let the channel have these voters and learners, and of the voters these as witnesses,
        unless its row is changed meanwhile."""
        voters, learners, witnesses = members
        table = self._view.catalog.table_of(channel)
        if table is None or self._is_proposed(channel):
            return
        base_seq, present = self._row_of(channel), self._view.catalog.replicas_of(channel)
        command = ChangeReplicas(
            channel, table.name, voters, base_seq, self._ids.uuid(), reason, learners,
            witnesses=witnesses,
        )  # fmt: skip
        takes = tuple(node for node in (*voters, *learners) if node not in present)
        self._propose(channel, change_replicas_command(command), now_ms, takes)

    def cancel(self, channel: ChannelId, change: ChangeNumber, now_ms: int) -> None:
        """End an open order where it is."""
        if not self._is_proposed(channel):
            self._propose(channel, cancel_change_command(channel, change), now_ms)

    def _row_of(self, channel: ChannelId) -> Seq:
        return self._view.catalog.change_seqs.get(channel, Seq(0))

    def _is_proposed(self, channel: ChannelId) -> bool:
        proposed = self._proposed.get(channel)
        return proposed is not None and proposed[0] == self._row_of(channel)

    def _propose(
        self, channel: ChannelId, command: bytes, now_ms: int, takes: tuple[NodeId, ...] = ()
    ) -> None:
        self._proposed[channel] = self._row_of(channel), takes
        view = self._view
        view.proposals.propose(view.metadata, command, self._answered(channel), now_ms)

    def _answered(self, channel: ChannelId) -> OnOutcome:
        def done(answer: PubAck | PubReject, now_ms: int) -> None:
            del now_ms
            if isinstance(answer, PubReject) or answer.conflict:
                self._proposed.pop(channel, None)  # by what the catalog is then, it is tried again

        return done


def hosted_channels(catalog: Catalog) -> list[HostedChannel]:
    """Channels of all tables with the replicas that they have, as far as was reported."""
    hosted: list[HostedChannel] = []
    changes = catalog.changes
    for table in catalog.tables.values():
        for channel, founding in zip(table.channels, table.placement, strict=False):
            entry = changes.get(channel)
            hosted.append(
                HostedChannel(channel, founding) if entry is None else _hosted(channel, entry)
            )
    return hosted


def _hosted(channel: ChannelId, entry: ReplicaEntry) -> HostedChannel:
    config, has_order = entry.config, entry.order is not None
    witnesses = tuple(node for node in config.voters if config.is_witness(node))
    return HostedChannel(
        channel, config.voters, config.learners, has_order, witnesses, entry.takers
    )
