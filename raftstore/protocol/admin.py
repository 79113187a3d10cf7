"""Tables, nodes, status, events, metrics: what operators and clients ask of the cluster itself."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from raftstore.metrics import Histogram, Sample
from raftstore.protocol.message import Message, Request
from raftstore.protocol.reads import Bounds, Served
from raftstore.protocol.table_settings import DEFAULT_SETTINGS, TableSettings
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    ChannelId,
    Count63,
    MemberRole,
    NodeId,
    Partition,
    PartitionCount,
    RequestId,
    Seq,
    Small31,
    Span63,
    Term,
    TimeoutMs,
    WallMs,
)


class ContentHash(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Hash of the whole applied table state of one channel on the node asked (channel verify)."""

    channel: ChannelId


class ContentHashAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``digest`` over keys, values and seqs in key order at ``applied_seq``."""

    request_id: RequestId
    digest: bytes
    rows: Count63
    served: Served


class ClusterInfo(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Ask for the node's copy of the catalog and its view of leaders (hints only, S7.4)."""

    known_version: Count63 = 0
    with_lags: bool = False


DRAINING: Final = "draining"
UNREGISTERED: Final = "unregistered"


class NodeInfo(msgspec.Struct, frozen=True, array_like=True):
    """A registered node: ``endpoint`` is its advertised host:port, ``http`` the one of its HTTP
    interface ("" = none)."""

    node: NodeId
    endpoint: str
    up: bool
    pid: Small31 = 0
    http: str = ""
    level: Small31 = 0
    """What the node reads beyond the first version, as far as the answering node knows."""
    state: str = ""
    """``draining``: no replica is placed there any more; the tag of a node that has one
    (``raftstore.protocol.rebalance.NodeTag``); ``unregistered``: it is not in the catalog yet, so
    its level is not known; empty: active."""
    failure_domain: str = ""
    """As in the catalog; empty: none."""


class ChannelInfo(msgspec.Struct, frozen=True, array_like=True):
    """Placement of one channel and who leads it as far as the answering node knows."""

    channel: ChannelId
    replicas: tuple[NodeId, ...]
    leader: NodeId | None
    term: Term
    end_seq: Seq = Seq(0)
    """Highest committed seq known to the answering node; 0 also when nothing is known."""
    replica_lags: tuple[Span63 | None, ...] = ()
    """Rows each replica is behind, in the order of ``replicas``; None: not known."""
    roles: dict[NodeId, MemberRole] = {}
    """Of the replicas that are no voters with rows: readers, witnesses, those that learn."""
    iss: tuple[NodeId, ...] = ()
    """Standbys in sync, as the leader reported; empty also when nothing is known."""


class TableInfo(msgspec.Struct, frozen=True, array_like=True):
    """A table of the catalog."""

    name: str
    uuid: bytes
    key_columns: tuple[str, ...]
    partitions: PartitionCount
    replicas: Small31
    durability: str
    max_lag: Count63 | None
    schema_json: str
    channels: tuple[ChannelInfo, ...]
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None
    standby_reads: bool = True
    """False: only the leader serves this table unless the query names a bound or level itself."""
    seq: Seq = Seq(0)
    """Of the catalog's record that wrote this entry; what EditTable compares."""
    max_replica_lag: Count63 | None = None
    """Rows; writes wait for a live replica that is further behind (BLOG-31)."""
    settings: TableSettings = DEFAULT_SETTINGS
    voters: tuple[Small31, ...] = ()
    """While partitions do not have ``replicas`` of them yet: how many each one has."""
    machine: str = ""
    """Of a channel set: its state machine; empty: it is a table."""
    machine_version: Small31 = 0
    """Of a channel set: the version with which it was created."""


class ClusterInfoAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The catalog at ``version`` (metadata channel's applied seq). ``age_ms`` is how long ago this
    copy was known to be complete; None: it is not known to be (S1.9)."""

    request_id: RequestId
    cluster_id: bytes
    version: Count63
    age_ms: Span63 | None
    answered_by: NodeId
    nodes: tuple[NodeInfo, ...]
    tables: tuple[TableInfo, ...]
    metadata_channel: ChannelInfo


class CreateTable(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Compare-and-set on the name; answered when every partition has a leader (S0.8).

    ``settings`` and ``machine``: nodes below ``raftstore.policy.levels.TABLE_SETTINGS_LEVEL`` and
    ``MACHINE_LEVEL`` would skip them, so they are only sent to others.
    """

    name: str
    key_columns: tuple[str, ...]
    partitions: PartitionCount
    replicas: Small31
    durability: str
    max_lag: Count63 | None
    schema_json: str
    if_not_exists: bool
    timeout_ms: TimeoutMs
    settings: TableSettings = DEFAULT_SETTINGS
    machine: str = ""
    """Makes it a channel set: the user's state machine behind each partition, as ``module:Class``
    or the name of an entry point. Then there are no key columns and no schema."""
    machine_versions: tuple[Small31, Small31] | None = None
    """The lowest and the highest version in force in the state that is to be restored; None: the
    channel set begins with what the nodes have."""


class DropTable(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Remove a table; its UUID never serves again (S0.8). ``uuid`` names the very table that is
    meant, so that a retry never removes another one of the same name; b"" is whichever it is.
    ``writers``: who has batches in it, as (writer, lineage)."""

    name: str
    timeout_ms: TimeoutMs
    uuid: bytes = b""
    writers: tuple[tuple[str, str], ...] = ()


class Status(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The node's own state for `raftstore status`: channels, roles, lags, sizes, warnings."""


class StatusAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """A JSON-shaped snapshot; the shape is documented in ``raftstore.policy.status``."""

    request_id: RequestId
    status: dict[str, Any]


class StepDown(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: the leader of the channel hands over, to ``target`` if given (S9)."""

    channel: ChannelId
    target: NodeId | None = None
    timeout_ms: TimeoutMs = 5000


class Checkpoint(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: have all that this node acknowledged before it was on the disk synced (S0.6)."""


class CheckpointAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The node's channels whose tables ask for less than fsync, and up to which seq each is on its
    disk now."""

    request_id: RequestId
    durable: tuple[tuple[ChannelId, Seq], ...]


class EditTable(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Change properties of the table with this name and ``uuid``: max_lag, max_staleness_ms,
    max_batches_behind, max_replica_lag, standby_reads, replicas, those of ``TableSettings``,
    add_columns (appended to the schema: a schema's JSON). None removes one; Done carries the
    catalog's version, and replicas come and go behind it."""

    name: str
    uuid: bytes
    changes: dict[str, Any]
    timeout_ms: TimeoutMs


class Events(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Events of the node after number ``since``; no types means all of them."""

    since: Count63 = 0
    types: tuple[str, ...] = ()
    limit: Count63 = 1_000


class EventsAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``next`` is what to give as ``since`` the next time."""

    request_id: RequestId
    node: NodeId
    next: Count63
    events: tuple[dict[str, Any], ...]


class ClusterView(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """One node's viewpoint of everything that routing uses (KLIP-33, BLOG-29)."""

    with_channels: bool = True


class ReplicaHint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The node's knowledge of one replica of a channel; None: not known.

    ``role``: leader or follower, or what a replica is that never leads (``types.MemberRole``); of
    the node's own replica why, if that serves nothing (``raftstore.policy.views``).
    """

    node: NodeId
    applied_seq: Seq
    lag: Span63 | None
    time_lag_ms: Span63 | None
    batches_behind: Count63 | None
    role: str
    update_ms_ago: Span63 | None


class ChannelSync(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The replicas that keep up with the leader of a channel, as that leader knows it (FIP-06)."""

    isr: tuple[NodeId, ...]
    """Whose logs do, the leader included."""
    hot_standbys: tuple[NodeId, ...]
    iss: tuple[NodeId, ...]
    """Standbys in sync: those of both that have applied nearly everything, too."""
    config_seq: Seq
    """Where the committed configuration stands in the log; 0: it is the creation's."""


class ChannelView(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One channel as the node sees it; ``end_seq`` is the highest commit seq it knows of."""

    channel: ChannelId
    table: str
    partition: Partition
    leader: NodeId | None
    term: Term
    end_seq: Seq
    leader_info_age_ms: Span63 | None
    replicas: tuple[ReplicaHint, ...]
    batches: Count63 | None = None
    """Micro-batches in what is committed, as far as reported; 0: no writer ever marked the end of
    one."""
    sync: ChannelSync | None = None
    """None: its leader is not known, or has not reported it yet."""


class NodeView(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node as another sees it. ``state``: up, suspect or down; ages in ms, None: never."""

    node: NodeId
    endpoint: str
    http: str
    state: str
    last_heard_ms_ago: Span63 | None
    lag_update_ms_ago: Span63 | None
    clock_skew_ms: Span63 | None
    failure_domain: str = ""
    """As in the catalog; empty: none."""
    is_draining: bool = False
    """No replica is placed there any more."""


class ClusterViewAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``bounds`` are the node's own defaults, ``table_bounds`` those of the tables that have some;
    ``age_ms`` as in ClusterInfoAnswer.

    ``built_ms_ago``: many may ask within a moment and get the same view; all ages in ``nodes`` and
    ``channels`` are of when it was built.
    """

    request_id: RequestId
    viewpoint: NodeId
    cluster_id: bytes
    version: Count63
    age_ms: Span63 | None
    bounds: Bounds
    nodes: tuple[NodeView, ...]
    channels: tuple[ChannelView, ...]
    table_bounds: dict[str, Bounds] = {}
    built_ms_ago: Span63 = 0
    metadata_term: Term = Term(0)
    """Of the metadata channel, whose leader coordinates."""


class Metrics(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The node's counters, gauges and histograms."""


class MetricsAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """In Prometheus conventions: seconds, bytes and totals are in the name."""

    request_id: RequestId
    samples: tuple[Sample, ...]
    histograms: tuple[Histogram, ...]


class SeenHeartbeat(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """A heartbeat that came over HTTP (KLIP-19): counts for health, never for elections."""

    node: str
    sent_ms: WallMs


class SeenLags(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """A lag report that came over HTTP (KLIP-35): table, partition, current and end position.

    It only orders the routing of this node; it moves no bound and no known commit position."""

    node: str
    updated_ms: WallMs
    lags: tuple[tuple[str, Count63, Seq, Seq], ...]
