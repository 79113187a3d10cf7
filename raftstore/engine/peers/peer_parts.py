"""Parts of a node that the watch of peers works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.clock import Clock
from raftstore.engine.node_ports import NodeIdentity, Tell
from raftstore.engine.peers.failover_watch import FailoverWatch
from raftstore.ports.ids import IdSource
from raftstore.types import ChannelId, DiskRoom, NodeId


@dataclass(frozen=True, slots=True)
class PeerParts:
    """The parts of one node that work with its peers."""

    identity: NodeIdentity
    ids: IdSource
    clock: Clock
    outbox: Outbox
    channels: Mapping[ChannelId, ChannelRunner]
    failovers: FailoverWatch
    """Is called with what is suspected of other nodes."""
    tell: Tell
    exists: Callable[[ChannelId], bool]
    """Whether the channel is hosted here or of a table of the catalog."""
    moved: Callable[[ChannelId], None]
    """Is called with every channel of which another node reports another history."""
    nodes_at_level: Callable[[int], tuple[NodeId, ...]] = lambda _: ()
    """The other nodes that reported at least this level."""
    disk_room: Callable[[], DiskRoom] = lambda: DiskRoom.PLENTY
    """What this node's disk has room for."""
