"""The machine behind a table's channel: upserts, deletes and conditional writes of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec.structs import replace

from raftstore.errors import DecodeError
from raftstore.ports.machine import (
    ApplyResult,
    Kinds,
    Row,
    StateMachine,
    StateReader,
    StateWrites,
    Way,
)
from raftstore.protocol.lifetimes import WITHOUT_TTL, decode_with_ttl
from raftstore.protocol.payload import Cell, decode_conditional, decode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import MERGE, UPSERT
from raftstore.state_machines.base import NO_CHANGE, SILENT_KINDS, refuse_kind, refuse_payload
from raftstore.state_machines.batches.coordinator import apply_txn
from raftstore.state_machines.batches.staging import first_needed, rows_of, stage
from raftstore.state_machines.expiry import expire, time_of, visible, written
from raftstore.state_machines.outcomes import (
    chunk_outcomes,
    condition_outcome,
    is_complete,
    merged_before,
)
from raftstore.state_machines.trimmed_outcomes import trim_outcomes
from raftstore.types import RecordKind, Seq


class TableMachine(StateMachine):
    """Keeps the newest row per key. Values stay sealed: no node looks into them."""

    KINDS: ClassVar[Kinds] = {
        RecordKind.ROWS: Way.ROWS,
        RecordKind.CONDITIONAL: Way.ROWS,
        RecordKind.BATCH_MARK: Way.ROWS,
        RecordKind.STAGED: Way.STATE,
        RecordKind.TXN: Way.STATE,
        RecordKind.TRIM_OUTCOMES: Way.STATE,
        RecordKind.ROWS_WITH_TTL: Way.LIFETIMES,
        RecordKind.CONDITIONAL_WITH_TTL: Way.LIFETIMES,
        RecordKind.EXPIRE: Way.LIFETIMES,
    }

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

    def apply_state(
        self,
        record: Record,
        read: Callable[[bytes], Row | None],  # noqa: ARG002 - rows play no part yet
        state: StateReader,
    ) -> ApplyResult:
        """Compute what a record of ``Way.STATE`` changes in the state beside the rows.

        BATCH_APPLY is not here: its rows are in other records (``batches.staging.plan_apply``).
        """
        if record.kind is RecordKind.STAGED:
            return ApplyResult((), state_writes=stage(record, state))
        if record.kind is RecordKind.TXN:
            result = apply_txn(record, state)
            return ApplyResult((), state_writes=result.state_writes, answer=result.answer)
        if record.kind is RecordKind.TRIM_OUTCOMES:
            return ApplyResult((), state_writes=trim_outcomes(record, state))
        raise refuse_kind("table", record)

    def apply_with_lifetimes(
        self, record: Record, read: Callable[[bytes], Row | None], state: StateReader
    ) -> ApplyResult:
        """Compute the writes of a record where rows may have an expiry, or get one.

        Expired rows are absent to conditions, by the channel time before the record (S10).
        """
        time_ms = time_of(state)
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
        result = self.apply(inner, visible(read, time_ms))
        return written(result, expires_ms, read, time_ms)

    def rows_of(
        self,
        of: tuple[Seq, int],
        mode: int,
        payload: bytes | memoryview,
        read: Callable[[bytes], Row | None],
        state_get: Callable[[bytes], bytes | None],
    ) -> list[tuple[bytes, Cell]]:
        """The writes of one chunk of a batch that is being applied (``batches.staging.rows_of``).

        ``payload`` are the chunk's rows, without its header.
        """
        # S10: after a crash the rows that are there are the batch's own, in part.
        known = merged_before(*of, state_get) if mode == MERGE else None
        return rows_of(mode, decode_rows(payload), read, of[0]) if known is None else known

    def first_needed(self, state: StateReader) -> Seq | None:
        """Seq of the oldest record with staged rows that a batch may still list."""
        return first_needed(state)

    def outcomes_of(
        self,
        of: tuple[Seq, int],
        mode: int,
        payload: bytes | memoryview,
        written: Sequence[tuple[bytes, Cell]],
        state_get: Callable[[bytes], bytes | None],
    ) -> StateWrites:
        """Outcomes of a chunk that readers of the changes need besides its rows."""
        # S10: after a crash the batch meets its own rows; what its first run found out is right.
        if mode == UPSERT or is_complete(*of, state_get):
            return ()
        return chunk_outcomes(*of, mode, decode_rows(payload), written)

    @staticmethod
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
