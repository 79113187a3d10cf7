"""Rows of the decided micro-batches of one partition, folded from its committed log."""

from __future__ import annotations

from raftstore.protocol.payload import Cell
from raftstore.protocol.records import Record
from raftstore.testing.batch_truth import BatchTruth
from raftstore.types import RecordKind


class BatchRows:
    """Reads a log record by record, from its first one."""

    def __init__(self) -> None:
        self._truth = BatchTruth()

    def of(self, record: Record) -> list[tuple[bytes, Cell]]:
        """The rows that become visible with the record; none unless it is a decided batch."""
        if record.kind is RecordKind.STAGED:
            self._truth.stage(record)
        if record.kind is not RecordKind.BATCH_APPLY:
            return []
        found = self._truth.apply(record)
        return [] if isinstance(found, str) else found[1]
