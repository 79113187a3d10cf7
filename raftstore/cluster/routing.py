"""Whom to ask for a pull query, in which order, and why not the others (KLIP-37 to KLIP-45).

A pure function of what is known locally: no node is contacted to decide. The caller asks the nodes
in order, goes on to the next after a failure and stops at the first answer (KIP-17).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from raftstore.cluster.health import HealthState
from raftstore.errors import NoReplicaAvailableError
from raftstore.types import NodeId, Term, node_name

ALL_DEAD: Final = "All nodes are dead or exceed max allowed lag."
"""The sentence of the ksqlDB article (BLOG-21); scripts look for it."""

NOT_HOSTING: Final = "not hosting"
NO_LAG_INFORMATION: Final = "no lag information"
TIMEOUT: Final = "timeout"


@dataclass(frozen=True, slots=True)
class KeyQueryMetadata:
    """KIP-535's answer to "where is this key": all of it from one look-up (KIP-05)."""

    active_host: NodeId | None
    standby_hosts: tuple[NodeId, ...]
    partition: int
    term: Term


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What the router knows of one replica of the channel asked for."""

    node: NodeId
    state: HealthState
    lag: int | None
    """Rows; None is unknown. A leader that is ready reports 0, one that is not its real lag."""
    is_leader: bool = False
    silent_ms: int = 0
    """For how long a node that is down has been so."""


@dataclass(frozen=True, slots=True)
class Route:
    """Nodes to ask, best first, and one reason for each node that is not asked."""

    nodes: tuple[NodeId, ...]
    refused: dict[NodeId, str]


def nodes_to_query(
    replicas: Iterable[ReplicaView],
    *,
    max_lag: int | None,
    local: NodeId | None = None,
    only: NodeId | None = None,
) -> Route:
    """Order the replicas of one channel: the leader if alive, then by smallest lag (KLIP-37).

    ``max_lag`` counts rows, None is no bound. With a bound, a replica is asked iff its lag is known
    and at most the bound (KLIP-39, KLIP-43), the leader too (KLIP-42). Equal lags are decided by
    the local node, then by node id. Suspect nodes come last (KLIP-49), nodes that are down never
    (KLIP-38). ``only`` asks one named replica, under the same rules.
    """
    chosen: list[ReplicaView] = []
    refused: dict[NodeId, str] = {}
    for replica in replicas:
        if only is not None and replica.node != only:
            continue
        reason = _refusal(replica, max_lag)
        if reason is None:
            chosen.append(replica)
        else:
            refused[replica.node] = reason
    if only is not None and not chosen and not refused:
        refused[only] = NOT_HOSTING
    chosen.sort(
        key=lambda replica: (
            replica.state is HealthState.SUSPECT,
            not replica.is_leader,
            inf if replica.lag is None else replica.lag,
            replica.node != local,
            replica.node,
        )
    )
    return Route(tuple(replica.node for replica in chosen), refused)


def no_replica_available(query: str, reasons: Mapping[NodeId, str]) -> NoReplicaAvailableError:
    """The error after every node was refused or failed: BLOG-21's sentence, a reason per node."""
    hosts = {node_name(node): reasons[node] for node in sorted(reasons)}
    detail = "; ".join(f"{name}: {reason}" for name, reason in hosts.items())
    return NoReplicaAvailableError(
        f"Unable to execute pull query {query}: {ALL_DEAD} "
        f"({detail or 'no node hosts it'}); retry, raise max_lag, or start the nodes again",
        hosts=hosts,
    )


def _refusal(replica: ReplicaView, max_lag: int | None) -> str | None:
    """Why a replica is not asked; None if it is."""
    if replica.state is HealthState.DOWN:  # KLIP-38
        return f"not alive since {replica.silent_ms} ms"
    if max_lag is None:
        return None
    if replica.lag is None:  # KLIP-43, S7.3
        return NO_LAG_INFORMATION
    if replica.lag > max_lag:  # KLIP-39
        return f"lag {replica.lag} > {max_lag}"
    return None
