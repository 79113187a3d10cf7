"""Hands committed records of one channel from the log to its table, a bounded amount at a time."""

from __future__ import annotations

from raftstore.ports import MessageLog, TableStore
from raftstore.types import ChannelId, Seq

APPLY_BYTES_PER_STEP = 4 * 1024 * 1024
"""Payload bytes read from the log and handed to the table store at a time, per channel."""

STEPS_AHEAD = 2
"""Steps handed over and not applied yet: one is being applied while the next waits."""


class ApplyFeed:
    """Every committed record, in seq order and once (S10); never beyond what it was told (S4.2)."""

    def __init__(
        self, log: MessageLog, tables: TableStore, channel: ChannelId, applied: Seq
    ) -> None:
        self._log = log
        self._tables = tables
        self._channel = channel
        self._target = applied
        self._outstanding = 0
        self.queued_seq = applied
        """Highest seq handed over; nothing up to it is ever truncated."""

    def advance(self, apply_to: Seq) -> None:
        """Everything up to this seq is committed and durable here."""
        self._target = max(self._target, apply_to)
        self._submit()

    def on_applied(self) -> None:
        """The table store has applied a step: the next may follow."""
        self._outstanding -= 1
        assert self._outstanding >= 0
        self._submit()

    def _submit(self) -> None:
        while self.queued_seq < self._target and self._outstanding < STEPS_AHEAD:
            records = self._log.read(
                self._channel,
                Seq(self.queued_seq + 1),
                to_seq=self._target,
                bytes_max=APPLY_BYTES_PER_STEP,
            )
            assert records, "committed records are missing from the log"
            assert records[0].base_seq == self.queued_seq + 1, "hole below the commit seq"
            self.queued_seq = records[-1].last_seq
            self._outstanding += 1
            self._tables.apply(self._channel, records)
