"""/clusterStatus in the shape of the ksqlDB article (BLOG-24), with roles, terms and viewpoint.

Times of the wall clock are for people only; everything that decides is an age (KLIP-31).
With a thousand channels an answer has some ten thousand parts, made within milliseconds and for one
answer: they hold no cycles, and the garbage collector need not look at them (``gc=False``).
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec

from raftstore.policy.channel_record import ChannelRecord, RecordBody
from raftstore.protocol.admin import ChannelView, ClusterViewAnswer, NodeView
from raftstore.protocol.reads import Bounds
from raftstore.types import NodeId, Term, node_name

DOWN = "down"
LEADER = "leader"


class LagInfoBody(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One partition on one node (BLOG-27)."""

    current_offset_position: int
    end_offset_position: int
    offset_lag: int | None
    """null: not known, which counts as infinite."""
    time_lag_ms: int | None = None


class PartitionName(msgspec.Struct, frozen=True, gc=False):
    """A partition as the sources name it."""

    topic: str
    partition: int


class ActiveStandby(msgspec.Struct, frozen=True, gc=False):
    """Partitions of a table that a node leads and follows; names as in the source (BLOG-24)."""

    active_stores: list[str] = msgspec.field(name="activeStores")
    active_partitions: list[PartitionName] = msgspec.field(name="activePartitions")
    standby_stores: list[str] = msgspec.field(name="standByStores")
    standby_partitions: list[PartitionName] = msgspec.field(name="standByPartitions")


