"""/clusterStatus in the shape of the ksqlDB article (BLOG-24), with roles, terms and viewpoint.

Times of the wall clock are for people only; everything that decides is an age (KLIP-31).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from raftstore.requests import ChannelView, ClusterViewAnswer, NodeView, ReplicaHint
from raftstore.types import NodeId, node_name

DOWN = "down"
LEADER = "leader"


class LagInfoBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One partition on one node (BLOG-27)."""

    current_offset_position: int
    end_offset_position: int
    offset_lag: int | None
    """null: not known, which counts as infinite."""
    time_lag_ms: int | None = None


class PartitionName(msgspec.Struct, frozen=True):
    """A partition as the sources name it."""

    topic: str
    partition: int


class ActiveStandby(msgspec.Struct, frozen=True):
    """What a node leads and follows of one table; the names are the sources' (BLOG-24)."""

    active_stores: list[str] = msgspec.field(name="activeStores")
    active_partitions: list[PartitionName] = msgspec.field(name="activePartitions")
    standby_stores: list[str] = msgspec.field(name="standByStores")
    standby_partitions: list[PartitionName] = msgspec.field(name="standByPartitions")


class StoreLags(msgspec.Struct, frozen=True, rename="camel"):
    """Lags of one table on one node."""

    lag_by_partition: dict[str, LagInfoBody]


class HostStoreLags(msgspec.Struct, frozen=True, rename="camel"):
    """Lags of one node; ``updateTimeMs`` is when they were told (BLOG-28)."""

    state_store_lags: dict[str, StoreLags]
    update_time_ms: int


class HostStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One node as the node asked sees it; a dead one has nothing but its last sign of life."""

    host_alive: bool
    last_status_update_ms: int
    active_standby_per_query: dict[str, ActiveStandby]
    host_store_lags: HostStoreLags
    node: str
    state: str
    """up, suspect or down."""
    http: str
    last_heard_ms_ago: int | None
    clock_skew_ms: int | None


class ReplicaBody(msgspec.Struct, frozen=True):
    """What is known of one replica; null: not known."""

    node: str
    role: str
    position: int
    lag: int | None
    time_lag_ms: int | None
    batches_behind: int | None
    update_ms_ago: int | None


class ChannelStatus(msgspec.Struct, frozen=True):
    """One partition: everything that routing uses (BLOG-29)."""

    table: str
    partition: int
    leader: str | None
    term: int
    end_position: int
    leader_info_age_ms: int | None
    replicas: list[ReplicaBody]


class BoundsBody(msgspec.Struct, frozen=True):
    """The node's own bounds, for reads and tables that name none."""

    max_lag: int | None
    max_staleness_ms: int | None
    max_batches_behind: int | None


class ClusterStatusBody(msgspec.Struct, frozen=True):
    """The cluster from the viewpoint of one node (KLIP-33)."""

    cluster_status: dict[str, HostStatus] = msgspec.field(name="clusterStatus")
    viewpoint: str
    cluster_id: str
    version: int
    age_ms: int | None
    """Since the catalog was known to be complete; null: it is not."""
    bounds: BoundsBody
    channels: list[ChannelStatus]


class LagsBody(msgspec.Struct, frozen=True, rename="camel"):
    """Lags by node, as last told."""

    lags: dict[str, HostStoreLags]
    viewpoint: str


def cluster_status(view: ClusterViewAnswer, wall_ms: int) -> ClusterStatusBody:
    """Return a node's view in the shape of answers."""
    held: dict[NodeId, list[tuple[ChannelView, ReplicaHint]]] = {n.node: [] for n in view.nodes}
    for channel in view.channels:
        for replica in channel.replicas:
            if replica.node in held:
                held[replica.node].append((channel, replica))
    return ClusterStatusBody(
        cluster_status={
            node.endpoint: _host(node, held[node.node], wall_ms) for node in view.nodes
        },
        viewpoint=node_name(view.viewpoint),
        cluster_id=view.cluster_id.hex(),
        version=view.version,
        age_ms=view.age_ms,
        bounds=BoundsBody(
            view.bounds.max_lag, view.bounds.max_staleness_ms, view.bounds.max_batches_behind
        ),
        channels=[_channel(channel) for channel in view.channels],
    )


def all_lags(view: ClusterViewAnswer, wall_ms: int) -> LagsBody:
    """Return what every node last told of its positions."""
    status = cluster_status(view, wall_ms)
    lags = {host: told.host_store_lags for host, told in status.cluster_status.items()}
    return LagsBody(lags, status.viewpoint)


def _host(node: NodeView, held: list[tuple[ChannelView, ReplicaHint]], wall_ms: int) -> HostStatus:
    is_alive = node.state != DOWN
    # BLOG-25, BLOG-26: what a dead node held is told by its channels, not by it.
    held = held if is_alive else []
    return HostStatus(
        host_alive=is_alive,
        last_status_update_ms=_moment(wall_ms, node.last_heard_ms_ago),
        active_standby_per_query=_active_standby(held),
        host_store_lags=HostStoreLags(
            _lags(held), _moment(wall_ms, node.lag_update_ms_ago) if is_alive else 0
        ),
        node=node_name(node.node),
        state=node.state,
        http=node.http,
        last_heard_ms_ago=node.last_heard_ms_ago,
        clock_skew_ms=node.clock_skew_ms,
    )


def _moment(wall_ms: int, ms_ago: int | None) -> int:
    return 0 if ms_ago is None else wall_ms - ms_ago


def _active_standby(
    held: Iterable[tuple[ChannelView, ReplicaHint]],
) -> dict[str, ActiveStandby]:
    tables: dict[str, ActiveStandby] = {}
    for channel, replica in held:
        known = tables.setdefault(channel.table, ActiveStandby([], [], [], []))
        is_active = channel.leader == replica.node
        stores = known.active_stores if is_active else known.standby_stores
        partitions = known.active_partitions if is_active else known.standby_partitions
        if not stores:
            stores.append(channel.table)
        partitions.append(PartitionName(channel.table, channel.partition))
    return tables


def _lags(held: Iterable[tuple[ChannelView, ReplicaHint]]) -> dict[str, StoreLags]:
    tables: dict[str, StoreLags] = {}
    for channel, replica in held:
        info = LagInfoBody(
            current_offset_position=replica.applied_seq,
            end_offset_position=max(channel.end_seq, replica.applied_seq),
            offset_lag=replica.lag,
            time_lag_ms=replica.time_lag_ms,
        )
        known = tables.setdefault(channel.table, StoreLags({}))
        known.lag_by_partition[str(channel.partition)] = info
    return tables


def _channel(channel: ChannelView) -> ChannelStatus:
    return ChannelStatus(
        table=channel.table,
        partition=channel.partition,
        leader=None if channel.leader is None else node_name(channel.leader),
        term=channel.term,
        end_position=channel.end_seq,
        leader_info_age_ms=channel.leader_info_age_ms,
        replicas=[
            ReplicaBody(
                node=node_name(hint.node),
                role=hint.role,
                position=hint.applied_seq,
                lag=hint.lag,
                time_lag_ms=hint.time_lag_ms,
                batches_behind=hint.batches_behind,
                update_ms_ago=hint.update_ms_ago,
            )
            for hint in channel.replicas
        ],
    )


def lag_rows(state_store_lags: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Return (table, partition, current, end) of a lag report's body."""
    return [
        (table, int(partition), info.current_offset_position, info.end_offset_position)
        for table, lags in state_store_lags.items()
        for partition, info in lags.lag_by_partition.items()
    ]
