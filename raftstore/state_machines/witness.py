"""The machine behind a witness's channel: it keeps no rows, and no state beside them."""

from __future__ import annotations

from collections.abc import Callable

from raftstore.ports.machine import ApplyResult, Row, StateMachine
from raftstore.protocol.records import Record
from raftstore.state_machines.base import NO_CHANGE


class WitnessMachine(StateMachine):
    """The table store keeps the applied position, and nothing else comes into the table.

    It is no ``BatchMachine``: batches are applied by those who have their rows.
    """

    def apply(self, record: Record, read: Callable[[bytes], Row | None]) -> ApplyResult:
        """Change nothing, whatever is committed."""
        del record, read
        return NO_CHANGE
