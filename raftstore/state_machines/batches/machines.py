"""The parts of a table's machine that micro-batches are: staged rows, and their coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from raftstore.errors import DecodeError
from raftstore.protocol.payload import Cell, decode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import MERGE, UPSERT, decode_apply, decode_header
from raftstore.record_machine import (
    ApplyResult,
    PieceMachine,
    PiecePlan,
    RecordMachine,
    RecordView,
    Row,
    StateReader,
    StateWrites,
)
from raftstore.state_machines.base import refuse_kind, refuse_payload
from raftstore.state_machines.batches.coordinator import apply_txn
from raftstore.state_machines.batches.staging import (
    ApplyPlan,
    Broken,
    first_needed,
    plan_apply,
    read_head,
    refs_of,
    rows_of,
    stage,
)
from raftstore.state_machines.outcomes import chunk_outcomes, is_complete, merged_before
from raftstore.types import RecordKind, Seq


class StagingMachine(PieceMachine):
    """Rows that are staged, and become visible with the batch that they are of."""

    KINDS: ClassVar = frozenset({RecordKind.STAGED, RecordKind.BATCH_APPLY})
    IN_PIECES: ClassVar = frozenset({RecordKind.BATCH_APPLY})

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Remember where a staged chunk is."""
        if record.kind is not RecordKind.STAGED:
            raise refuse_kind("table", record)
        return ApplyResult((), state_writes=stage(record, view.state))

    def plan(self, record: Record, state: StateReader) -> PiecePlan:
        """The rows of a decided batch."""
        head = read_head(state)
        try:
            batch = decode_apply(record.payload)
        except DecodeError as error:
            raise refuse_payload(record, error) from error
        plan = plan_apply(record, head, refs_of(batch.writer, batch.attempt, state))
        if isinstance(plan, Broken):
            return PiecePlan(broken=plan.reason)
        if not isinstance(plan, ApplyPlan):
            # It turns out to be applied already, or too early, and changes nothing (rule 4).
            return PiecePlan()
        return PiecePlan(plan.refs, plan.truncate, plan.state_writes, head.n)

    def chunk_rows(self, payload: bytes) -> tuple[memoryview, int]:
        """The rows of a staged record, and their lifetime."""
        header, rows = decode_header(payload)
        return rows, header.ttl_ms

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

    def first_needed(self, state: StateReader) -> Seq | None:
        """Seq of the oldest record with staged rows that a batch may still list."""
        return first_needed(state)


class CoordinatorMachine(RecordMachine):
    """Which attempt of a writer may commit, and what is decided; in partition 0 of a table."""

    KINDS: ClassVar = frozenset({RecordKind.TXN})

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Judge and apply one step."""
        result = apply_txn(record, view.state)
        return ApplyResult((), state_writes=result.state_writes, answer=result.answer)
