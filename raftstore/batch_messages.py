"""Messages between nodes about atomic micro-batches (docs/protocol.md).

The *coordinator* of a table is the leader of the channel of its partition 0. Every message carries
that channel and the term its sender knows of it, besides the ``target``: the channel that shall
apply, or that asks. They tell applied, hence committed, facts that never change (rule 6), so late
and doubled ones do no harm. Tags share the numbers of ``raftstore.messages``.
"""

from __future__ import annotations

import msgspec

from raftstore.messages import ChannelMessage
from raftstore.types import (
    Attempt,
    BatchId,
    ChannelId,
    CommitNumber,
    Count63,
    NodeId,
    Partition,
    RequestId,
    Small31,
    TaskAttempt,
    TaskId,
    Unsigned64,
    WallMs,
)

APPLIED = "applied"
NOT_YET = "not_yet"
NOT_LEADER = "not_leader"
BUSY = "busy"
"""Reasons of ``ApplyBatchReply``."""

STAGED = "staged"
MISSING = "missing"
"""What ``StagedReply`` says, besides ``NOT_LEADER``."""


class ChannelPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one batch has staged in one partition: chunks, their rows, the bytes of their payloads,
    and ``check``: the sum of the first 8 bytes of their digests modulo 2^64, in any order."""

    partition: Partition
    chunks: Count63
    rows: Count63
    bytes: Count63
    check: Unsigned64


class ApplyBatch(ChannelMessage, frozen=True, array_like=True, gc=False, tag=22):
    """Coordinator -> leader of ``target``: commit ``n`` is decided, apply it after ``prev``.

    ``winners`` are the (partition id, task attempt id) whose chunks count; ``vector`` has per
    partition the newest commit up to ``n`` that touches it.
    """

    target: ChannelId
    n: CommitNumber
    prev: CommitNumber
    writer: str
    batch_id: BatchId
    attempt: Attempt
    mode: Small31
    winners: tuple[tuple[TaskId, TaskAttempt], ...]
    part: ChannelPart
    vector: tuple[CommitNumber, ...]
    decided_ms: WallMs


class ApplyBatchReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=23):
    """Whoever was asked -> coordinator: ``applied`` is the newest commit in the leader's applied
    state. ``reason`` is applied (``n`` is in it), not_yet (``prev`` is not), not_leader or busy."""

    target: ChannelId
    n: CommitNumber
    applied: CommitNumber
    reason: str
    leader_hint: NodeId | None = None


class ResolveWriter(ChannelMessage, frozen=True, array_like=True, gc=False, tag=24):
    """Leader of ``target`` -> coordinator: which attempts of these writers are finished for me?"""

    target: ChannelId
    writers: tuple[str, ...]


class ResolvedWriter(ChannelMessage, frozen=True, array_like=True, gc=False, tag=25):
    """Coordinator -> ``target``: attempts up to the floor will never be needed there again."""

    target: ChannelId
    floors: tuple[tuple[str, Attempt], ...]


class AskStaged(ChannelMessage, frozen=True, array_like=True, gc=False, tag=26):
    """Coordinator -> leader of ``target``: is this part of a batch staged? Asked before the batch
    is decided. ``token`` names the question within the coordinator's term."""

    target: ChannelId
    token: RequestId
    writer: str
    attempt: Attempt
    winners: tuple[tuple[TaskId, TaskAttempt], ...]
    part: ChannelPart


class StagedReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=27):
    """Whoever was asked -> coordinator. ``reason`` is staged (all of the part is committed there,
    and stays until the attempt ends), missing (it was not when a quorum confirmed the leader; of
    it, ``chunks`` with ``rows`` were) or not_leader."""

    target: ChannelId
    token: RequestId
    reason: str
    chunks: Count63 = 0
    rows: Count63 = 0
    leader_hint: NodeId | None = None


BatchMessage = (
    ApplyBatch | ApplyBatchReply | ResolveWriter | ResolvedWriter | AskStaged | StagedReply
)
