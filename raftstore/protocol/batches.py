"""Atomic micro-batches: what writers ask of the coordinator, and what it sends the channels.

The *coordinator* of a table is the leader of the channel of its partition 0 (docs/protocol.md).
Messages between nodes carry that channel and the term their sender knows of it, besides the
``target``: the channel that applies, or that asks. They carry applied, hence committed, facts that
never change (rule 6), so late and doubled ones do no harm.
"""

from __future__ import annotations

import msgspec

from raftstore.protocol.message import ChannelMessage, Message, Request
from raftstore.protocol.tags import tag_of
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
    TimeoutMs,
    Told63,
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
    """The staged part of one batch in one partition: chunks, rows, the bytes of their payloads,
    and ``check``: the sum of the first 8 bytes of their digests modulo 2^64, in any order."""

    partition: Partition
    chunks: Count63
    rows: Count63
    bytes: Count63
    check: Unsigned64


class ApplyBatch(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Coordinator -> leader of ``target``: commit ``n`` is decided, apply it after ``prev``.

    ``winners`` are the (partition id, task attempt id) whose chunks count; ``vector`` has per
    partition the newest commit up to ``n`` that touches it. From ``n`` on the fields are those of
    ``raftstore.protocol.staged.BatchApply``.
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


class ApplyBatchReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The channel asked -> coordinator: ``applied`` is the newest commit in the leader's applied
    state. ``reason`` is applied (``n`` is in it), not_yet (``prev`` is not), not_leader or busy."""

    target: ChannelId
    n: CommitNumber
    applied: CommitNumber
    reason: str
    leader_hint: NodeId | None = None


class ResolveWriter(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader of ``target`` -> coordinator: which attempts of these writers are finished for me?"""

    target: ChannelId
    writers: tuple[str, ...]


class ResolvedWriter(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Coordinator -> ``target``: attempts up to the floor will never be needed there again."""

    target: ChannelId
    floors: tuple[tuple[str, Attempt], ...]


class AskStaged(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Coordinator -> leader of ``target``: is this part of a batch staged? Asked before the batch
    is decided. ``token`` names the question within the coordinator's term."""

    target: ChannelId
    token: RequestId
    writer: str
    attempt: Attempt
    winners: tuple[tuple[TaskId, TaskAttempt], ...]
    part: ChannelPart


class StagedReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The channel asked -> coordinator. ``reason`` is staged (all of the part is committed there,
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

APPEND = 0

TRUNCATE = 1

"""``Manifest.mode``: rows are added to the table, or replace all of it."""

OPENED = "opened"

ALREADY = "already"

OK = "ok"

"""Verdicts of ``BatchAnswer``."""

ADOPT = "adopt"

REMOVE = "remove"

"""Actions of ``EditWriter``."""


class BeginBatch(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Open an attempt of the writer at a batch; it ends the one that was open (the fence).

    ``uuid`` (16 bytes) names the attempt: all who send the same one get the same number.
    ``lineage`` names the checkpoint that the batch ids count in. ``one_shot``: the writer will
    have no second batch. ``ttl_ms``: an attempt that nobody begins again for so long is closed.
    """

    channel: ChannelId
    writer: str
    batch_id: BatchId
    uuid: bytes
    lineage: str
    one_shot: bool
    ttl_ms: Count63
    timeout_ms: TimeoutMs


class Manifest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content of a batch: the tasks whose chunks count, as (partition id, task attempt id),
    and what they staged in each partition. ``mode`` 0 appends, 1 replaces the whole table."""

    mode: Small31
    winners: tuple[tuple[TaskId, TaskAttempt], ...]
    parts: tuple[ChannelPart, ...]
    rows: Count63


class CommitBatch(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Decide the batch: all of the manifest becomes visible, or nothing of it ever does.

    ``digest`` is the manifest's; the same attempt with another one is refused. Answered when every
    touched channel has applied it, or else by ``batch_pending``.
    """

    channel: ChannelId
    writer: str
    batch_id: BatchId
    attempt: Attempt
    manifest: Manifest
    digest: bytes
    timeout_ms: TimeoutMs


class CloseBatch(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Give the attempt up. Done also when it was not open."""

    channel: ChannelId
    writer: str
    attempt: Attempt
    timeout_ms: TimeoutMs


class BatchAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``verdict``: opened (stage under ``attempt``), already (this batch is in the table, by
    commit ``n``) or ok (now it is). ``vector``: per partition the newest commit that touches it, as
    of ``n`` or, when that is long ago, as of now."""

    request_id: RequestId
    verdict: str
    attempt: Attempt
    n: CommitNumber
    batch_id: BatchId
    vector: tuple[CommitNumber, ...]
    rows: Count63


class Writers(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The writers of a table as the coordinator knows them: as many as one answer has, by the bytes
    of their names from behind ``after`` on, or the one that is named."""

    channel: ChannelId
    timeout_ms: TimeoutMs
    writer: str = ""
    after: str = ""


class WriterView(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One writer; numbers are -1 and texts None where there is nothing. ``at_ms``: when the
    coordinator last wrote something down of it, by the clock of the leader of that time."""

    writer: str
    last_batch: Told63
    last_attempt: Told63
    last_n: Told63
    open_batch: Told63
    open_attempt: Told63
    lineage: str | None
    one_shot: bool
    at_ms: WallMs


class WritersAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``outbox``: commits that some channel has not applied yet; ``applied_everywhere``: the newest
    commit up to which none is. ``vector`` is of the newest commit. ``more``: there are writers
    behind the last one."""

    request_id: RequestId
    writers: tuple[WriterView, ...]
    next_commit: CommitNumber
    outbox: Count63
    vector: tuple[CommitNumber, ...]
    applied_everywhere: CommitNumber
    more: bool = False


class EditWriter(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: ``adopt`` lets the writer begin at any batch id again, for checkpoint ``lineage``
    (None: the next that comes); ``remove`` forgets it. Either ends its open attempt."""

    channel: ChannelId
    writer: str
    action: str
    lineage: str | None
    timeout_ms: TimeoutMs
