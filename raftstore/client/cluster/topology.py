"""A client's picture of a cluster: nodes, tables, replicas, leaders. Pure.

Everything is a hint (S7.4): the node asked decides whether it may answer. Terms order what is known
of a leader, the catalog's version what is known of tables; older news never replaces newer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from raftstore.protocol.admin import ChannelInfo, ClusterInfoAnswer, NodeInfo, TableInfo
from raftstore.types import ChannelId, MemberRole, NodeId, Term, node_name


class Leader(NamedTuple):
    """The leader of a channel and its term: together the address of a write (S5.6)."""

    node: NodeId
    term: Term


REFUTED_MS: Final = 1_000
"""How long a leader that denied leading is not believed by a report of the same term."""


def witnesses_of(channel: ChannelInfo) -> frozenset[NodeId]:
    """The replicas of a channel that have no rows."""
    roles = channel.roles
    return frozenset(node for node, role in roles.items() if role is MemberRole.WITNESS)


class Topology:
    """The newest of all answers and refusals so far."""

    def __init__(self) -> None:
        self.cluster_id = b""
        self.version = -1
        self.nodes: dict[NodeId, NodeInfo] = {}
        self.metadata_channel: ChannelId | None = None
        self._tables: dict[str, TableInfo] = {}
        self._replicas: dict[ChannelId, tuple[NodeId, ...]] = {}
        self._witnesses: dict[ChannelId, frozenset[NodeId]] = {}
        """Replicas without rows, of the channels that have any."""
        self._names: dict[ChannelId, str] = {}
        self._hosting: dict[NodeId, None] = {}
        """Every node that has a replica of something."""
        self._leaders: dict[ChannelId, Leader] = {}
        self._terms: dict[ChannelId, Term] = {}
        self._refuted: dict[ChannelId, tuple[Leader, int]] = {}
        self._listeners: list[Callable[[ChannelId], None]] = []

    # --- news ------------------------------------------------------------------------------------

    def on_leader_change(self, listener: Callable[[ChannelId], None]) -> None:
        """Call the listener after each change of a channel's leader."""
        self._listeners.append(listener)

    def merge(self, answer: ClusterInfoAnswer, now_ms: int) -> None:
        """Take a node's view: its catalog if it is not older, its leaders if they are newer."""
        if not self.cluster_id:
            self.cluster_id = answer.cluster_id
        if answer.cluster_id != self.cluster_id:
            return
        if answer.version >= self.version:
            self._take_catalog(answer)
        self._take_leader(answer.metadata_channel, now_ms)
        for table in answer.tables:
            for channel in table.channels:
                if channel.channel in self._replicas:
                    self._take_leader(channel, now_ms)

    def hint(self, channel: ChannelId, leader: Leader, now_ms: int) -> None:
        """A node named the leader; believed unless something newer is known."""
        refuted = self._refuted.get(channel)
        if refuted is not None:
            denied, until_ms = refuted
            if leader == denied and now_ms < until_ms:
                return
        newest = self._terms.get(channel, Term(0))
        is_first = leader.term == newest and channel not in self._leaders
        if leader.term > newest or is_first:
            self._terms[channel] = leader.term
            self._leaders[channel] = leader
            self._tell(channel)

    def refute(self, channel: ChannelId, leader: Leader, now_ms: int) -> None:
        """The node itself denied leading the channel in that term."""
        self._refuted[channel] = (leader, now_ms + REFUTED_MS)
        self._terms[channel] = max(leader.term, self._terms.get(channel, Term(0)))
        if self._leaders.get(channel) == leader:
            del self._leaders[channel]
            self._tell(channel)

    # --- questions -------------------------------------------------------------------------------

    def leader_of(self, channel: ChannelId) -> Leader | None:
        """Return the newest leader known, None if there is none."""
        return self._leaders.get(channel)

    @property
    def lacks_leaders(self) -> bool:
        """Whether a leader that denied leading has no successor that is known."""
        return any(channel not in self._leaders for channel in self._refuted)

    def replicas_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """Return the nodes that host the channel; () if it is not in the catalog."""
        return self._replicas.get(channel, ())

    def readable_of(self, channel: ChannelId) -> tuple[NodeId, ...]:
        """Return the nodes that have its rows; () if it is not in the catalog."""
        replicas = self._replicas.get(channel, ())
        witnesses = self._witnesses.get(channel)
        if witnesses is None:
            return replicas
        return tuple(node for node in replicas if node not in witnesses)

    def name_of(self, channel: ChannelId) -> str:
        """Return ``table/partition`` for messages."""
        return self._names.get(channel, channel.hex())

    def table(self, name: str) -> TableInfo | None:
        """Return a table as of the newest catalog; its leaders may be outdated."""
        return self._tables.get(name)

    def describe(self, table: TableInfo) -> TableInfo:
        """Return the table with the newest leaders known."""
        channels = tuple(map(self.describe_channel, table.channels))
        return msgspec.structs.replace(table, channels=channels)

    def describe_channel(self, channel: ChannelInfo) -> ChannelInfo:
        """Return the channel with the newest leader known; one reported down counts as none."""
        leader = self._leaders.get(channel.channel)
        node = None if leader is None else self.nodes.get(leader.node)
        if leader is None or (node is not None and not node.up):
            return msgspec.structs.replace(channel, leader=None)
        return msgspec.structs.replace(channel, leader=leader.node, term=leader.term)

    def tables(self) -> tuple[TableInfo, ...]:
        """Return all tables in name order, with the newest leaders known."""
        return tuple(self.describe(self._tables[name]) for name in sorted(self._tables))

    def node_named(self, name: str) -> NodeId | None:
        """Return the node with this label or full id."""
        for node in self.nodes:
            if name in (node, node_name(node)):
                return node
        return None

    # --- inside ----------------------------------------------------------------------------------

    def _take_catalog(self, answer: ClusterInfoAnswer) -> None:
        is_another = answer.version > self.version
        self._tables = {table.name: table for table in answer.tables}
        if is_another:
            self._take_placement(answer)
        # A node that was just born may not have met all others yet: replicas stay known.
        kept = {node: info for node, info in self.nodes.items() if node in self._hosting}
        self.nodes = kept | {info.node: info for info in answer.nodes}
        if is_another:
            self._forget_dropped()

    def _take_placement(self, answer: ClusterInfoAnswer) -> None:
        self.version = answer.version
        self.metadata_channel = answer.metadata_channel.channel
        self._replicas = {answer.metadata_channel.channel: answer.metadata_channel.replicas}
        self._names = {answer.metadata_channel.channel: "_metadata/0"}
        self._witnesses = {}
        for table in answer.tables:
            for partition, channel in enumerate(table.channels):
                self._replicas[channel.channel] = channel.replicas
                if witnesses := witnesses_of(channel):
                    self._witnesses[channel.channel] = witnesses
                self._names[channel.channel] = f"{table.name}/{partition}"
        self._hosting = dict.fromkeys(node for nodes in self._replicas.values() for node in nodes)

    def _forget_dropped(self) -> None:
        for dropped in [channel for channel in self._terms if channel not in self._replicas]:
            del self._terms[dropped]
            self._refuted.pop(dropped, None)
            if self._leaders.pop(dropped, None) is not None:
                self._tell(dropped)

    def _take_leader(self, channel: ChannelInfo, now_ms: int) -> None:
        # "No leader" is no news: the one known refuses by itself if it was deposed, and the node
        # that answered may be the one that is cut off.
        known = self._leaders.get(channel.channel)
        if known is not None and channel.term <= known.term:
            return
        if channel.leader is not None:
            self.hint(channel.channel, Leader(channel.leader, channel.term), now_ms)

    def _tell(self, channel: ChannelId) -> None:
        for listener in self._listeners:
            listener(channel)
