"""The cluster as a node describes it to clients: its nodes, its tables and their leaders (S1.9)."""

from __future__ import annotations

from collections.abc import Mapping

from raftstore.engine.reports.node_parts import NodeParts
from raftstore.engine.reports.view_report import ViewReport
from raftstore.protocol.admin import (
    DRAINING,
    UNREGISTERED,
    ChannelInfo,
    ChannelView,
    ClusterInfo,
    ClusterInfoAnswer,
    NodeInfo,
    TableInfo,
)
from raftstore.state_machines.catalog import Catalog, TableEntry
from raftstore.types import ChannelId, NodeId, channel_id, node_name


class ClusterInfoReport:
    """Describes the cluster as one node knows it."""

    def __init__(self, parts: NodeParts, views: ViewReport) -> None:
        self._identity = parts.identity
        self._controller = parts.controller
        self._watch = parts.watch
        self._reader = parts.reader
        self._views = views

    def answer(self, request: ClusterInfo, now_ms: int) -> ClusterInfoAnswer:
        """The node's copy of the catalog with its version and age (S1.9); no age, no promise."""
        me, catalog = self._identity.me, self._controller.catalog
        metadata = self._controller.metadata
        lag, age = self._reader.lag(metadata, now_ms)
        known = self._views.channels(now_ms) if request.with_lags else {}
        levels, domains = self._controller.levels(), catalog.domains()
        nodes = [
            NodeInfo(
                member,
                endpoint,
                self._watch.is_routable(member, now_ms),
                pid=self._identity.pid if member == me else 0,
                http=self._watch.reports.http_of.get(member, ""),
                level=levels[member],
                state=_state_of(member, catalog),
                failure_domain=domains.get(member, ""),
            )
            for member, endpoint in self._controller.endpoints().items()
        ]
        return ClusterInfoAnswer(
            request_id=request.request_id,
            cluster_id=self._identity.cluster_id,
            version=catalog.version,
            age_ms=age if lag == 0 else None,
            answered_by=me,
            nodes=tuple(nodes),
            tables=tuple(self._table_info(table, known) for table in catalog.tables.values()),
            metadata_channel=self._channel_info(
                metadata.channel, metadata.core.config().voters, known
            ),
        )

    def _table_info(self, table: TableEntry, known: Mapping[ChannelId, ChannelView]) -> TableInfo:
        catalog = self._controller.catalog
        return TableInfo(
            name=table.name,
            uuid=table.uuid,
            key_columns=table.key_columns,
            partitions=table.partitions,
            replicas=table.replicas,
            durability=table.durability,
            max_lag=table.max_lag,
            schema_json=table.schema_json,
            max_staleness_ms=table.max_staleness_ms,
            max_batches_behind=table.max_batches_behind,
            standby_reads=table.standby_reads,
            max_replica_lag=table.max_replica_lag,
            settings=table.settings,
            seq=catalog.seqs[table.name],
            voters=tuple(len(catalog.voters_of(each)) for each in table.channels)
            if table.is_resizing
            else (),
            machine=table.machine,
            machine_version=table.machine_version,
            channels=tuple(
                self._channel_info(channel_id(table.uuid, partition), tuple(replicas), known)
                for partition, replicas in enumerate(catalog.placement_of(table))
            ),
        )

    def _channel_info(
        self,
        channel: ChannelId,
        replicas: tuple[NodeId, ...],
        known: Mapping[ChannelId, ChannelView],
    ) -> ChannelInfo:
        leader, term = self._controller.leader_of(channel)
        roles = dict(self._controller.catalog.roles_of(channel))
        view = known.get(channel)
        # A view of a moment ago may be of other replicas: a table that was made anew, say.
        if view is None or tuple(hint.node for hint in view.replicas) != replicas:
            return ChannelInfo(channel, replicas, leader, term, roles=roles)
        lags = tuple([hint.lag for hint in view.replicas])
        iss = view.sync.iss if view.sync is not None and view.leader == leader else ()
        return ChannelInfo(channel, replicas, leader, term, view.end_seq, lags, roles, iss)


def _state_of(member: NodeId, catalog: Catalog) -> str:
    if member in catalog.draining:
        return DRAINING
    if (tag := catalog.rebalance.tags.get(member)) is not None:
        return tag.value
    entry = catalog.nodes.get(node_name(member))
    return "" if entry is not None and entry.node == member else UNREGISTERED
