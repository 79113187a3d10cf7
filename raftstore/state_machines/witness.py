"""The machine behind a witness's channel: it keeps no rows, and no state beside them."""

from __future__ import annotations

from typing import ClassVar

from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, RecordMachine, RecordView
from raftstore.state_machines.base import NO_CHANGE
from raftstore.types import RecordKind


class WitnessMachine(RecordMachine):
    """The table store keeps the applied position, and nothing else comes into the table.

    Whatever the channel is of, it is given all records, and none of them in pieces: those are
    written by replicas that have the rows.
    """

    HOLDS_ROWS: ClassVar = False

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Change nothing, whatever is committed."""
        del record, view
        return NO_CHANGE

    def check(self, kind: RecordKind, payload: bytes, rows: int) -> None:
        """Take all: a witness that leads sequences nothing new, whatever it is (W4), and says so
        itself. What the channel is of it does not know."""
        del kind, payload, rows
