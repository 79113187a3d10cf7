"""The metadata leader's part in giving tables the number of replicas that they are to have.

An edit of a table's ``replicas`` marks its entry as resizing. While it is, each of its channels is
ordered nearer to that number, one replica at a time; when all have it and no order is open, the
mark goes. Everything is in the catalog, so any later leader goes on, and another edit on the way
only changes the number: an order that leads away from it is cancelled. What operators order for
channels of a table that is not resizing stays as they ordered it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

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
LONG_MS: Final = 60_000
"""A table that waits for longer is warned about."""


class TableWait(NamedTuple):
    """A table of which partitions do not have the replicas yet that they are to have."""

    table: str
    waited_ms: int
    replicas: int
    """Of each partition, that it is to have."""
    partitions_left: int
    partitions: int
    able: int
    """Nodes that are up and may be given replicas."""

    @property
    def warning(self) -> str:
        """For a person, with the remedy; empty: it has not waited for long."""
        if self.waited_ms < LONG_MS:
            return ""
        remedy = "`raftstore channel change ls` shows how far they are"
        if self.able < self.replicas:
            remedy = (
                f"only {self.able} nodes are up and take replicas: start those that are down, add "
                "nodes (`raftstore cluster token`), or `raftstore table alter "
                f"{self.table} --replicas {self.able}`"
            )
        return (
            f"table {self.table} waits for {self.replicas} replicas of each partition since "
            f"{self.waited_ms // 1000} s, {self.partitions_left} of {self.partitions} partitions "
            f"do not have them; {remedy}"
        )


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

        self._since_ms: dict[str, int] = {}
        """Since when each table that is resizing was seen to be."""

    def forget(self) -> None:
        """The leader changed: what was proposed is answered or lost."""
        self._ended.clear()
        self._since_ms.clear()

    def waiting(self, now_ms: int) -> list[TableWait]:
        """Tables that wait for their replicas, while this node leads the metadata channel; for how
        long is counted from when it began to lead that."""
        tables, able = self._view.catalog.tables, self._able()
        return [
            TableWait(
                name,
                now_ms - since_ms,
                tables[name].replicas,
                sum(not self._is_whole(channel, tables[name]) for channel in tables[name].channels),
                tables[name].partitions,
                len(able),
            )
            for name, since_ms in self._since_ms.items()
            if name in tables
        ]

    def _able(self) -> list[NodeId]:
        """Nodes that are up and may be given replicas."""
        return [node for node in self._view.catalog.placeable() if self._is_up(node)]

    def look(self, now_ms: int) -> None:
        """Order what can be done now. The caller leads the metadata channel, and is ready."""
        resizing = [table for table in self._view.catalog.tables.values() if table.is_resizing]
        self._since_ms = {table.name: self._since_ms.get(table.name, now_ms) for table in resizing}
        if not resizing or self._view.refusal_of_format(MEMBERS_FORMAT) is not None:
            return
        wanted = {channel: table.replicas for table in resizing for channel in table.channels}
        self._order(wanted, now_ms)
        for table in resizing:
            self._cancel_contrary(table, now_ms)
            if self._is_done(table):
                self._end(table, now_ms)

    def _order(self, wanted: dict[ChannelId, int], now_ms: int) -> None:
        catalog, able = self._view.catalog, self._able()
        if self._orders.are_full(len(able)):
            return
        nodes = CountedNodes(
            able,
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
        return all(self._is_whole(channel, table) for channel in table.channels)

    def _is_whole(self, channel: ChannelId, table: TableEntry) -> bool:
        entry = self._view.catalog.entry_of(channel)
        if entry is None or entry.order is not None:
            return False
        return len(entry.config.voters) == table.replicas

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
