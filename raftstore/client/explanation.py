"""Why a read would be answered by whom: every replica in order, chosen or refused with a reason.

Pure. What a replica would answer is judged by its own report, as it would judge itself; ``behind``
is measured against the highest commit position that any node reported at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from raftstore.client.cluster.topology import witnesses_of
from raftstore.client.results import ClusterStatus, NodeStatus
from raftstore.policy.health import HealthState
from raftstore.policy.lag import LagTable
from raftstore.policy.routing import NOT_HOSTING, Prefer, ReplicaView, Route, nodes_to_query
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.node import ChannelPosition
from raftstore.protocol.reads import Bounds, Served
from raftstore.types import FollowerMode, Level, NodeId, Role, Seq, Term, node_name

NOT_THE_LEADER: Final = "not the leader"
SERVES_NOTHING: Final = ("recovering", "stopped")
"""Modes in a node's status of replicas that refuse reads of every level."""
NOT_ASKED_FOR: Final = "another replica was asked for"


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
    """Rows it is behind what all nodes together know; None: it did not report."""
    leader_info_age_ms: int | None
    staleness_ms: int | None
    """Everything committed longer ago than this is in its state; None: it could not prove that."""
    batches_behind: int | None
    """Spark micro-batches it is behind; None: unknown."""
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
    max_staleness_ms: int | None = None
    max_batches_behind: int | None = None
    smallest_max_staleness_ms: int | None = None
    smallest_max_batches_behind: int | None = None
    """Likewise, of time and of micro-batches."""
    leader: str | None = None
    """The node that leads the partition by its own report."""
    preferred_leader: str = ""
    """The first replica of its placement, which leads a new table."""
    leader_note: str = ""
    """Why another one leads, or none; empty where the preferred one does."""

    @property
    def is_servable(self) -> bool:
        """Some replica would be asked."""
        return any(replica.order is not None for replica in self.replicas)


WITHOUT_ROWS: Final = "it is a witness, which votes and has no rows"


@dataclass(frozen=True, slots=True)
class Whom:
    """Which replicas a read wants, and in which order."""

    prefer: Prefer = Prefer.LEADER
    local: NodeId | None = None
    only: NodeId | None = None
    """The one node that the read names."""
    min_seq: Seq = Seq(0)
    """What its position asks for."""


def explain_read(
    status: ClusterStatus,
    table: TableInfo,
    partition: int,
    level: Level,
    bounds: Bounds,
    *,
    served: Mapping[NodeId, Served] | None = None,
    whom: Whom = Whom(),
) -> ReadExplanation:
    """Judge every replica of the partition by what all nodes said at the same moment.

    ``served`` is what replicas reported with an answer of just now: time and micro-batches.
    """
    reported = served or {}
    channel = table.channels[partition].channel
    lags = LagTable(leader_info_age_max_ms=1)  # all words are of now
    own: dict[NodeId, Mapping[str, Any]] = {}
    views: list[ReplicaView] = []
    for node, said in _replicas(status, table, partition):
        own[node.node] = said
        if said:
            lags.on_positions(node.node, [_position(channel, said)], 0)
        views.append(node)
    views = [_with_answer(view, reported.get(view.node)) for view in views]
    bounds = bounds if level is Level.BOUNDED else Bounds()
    route = nodes_to_query(
        views,
        max_lag=bounds.max_lag,
        max_time_lag_ms=bounds.max_staleness_ms,
        max_batches_behind=bounds.max_batches_behind,
        prefer=whom.prefer,
        local=whom.local,
        only=whom.only,
    )
    refusing = {node: why for node, said in own.items() if (why := _refusal(said))}
    refusing |= dict.fromkeys(witnesses_of(table.channels[partition]), WITHOUT_ROWS)
    route = replace(route, refused=route.refused | refusing)
    asked = [node for node in route.nodes if node not in refusing]
    if level in (Level.LINEARIZABLE, Level.LEADER):
        asked = [node for node in asked if _leads(own[node])]
    verdicts = []
    for view in views:
        lag = lags.lag(view.node, channel, 0)
        verdict = _verdict(view, lag, own[view.node], asked, route)
        verdicts.append(_with_reason(verdict, status, own, whom))
    if whom.only is not None and whom.only not in own:
        verdicts.append(_stranger(whom.only))
    alive = [view for view in views if _could_serve(view, refusing, whom)]
    return ReadExplanation(
        table=table.name,
        partition=partition,
        level=level.value,
        max_lag=bounds.max_lag,
        replicas=tuple(sorted(verdicts, key=lambda v: (v.order is None, v.order or 0, v.node))),
        smallest_max_lag=_smallest(view.lag for view in alive),
        max_staleness_ms=bounds.max_staleness_ms,
        max_batches_behind=bounds.max_batches_behind,
        smallest_max_staleness_ms=_smallest(view.time_lag_ms for view in alive),
        smallest_max_batches_behind=_smallest(view.batches_behind for view in alive),
        **_leadership(table, partition, own),
    )


