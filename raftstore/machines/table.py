"""The machine behind a table's channel: upserts, deletes and conditional writes of rows."""

from __future__ import annotations

from collections.abc import Callable

from raftstore.errors import DecodeError
from raftstore.machines.base import NO_CHANGE, SILENT_KINDS, refuse_kind, refuse_payload
from raftstore.messages import Record
from raftstore.ports import ApplyResult, Row, StateMachine
from raftstore.rows.payload import Cell, decode_conditional, decode_rows
from raftstore.types import RecordKind, Seq


class TableMachine(StateMachine):
    """Keeps the newest row per key. Values stay sealed: no node looks into them."""

    def apply(self, record: Record, read: Callable[[bytes], Row | None]) -> ApplyResult:
        """Compute the writes of one committed record; raise CorruptRecordError if unreadable."""
        if record.kind is RecordKind.CONDITIONAL:
            return self._apply_conditional(record, read)
        flat = self.writes_of(record)
        if not flat:
            return NO_CHANGE
        pairs = iter(flat)
        return ApplyResult(zip(pairs, pairs, strict=True))  # type: ignore[arg-type]

    def writes_of(self, record: Record) -> list[Cell]:
        """The flat list [key, sealed or None, ...] of a record that needs no look at the state.

        For stores that apply many records at once; a CONDITIONAL record must go through ``apply``.
        """
        kind = record.kind
        if kind is RecordKind.ROWS:
            try:
                return decode_rows(record.payload)
            except DecodeError as error:
                raise refuse_payload(record, error) from error
        if kind in SILENT_KINDS or kind is RecordKind.BATCH_MARK:
            return []  # a mark counts in the log only (S10): rows stay as they are
        raise refuse_kind("table", record)

    @staticmethod
    def _apply_conditional(record: Record, read: Callable[[bytes], Row | None]) -> ApplyResult:
        """Write only if the key's row is the expected one; else report the one there is."""
        try:
            key, sealed, expected = decode_conditional(record.payload)
        except DecodeError as error:
            raise refuse_payload(record, error) from error
        row = read(key)
        present = Seq(0) if row is None else row.seq
        # S10: decided by the applied rows alone, so every replica decides the same.
        if present != expected:
            return ApplyResult((), conflict_seq=present)
        return ApplyResult(((key, sealed),))
