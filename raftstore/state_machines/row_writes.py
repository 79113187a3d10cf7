"""Changes of a table by records of rows: upserts, deletes and conditional writes.

Values stay sealed: no node looks into them.
"""

from __future__ import annotations

from collections.abc import Callable

from raftstore.errors import DecodeError
from raftstore.protocol.payload import Cell, decode_conditional, decode_rows
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, Row
from raftstore.state_machines.base import NO_CHANGE, refuse_kind, refuse_payload
from raftstore.state_machines.outcomes import condition_outcome
from raftstore.types import RecordKind, Seq


def apply_rows(record: Record, read: Callable[[bytes], Row | None]) -> ApplyResult:
    """Compute the writes of one committed record; raise CorruptRecordError if unreadable.

    Rows that have expired are absent to ``read`` already.
    """
    if record.kind is RecordKind.CONDITIONAL:
        return _apply_conditional(record, read)
    flat = writes_of(record)
    if not flat:
        return NO_CHANGE
    pairs = iter(flat)
    return ApplyResult(zip(pairs, pairs, strict=True))  # type: ignore[arg-type]


def writes_of(record: Record) -> list[Cell]:
    """The flat list [key, sealed or None, ...] of a record that needs no look at the state."""
    kind = record.kind
    if kind is RecordKind.ROWS:
        try:
            return decode_rows(record.payload)
        except DecodeError as error:
            raise refuse_payload(record, error) from error
    if kind is RecordKind.BATCH_MARK:
        return []  # it counts in the log only (S10): rows stay as they are
    raise refuse_kind("table", record)


def _apply_conditional(record: Record, read: Callable[[bytes], Row | None]) -> ApplyResult:
    """Write only if the key's row is the expected one; else report the one there is."""
    try:
        key, sealed, expected = decode_conditional(record.payload)
    except DecodeError as error:
        raise refuse_payload(record, error) from error
    row = read(key)
    present = Seq(0) if row is None else row.seq
    assert present < record.base_seq, (
        f"the condition at seq {record.base_seq} is decided by a row of {present} (S10)"
    )
    # S10: decided by the applied rows alone, so every replica decides the same.
    if present != expected:
        outcome = condition_outcome(record.last_seq, held=False)
        return ApplyResult((), conflict_seq=present, state_writes=(outcome,))
    outcome = condition_outcome(record.last_seq, held=True)
    return ApplyResult(((key, sealed),), state_writes=(outcome,))
