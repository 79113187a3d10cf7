"""The one register of the numbers that distinguish kinds of messages on the wire.

A message class takes its number from here by its own name (``tag_of``); the table of kinds in
``raftstore.protocol.codec`` and docs/messages.md follow this order. A number is never given to
another kind: the line of a removed class stays here, and its name goes into ``RETIRED``, because an
older node may still send it.

1 to 9 is publishing, 10 to 29 replication and micro-batches between nodes, 30 to 39 elections,
40 to 49 changes of members, 50 to 59 nodes, 60 to 69 founding, 70 to 79 replica snapshots, 80 to 89
missing payloads, 90 to 99 histories that differ or may have lost records; from 100 on follow what
clients ask and the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, unique
from typing import Final


@unique
class Tag(IntEnum):
    """Kind of a message -> its number, used or retired."""

    PubMsg = 1
    PubAck = 2
    PubReject = 3
    PayloadRelay = 4
    CommandAck = 5
    CommandsAck = 6
    StoreRequest = 10
    StoreAck = 11
    StoreReject = 12
    CommitNotice = 13
    MsgSyncRequest = 14
    MsgSync = 15
    CaughtUp = 16
    ReadIndexRequest = 17
    ReadIndexReply = 18
    StaleTerm = 19
    FreshRequest = 20
    FreshReply = 21
    ApplyBatch = 22
    ApplyBatchReply = 23
    ResolveWriter = 24
    ResolvedWriter = 25
    AskStaged = 26
    StagedReply = 27
    ReplicationBundle = 28
    CannotComplete = 29
    PreVote = 30
    PreVoteReply = 31
    RequestVote = 32
    VoteReply = 33
    LeaderAnnounce = 34
    TransferNow = 35
    StepDownNotice = 36
    RemovedNotice = 40
    AskApplied = 41
    TakeLead = 45
    AskLead = 46
    LeadRefused = 47
    ConfigReport = 48
    CopyReport = 49
    Hello = 50
    Goodbye = 51
    Heartbeat = 52
    LeadershipRequest = 53
    LeadershipList = 54
    LagReport = 55
    RefillRequest = 56
    Refill = 57
    AskMachine = 58
    MachineCode = 59
    BirthQuery = 60
    BirthInfo = 61
    BirthProposal = 62
    BirthAccepted = 63
    BirthComplete = 64
    AskReplicaSnapshot = 70
    ReplicaSnapshotOffer = 71
    AskSnapshotChunk = 72
    SnapshotChunk = 73
    AskBase = 74
    BaseOffer = 75
    AskSnapshotRest = 76
    TableFilePart = 77
    TableFilesRefused = 78
    PayloadRequest = 80
    PayloadResponse = 81
    WriteOffer = 82
    WriteRequest = 83
    RelayedWrite = 84
    RelayedAck = 85
    GapReport = 86
    AskChainHash = 90
    ChainHashAnswer = 91
    AskLogEnd = 92
    LogEnd = 93
    AskTrimmed = 95
    TrimmedAnswer = 96
    Get = 100
    GetAnswer = 101
    Scan = 102
    ScanAnswer = 103
    ContentHash = 104
    ContentHashAnswer = 105
    ClusterInfo = 106
    ClusterInfoAnswer = 107
    CreateTable = 108
    DropTable = 109
    Done = 110
    Failed = 111
    Status = 112
    StatusAnswer = 113
    StepDown = 114
    ClosePin = 115
    Count = 116
    CountAnswer = 117
    EditTable = 118
    WriteFate = 119
    WriteFateAnswer = 120
    Events = 121
    EventsAnswer = 122
    ClusterView = 123
    ClusterViewAnswer = 124
    Metrics = 125
    MetricsAnswer = 126
    SeenHeartbeat = 127
    SeenLags = 128
    BeginBatch = 129
    CommitBatch = 130
    CloseBatch = 131
    BatchAnswer = 132
    Writers = 133
    WritersAnswer = 134
    EditWriter = 135
    OpenSnapshot = 136
    SnapshotAnswer = 137
    Changes = 138
    ChangesAnswer = 139
    ChangeEnds = 140
    ChangeEndsAnswer = 141
    GetMany = 142
    GetManyAnswer = 143
    PinState = 144
    PinStateAnswer = 145
    HashRange = 146
    HashRangeAnswer = 147
    HashHistory = 148
    HashHistoryAnswer = 149
    RowExpiries = 150
    RowExpiriesAnswer = 151
    Checkpoint = 152
    CheckpointAnswer = 153
    ReadEntries = 154
    EntriesAnswer = 155
    MakeTicket = 160
    AskJoin = 161
    JoinNonce = 162
    Join = 163
    JoinAccepted = 164
    Drain = 165
    Retire = 166
    OrderReplicas = 170
    CancelOrder = 171
    AskOrders = 172
    OrdersAnswer = 173
    TagNode = 180
    StartRebalance = 181
    CancelRebalance = 182
    ThrottleCopies = 183
    AskRebalance = 184
    RebalanceAnswer = 185
    AskTableSizes = 186
    TableSizesAnswer = 187
    SwitchLeaders = 188
    MachineQuery = 190
    MachineAnswer = 191
    SkipCommand = 192
    CommandFate = 193
    CommandFateAnswer = 194
    ReportViolation = 200


RETIRED: Final[frozenset[Tag]] = frozenset()
"""Numbers without a message today: they stay taken."""

LEVEL_OF_TAG: Final[Mapping[Tag, int]] = {
    Tag.RefillRequest: 2,
    Tag.Refill: 2,
    Tag.ReplicationBundle: 3,
    Tag.GetMany: 3,
    Tag.GetManyAnswer: 3,
    Tag.AskReplicaSnapshot: 4,
    Tag.ReplicaSnapshotOffer: 4,
    Tag.AskSnapshotChunk: 4,
    Tag.SnapshotChunk: 4,
    Tag.AskBase: 4,
    Tag.BaseOffer: 4,
    Tag.CannotComplete: 5,
    Tag.AskSnapshotRest: 5,
    Tag.PayloadRequest: 5,
    Tag.PayloadResponse: 5,
    Tag.WriteOffer: 5,
    Tag.WriteRequest: 5,
    Tag.RelayedWrite: 5,
    Tag.RelayedAck: 5,
    Tag.GapReport: 6,  # level 5 ends the control connection that brings one
    Tag.AskChainHash: 5,
    Tag.ChainHashAnswer: 5,
    Tag.PinState: 6,
    Tag.PinStateAnswer: 6,
    Tag.HashRange: 6,
    Tag.HashRangeAnswer: 6,
    Tag.HashHistory: 6,
    Tag.HashHistoryAnswer: 6,
    Tag.RowExpiries: 6,
    Tag.RowExpiriesAnswer: 6,
    Tag.Checkpoint: 6,
    Tag.CheckpointAnswer: 6,
    Tag.MakeTicket: 6,
    Tag.AskJoin: 6,
    Tag.JoinNonce: 6,
    Tag.Join: 6,
    Tag.JoinAccepted: 6,
    Tag.Drain: 6,
    Tag.Retire: 6,
    Tag.OrderReplicas: 6,
    Tag.CancelOrder: 6,
    Tag.AskOrders: 6,
    Tag.OrdersAnswer: 6,
    Tag.AskTrimmed: 6,
    Tag.TrimmedAnswer: 6,
    Tag.AskLogEnd: 6,
    Tag.LogEnd: 6,
    Tag.RemovedNotice: 6,
    Tag.AskApplied: 6,
    Tag.TakeLead: 6,
    Tag.AskLead: 6,
    Tag.LeadRefused: 6,
    Tag.ConfigReport: 6,
    Tag.CopyReport: 6,
    Tag.TagNode: 6,
    Tag.StartRebalance: 6,
    Tag.CancelRebalance: 6,
    Tag.ThrottleCopies: 6,
    Tag.AskRebalance: 6,
    Tag.RebalanceAnswer: 6,
    Tag.AskTableSizes: 6,
    Tag.TableSizesAnswer: 6,
    Tag.SwitchLeaders: 7,
    Tag.CommandAck: 7,
    Tag.AskMachine: 7,
    Tag.MachineCode: 7,
    Tag.MachineQuery: 7,
    Tag.MachineAnswer: 7,
    Tag.SkipCommand: 7,
    Tag.CommandsAck: 8,
    Tag.CommandFate: 8,
    Tag.CommandFateAnswer: 8,
    Tag.ReportViolation: 8,
    Tag.ReadEntries: 9,
    Tag.EntriesAnswer: 9,
    Tag.TableFilePart: 9,
    Tag.TableFilesRefused: 9,
}
"""Messages that not every version reads, and the level that they came with
(``raftstore.policy.levels``). A node is only sent one of them when it reported this level on the
connection that carries it; a request alone is answered by older nodes, with an error."""


def tag_of(kind: str) -> int:
    """Return the number of the message class of this name; KeyError when none is registered.

    msgspec calls it with the name when the class is made (``tag=tag_of``).
    """
    return Tag[kind].value
