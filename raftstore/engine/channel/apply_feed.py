"""Hands committed records of one channel from the log to its table, a bounded amount at a time."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Final

from raftstore.engine.channel.batch_feed import BatchFeed
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.protocol.records import Record
from raftstore.record_machine import PieceMachine
from raftstore.types import ChannelId, RecordKind, Seq

APPLY_BYTES_PER_STEP = 4 * 1024 * 1024
"""Payload bytes read from the log and handed to the table store at a time, per channel."""

STEPS_AHEAD = 2
"""Steps handed over and not applied yet: one is being applied while the next waits."""
HALTS_MAX: Final = 16
"""Positions of one channel at which somebody wants to see the table; each costs one of its steps
ahead."""


class ApplyFeed:
    """Every committed record, in seq order and once (S10); never beyond what was reported to it
    (S4.2).

    In front of a record in pieces (a BATCH_APPLY) it stops until everything before is applied,
    staged records included, and then hands the pieces over, which are steps like any other. So
    it does at a position at which somebody wants to see the table as it is there (``halt_at``).
    """

    def __init__(
        self,
        log: MessageLog,
        tables: TableStore,
        channel: ChannelId,
        applied: Seq,
        on_broken: Callable[[str], None],
        pieces: PieceMachine | None,
    ) -> None:
        """``pieces``: the machine of records that are handed over in pieces; None: there are none,
        or this replica has none of the rows that they make visible."""
        self._log = log
        self._tables = tables
        self._channel = channel
        self._target = applied
        self._outstanding = 0
        self._pieces = pieces
        self._in_pieces = frozenset[RecordKind]() if pieces is None else pieces.IN_PIECES
        self._next: Record | None = None
        """A record in pieces that was read and waits for what is outstanding."""
        self._behind: list[Record] = []
        """What was read together with it and comes after it, at most one step."""
        self._batch: BatchFeed | None = None
        self._on_broken = on_broken
        self._is_broken = False
        self._on_stopped: Callable[[], None] | None = None
        """While the machine cannot apply what comes next, and nothing is handed over: called when
        more is committed, or a step was answered."""
        self.queued_seq = applied
        """Highest seq handed over; nothing up to it is ever truncated."""
        self._halts: list[tuple[Seq, int]] = []
        """Position and token of those who want to see the table there, the lowest first."""
        self._on_halt: dict[int, Callable[[], None]] = {}

    def advance(self, apply_to: Seq) -> None:
        """Everything up to this seq is committed and durable here."""
        self._target = max(self._target, apply_to)
        self._submit()
        if self._on_stopped is not None:
            self._on_stopped()

    @property
    def target(self) -> Seq:
        """Up to where records are committed and durable here."""
        return self._target

    def stop(self, look: Callable[[], None]) -> None:
        """The machine stopped: hand nothing over until ``resume``, and call ``look`` whenever that
        may have changed."""
        self._on_stopped = look

    def take_back(self, applied: Seq) -> None:
        """The machine is stopped and nothing is outstanding: what follows the applied state is
        handed over anew."""
        assert self._on_stopped is not None, "the machine did not stop"
        assert self._outstanding == 0, f"{self._outstanding} steps are under way"
        self.queued_seq, self._behind = applied, []

    def resume(self) -> None:
        """The machine goes on."""
        self._on_stopped = None
        self._submit()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was handed over is applied, and there is nothing to follow."""
        return self._outstanding == 0

    def halt_at(self, seq: Seq, token: int, reached: Callable[[], None]) -> bool:
        """Call ``reached`` once, when the table is as the record that covers ``seq`` leaves it, or
        as it is when that is behind it; nothing is applied meanwhile. False: too many wait."""
        if len(self._halts) >= HALTS_MAX:
            return False
        insort(self._halts, (seq, token))
        self._on_halt[token] = reached
        self._submit()
        return True

    def forget_halt(self, token: int) -> None:
        """Call nothing for this token any more; nothing happens if it was reached."""
        if self._on_halt.pop(token, None) is not None:
            self._halts = [halt for halt in self._halts if halt[1] != token]

    def on_applied(self) -> None:
        """The table store has applied a step: the next may follow."""
        self._outstanding -= 1
        assert self._outstanding >= 0
        self._submit()
        if self._on_stopped is not None:
            self._on_stopped()

    def _submit(self) -> None:
        if self._on_stopped is not None:
            return
        while self._outstanding < STEPS_AHEAD and not self._is_broken:
            if self._batch is None and self._halts and self._halts[0][0] <= self.queued_seq:
                if self._outstanding:
                    return
                self._on_halt.pop(self._halts.pop(0)[1])()
                continue
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
        halt = self._halts[0][0] if self._halts else None
        for number, record in enumerate(records):
            if record.kind in self._in_pieces:
                self._next, self._behind = record, records[number + 1 :]
                del records[number:]
                break
            if halt is not None and record.last_seq >= halt:
                self._behind = records[number + 1 :]
                del records[number + 1 :]
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
        assert self._pieces is not None, "no records are in pieces"
        self._next = None
        batch = BatchFeed(self._log, self._tables, self._channel, record, self._pieces)
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
