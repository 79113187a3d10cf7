"""The changes of a channel in the order of its log, as readers ask for them."""

from __future__ import annotations

import msgspec

from raftstore.protocol.message import Message, Request
from raftstore.protocol.tags import tag_of
from raftstore.types import ChannelId, Count63, RequestId, Seq, TimeoutMs, TimestampMs, Told63


class Changes(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Changes behind seq ``after``, up to the records that end at ``to_seq`` (0: all that is
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
    expired: bool = False
    """The rows were not deleted by anybody: they expired."""
    expires_ms: TimestampMs = 0
    """When the rows written expire, in the leader's wall clock; 0: never. Of those that did: the
    time that it was then."""


class ChangesAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``after`` and ``sub``: where the next request goes on, however few pieces there are; with
    ``sub`` > 0 the record behind ``after`` has more. ``applied``: how far this replica has come."""

    request_id: RequestId
    pieces: tuple[ChangePiece, ...]
    after: Seq
    sub: Count63
    applied: Seq


class ChangeEnds(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Which positions are there to be read? ``rows_max`` > 0: where does one come from ``after``
    with at most so many rows, up to ``to_seq``, in whole records but with a first one."""

    channel: ChannelId
    after: Seq
    to_seq: Seq
    rows_max: Count63
    timeout_ms: TimeoutMs


class ChangeEndsAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``first`` is the position before the oldest record there is, ``applied`` the one behind the
    newest. ``reached`` lies ``rows`` rows behind ``after``; ``more``: ask again from there, as one
    request looks at a bounded number of bytes."""

    request_id: RequestId
    first: Seq
    applied: Seq
    reached: Seq
    rows: Count63
    more: bool
