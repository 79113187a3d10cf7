"""The part of a table's machine that knows lifetimes of rows (``expiry``)."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from raftstore.errors import DecodeError
from raftstore.protocol.lifetimes import LIFETIME_KINDS, WITHOUT_TTL, decode_with_ttl
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, RecordMachine, RecordView
from raftstore.state_machines.base import refuse_payload
from raftstore.state_machines.expiry import expire, time_of, visible, written
from raftstore.state_machines.row_writes import apply_rows
from raftstore.types import RecordKind


class LifetimesMachine(RecordMachine):
    """Rows that get an expiry, and the end of those that have expired."""

    KINDS: ClassVar = frozenset(LIFETIME_KINDS)

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Compute the writes of one committed record."""
        return apply_with_lifetimes(record, view)


def apply_with_lifetimes(record: Record, view: RecordView) -> ApplyResult:
    """Compute the writes of a record where rows may have an expiry, or get one.

    Expired rows are absent to conditions, by the channel time before the record (S10).
    """
    time_ms, read = time_of(view.state), view.row
    expires_ms, inner = 0, record
    try:
        if record.kind is RecordKind.EXPIRE:
            return expire(record, read, time_ms)
        if record.kind in WITHOUT_TTL:
            ttl_ms, payload = decode_with_ttl(record.payload)
            expires_ms = record.timestamp_ms + ttl_ms
            inner = replace(record, kind=WITHOUT_TTL[record.kind], payload=bytes(payload))
    except DecodeError as error:
        raise refuse_payload(record, error) from error
    result = apply_rows(inner, visible(read, time_ms))
    return written(result, expires_ms, read, time_ms)
