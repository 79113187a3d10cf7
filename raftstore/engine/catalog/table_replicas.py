"""The metadata leader's part in giving tables the number of replicas that they are to have.

An edit of a table's ``replicas`` marks its entry as resizing. While it is, each of its channels is
ordered nearer to that number, one replica at a time; when all have it and no order is open, the
mark goes. Everything is in the catalog, so any later leader goes on, and another edit on the way
only changes the number: an order that leads away from it is cancelled. What operators order for
channels of a table that is not resizing stays as they ordered it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from raftstore.engine.catalog.evacuator import leaving_nodes
from raftstore.engine.catalog.order_proposals import OrderProposals
from raftstore.engine.catalog.table_commands import CatalogView
from raftstore.engine.channel.proposals import OnOutcome
from raftstore.engine.node_ports import Tell
from raftstore.policy.replica_counts import CountedNodes, plan_counts
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.catalog import TableEntry, edit_table_command
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT
from raftstore.types import ChannelId, NodeId, Seq

RESIZED: Final = "the table's number of replicas was changed"
"""The reason of the orders, by which they are known again."""


class TableReplicas:
    """Orders and ends of one node, while it leads the metadata channel."""

    def __init__(
        self,
        view: CatalogView,
        orders: OrderProposals,
        is_up: Callable[[NodeId], bool],
        tell: Tell,
    ) -> None:
        self._view = view
        self._orders = orders
        self._is_up = is_up
        self._tell = tell
        self._ended: dict[str, Seq] = {}
        """Per table the seq of the entry whose mark is being removed."""

    def forget(self) -> None:
        """The leader changed: what was proposed is answered or lost."""
        self._ended.clear()

    def look(self, now_ms: int) -> None:
        """Order what can be done now. The caller leads the metadata channel, and is ready."""
        resizing = [table for table in self._view.catalog.tables.values() if table.is_resizing]
        if not resizing or self._view.refusal_of_format(MEMBERS_FORMAT) is not None:
            return
        wanted = {channel: table.replicas for table in resizing for channel in table.channels}
        self._order(wanted, now_ms)
        for table in resizing:
            self._cancel_contrary(table, now_ms)
            if self._is_done(table):
                self._end(table, now_ms)

    def _order(self, wanted: dict[ChannelId, int], now_ms: int) -> None:
        catalog = self._view.catalog
        nodes = CountedNodes(
            [node for node in catalog.placeable() if self._is_up(node)],
            leaving_nodes(catalog),
            self._is_up,
            catalog.domains(),
        )
        hosted = self._orders.hosted_channels()
        for each in plan_counts(hosted, wanted, nodes, lambda name: self._view.leader_of(name)[0]):
            members = each.voters, each.learners, each.witnesses
            self._orders.order(each.channel, members, RESIZED, now_ms)

    def _cancel_contrary(self, table: TableEntry, now_ms: int) -> None:
        """Orders that were given for another number, before the table was edited again."""
        for channel in table.channels:
            entry = self._view.catalog.changes.get(channel)
            if entry is None or entry.order is None or entry.order.reason != RESIZED:
                continue
            target, present = entry.order.target, len(entry.config.voter_sets[-1])
            goes_away = abs(len(target.voters) - table.replicas) > abs(present - table.replicas)
            if goes_away and not target.cancelled:
                self._orders.cancel(channel, target.change, now_ms)

    def _is_done(self, table: TableEntry) -> bool:
        for channel in table.channels:
            entry = self._view.catalog.entry_of(channel)
            if entry is None or entry.order is not None:
                return False
            if len(entry.config.voters) != table.replicas:
                return False
        return True

    def _end(self, table: TableEntry, now_ms: int) -> None:
        seq = self._view.catalog.seqs[table.name]
        if self._ended.get(table.name) == seq:
            return
        self._ended[table.name] = seq
        command = edit_table_command(msgspec.structs.replace(table, is_resizing=False), seq)
        self._view.proposals.propose(self._view.metadata, command, self._answered(table), now_ms)

    def _answered(self, table: TableEntry) -> OnOutcome:
        def done(answer: PubAck | PubReject, now_ms: int) -> None:
            del now_ms
            if isinstance(answer, PubReject) or answer.conflict:
                self._ended.pop(table.name, None)
            else:
                self._tell("table_resized", table=table.name, replicas=table.replicas)

        return done
