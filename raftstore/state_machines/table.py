"""The machine behind a table's channel, and those that share the channel's log with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raftstore.protocol.payload import check_payload
from raftstore.protocol.records import Record
from raftstore.protocol.staged import check_staged
from raftstore.record_machine import ApplyResult, RecordMachine, RecordView
from raftstore.state_machines.batches.machines import CoordinatorMachine, StagingMachine
from raftstore.state_machines.lifetimes import LifetimesMachine, apply_with_lifetimes
from raftstore.state_machines.row_writes import apply_rows
from raftstore.state_machines.trimmed_outcomes import OutcomesMachine
from raftstore.types import RecordKind


class TableMachine(RecordMachine):
    """Keeps the newest row per key. Values stay sealed: no node looks into them."""

    LABEL: ClassVar = "table"
    KINDS: ClassVar = frozenset({RecordKind.ROWS, RecordKind.CONDITIONAL, RecordKind.BATCH_MARK})
    PARTS: ClassVar[Sequence[RecordMachine]] = (
        LifetimesMachine(),
        StagingMachine(),
        CoordinatorMachine(),
        OutcomesMachine(),
    )

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Compute the writes of one committed record; raise CorruptRecordError if unreadable."""
        if view.time_ms:
            return apply_with_lifetimes(record, view)
        return apply_rows(record, view.row)

    def check(self, kind: RecordKind, payload: bytes, rows: int) -> None:
        """Raise DecodeError or CorruptRecordError unless a client may have this record applied."""
        if kind is RecordKind.STAGED:
            check_staged(payload, rows)
        else:
            check_payload(kind, payload, rows)
