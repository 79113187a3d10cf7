"""The shape of a node's status: what ``raftstore status -o json`` and ``StatusAnswer`` carry.

A snapshot from one node's viewpoint, made of plain JSON values. Fields are only ever added. Times
are ages in ms, sizes are bytes, positions are seqs, lags are rows; null is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from raftstore.types import ChannelId, MemberRole, NodeId, Role, Seq, Term, node_name

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
    failure_domain: str
    """What fails together with it, by the catalog; empty: it did not say."""


class ReplicaStatus(TypedDict):
    """One replica of a channel, as far as the viewpoint knows."""

    node: str
    up: bool
    is_leader: bool
    applied_seq: int | None
    lag: int | None
    cannot_complete: bool
    """It reported to the viewpoint, its leader, that it falls further behind all the time."""
    member: str
    """Its part in the channel: voter, witness (votes, has no rows), reader (a read replica, never
    votes) or learner (on its way to be a voter)."""


class FloorStatus(TypedDict):
    """A reason to keep records of a channel's log on the viewpoint's disk."""

    name: str
    owner: str
    seq: int
    """Records behind it are needed."""
    bytes_max: int | None
    """Of log that is kept for it; None: it is never given up."""
    is_given_up: bool


class CatchUpStatus(TypedDict):
    """How far the viewpoint's replica is that catches up; rates are those of the last seconds."""

    reason: str
    for_ms: int
    """Since it began, under the present leader."""
    from_seq: int
    """Where its log parted from the leader's; 0: not known yet."""
    verified_seq: int
    end_seq: int
    """The leader's end, which moves on; 0: not known yet."""
    rows_left: int
    bytes_left: int
    """By the rows of the last answer."""
    bytes_taken: int
    rows_per_s: int
    bytes_per_s: int
    written_per_s: int
    """Rows a second by which the leader's end moved on."""
    left_ms: int | None
    """Until it is there, at this pace; None: never, or not known."""
    is_far: bool
    """Live requests are not queued yet."""
    cannot_complete: bool
    """It fell further behind in each of the last windows (``catchup.slow_windows``)."""
    waits: bool
    """For channels that are nearer to their end (``catchup.parallel``)."""


class CatchUpSum(TypedDict):
    """All replicas of the viewpoint that catch up, together."""

    channels: int
    waiting: int
    """Those of them that wait for nearer ones."""
    rows_left: int
    bytes_left: int
    bytes_taken: int
    rows_per_s: int
    bytes_per_s: int
    left_ms: int | None
    """Until all are there, at this pace; None: never, or not known."""
    cannot_complete: int
    flapping: int


class SeenChannel(TypedDict):
    """The viewpoint's own replica of a channel, and what it knows of the others."""

    channel: str
    table: str
    partition: int
    role: str
    member: str
    """The part of its replica, as of the others; empty: the channel has it no more."""
    term: int
    leader: str | None
    mode: str
    """steady, catching_up, recovering, or stopped (with ``reason``)."""
    reason: str
    slow_machine: str
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
    catch_up: CatchUpStatus | None
    """None: it is steady, or leads, or knows no leader."""
    flapping: bool
    """It left steady state five times within ten minutes."""
    gaps: list[GapStatus]
    """What is missing in front of ``end_seq`` and is asked for."""
    end_seq: int
    """The last seq that is held as a whole record, in the log or in front of it."""
    record: dict[str, Any] | None
    """A ``RecordBody``; None: the viewpoint does not lead the channel, or has committed nothing in
    its term yet."""
    late_standbys: dict[str, str]
    """Why standbys of a channel that the viewpoint leads are not in sync."""


class GapStatus(TypedDict):
    """Seqs that a replica misses between what it holds (NATS-214)."""

    from_seq: int
    to_seq: int
    age_ms: int
    """How long the node knows of it."""


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
    catch_up: CatchUpSum
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
    failure_domain: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A replica as the viewpoint knows it; None is unknown."""

    node: NodeId
    applied_seq: Seq | None
    lag: int | None
    cannot_complete: bool = False
    member: str = MemberRole.VOTER.value


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
    catch_up: CatchUpStatus | None = None
    flapping: bool = False
    gaps: Sequence[GapStatus] = ()
    end_seq: Seq = Seq(0)
    record: dict[str, Any] | None = None
    late_standbys: Mapping[NodeId, str] = field(default_factory=dict)
    member: str = MemberRole.VOTER.value
    slow_machine: str = ""
    """The command of a user's state machine that has not ended for long; empty: there is none."""


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
        catch_up=_catch_up_sum(channels),
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
        failure_domain=node.failure_domain,
    )


def _channel_status(channel: ChannelFacts, up: Mapping[NodeId, bool]) -> SeenChannel:
    return SeenChannel(
        channel=channel.channel.hex(),
        table=channel.table,
        partition=channel.partition,
        role=channel.role.value,
        member=channel.member,
        term=channel.term,
        leader=None if channel.leader is None else node_name(channel.leader),
        mode=channel.mode,
        reason=channel.reason,
        slow_machine=channel.slow_machine,
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
                cannot_complete=replica.cannot_complete,
                member=replica.member,
            )
            for replica in channel.replicas
        ],
        floors=list(channel.floors),
        catch_up=channel.catch_up,
        flapping=channel.flapping,
        gaps=list(channel.gaps),
        end_seq=channel.end_seq,
        record=channel.record,
        late_standbys={node_name(node): why for node, why in channel.late_standbys.items()},
    )


def _catch_up_sum(channels: Iterable[ChannelFacts]) -> CatchUpSum:
    """All channels that catch up, together (NATS-140)."""
    found = list(channels)
    reported = [each.catch_up for each in found if each.catch_up is not None]
    left = sum(each["rows_left"] for each in reported)
    nearer = sum(each["rows_per_s"] - each["written_per_s"] for each in reported)
    return CatchUpSum(
        channels=len(reported),
        waiting=sum(each["waits"] for each in reported),
        rows_left=left,
        bytes_left=sum(each["bytes_left"] for each in reported),
        bytes_taken=sum(each["bytes_taken"] for each in reported),
        rows_per_s=sum(each["rows_per_s"] for each in reported),
        bytes_per_s=sum(each["bytes_per_s"] for each in reported),
        left_ms=1000 * left // nearer if nearer > 0 else None,
        cannot_complete=sum(each["cannot_complete"] for each in reported),
        flapping=sum(each.flapping for each in found),
    )


def _warnings(
    facts: StatusFacts, nodes: Iterable[NodeFacts], channels: Iterable[ChannelFacts]
) -> Iterable[str]:
    """Warnings for a person, one sentence each, with the value and the remedy."""
    if facts.log_bytes > facts.log_size_warning_bytes:
        yield (
            f"the log takes {facts.log_bytes} bytes, more than {facts.log_size_warning_bytes}; "
            "retention.enabled is off, or something keeps records: 'raftstore channel info' says "
            "what"
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
        if channel.catch_up is not None and channel.catch_up["cannot_complete"]:
            rows = channel.catch_up["rows_left"]
            yield (
                f"{name} falls further behind its leader all the time, {rows} rows by now; give "
                "this node a faster disk or processor, or write less"
            )
        if channel.flapping:
            yield (
                f"{name} left steady state five times within ten minutes, see `raftstore events "
                "--type flapping`; look at the network and at the load of this node"
            )