def _refusal(said: Mapping[str, Any]) -> str:
    """Why the replica would serve nothing, in its own words; empty if it would."""
    mode = said.get("mode")
    return f"{mode}: {said.get('reason', '')}" if mode in SERVES_NOTHING else ""


def _could_serve(view: ReplicaView, refusing: Mapping[NodeId, str], whom: Whom) -> bool:
    """Whether some bound would have the read served there."""
    is_alive = view.state is not HealthState.DOWN and view.node not in refusing
    return is_alive and whom.only in (None, view.node)


def _leadership(
    table: TableInfo, partition: int, own: Mapping[NodeId, Mapping[str, Any]]
) -> dict[str, Any]:
    """The leader, the preferred leader, and why they differ."""
    placed = table.channels[partition]
    replicas = placed.replicas
    preferred = next((node for node in replicas if node not in placed.roles), replicas[0])
    leading = [node for node in replicas if _leads(own.get(node, {}))]
    leader = max(leading, key=lambda node: own[node]["term"], default=None)
    said = own.get(preferred, {})
    name = node_name(preferred)
    if leader == preferred:
        note = ""
    elif not said:
        note = f"{name} is preferred and does not answer"
    elif said.get("mode", FollowerMode.STEADY.value) != FollowerMode.STEADY.value:
        note = f"{name} is preferred and is {said['mode']}"
    elif leader is None:
        note = f"no leader is known; {name} is preferred"
    else:
        note = (
            f"{name} is preferred; a failover or a step-down moved the leadership (see "
            "`raftstore events`), and it does not return by itself: `raftstore channel step-down "
            f"{table.name}/{partition} --to {name}` moves it back"
        )
    return {
        "leader": None if leader is None else node_name(leader),
        "preferred_leader": name,
        "leader_note": note,
    }


def _verdict(
    view: ReplicaView,
    behind: int | None,
    said: Mapping[str, Any],
    asked: Sequence[NodeId],
    route: Route,
) -> ReplicaVerdict:
    is_asked = view.node in asked
    return ReplicaVerdict(
        node=node_name(view.node),
        order=asked.index(view.node) + 1 if is_asked else None,
        is_leader=view.is_leader,
        lag=view.lag,
        behind=behind,
        leader_info_age_ms=said.get("leader_info_age_ms"),
        staleness_ms=view.time_lag_ms,
        batches_behind=view.batches_behind,
        reason=route.refused.get(view.node) or ("asked" if is_asked else NOT_THE_LEADER),
    )


def _with_reason(
    verdict: ReplicaVerdict,
    status: ClusterStatus,
    own: Mapping[NodeId, Mapping[str, Any]],
    whom: Whom,
) -> ReplicaVerdict:
    """Say more than routing does: it knows only what it goes by."""
    [said] = [said for node, said in own.items() if node_name(node) == verdict.node]
    if whom.only is not None and verdict.node != node_name(whom.only):
        return replace(verdict, reason=NOT_ASKED_FOR)
    if not said:
        errors = {node.name: node.error for node in status.nodes}
        return replace(verdict, reason=f"not alive: {errors.get(verdict.node) or 'it is unknown'}")
    if verdict.order is not None and said["applied_seq"] < whom.min_seq:
        waits = f"asked; waits for seq {whom.min_seq}, it has applied {said['applied_seq']}"
        return replace(verdict, reason=waits)
    return verdict


def _stranger(node: NodeId) -> ReplicaVerdict:
    """The verdict on a node that was asked for and holds no replica."""
    return ReplicaVerdict(
        node=node_name(node),
        order=None,
        is_leader=False,
        lag=None,
        behind=None,
        leader_info_age_ms=None,
        staleness_ms=None,
        batches_behind=None,
        reason=NOT_HOSTING,
    )


def _smallest(known: Iterable[int | None]) -> int | None:
    return min((value for value in known if value is not None), default=None)


def _with_answer(view: ReplicaView, served: Served | None) -> ReplicaView:
    if served is None:
        return view
    return replace(view, time_lag_ms=served.staleness_ms, batches_behind=served.batches_behind)


def _replicas(
    status: ClusterStatus, table: TableInfo, partition: int
) -> Iterator[tuple[ReplicaView, Mapping[str, Any]]]:
    by_id: dict[str, NodeStatus] = {node.id: node for node in status.nodes}
    for node in table.channels[partition].replicas:
        reported = by_id.get(node)
        said = _own_channel(reported, table.name, partition)
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
