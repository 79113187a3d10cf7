"""The shape of a node's status: what ``raftstore status -o json`` and ``StatusAnswer`` carry.

A snapshot from one node's viewpoint, made of plain JSON values. Fields are only ever added. Times
are ages in ms, sizes are bytes, positions are seqs, lags are rows; null is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypedDict

from raftstore.types import ChannelId, NodeId, Role, Seq, Term, node_name

STATUS_VERSION: Final = 1
"""Raised when a field changes its meaning, which it should not."""


class SeenNode(TypedDict):
    """A node as the viewpoint sees it."""

    id: str
    name: str
    endpoint: str
    up: bool
    state: str
    """unknown, up, suspect or down."""
    last_heard_ms: int | None
    """Age of its last heartbeat; 0 for the viewpoint itself."""
    clock_skew_ms: int | None
    """Its wall clock minus the viewpoint's, transit included; for display only (KLIP-31)."""


class ReplicaStatus(TypedDict):
    """One replica of a channel, as far as the viewpoint knows."""

    node: str
    up: bool
    is_leader: bool
    applied_seq: int | None
    lag: int | None


class FloorStatus(TypedDict):
    """A reason to keep records of a channel's log on the viewpoint's disk."""

    name: str
    owner: str
    seq: int
    """Records behind it are needed."""
    bytes_max: int | None
    """Of log that is kept for it; None: it is never given up."""
    is_given_up: bool


class SeenChannel(TypedDict):
    """The viewpoint's own replica of a channel, and what it knows of the others."""

    channel: str
    table: str
    partition: int
    role: str
    term: int
    leader: str | None
    mode: str
    """steady, catching_up, recovering, or stopped (with ``reason``)."""
    reason: str
    applied_seq: int
    commit_seq: int
    last_seq: int
    base_seq: int
    """The last seq that its log does not hold any more."""
    log_bytes: int
    """Of its records behind that."""
    lag: int | None
    leader_info_age_ms: int | None
    replicas: list[ReplicaStatus]
    floors: list[FloorStatus]


class SizeStatus(TypedDict):
    """Bytes on the viewpoint's disk."""

    log_bytes: int
    table_bytes: int


class NodeReport(TypedDict):
    """The report of one node, the viewpoint, about itself and the others."""

    version: int
    viewpoint: str
    cluster_id: str
    catalog_version: int
    nodes: list[SeenNode]
    channels: list[SeenChannel]
    sizes: SizeStatus
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as the viewpoint knows it."""

    node: NodeId
    endpoint: str
    up: bool
    state: str
    last_heard_ms: int | None
    clock_skew_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A replica as the viewpoint knows it; None is unknown."""

    node: NodeId
    applied_seq: Seq | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """The viewpoint's replica of a channel."""

    channel: ChannelId
    table: str
    partition: int
    role: Role
    term: Term
    leader: NodeId | None
    mode: str
    applied_seq: Seq
    commit_seq: Seq
    last_seq: Seq
    lag: int | None
    leader_info_age_ms: int | None
    replicas: Sequence[ReplicaFacts] = ()
    reason: str = ""
    base_seq: Seq = Seq(0)
    log_bytes: int = 0
    floors: Sequence[FloorStatus] = ()


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """Everything a snapshot is made of."""

    viewpoint: NodeId
    cluster_id: bytes
    catalog_version: int
    log_bytes: int
    table_bytes: int
    log_size_warning_bytes: int
    nodes: Sequence[NodeFacts] = ()
    channels: Sequence[ChannelFacts] = ()
    warnings: Sequence[str] = field(default=())
    """Further warnings, one sentence each."""


def build_status(facts: StatusFacts) -> NodeReport:
    """Make the snapshot; nodes are ordered by name, channels by table and partition."""
    up = {node.node: node.up for node in facts.nodes}
    nodes = sorted(facts.nodes, key=lambda node: node.node)
    channels = sorted(facts.channels, key=lambda channel: (channel.table, channel.partition))
    return NodeReport(
        version=STATUS_VERSION,
        viewpoint=node_name(facts.viewpoint),
        cluster_id=facts.cluster_id.hex(),
        catalog_version=facts.catalog_version,
        nodes=[_node_status(node) for node in nodes],
        channels=[_channel_status(channel, up) for channel in channels],
        sizes=SizeStatus(log_bytes=facts.log_bytes, table_bytes=facts.table_bytes),
        warnings=[*_warnings(facts, nodes, channels), *facts.warnings],
    )


def _node_status(node: NodeFacts) -> SeenNode:
    return SeenNode(
        id=node.node,
        name=node_name(node.node),
        endpoint=node.endpoint,
        up=node.up,
        state=node.state,
        last_heard_ms=node.last_heard_ms,
        clock_skew_ms=node.clock_skew_ms,
    )


def _channel_status(channel: ChannelFacts, up: Mapping[NodeId, bool]) -> SeenChannel:
    return SeenChannel(
        channel=channel.channel.hex(),
        table=channel.table,
        partition=channel.partition,
        role=channel.role.value,
        term=channel.term,
        leader=None if channel.leader is None else node_name(channel.leader),
        mode=channel.mode,
        reason=channel.reason,
        applied_seq=channel.applied_seq,
        commit_seq=channel.commit_seq,
        last_seq=channel.last_seq,
        base_seq=channel.base_seq,
        log_bytes=channel.log_bytes,
        lag=channel.lag,
        leader_info_age_ms=channel.leader_info_age_ms,
        replicas=[
            ReplicaStatus(
                node=node_name(replica.node),
                up=up.get(replica.node, False),
                is_leader=replica.node == channel.leader,
                applied_seq=replica.applied_seq,
                lag=replica.lag,
            )
            for replica in channel.replicas
        ],
        floors=list(channel.floors),
    )


def _warnings(
    facts: StatusFacts, nodes: Iterable[NodeFacts], channels: Iterable[ChannelFacts]
) -> Iterable[str]:
    """Warnings for a person, one sentence each, with the value and the remedy."""
    if facts.log_bytes > facts.log_size_warning_bytes:
        yield (
            f"the log takes {facts.log_bytes} bytes, more than {facts.log_size_warning_bytes}; it "
            "only grows unless retention.enabled is set, so watch the free space of the disk"
        )
    for node in nodes:
        if not node.up:
            yield f"node {node_name(node.node)} at {node.endpoint} is down; start it again"
    for channel in channels:
        name = f"channel {channel.table}/{channel.partition}"
        if channel.leader is None:
            yield f"{name} has no leader known here; check that a majority of its replicas is up"
        if channel.reason:
            yield f"{name} is {channel.mode}: {channel.reason}"
