"""Why a read would be answered by whom: every replica in order, chosen or refused with a reason.

Pure. What a replica would answer is judged by its own word, as it would judge itself; ``behind`` is
measured against the highest commit position that any node told at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from raftstore.client.results import ClusterStatus, NodeStatus
from raftstore.cluster.health import HealthState
from raftstore.cluster.lag import LagTable
from raftstore.cluster.routing import ReplicaView, nodes_to_query
from raftstore.messages import ChannelPosition
from raftstore.requests import TableInfo
from raftstore.types import Level, NodeId, Role, Seq, Term, node_name

NOT_THE_LEADER: Final = "not the leader"


@dataclass(frozen=True, slots=True)
class ReplicaVerdict:
    """One replica and what would become of the read there."""

    node: str
    order: int | None
    """1 is asked first; None: not asked."""
    is_leader: bool
    lag: int | None
    """Rows it believes to be behind; None: unknown, which counts as infinite."""
    behind: int | None
    """Rows it is behind what all nodes together know; None: it did not tell."""
    leader_info_age_ms: int | None
    reason: str
    """Why it is asked, or why not."""


@dataclass(frozen=True, slots=True)
class ReadExplanation:
    """Where a read of one key goes now."""

    table: str
    partition: int
    level: str
    max_lag: int | None
    replicas: tuple[ReplicaVerdict, ...]
    smallest_max_lag: int | None
    """The smallest ``max_lag`` that some replica would serve now; None: no bound would do."""

    @property
    def is_servable(self) -> bool:
        """Some replica would be asked."""
        return any(replica.order is not None for replica in self.replicas)


def explain_read(
    status: ClusterStatus, table: TableInfo, partition: int, level: Level, max_lag: int | None
) -> ReadExplanation:
    """Judge every replica of the partition by what all nodes said at the same moment."""
    channel = table.channels[partition].channel
    lags = LagTable(leader_info_age_max_ms=1)  # all words are of now
    own: dict[NodeId, Mapping[str, Any]] = {}
    views: list[ReplicaView] = []
    for node, said in _replicas(status, table, partition):
        own[node.node] = said
        if said:
            lags.on_positions(node.node, [_position(channel, said)], 0)
        views.append(node)
    bound = max_lag if level is Level.BOUNDED else None
    route = nodes_to_query(views, max_lag=bound)
    leader_only = level in (Level.LINEARIZABLE, Level.LEADER)
    asked = [n for n in route.nodes if not leader_only or _leads(own[n])]
    verdicts = [
        ReplicaVerdict(
            node=node_name(view.node),
            order=asked.index(view.node) + 1 if view.node in asked else None,
            is_leader=view.is_leader,
            lag=view.lag,
            behind=lags.lag(view.node, channel, 0),
            leader_info_age_ms=own[view.node].get("leader_info_age_ms"),
            reason=route.refused.get(view.node)
            or ("asked" if view.node in asked else NOT_THE_LEADER),
        )
        for view in views
    ]
    known = [v.lag for v in views if v.lag is not None and v.state is not HealthState.DOWN]
    return ReadExplanation(
        table=table.name,
        partition=partition,
        level=level.value,
        max_lag=bound,
        replicas=tuple(sorted(verdicts, key=lambda v: (v.order is None, v.order, v.node))),
        smallest_max_lag=min(known, default=None),
    )


def _replicas(
    status: ClusterStatus, table: TableInfo, partition: int
) -> Iterator[tuple[ReplicaView, Mapping[str, Any]]]:
    by_id: dict[str, NodeStatus] = {node.id: node for node in status.nodes}
    for node in table.channels[partition].replicas:
        told = by_id.get(node)
        said = _own_channel(told, table.name, partition)
        state = HealthState.UP if said else HealthState.DOWN
        yield ReplicaView(node, state, said.get("lag"), is_leader=_leads(said)), said


def _own_channel(node: NodeStatus | None, table: str, partition: int) -> Mapping[str, Any]:
    if node is None or node.status is None:
        return {}
    for channel in node.status["channels"]:
        if (channel["table"], channel["partition"]) == (table, partition):
            return dict(channel)
    return {}


def _leads(said: Mapping[str, Any]) -> bool:
    return said.get("role") == Role.LEADER.value


def _position(channel: Any, said: Mapping[str, Any]) -> ChannelPosition:
    return ChannelPosition(
        channel=channel,
        term=Term(said["term"]),
        is_leader=_leads(said),
        applied_seq=Seq(said["applied_seq"]),
        commit_seq=Seq(said["commit_seq"]),
        last_seq=Seq(said["last_seq"]),
        commit_hash=b"",
    )
