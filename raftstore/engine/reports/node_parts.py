"""The parts of a node, as its reports look at them and the handlers of requests use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftstore.config import NodeSettings
from raftstore.engine.audit import NodeAudit
from raftstore.engine.batches.service import BatchService
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.catalog.step_down_limit import StepDownLimit
from raftstore.engine.channel.catch_ups import CatchUps
from raftstore.engine.channel.drain import Drain
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.channel.storage_guard import StorageGuard
from raftstore.engine.healing.service import Healing
from raftstore.engine.leaders.service import Leaders
from raftstore.engine.meters import Meters
from raftstore.engine.node_ports import NodeIdentity
from raftstore.engine.peers.failover_watch import FailoverWatch
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.engine.peers.replica_lag import ReplicaLagGuard
from raftstore.engine.reads.reader import Reader
from raftstore.engine.reports.events import EventRing
from raftstore.engine.retention.expirer import Expirer
from raftstore.engine.retention.retention import Retention
from raftstore.engine.snapshots.service import ReplicaSnapshots
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.types import ChannelId, NodeId


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of one node that its reports look at."""

    identity: NodeIdentity
    settings: NodeSettings
    log: MessageLog
    tables: TableStore
    outbox: Outbox
    channels: Mapping[ChannelId, ChannelRunner]
    controller: CatalogController
    watch: PeerWatch
    reader: Reader
    batches: BatchService
    meters: Meters
    failovers: FailoverWatch
    lag_guard: ReplicaLagGuard
    catch_ups: CatchUps
    retention: Retention
    healing: Healing
    expirer: Expirer
    leaders: Leaders
    snapshots: ReplicaSnapshots
    step_downs: StepDownLimit
    guard: StorageGuard
    drain: Drain
    ring: EventRing
    audit: NodeAudit

    @property
    def me(self) -> NodeId:
        """This node."""
        return self.identity.me
