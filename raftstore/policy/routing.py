"""Routing of a pull query: which nodes, in which order, why not the others (KLIP-37 to KLIP-45).

A pure function of what is known locally: no node is contacted to decide. The caller asks the nodes
in order, goes on to the next after a failure and stops at the first answer (KIP-17).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from raftstore.errors import NoReplicaAvailableError
from raftstore.policy.health import HealthState
from raftstore.types import NodeId

ALL_DEAD: Final = "All nodes are dead or exceed max allowed lag."
"""The sentence of the ksqlDB article (BLOG-21); scripts look for it."""

NOT_HOSTING: Final = "not hosting"
NO_LAG_INFORMATION: Final = "no lag information"
TIMEOUT: Final = "timeout"


class Prefer(StrEnum):
    """Which of the replicas within the bound comes first (KIP-24)."""

    LEADER = "leader"
    """The leader, then by smallest lag: the freshest answers."""
    NEAREST = "nearest"
    """The local node, then by round trip: the quickest answers."""
    ANY_IN_BOUND = "any_in_bound"
    """In turn: the load is spread over all of them."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """The router's view of one replica of the channel asked for."""

    node: NodeId
    state: HealthState
    lag: int | None
    """Rows; None is unknown. A leader that is ready reports 0, one that is not its real lag."""
    is_leader: bool = False
    silent_ms: int = 0
    """For how long a node that is down has been so."""
    time_lag_ms: int | None = None
    """Everything committed longer ago than this is in its state; None is unknown."""
    batches_behind: int | None = None
    """Spark micro-batches; None is unknown."""
    round_trip_ms: float | None = None
    """To the node and back; None is unknown."""


@dataclass(frozen=True, slots=True)
class Route:
    """Nodes to ask, best first, and one reason for each node that is not asked."""

    nodes: tuple[NodeId, ...]
    refused: dict[NodeId, str]


def nodes_to_query(
    replicas: Iterable[ReplicaView],
    *,
    max_lag: int | None,
    max_time_lag_ms: int | None = None,
    max_batches_behind: int | None = None,
    local: NodeId | None = None,
    only: NodeId | None = None,
    prefer: Prefer = Prefer.LEADER,
    turn: int = 0,
) -> Route:
    """Order the replicas of one channel: the leader if alive, then by smallest lag (KLIP-37).

    Each bound that is given must hold (None is no bound): a replica is asked iff what is bounded is
    known of it and at most the bound (KLIP-39, KLIP-43), the leader too (KLIP-42). Equal lags are
    decided by the local node, then by node id. Suspect nodes come last (KLIP-49), nodes that are
    down never (KLIP-38). ``only`` asks one named replica, under the same rules.

    ``prefer`` orders those within the bound (KIP-24); ``turn`` is the number of the query, for
    any_in_bound. Whatever is preferred, the same replicas are asked and refused.
    """
    chosen: list[ReplicaView] = []
    refused: dict[NodeId, str] = {}
    for replica in replicas:
        if only is not None and replica.node != only:
            continue
        reason = _refusal(replica, max_lag, max_time_lag_ms, max_batches_behind)
        if reason is None:
            chosen.append(replica)
        else:
            refused[replica.node] = reason
    if only is not None and not chosen and not refused:
        refused[only] = NOT_HOSTING
    if prefer is Prefer.NEAREST:
        chosen.sort(key=lambda replica: _by_distance(replica, local))
    else:
        chosen.sort(key=lambda replica: _by_freshness(replica, local))
    if prefer is Prefer.ANY_IN_BOUND:
        chosen = _in_turn(chosen, turn)
    return Route(tuple(replica.node for replica in chosen), refused)


def _by_freshness(
    replica: ReplicaView, local: NodeId | None
) -> tuple[bool, bool, float, bool, str]:
    return (
        replica.state is HealthState.SUSPECT,
        not replica.is_leader,
        inf if replica.lag is None else replica.lag,
        replica.node != local,
        replica.node,
    )


def _by_distance(
    replica: ReplicaView, local: NodeId | None
) -> tuple[bool, bool, float, float, str]:
    return (
        replica.state is HealthState.SUSPECT,
        replica.node != local,
        inf if replica.round_trip_ms is None else replica.round_trip_ms,
        inf if replica.lag is None else replica.lag,
        replica.node,
    )


def _in_turn(chosen: list[ReplicaView], turn: int) -> list[ReplicaView]:
    """Begin with another healthy replica each time; suspect ones stay at the end."""
    healthy = [replica for replica in chosen if replica.state is not HealthState.SUSPECT]
    if not healthy:
        return chosen
    healthy.sort(key=lambda replica: replica.node)
    at = turn % len(healthy)
    return healthy[at:] + healthy[:at] + chosen[len(healthy) :]


def no_replica_available(
    query: str, hosts: Mapping[str, str], codes: Mapping[str, str] | None = None
) -> NoReplicaAvailableError:
    """The error after every node was refused or failed: BLOG-21's sentence, a reason per node.

    ``hosts``: the reasons by the nodes' names; ``codes``: those of their refusals, likewise.
    """
    detail = "; ".join(f"{name}: {reason}" for name, reason in sorted(hosts.items()))
    return NoReplicaAvailableError(
        f"Unable to execute pull query {query}: {ALL_DEAD} "
        f"({detail or 'no node hosts it'}); retry, raise max_lag, or start the nodes again",
        hosts=dict(hosts),
        codes=dict(codes or {}),
    )


def _refusal(
    replica: ReplicaView,
    max_lag: int | None,
    max_time_lag_ms: int | None,
    max_batches_behind: int | None,
) -> str | None:
    """Why a replica is not asked; None if it is."""
    if replica.state is HealthState.DOWN:  # KLIP-38
        return f"not alive since {replica.silent_ms} ms" if replica.silent_ms else "not alive"
    return (
        _beyond("lag", replica.lag, max_lag, "")
        or _beyond("time lag", replica.time_lag_ms, max_time_lag_ms, " ms")
        or _beyond("batches behind", replica.batches_behind, max_batches_behind, "")
    )


def _beyond(what: str, known: int | None, bound: int | None, unit: str) -> str | None:
    """Why what is known does not meet a bound; None if it does, or if there is no bound."""
    if bound is None:
        return None
    if known is None:  # KLIP-43, S7.3
        return NO_LAG_INFORMATION
    if known > bound:  # KLIP-39
        return f"{what} {known}{unit} > {bound}{unit}"
    return None
