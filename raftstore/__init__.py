"""A replicated, durable key-value store for Spark state, with bounded-staleness reads.

::

    import raftstore

    with raftstore.connect("127.0.0.1:4481") as client:
        client.create_table("orders", key="order_id")
        orders = client.table("orders")
        ack = orders.put({"order_id": 1, "total": 9.5})
        orders.get(1)  # linearizable
        orders.get(1, max_lag=10_000)  # any replica within the bound
        orders.get(1, at_least=ack.position)  # any replica that has this write
        orders.write_batch([{"order_id": 2}], writer="import", batch_id=7)  # atomic, exactly once

``raftstore.aio`` has the same names for asyncio, ``raftstore.spark`` the Spark side (needs
``raftstore[spark]``). Every exception is a name of ``raftstore``; ``raftstore.errors`` draws them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftstore import aio, errors
from raftstore.audit.finding import AuditFinding
from raftstore.client.auditing.audit import Audit, AuditCounts
from raftstore.client.batches.batch_writes import BatchResult, BatchTicket, TableWriters
from raftstore.client.batches.stager import StagedParts
from raftstore.client.blocking.batches import Stager
from raftstore.client.blocking.client import BulkWriter, Client, ReadOnlyStore, Table, connect
from raftstore.client.blocking.machines import ChannelSet
from raftstore.client.comparing.results import ReplicaComparison
from raftstore.client.kip535 import NodeMetadata
from raftstore.client.machines.results import CommandResult, QueryResult
from raftstore.client.members import ClusterMember
from raftstore.client.position import Position
from raftstore.client.replicas import ReplicaChange
from raftstore.client.results import (
    BulkResult,
    ClusterEvents,
    ClusterStatus,
    CountResult,
    GetResult,
    KeyQueryMetadata,
    NodeStatus,
    PageResult,
    ReplicaDigest,
    ServedPart,
    TableDigest,
    WriteAck,
    WriteFate,
    WriteSummary,
)
from raftstore.client.settings import ClientSettings
from raftstore.errors import (
    ArgumentError,
    AttemptClosedError,
    AuthenticationError,
    BackupError,
    BatchIncompleteError,
    BatchPendingError,
    BatchRegressionError,
    BirthRefusedError,
    ChangeDoneError,
    ChangePendingError,
    ConfigError,
    ConflictError,
    ConnectionInDoubtError,
    ConnectionLostError,
    ConnectTimeoutError,
    CorruptRecordError,
    DataLossError,
    DecodeError,
    DiskFullError,
    ElectionError,
    ForbiddenError,
    GuidExpiredError,
    GuidFencedError,
    GuidReuseError,
    InvalidStateStoreError,
    JoinRefusedError,
    LagExceededError,
    LagUnknownError,
    LeadershipLostError,
    LocalProtocolError,
    MachineStoppedError,
    NewerFormatError,
    NoLeaderError,
    NoReplicaAvailableError,
    NoSpaceError,
    NotLeaderError,
    NotUpToBoundError,
    OperationInDoubtError,
    OverloadedError,
    PageExpiredError,
    PageTokenError,
    PartialWriteError,
    PayloadTooLargeError,
    PersistError,
    PositionError,
    PromisesLostError,
    ProtocolError,
    QueryError,
    QuorumTimeoutError,
    RaftstoreError,
    RejectedError,
    RemoteProtocolError,
    RequestError,
    RequestTimeoutError,
    SchemaError,
    SnapshotExpiredError,
    StateLimitError,
    StillMemberError,
    StorageError,
    StoreIdentityError,
    StoreTooOldError,
    TableExistsError,
    TransportError,
    UnavailableError,
    UnknownChannelError,
    UnknownMachineError,
    UnknownNodeError,
    UnknownTableError,
    UnsupportedRequestError,
    UnsupportedVersionError,
    WriterFencedError,
)
from raftstore.machine import (
    BYTES,
    JSON,
    Codec,
    CommandContext,
    MemoryMachine,
    QueryContext,
    State,
    StateMachine,
    StateView,
    codec,
)
from raftstore.policy.lag import LagInfo
from raftstore.protocol.admin import TableInfo
from raftstore.types import Level, Outcome
from raftstore.version import VERSION

if TYPE_CHECKING:
    from raftstore import backup as backup
    from raftstore import spark as spark
    from raftstore.local_cluster import LocalCluster

__version__ = VERSION

__all__ = [
    "connect",
    "aio",
    "errors",
    "Client",
    "Table",
    "ChannelSet",
    "CommandResult",
    "QueryResult",
    "BulkWriter",
    "ClientSettings",
    "Audit",
    "AuditCounts",
    "AuditFinding",
    "Level",
    "Outcome",
    "Position",
    "WriteAck",
    "WriteSummary",
    "WriteFate",
    "BulkResult",
    "BatchTicket",
    "BatchResult",
    "Stager",
    "StagedParts",
    "TableWriters",
    "GetResult",
    "PageResult",
    "CountResult",
    "ServedPart",
    "KeyQueryMetadata",
    "NodeMetadata",
    "LagInfo",
    "ReadOnlyStore",
    "ClusterMember",
    "ReplicaChange",
    "ClusterStatus",
    "ClusterEvents",
    "NodeStatus",
    "TableInfo",
    "TableDigest",
    "ReplicaComparison",
    "ReplicaDigest",
    "LocalCluster",
    "StateMachine",
    "MemoryMachine",
    "CommandContext",
    "QueryContext",
    "State",
    "StateView",
    "Codec",
    "codec",
    "BYTES",
    "JSON",
    "__version__",
    "RaftstoreError",
    "ConfigError",
    "ArgumentError",
    "RequestError",
    "NotLeaderError",
    "NoLeaderError",
    "NoSpaceError",
    "OverloadedError",
    "UnavailableError",
    "RequestTimeoutError",
    "PayloadTooLargeError",
    "UnknownNodeError",
    "UnknownTableError",
    "UnknownChannelError",
    "TableExistsError",
    "SchemaError",
    "PageTokenError",
    "PositionError",
    "ConflictError",
    "RejectedError",
    "StateLimitError",
    "UnknownMachineError",
    "MachineStoppedError",
    "GuidReuseError",
    "GuidFencedError",
    "WriterFencedError",
    "BatchRegressionError",
    "AttemptClosedError",
    "BatchIncompleteError",
    "BatchPendingError",
    "UnsupportedRequestError",
    "StoreTooOldError",
    "AuthenticationError",
    "ForbiddenError",
    "QuorumTimeoutError",
    "LeadershipLostError",
    "ConnectionInDoubtError",
    "OperationInDoubtError",
    "GuidExpiredError",
    "PartialWriteError",
    "QueryError",
    "JoinRefusedError",
    "LagExceededError",
    "LagUnknownError",
    "NotUpToBoundError",
    "PageExpiredError",
    "SnapshotExpiredError",
    "DataLossError",
    "InvalidStateStoreError",
    "NoReplicaAvailableError",
    "ProtocolError",
    "LocalProtocolError",
    "RemoteProtocolError",
    "DecodeError",
    "UnsupportedVersionError",
    "TransportError",
    "ConnectionLostError",
    "ConnectTimeoutError",
    "StillMemberError",
    "ChangePendingError",
    "ChangeDoneError",
    "StorageError",
    "PersistError",
    "CorruptRecordError",
    "NewerFormatError",
    "DiskFullError",
    "StoreIdentityError",
    "BirthRefusedError",
    "PromisesLostError",
    "ElectionError",
    "BackupError",
]


def __dir__() -> list[str]:
    # These are not in __all__: what they need may not be installed.
    return sorted([*__all__, "backup", "spark"])


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> object:
        """Import what only some programs need when it is first used (Spark may be missing)."""
        import importlib

        if name in ("backup", "spark"):
            return importlib.import_module(f"raftstore.{name}")
        if name == "LocalCluster":
            return importlib.import_module("raftstore.local_cluster").LocalCluster
        message = f"module 'raftstore' has no attribute {name!r}"
        raise AttributeError(message)
