"""A node's identity and its ports: given to a ``NodeRunner`` by its driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from raftstore.config import LEVEL
from raftstore.metrics import Histogram, Sample
from raftstore.ports.election import ElectorFactory
from raftstore.ports.ids import IdSource
from raftstore.ports.log import MessageLog
from raftstore.ports.machine import Machines, NoMachines
from raftstore.ports.tables import TableStore
from raftstore.ports.transport import Transport
from raftstore.types import ChannelConfig, NodeId, Seq, StorageStall

METADATA_NAME: Final = "_metadata/0"
"""The channel of the catalog; no table can have that name."""
NO_MACHINES: Final = NoMachines()
CLIENT_HANDLE_SELF = 0
"""The publisher handle of the node itself; transports number client connections from 1."""

OnOpened = Callable[[int, int], None]
"""Called with (channels that are open, all of them) while a node starts."""

EventSink = Callable[[str, dict[str, object]], None]
"""(event name, fields): one structured log line."""


class Tell(Protocol):
    """Writes one structured log line."""

    def __call__(self, name: str, **fields: object) -> None:
        """``fields`` are the facts in the line about the event ``name``."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Identity of a node and of its cluster (S0.1, S0.7)."""

    me: NodeId
    cluster_id: bytes
    boot_id: bytes
    members: tuple[tuple[NodeId, str], ...]
    """Founding members: (node id, advertised endpoint): the metadata channel's configuration."""
    nodes: tuple[tuple[NodeId, str], ...] = ()
    """Of a node that joined: where the nodes of the cluster were then."""
    number: Seq = Seq(0)
    """Of this node in the metadata channel: 0 of founders (M30)."""
    configured: tuple[tuple[NodeId, str], ...] = ()
    """Where the configuration says that nodes are now; it is believed before the catalog."""
    advertise: str = ""
    pid: int = 0
    http: str = ""
    """host:port of the HTTP interface as others reach it; empty: there is none."""
    level: int = LEVEL
    failure_domain: str = ""
    """What fails together with this node; empty: not known."""

    def creation_config(self) -> ChannelConfig:
        """Creation configuration of the metadata channel: the founding members (S0.7)."""
        return ChannelConfig((tuple(node for node, _ in self.members),))


def retirement(node: NodeId, cluster_id: bytes) -> str:
    """The reason for which a node ends that has left its cluster (M27)."""
    return (
        f"node {node} was retired from cluster {cluster_id.hex()} and never comes back; its "
        "--data-dir is of no use any more: to run a node here again, start one with an empty "
        "--data-dir and a token of `raftstore cluster token`"
    )


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The outside of a node."""

    log: MessageLog
    tables: TableStore
    transport: Transport
    ids: IdSource
    elector_factory: ElectorFactory
    wall_ms: Callable[[], int]
    on_halt: Callable[[str], None]
    on_event: EventSink
    on_give_up: Callable[[str], None] = lambda _: None
    """The node cannot keep up and is to end in order (``catchup.slow_action``)."""
    on_retired: Callable[[str], None] = lambda _: None
    """The catalog says that this node has left the cluster for ever (M27)."""
    stall: Callable[[], StorageStall | None] = lambda: None
    """What the disk does not finish now, for views."""
    free_bytes: Callable[[], int | None] = lambda: None
    """Free bytes of the disk by the newest look; None: not known."""
    reserve_bytes: Callable[[], int | None] = lambda: None
    """Size of the file that a start on a full disk would remove; 0: there is none, None: this
    outside keeps none."""
    machines: Machines = NO_MACHINES
    """Code of users' state machines."""
    extra_status: Callable[[], dict[str, Any]] = dict
    """What the outside adds to the node's status, such as the bytes it sent."""
    extra_metrics: Callable[[], tuple[tuple[Sample, ...], tuple[Histogram, ...]]] = lambda: ((), ())
    """What the outside measures: its threads, its disk, its database."""
