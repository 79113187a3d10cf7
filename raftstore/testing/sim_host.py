"""The world as a simulated node uses it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from raftstore.ports.machine import Machines
from raftstore.protocol.message import Message
from raftstore.testing.invariants import Oracle
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_clock import Scheduler
from raftstore.testing.sim_network import SimNetwork
from raftstore.testing.sim_tables import SimTables
from raftstore.types import NodeId


class SimHost(Protocol):
    """The world: time, network, oracle, and the nodes' one source of randomness."""

    options: SimOptions
    make_tables: Callable[[], SimTables]
    rng: random.Random
    scheduler: Scheduler
    oracle: Oracle
    network: SimNetwork
    cluster_id: bytes
    founders: tuple[NodeId, ...]
    machines: Machines

    def trace(self, name: str, **fields: object) -> None:
        """One event of the world's history."""

    def halted(self, name: str, reason: str) -> None:
        """A node stopped by itself."""

    def send_to_client(self, sender: NodeId, client: int, message: Message) -> None:
        """A node's answer."""

    def node_connected(self, node: NodeId) -> None:
        """A node has booted."""

    def look_at_peers(self, node: Any) -> None:
        """A node's network is given the peers that the node knows by now."""

    def node_gone(self, node: NodeId) -> None:
        """A node has died."""

    def node_left(self, node: NodeId) -> None:
        """A node never comes back: it was retired, or its disk is lost."""
