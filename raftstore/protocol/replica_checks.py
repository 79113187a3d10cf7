"""Comparing the replicas of a channel part by part, when rows of a pinned state expire, and what
is in the state of a channel set.

A client that compares replicas has each of them pin the state at one position (``PinState``), has
parts of these states hashed (``HashRange``), and asks what hash the log has at a seq
(``HashHistory``). Each request costs a node a bounded amount of work;
``scrub.verify_second_bytes_max`` bounds how much of it is done in a second. Nodes below
``raftstore.policy.levels.CHECK_LEVEL`` know none of these messages.
"""

from __future__ import annotations

from typing import Final

import msgspec

from raftstore.protocol.message import Message, Request
from raftstore.protocol.tags import tag_of
from raftstore.types import ChannelId, Count63, RecordKind, RequestId, Seq, Term, TimeoutMs

ROW_ENTRY: Final = b"\x01"
"""What the key of an entry begins with that is a row; the row's own key follows. All others are the
state beside the rows."""


class PinState(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Pin the state behind the record that covers ``seq``, or the present one if that is behind it
    already; waits until that record is applied. On every replica a record covers the same seqs, so
    replicas that had not applied ``seq`` yet pin one state."""

    channel: ChannelId
    seq: Seq
    timeout_ms: TimeoutMs


class PinStateAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The state: its position, and about how many bytes of the disk it takes."""

    request_id: RequestId
    pin: Count63
    applied_seq: Seq
    applied_term: Term
    table_bytes: Count63 = 0


class HashRange(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Hash the entries of a pinned state behind the key ``after`` up to and with the key ``last``
    (b"": to the end), at most ``entries_max`` of them and never more than the node reads at a time.
    ``lists``: also list each entry."""

    channel: ChannelId
    pin: Count63
    after: bytes
    last: bytes
    entries_max: Count63
    timeout_ms: TimeoutMs
    lists: bool = False


class HashedEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a table: its key and a digest of all that is stored under it."""

    key: bytes
    digest: bytes


class HashRangeAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``digest`` over ``entries`` entries of ``size_bytes`` together. ``resume``: the last of them,
    when the range goes on behind it; b"": it does not."""

    request_id: RequestId
    digest: bytes
    entries: Count63
    size_bytes: Count63
    resume: bytes = b""
    listed: tuple[HashedEntry, ...] = ()


class HashHistory(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Hash the log up to the last record that ends at or before ``seq``: they are read again,
    each against its digest. 0: only report which part of the log there is."""

    channel: ChannelId
    seq: Seq
    timeout_ms: TimeoutMs


class LogRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record of a log, by all that makes it another than others."""

    first_seq: Seq
    last_seq: Seq
    term: Term
    kind: RecordKind
    guid: bytes
    digest: bytes


class HashHistoryAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``chain_hash`` at ``end_seq``, where ``record`` ends; None: that is the base. The log has
    what is behind ``base_seq``, and is committed up to ``commit_seq``. ``damage``: the first record
    that is not what was written, which ends the walk."""

    request_id: RequestId
    base_seq: Seq
    commit_seq: Seq
    end_seq: Seq = Seq(0)
    chain_hash: bytes = b""
    record: LogRecord | None = None
    damage: str = ""


class RowExpiries(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """When do the rows of [start, stop) of a pinned state expire? b"" is open."""

    channel: ChannelId
    pin: Count63
    start: bytes
    stop: bytes
    timeout_ms: TimeoutMs


class RowExpiriesAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """(key, expiry in ms since 1970) of those rows that expire, in key order. ``has_any``: whether
    any row of the channel ever did. ``resume``: the key to go on from; b"": nothing is left."""

    request_id: RequestId
    expiries: tuple[tuple[bytes, Count63], ...]
    has_any: bool
    resume: bytes = b""


class ReadEntries(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Read the entries of a pinned state of a channel set whose keys begin with ``prefix``, behind
    the key ``after`` (b"": from the first): a backup does."""

    channel: ChannelId
    pin: Count63
    prefix: bytes
    after: bytes
    timeout_ms: TimeoutMs


class EntriesAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Keys and values with their seals: that of a row is over its own key, without ``ROW_ENTRY``.
    One entry and more; ``more``: others follow."""

    request_id: RequestId
    entries: tuple[tuple[bytes, bytes], ...]
    more: bool


ReplicaCheck = PinState | HashRange | HashHistory | RowExpiries | ReadEntries
ReplicaCheckAnswer = (
    PinStateAnswer | HashRangeAnswer | HashHistoryAnswer | RowExpiriesAnswer | EntriesAnswer
)