class StoreLags(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Lags of one table on one node."""

    lag_by_partition: dict[str, LagInfoBody]


class HostStoreLags(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Lags of one node; ``updateTimeMs`` is when they were reported (BLOG-28)."""

    state_store_lags: dict[str, StoreLags]
    update_time_ms: int


class HostStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
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
    failure_domain: str
    """What fails together with it, such as a rack; empty: it did not say."""


class ReplicaBody(msgspec.Struct, frozen=True, gc=False):
    """Known facts about one replica; null: not known."""

    node: str
    role: str
    position: int
    lag: int | None
    time_lag_ms: int | None
    batches_behind: int | None
    update_ms_ago: int | None


class ChannelStatus(msgspec.Struct, frozen=True, gc=False):
    """One partition: everything that routing uses (BLOG-29)."""

    table: str
    partition: int
    leader: str | None
    term: int
    end_position: int
    leader_info_age_ms: int | None
    replicas: list[ReplicaBody]
    batches: int | None
    """Micro-batches in what is committed; null: not known; 0: nobody marks them."""
    record: RecordBody | None
    """null: its leader is not known, or has not reported yet who is in sync."""


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
    view_age_ms: int
    """Since this view was built; all other ages in it are of that moment."""
    bounds: BoundsBody
    channels: list[ChannelStatus]
    table_bounds: dict[str, BoundsBody]
    """Of the tables that have bounds of their own."""


class LagsBody(msgspec.Struct, frozen=True, rename="camel"):
    """Lags by node, as last reported."""

    lags: dict[str, HostStoreLags]
    viewpoint: str
    view_age_ms: int
    """Since this view was built."""


_Lags = dict[NodeId, dict[str, StoreLags]]
_table: Final = attrgetter("table")

Layout = dict[NodeId, dict[str, ActiveStandby]]
"""By node and table: which partitions it leads, and which it only follows."""


class KeptLayout:
    """The layout of the last view, for the next: it is another only when a channel or a leader
    is."""

    def __init__(self) -> None:
        self._of: tuple[object, ...] | None = None
        self._layout: Layout = {}

    def of(self, view: ClusterViewAnswer) -> Layout:
        """The layout that a view gives; callers change nothing in it."""
        channels = view.channels
        # The replicas of a channel are those of its version of the catalog.
        of = (
            view.version,
            [node.node for node in view.nodes],
            [channel.channel for channel in channels],
            [channel.leader for channel in channels],
        )
        if of != self._of:
            self._of, self._layout = of, _layout(view)
        return self._layout


def cluster_status(view: ClusterViewAnswer, wall_ms: int, kept: KeptLayout) -> ClusterStatusBody:
    """Return a node's view in the shape of answers."""
    lags, layout, names = _lags(view), kept.of(view), _Names()
    built_ms = wall_ms - view.built_ms_ago
    return ClusterStatusBody(
        cluster_status={
            node.endpoint: _host(node, layout[node.node], lags, built_ms) for node in view.nodes
        },
        viewpoint=node_name(view.viewpoint),
        cluster_id=view.cluster_id.hex(),
        version=view.version,
        age_ms=view.age_ms,
        view_age_ms=view.built_ms_ago,
        bounds=_bounds(view.bounds),
        channels=[_channel(channel, names, view.metadata_term) for channel in view.channels],
        table_bounds={name: _bounds(bounds) for name, bounds in view.table_bounds.items()},
    )


def all_lags(view: ClusterViewAnswer, wall_ms: int) -> LagsBody:
    """Return what every node last reported of its positions."""
    lags = _lags(view)
    built_ms = wall_ms - view.built_ms_ago
    reported = {node.endpoint: _lags_of_host(node, lags, built_ms) for node in view.nodes}
    return LagsBody(reported, node_name(view.viewpoint), view.built_ms_ago)


def _bounds(bounds: Bounds) -> BoundsBody:
    return BoundsBody(bounds.max_lag, bounds.max_staleness_ms, bounds.max_batches_behind)


class _Names(dict[NodeId, str]):
    """Names of nodes, each made once."""

    def __missing__(self, node: NodeId) -> str:
        name = self[node] = node_name(node)
        return name


def _host(
    node: NodeView, active_standby: dict[str, ActiveStandby], lags: _Lags, built_ms: int
) -> HostStatus:
    is_alive = node.state != DOWN
    # BLOG-25, BLOG-26: what a dead node held is reported by its channels, not by it.
    return HostStatus(
        host_alive=is_alive,
        last_status_update_ms=_moment(built_ms, node.last_heard_ms_ago),
        active_standby_per_query=active_standby if is_alive else {},
        host_store_lags=_lags_of_host(node, lags, built_ms),
        node=node_name(node.node),
        state=node.state,
        http=node.http,
        last_heard_ms_ago=node.last_heard_ms_ago,
        clock_skew_ms=node.clock_skew_ms,
        failure_domain=node.failure_domain,
    )


def _lags_of_host(node: NodeView, lags: _Lags, built_ms: int) -> HostStoreLags:
    """Return what a node reported of its replicas, nothing of a dead one."""
    if node.state == DOWN:
        return HostStoreLags({}, 0)
    return HostStoreLags(lags[node.node], _moment(built_ms, node.lag_update_ms_ago))


def _moment(wall_ms: int, ms_ago: int | None) -> int:
    return 0 if ms_ago is None else wall_ms - ms_ago


def _layout(view: ClusterViewAnswer) -> Layout:
    layout: Layout = {node.node: {} for node in view.nodes}
    for channel in view.channels:
        partition = PartitionName(channel.table, channel.partition)
        for replica in channel.replicas:
            tables = layout.get(replica.node)
            if tables is None:
                continue
            known = tables.get(channel.table)
            if known is None:
                known = tables[channel.table] = ActiveStandby([], [], [], [])
            is_active = channel.leader == replica.node
            stores = known.active_stores if is_active else known.standby_stores
            partitions = known.active_partitions if is_active else known.standby_partitions
            if not stores:
                stores.append(channel.table)
            partitions.append(partition)
    return layout


def _lags(view: ClusterViewAnswer) -> _Lags:
    """Return the lags of all replicas by node, table and partition; channels come by table."""
    lags: _Lags = {node.node: {} for node in view.nodes}
    for table, channels in groupby(view.channels, _table):
        of_table: dict[NodeId, dict[str, LagInfoBody]] = {node: {} for node in lags}
        for channel in channels:
            partition, end_seq = str(channel.partition), channel.end_seq
            for replica in channel.replicas:
                if replica.node in of_table:
                    applied_seq = replica.applied_seq
                    of_table[replica.node][partition] = LagInfoBody(
                        applied_seq,
                        max(applied_seq, end_seq),
                        replica.lag,
                        replica.time_lag_ms,
                    )
        for node, by_partition in of_table.items():
            if by_partition:
                lags[node][table] = StoreLags(by_partition)
    return lags


def _channel(channel: ChannelView, names: _Names, metadata_term: Term) -> ChannelStatus:
    return ChannelStatus(
        channel.table,
        channel.partition,
        None if channel.leader is None else names[channel.leader],
        channel.term,
        channel.end_seq,
        channel.leader_info_age_ms,
        [
            ReplicaBody(
                names[hint.node],
                hint.role,
                hint.applied_seq,
                hint.lag,
                hint.time_lag_ms,
                hint.batches_behind,
                hint.update_ms_ago,
            )
            for hint in channel.replicas
        ],
        channel.batches,
        _record(channel, metadata_term),
    )


def _record(channel: ChannelView, metadata_term: Term) -> RecordBody | None:
    sync = channel.sync
    if sync is None or channel.leader is None:
        return None
    return ChannelRecord(
        channel.leader,
        channel.term,
        tuple(hint.node for hint in channel.replicas),
        sync.isr,
        sync.hot_standbys,
        sync.iss,
        metadata_term,
        sync.config_seq,
    ).shown()


def lag_rows(state_store_lags: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Return (table, partition, current, end) of a lag report's body."""
    return [
        (table, int(partition), info.current_offset_position, info.end_offset_position)
        for table, lags in state_store_lags.items()
        for partition, info in lags.lag_by_partition.items()
    ]
