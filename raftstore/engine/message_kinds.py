"""The kinds of messages that go to a channel of a node, by what takes them there."""

from __future__ import annotations

from typing import get_args

from raftstore.protocol.batches import BatchMessage
from raftstore.protocol.election import ElectionMessage
from raftstore.protocol.healing import HealingMessage
from raftstore.protocol.replica_snapshots import ReplicaSnapshotMessage
from raftstore.protocol.replication import ReplicationMessage

ELECTION_KINDS = frozenset(get_args(ElectionMessage))
REPLICATION_KINDS = frozenset(get_args(ReplicationMessage))
BATCH_KINDS = frozenset(get_args(BatchMessage))
HEALING_KINDS = frozenset(get_args(HealingMessage))
SNAPSHOT_KINDS = frozenset(get_args(ReplicaSnapshotMessage))
