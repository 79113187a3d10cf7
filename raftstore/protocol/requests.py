"""Every kind of request that a client may send, and every kind of answer to one."""

from __future__ import annotations

from raftstore.protocol.admin import (
    Checkpoint,
    CheckpointAnswer,
    ClusterInfo,
    ClusterInfoAnswer,
    ClusterView,
    ClusterViewAnswer,
    ContentHash,
    ContentHashAnswer,
    CreateTable,
    DropTable,
    EditTable,
    Events,
    EventsAnswer,
    Metrics,
    MetricsAnswer,
    SeenHeartbeat,
    SeenLags,
    Status,
    StatusAnswer,
    StepDown,
)
from raftstore.protocol.audit import ReportViolation
from raftstore.protocol.batches import (
    BatchAnswer,
    BeginBatch,
    CloseBatch,
    CommitBatch,
    EditWriter,
    Writers,
    WritersAnswer,
)
from raftstore.protocol.changes import ChangeEnds, ChangeEndsAnswer, Changes, ChangesAnswer
from raftstore.protocol.machines import MachineAnswer, MachineQuery, SkipCommand
from raftstore.protocol.members import (
    AskJoin,
    Drain,
    Join,
    JoinAccepted,
    JoinNonce,
    MakeTicket,
    Retire,
)
from raftstore.protocol.message import Done, Failed
from raftstore.protocol.publish import WriteFate, WriteFateAnswer
from raftstore.protocol.reads import (
    ClosePin,
    Count,
    CountAnswer,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    Scan,
    ScanAnswer,
)
from raftstore.protocol.rebalance import RebalanceReply, RebalanceRequest
from raftstore.protocol.replica_checks import ReplicaCheck, ReplicaCheckAnswer
from raftstore.protocol.replica_orders import (
    AskOrders,
    CancelOrder,
    OrderReplicas,
    OrdersAnswer,
)
from raftstore.protocol.shared_commands import CommandFate, CommandFateAnswer
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer

MemberRequest = MakeTicket | AskJoin | Join | Drain | Retire
OrderRequest = OrderReplicas | CancelOrder | AskOrders

ClientRequest = (
    Get
    | Scan
    | ContentHash
    | ClusterInfo
    | CreateTable
    | DropTable
    | Status
    | StepDown
    | ClosePin
    | Count
    | EditTable
    | WriteFate
    | CommandFate
    | Events
    | ClusterView
    | Metrics
    | SeenHeartbeat
    | SeenLags
    | GetMany
    | ReplicaCheck
    | Checkpoint
    | MemberRequest
    | OrderRequest
    | RebalanceRequest
    | MachineQuery
    | SkipCommand
    | ReportViolation
)

ClientAnswer = (
    GetAnswer
    | ScanAnswer
    | ContentHashAnswer
    | ClusterInfoAnswer
    | StatusAnswer
    | Done
    | Failed
    | CountAnswer
    | WriteFateAnswer
    | CommandFateAnswer
    | EventsAnswer
    | ClusterViewAnswer
    | MetricsAnswer
    | GetManyAnswer
    | ReplicaCheckAnswer
    | CheckpointAnswer
    | JoinNonce
    | JoinAccepted
    | OrdersAnswer
    | RebalanceReply
    | MachineAnswer
)

BatchRequest = (
    BeginBatch
    | CommitBatch
    | CloseBatch
    | Writers
    | EditWriter
    | OpenSnapshot
    | Changes
    | ChangeEnds
)

BatchReply = BatchAnswer | WritersAnswer | SnapshotAnswer | ChangesAnswer | ChangeEndsAnswer
