"""From a node's view to a query: its route, and whether there is one (BLOG-29, N9).

Pure functions of one ``ClusterViewAnswer``: a reader of the answer, or of its JSON, finds the same
route as the node that gave it. Nobody is asked to decide (KLIP-45); replicas judge again (S7.4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from raftstore.policy.bounds import UNBOUNDED, effective_bounds
from raftstore.policy.health import HealthState
from raftstore.policy.leader_balance import LeaderPlan, LedChannel, plan_moves
from raftstore.policy.placement import crowded
from raftstore.policy.routing import ReplicaView, Route, nodes_to_query
from raftstore.protocol.admin import ChannelView, ClusterViewAnswer, NodeView
from raftstore.protocol.reads import Bounds
from raftstore.types import Level, MemberRole, NodeId, node_name

NO_LEADER = "no leader is known"
MOVE_LAG_MAX: Final = 10_000
"""Rows that a replica may be behind, as far as reported, and still be asked to lead: it has to be
equal before it does, and its channel takes no writes meanwhile."""
SEE_STATUS: Final = "`raftstore status` says what it waits for"
SERVES_NOTHING: Final = {
    "in doubt": "in doubt since its last stop, it may lack acknowledged records; " + SEE_STATUS,
    "recovering": "recovering, acknowledged records are missing; " + SEE_STATUS,
    "not serving": "it serves nothing now; `raftstore status` says why",
    MemberRole.WITNESS.value: "a witness, it votes and has no rows",
}
"""What a node reports as the role of its own replica that refuses reads of every level, and of any
replica that has no rows."""
NEVER_LEADS: Final = frozenset(
    role.value for role in (MemberRole.READER, MemberRole.WITNESS, MemberRole.LEARNER)
)
"""Roles of replicas that are not asked to lead."""
NOT_COUNTED: Final = NEVER_LEADS - {MemberRole.WITNESS.value}
"""Roles of replicas that confirm nothing."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a partition has a replica that would be asked, and if not, why none."""

    table: str
    partition: int
    nodes: tuple[NodeId, ...]
    reason: str = ""

    @property
    def is_ready(self) -> bool:
        """Somebody would be asked."""
        return bool(self.nodes)


def nodes_by_id(view: ClusterViewAnswer) -> dict[NodeId, NodeView]:
    """The nodes of a view, to be looked up."""
    return {node.node: node for node in view.nodes}


def replica_views(
    channel: ChannelView, nodes: Mapping[NodeId, NodeView]
) -> tuple[ReplicaView, ...]:
    """The replicas of a channel as routing takes them; of a node nobody lists nothing is known."""
    return tuple(
        ReplicaView(
            node=hint.node,
            state=_state_of(nodes.get(hint.node)),
            lag=hint.lag,
            is_leader=hint.node == channel.leader,
            silent_ms=_silent_ms(nodes.get(hint.node)),
            time_lag_ms=hint.time_lag_ms,
            batches_behind=hint.batches_behind,
        )
        for hint in channel.replicas
    )


def route_of(
    channel: ChannelView, nodes: Mapping[NodeId, NodeView], level: Level, bounds: Bounds
) -> Route:
    """Nodes that a query of this level would ask, in order, and why not the others."""
    unable = {
        hint.node: SERVES_NOTHING[hint.role]
        for hint in channel.replicas
        if hint.role in SERVES_NOTHING
        and (hint.role == MemberRole.WITNESS.value or _lives(nodes.get(hint.node)))
    }
    route = _route_of(channel, nodes, level, bounds)
    able = tuple(node for node in route.nodes if node not in unable)
    return Route(able, route.refused | unable)


def _route_of(
    channel: ChannelView, nodes: Mapping[NodeId, NodeView], level: Level, bounds: Bounds
) -> Route:
    """The same, as if every replica served."""
    replicas = replica_views(channel, nodes)
    if level is Level.BOUNDED:
        if bounds.max_staleness_ms is not None and _can_be_proven(channel, nodes):
            replicas = tuple(map(_as_proven, replicas))
        return nodes_to_query(
            replicas,
            max_lag=bounds.max_lag,
            max_time_lag_ms=bounds.max_staleness_ms,
            max_batches_behind=bounds.max_batches_behind,
        )
    if level is Level.ANY:
        return nodes_to_query(replicas, max_lag=None)
    if channel.leader is None:
        return Route((), {replica.node: NO_LEADER for replica in replicas})
    return nodes_to_query(replicas, max_lag=None, only=channel.leader)


