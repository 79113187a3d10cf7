"""What clients ask about atomic micro-batches, and what nodes answer (docs/protocol.md).

BEGIN, COMMIT, CLOSE, Writers and EditWriter go to the leader of the channel of the table's
partition 0, OpenSnapshot, Changes and ChangeEnds to any replica of the channel they name. Staging
is publishing: ``PubMsg`` with records of kind STAGED. All may be repeated: an attempt is known by
its ``uuid``, a commit by its attempt. Tags share the numbers of ``raftstore.requests``.
"""

from __future__ import annotations

import msgspec

from raftstore.batch_messages import ChannelPart
from raftstore.messages import Message
from raftstore.requests import Request, Served
from raftstore.types import (
    Attempt,
    BatchId,
    ChannelId,
    CommitNumber,
    Count63,
    RequestId,
    Seq,
    Small31,
    TaskAttempt,
    TaskId,
    TimeoutMs,
    TimestampMs,
    Told63,
    WallMs,
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


class BeginBatch(Request, frozen=True, array_like=True, gc=False, tag=129):
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
    """What a batch consists of: the tasks whose chunks count, as (partition id, task attempt id),
    and what they staged in each partition. ``mode`` 0 appends, 1 replaces the whole table."""

    mode: Small31
    winners: tuple[tuple[TaskId, TaskAttempt], ...]
    parts: tuple[ChannelPart, ...]
    rows: Count63


class CommitBatch(Request, frozen=True, array_like=True, gc=False, tag=130):
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


class CloseBatch(Request, frozen=True, array_like=True, gc=False, tag=131):
    """Give the attempt up. Done also when it was not open."""

    channel: ChannelId
    writer: str
    attempt: Attempt
    timeout_ms: TimeoutMs


class BatchAnswer(Message, frozen=True, array_like=True, gc=False, tag=132):
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


class Writers(Request, frozen=True, array_like=True, gc=False, tag=133):
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


class WritersAnswer(Message, frozen=True, array_like=True, gc=False, tag=134):
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


class EditWriter(Request, frozen=True, array_like=True, gc=False, tag=135):
    """Operator: ``adopt`` lets the writer begin at any batch id again, for checkpoint ``lineage``
    (None: the next that comes); ``remove`` forgets it. Either ends its open attempt."""

    channel: ChannelId
    writer: str
    action: str
    lineage: str | None
    timeout_ms: TimeoutMs


class OpenSnapshot(Request, frozen=True, array_like=True, gc=False, tag=136):
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


class SnapshotAnswer(Message, frozen=True, array_like=True, gc=False, tag=137):
    """``commit`` is the newest commit in the state and ``vector`` the one published with it;
    ``pin`` names the state for reads that follow, 0: it was not kept; ``life_ms`` is the longest
    that the node keeps any (0: it does not tell)."""

    request_id: RequestId
    commit: CommitNumber
    vector: tuple[CommitNumber, ...]
    pin: Count63
    applied_seq: Seq
    served: Served
    life_ms: Count63 = 0


class Changes(Request, frozen=True, array_like=True, gc=False, tag=138):
    """What changed behind seq ``after``, up to the records that end at ``to_seq`` (0: all that is
    applied here). ``sub`` > 0: so much of the next record was read already (``ChangesAnswer``). The
    bounds are the client's, a node has its own, too; a first piece comes whatever its size."""

    channel: ChannelId
    after: Seq
    sub: Count63
    to_seq: Seq
    rows_max: Count63
    bytes_max: Count63
    timeout_ms: TimeoutMs


class ChangePiece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Changes that one record made, all of them or some; those of a key are in their order.

    ``rows`` is the payload of a ROWS record: keys, and sealed values or nil for deletes; b"": none.
    ``bits``: not all of them count, but those whose bit is set, from the lowest of the first byte
    on. ``truncate``: before them every row of the partition was removed. ``writer`` and
    ``batch_id`` are those of an atomic batch, else "" and -1.
    """

    seq: Seq
    timestamp_ms: TimestampMs
    rows: bytes
    bits: bytes = b""
    truncate: bool = False
    writer: str = ""
    batch_id: Told63 = -1


class ChangesAnswer(Message, frozen=True, array_like=True, gc=False, tag=139):
    """``after`` and ``sub``: where the next request goes on, however few pieces there are; with
    ``sub`` > 0 the record behind ``after`` has more. ``applied``: how far this replica has come."""

    request_id: RequestId
    pieces: tuple[ChangePiece, ...]
    after: Seq
    sub: Count63
    applied: Seq


class ChangeEnds(Request, frozen=True, array_like=True, gc=False, tag=140):
    """Which positions are there to be read? ``rows_max`` > 0: where does one come from ``after``
    with at most so many rows, up to ``to_seq``, in whole records but with a first one."""

    channel: ChannelId
    after: Seq
    to_seq: Seq
    rows_max: Count63
    timeout_ms: TimeoutMs


class ChangeEndsAnswer(Message, frozen=True, array_like=True, gc=False, tag=141):
    """``first`` is the position before the oldest record there is, ``applied`` the one behind the
    newest. ``reached`` lies ``rows`` rows behind ``after``; ``more``: ask again from there, as one
    request looks at a bounded number of bytes."""

    request_id: RequestId
    first: Seq
    applied: Seq
    reached: Seq
    rows: Count63
    more: bool


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
