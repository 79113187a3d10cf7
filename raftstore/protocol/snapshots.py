"""One state of a table: what a client asks of each of its channels to open it."""

from __future__ import annotations

from raftstore.protocol.message import Message, Request
from raftstore.protocol.reads import Served
from raftstore.protocol.tags import tag_of
from raftstore.types import ChannelId, CommitNumber, Count63, RequestId, Seq, TimeoutMs


class OpenSnapshot(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Which commit does this replica's state hold? Waits until ``min_commit`` and ``min_seq`` are
    applied; with ``as_of`` > 0 the state of exactly that commit is meant. ``keep`` pins the state
    for reads that follow, ``idle_ms`` long without any (0: the node's own setting)."""

    channel: ChannelId
    as_of: CommitNumber
    keep: bool
    min_commit: CommitNumber
    timeout_ms: TimeoutMs
    min_seq: Seq = Seq(0)
    idle_ms: Count63 = 0


class SnapshotAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``commit`` is the newest commit in the state and ``vector`` the one published with it;
    ``pin`` names the state for reads that follow, 0: it was not kept; ``life_ms`` is the longest
    that the node keeps any (0: it does not report it)."""

    request_id: RequestId
    commit: CommitNumber
    vector: tuple[CommitNumber, ...]
    pin: Count63
    applied_seq: Seq
    served: Served
    life_ms: Count63 = 0
