"""The network between the processes of a run, and between them and clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes.namespaces import PORT, Namespaces
from jepsen_like.target.processes.proxy import Counts, Links, Weather
from raftstore.local_cluster import LocalCluster

LOOPBACK: Final = "loopback"
NAMESPACES: Final = "namespaces"
NETWORKS: Final = (LOOPBACK, NAMESPACES)


class Network(Protocol):
    """Faults of links, wherever they are made; see `Links`."""

    weather: Weather
    endpoints: dict[str, str]
    direct: dict[str, str]

    @property
    def counts(self) -> Counts: ...

    def listen(self, name: str, *, is_on: bool) -> None: ...

    def block(self, links: Collection[tuple[str, str]]) -> None: ...

    def unblock(self) -> None: ...

    def reset(self, node: str | None = None) -> None: ...

    def close(self) -> None: ...


def check(network: str) -> None:
    """FaultUnavailableError when this machine has no such network; a small one is tried."""
    _check_name(network)
    if network == NAMESPACES:
        Namespaces(("n1",)).close()


def _check_name(network: str) -> None:
    if network not in NETWORKS:
        raise FaultUnavailableError(f"there is no network {network!r}; use {' or '.join(NETWORKS)}")


def extra_arguments(network: str) -> tuple[str, ...]:
    """Arguments that nodes need there: in a namespace without routes only this machine can reach
    them.
    """
    return ("--insecure",) if network == NAMESPACES else ()


def connect(cluster: LocalCluster, network: str, seed: int) -> Network:
    """Put a cluster that has not started on this network; FaultUnavailableError if there is none.

    The caller closes it after the cluster.
    """
    _check_name(network)
    made: Network
    if network == NAMESPACES:
        made = namespaces = Namespaces(tuple(cluster.endpoints_by_node()), seed)
        for name in namespaces.endpoints:
            cluster.place(name, listen=f"0.0.0.0:{PORT}", command=namespaces.command(name))
    else:
        made = Links(cluster.endpoints_by_node(), seed)
    cluster.advertise(made.endpoints)
    return made
