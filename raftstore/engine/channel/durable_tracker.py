"""Which operation of the node's log makes which end of a channel durable, and stored.

At ``fsync`` a record counts as stored when it is durable. Below that (S0.6) records of rows count
as soon as the system, or the process, has them; every other kind only once it is durable, since
what it decides, of other channels too, must not be taken back. What counts is a prefix of the log.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftstore.ports.log import RecoveredChannel
from raftstore.types import Durability, RecordKind, Seq, Term

ROW_KINDS: Final = frozenset(
    {
        RecordKind.ROWS,
        RecordKind.CONDITIONAL,
        RecordKind.ROWS_WITH_TTL,
        RecordKind.CONDITIONAL_WITH_TTL,
    }
)
"""Records that may count before they are durable."""


class _Waiting(NamedTuple):
    """An end of the log that does not count as stored yet."""

    operation: int
    seq: Seq
    is_rows: bool


@dataclass(slots=True)
class DurableTracker:
    """Which log operation makes which end of the channel durable; clipped on truncation."""

    durability: Durability = Durability.FSYNC
    """At which the table wants its records to count; it never changes."""
    in_force: Durability = Durability.FSYNC
    """At which they count by now."""

    pending: deque[tuple[int, Seq]] = field(default_factory=deque)
    term_pending: deque[tuple[int, Term]] = field(default_factory=deque)
    durable_seq: Seq = Seq(0)
    durable_term: Term = Term(0)
    stored_seq: Seq = Seq(0)
    _waiting: deque[_Waiting] = field(default_factory=deque)
    """Below ``fsync``: what is behind ``stored_seq``."""
    _durable_operation: int = 0
    _written_operation: int = 0

    def appended(self, operation: int, last_seq: Seq) -> None:
        assert not self.pending or self.pending[-1][0] < operation, (
            f"operation {operation} behind {self.pending[-1][0]}"
        )
        assert last_seq > self.durable_seq, f"seq {last_seq} is new, durable {self.durable_seq}"
        self.pending.append((operation, last_seq))
        if self.durability is not Durability.FSYNC:
            self._waiting.append(_Waiting(operation, last_seq, False))

    def truncated(self, operation: int, from_seq: Seq) -> None:
        # S2.5: what is cut must never be reported durable, whatever operation completes later.
        keep = Seq(from_seq - 1)
        self.pending = deque((op, Seq(min(seq, keep))) for op, seq in self.pending)
        self.pending.append((operation, keep))
        self.durable_seq = Seq(min(self.durable_seq, keep))
        self.stored_seq = Seq(min(self.stored_seq, keep))
        if self.durability is not Durability.FSYNC:
            waiting = (each._replace(seq=Seq(min(each.seq, keep))) for each in self._waiting)
            self._waiting = deque((*waiting, _Waiting(operation, keep, False)))

    def voted(self, operation: int, term: Term) -> None:
        assert term >= self.durable_term, (
            f"a vote in term {term} after {self.durable_term} is durable (S1.3)"
        )
        self.term_pending.append((operation, term))

    def completed(self, operation: int) -> bool:
        """Advance to ``operation``; True if anything moved."""
        before = (self.durable_seq, self.durable_term)
        self._durable_operation = operation
        while self.pending and self.pending[0][0] <= operation:
            self.durable_seq = self.pending.popleft()[1]
        while self.term_pending and self.term_pending[0][0] <= operation:
            self.durable_term = self.term_pending.popleft()[1]
        if self.durability is Durability.FSYNC:
            self.stored_seq = self.durable_seq
        else:
            self.store()
        return (self.durable_seq, self.durable_term) != before

    def may_count_early(self) -> bool:
        """The records that were appended last are of rows; True if more counts as stored now."""
        self._waiting[-1] = self._waiting[-1]._replace(is_rows=True)
        return self.store()

    def written(self, operation: int) -> bool:
        """The system has everything up to ``operation``; True if more counts as stored now."""
        self._written_operation = operation
        return self.store()

    def store(self) -> bool:
        """Count what counts as stored by now, in order; True if that is more than before."""
        before = self.stored_seq
        while self._waiting and self._counts(self._waiting[0]):
            self.stored_seq = self._waiting.popleft().seq
        return self.stored_seq > before

    def _counts(self, waiting: _Waiting) -> bool:
        if waiting.operation <= self._durable_operation:
            return True
        if not waiting.is_rows or self.in_force is Durability.FSYNC:
            return False
        is_written = waiting.operation <= self._written_operation
        return is_written or self.in_force is Durability.MEMORY


def tracker_of(recovered: RecoveredChannel, durability: str) -> DurableTracker:
    """The tracker of a channel as it is found: all of its log is durable."""
    end = recovered.last_seq
    return DurableTracker(
        Durability[durability.upper()],
        durable_seq=end,
        durable_term=recovered.term,
        stored_seq=end,
    )
