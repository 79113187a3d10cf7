"""Entries of a log: records, and the metadata that a leader sends in their place.

Seqs count rows: a record of n rows occupies [base_seq, base_seq + n); ``last_seq`` is its last one.
"""

from __future__ import annotations

import msgspec

from raftstore.types import (
    BaseSeq,
    Digest,
    Guid,
    RecordKind,
    RecordRows,
    Seq,
    Small31,
    Term,
    TimestampMs,
)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stored record: metadata given by the leader of ``term``, and the payload (S5.1)."""

    term: Term
    base_seq: BaseSeq
    rows: RecordRows
    guid: Guid
    timestamp_ms: TimestampMs
    digest: Digest
    kind: RecordKind
    payload: bytes

    @property
    def last_seq(self) -> Seq:
        """The seq by which the record is known in acks, commits and history."""
        return Seq(self.base_seq + self.rows - 1)


class RecordMeta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record without its payload: all a leader sends in steady state (NATS-050, S2.3).

    ``payload`` is None except for records no publisher sends (term start, configuration).
    """

    term: Term
    base_seq: BaseSeq
    rows: RecordRows
    guid: Guid
    timestamp_ms: TimestampMs
    digest: Digest
    length: Small31
    kind: RecordKind
    payload: bytes | None = None

    @property
    def last_seq(self) -> Seq:
        """The seq by which the record is known in acks, commits and history."""
        return Seq(self.base_seq + self.rows - 1)
