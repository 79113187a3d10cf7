"""Hands committed records of one channel from the log to its table, a bounded amount at a time."""

from __future__ import annotations

from collections.abc import Callable

from raftstore.engine.channel.batch_feed import BatchFeed
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.protocol.records import Record
from raftstore.types import ChannelId, RecordKind, Seq

APPLY_BYTES_PER_STEP = 4 * 1024 * 1024
"""Payload bytes read from the log and handed to the table store at a time, per channel."""

STEPS_AHEAD = 2
"""Steps handed over and not applied yet: one is being applied while the next waits."""


class ApplyFeed:
    """Every committed record, in seq order and once (S10); never beyond what it was told (S4.2).

    In front of a BATCH_APPLY it stops until everything before is applied, staged records included,
    and then hands the batch over in pieces, which are steps like any other.
    """

    def __init__(
        self,
        log: MessageLog,
        tables: TableStore,
        channel: ChannelId,
        applied: Seq,
        on_broken: Callable[[str], None],
    ) -> None:
        self._log = log
        self._tables = tables
        self._channel = channel
        self._target = applied
        self._outstanding = 0
        self._next: Record | None = None
        """A BATCH_APPLY that was read and waits for what is outstanding."""
        self._behind: list[Record] = []
        """What was read together with it and comes after it, at most one step."""
        self._batch: BatchFeed | None = None
        self._on_broken = on_broken
        self._is_broken = False
        self.queued_seq = applied
        """Highest seq handed over; nothing up to it is ever truncated."""

    def advance(self, apply_to: Seq) -> None:
        """Everything up to this seq is committed and durable here."""
        self._target = max(self._target, apply_to)
        self._submit()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was handed over is applied, and there is nothing to follow."""
        return self._outstanding == 0

    def on_applied(self) -> None:
        """The table store has applied a step: the next may follow."""
        self._outstanding -= 1
        assert self._outstanding >= 0
        self._submit()

    def _submit(self) -> None:
        while self._outstanding < STEPS_AHEAD and not self._is_broken:
            if self._batch is not None:
                is_handed_over = self._submit_part(self._batch)
            elif self._next is not None:
                is_handed_over = self._begin_batch(self._next)
            else:
                is_handed_over = self.queued_seq < self._target and self._submit_records()
            if not is_handed_over:
                return

    def _submit_records(self) -> bool:
        # Read once: a log of small batches would be read anew for each of them.
        records, self._behind = self._behind, []
        if not records:
            records = self._log.read(
                self._channel,
                Seq(self.queued_seq + 1),
                to_seq=self._target,
                bytes_max=APPLY_BYTES_PER_STEP,
            )
        assert records, "committed records are missing from the log"
        assert records[0].base_seq == self.queued_seq + 1, "hole below the commit seq"
        for number, record in enumerate(records):
            if record.kind is RecordKind.BATCH_APPLY:
                self._next, self._behind = record, records[number + 1 :]
                del records[number:]
                break
        if records:
            self.queued_seq = records[-1].last_seq
            self._outstanding += 1
            self._tables.apply(self._channel, records)
        return True

    def _begin_batch(self, record: Record) -> bool:
        if self._outstanding:
            # Its plan is made of the state that everything before it leads to (S10).
            return False
        self._next = None
        batch = BatchFeed(self._log, self._tables, self._channel, record)
        if batch.broken is not None:
            # I1, S13: not one record behind it is applied here, nor on any other replica.
            self._is_broken = True
            self._on_broken(batch.broken)
            return False
        self.queued_seq = record.last_seq
        self._batch = batch
        return True

    def _submit_part(self, batch: BatchFeed) -> bool:
        piece = batch.next_piece(self._outstanding)
        if piece is None:
            return False
        if piece.last:
            self._batch = None
        self._outstanding += 1
        self._tables.apply_piece(self._channel, piece)
        return True