def readiness(
    view: ClusterViewAnswer, level: Level, bounds: Bounds, *, table: str | None = None
) -> Iterable[Readiness]:
    """Each partition of a table, or of all: who would be asked, or why nobody would (N9).

    Bounds that are not given are the table's, else the node's own, as with a query that names none.
    """
    nodes = nodes_by_id(view)
    for channel in view.channels:
        if table is not None and channel.table != table:
            continue
        own = view.table_bounds.get(channel.table, UNBOUNDED)
        route = route_of(channel, nodes, level, effective_bounds(bounds, own, view.bounds))
        reasons = "; ".join(f"{node_name(node)}: {why}" for node, why in route.refused.items())
        yield Readiness(channel.table, channel.partition, route.nodes, reasons)


def knows_replicas(view: ClusterViewAnswer) -> bool:
    """Whether the node that was asked knows who leads and how far the replicas are of all nodes
    that are up: one that was started a moment ago does not know it yet."""
    states = {node.node: HealthState(node.state) for node in view.nodes}
    if HealthState.UNKNOWN in states.values():
        return False
    return all(
        channel.leader is not None
        and all(
            hint.lag is not None
            for hint in channel.replicas
            if hint.node != channel.leader and states.get(hint.node) is HealthState.UP
        )
        for channel in view.channels
    )


def crowded_channels(view: ClusterViewAnswer) -> dict[str, list[ChannelView]]:
    """Channels with two replicas in one failure domain though a node that is up and does not drain
    is in a domain without any, by the domain that is shared. Of a channel whose replicas move at
    this moment those that come and those that go count."""
    domains = {node.node: node.failure_domain for node in view.nodes}
    if not any(domains.values()):
        return {}
    free = [
        node.node
        for node in view.nodes
        if node.state == HealthState.UP.value and not node.is_draining
    ]
    found: dict[str, list[ChannelView]] = {}
    for channel in view.channels:
        shared = crowded([hint.node for hint in channel.replicas], free, domains)
        if shared is not None:
            found.setdefault(shared, []).append(channel)
    return found


def leader_plan(view: ClusterViewAnswer, leaving: Collection[NodeId] = ()) -> LeaderPlan:
    """Which leaders should move, as far as the node knows that was asked (NATS-001).

    Nodes that are ``leaving`` shall lead nothing, the others that are up their share. A channel
    without a live leader is left alone, and so is a replica whose lag is not known or above
    ``MOVE_LAG_MAX``.
    """
    up = {node.node for node in view.nodes if node.state == HealthState.UP.value}
    channels: list[LedChannel] = []
    for channel in view.channels:
        if channel.leader is None or channel.leader not in up:
            continue
        near = tuple(
            hint.node
            for hint in channel.replicas
            if hint.node == channel.leader
            or (hint.role not in NEVER_LEADS and hint.lag is not None and hint.lag <= MOVE_LAG_MAX)
        )
        channels.append(LedChannel(channel.channel, channel.leader, near))
    domains = {node.node: node.failure_domain for node in view.nodes}
    return plan_moves(channels, up, leaving, domains)


def _can_be_proven(channel: ChannelView, nodes: Mapping[NodeId, NodeView]) -> bool:
    """Whether a read would bring about the round trip that proves how old a state is (S7.3).

    Nobody makes such proofs unasked, so reports of an idle channel are as old as its last report.
    The read makes them as long as the leader and a quorum of replicas live.
    """
    leader = None if channel.leader is None else nodes.get(channel.leader)
    voters = [hint for hint in channel.replicas if hint.role not in NOT_COUNTED]
    alive = [hint for hint in voters if _lives(nodes.get(hint.node))]
    return _lives(leader) and len(alive) > len(voters) // 2


def _lives(node: NodeView | None) -> bool:
    return _state_of(node) in (HealthState.UP, HealthState.UNKNOWN)


def _as_proven(replica: ReplicaView) -> ReplicaView:
    """One that lacks nothing by rows is complete as of the proof."""
    return replace(replica, time_lag_ms=0) if replica.lag == 0 else replica


def _state_of(node: NodeView | None) -> HealthState:
    if node is None:
        return HealthState.DOWN
    try:
        return HealthState(node.state)
    except ValueError:
        return HealthState.UNKNOWN


def _silent_ms(node: NodeView | None) -> int:
    return 0 if node is None or node.last_heard_ms_ago is None else node.last_heard_ms_ago
