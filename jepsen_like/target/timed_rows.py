"""Records of rows with a lifetime, read from a committed log."""

from __future__ import annotations

from typing import Final

from raftstore.protocol.lifetimes import WITHOUT_TTL, decode_expire, decode_with_ttl
from raftstore.protocol.records import Record
from raftstore.types import RecordKind

_SPANS: Final = (RecordKind.BATCH_APPLY, RecordKind.STAGED, RecordKind.EXPIRE)
"""Kinds of records that take as many seqs as they name rows, without having these rows."""


def without_ttl(record: Record) -> tuple[RecordKind, bytes | memoryview, int]:
    """The kind and payload that the record would have without a lifetime, and its rows' expiry; 0:
    they have none."""
    if record.kind not in WITHOUT_TTL:
        return record.kind, record.payload, 0
    ttl_ms, payload = decode_with_ttl(record.payload)
    return WITHOUT_TTL[record.kind], payload, record.timestamp_ms + ttl_ms


def time_behind(record: Record, time_ms: int) -> int:
    """The channel time behind the record; ``time_ms``: before it."""
    if record.kind is not RecordKind.EXPIRE:
        return time_ms
    return max(time_ms, min(decode_expire(record.payload)[0], record.timestamp_ms))


def span_of(record: Record) -> int:
    """Seqs of a record, where they are not as many as its rows; 0: they are."""
    return record.rows if record.kind in _SPANS else 0
