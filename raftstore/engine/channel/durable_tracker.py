"""Which operation of the node's log makes which end of a channel durable."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from raftstore.types import Seq, Term


@dataclass(slots=True)
class DurableTracker:
    """Which log operation makes which end of the channel durable; clipped on truncation."""

    pending: deque[tuple[int, Seq]] = field(default_factory=deque)
    term_pending: deque[tuple[int, Term]] = field(default_factory=deque)
    durable_seq: Seq = Seq(0)
    durable_term: Term = Term(0)

    def appended(self, operation: int, last_seq: Seq) -> None:
        assert not self.pending or self.pending[-1][0] < operation, (
            f"operation {operation} behind {self.pending[-1][0]}"
        )
        assert last_seq > self.durable_seq, f"seq {last_seq} is new, durable {self.durable_seq}"
        self.pending.append((operation, last_seq))

    def truncated(self, operation: int, from_seq: Seq) -> None:
        # S2.5: what is cut must never be reported durable, whatever operation completes later.
        keep = Seq(from_seq - 1)
        self.pending = deque((op, Seq(min(seq, keep))) for op, seq in self.pending)
        self.pending.append((operation, keep))
        self.durable_seq = Seq(min(self.durable_seq, keep))

    def voted(self, operation: int, term: Term) -> None:
        assert term >= self.durable_term, (
            f"a vote in term {term} after {self.durable_term} is durable (S1.3)"
        )
        self.term_pending.append((operation, term))

    def completed(self, operation: int) -> bool:
        """Advance to ``operation``; True if anything moved."""
        before = (self.durable_seq, self.durable_term)
        while self.pending and self.pending[0][0] <= operation:
            self.durable_seq = self.pending.popleft()[1]
        while self.term_pending and self.term_pending[0][0] <= operation:
            self.durable_term = self.term_pending.popleft()[1]
        return (self.durable_seq, self.durable_term) != before
