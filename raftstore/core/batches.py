"""Counts the micro-batches in a channel's log: a pure function of its records (S10, BLOG-32).

A micro-batch ends in a channel with one record: BATCH_MARK when it was written row by row,
BATCH_APPLY when it was staged. So the number of batches in a committed prefix is the number of such
records in it, the same on every replica, and whoever tells that number for a seq tells the truth.

Above what is committed here the number is not known, only a limit: a batch needs at least one seq,
so between two seqs there are at most as many batches as seqs.
"""

from __future__ import annotations

from bisect import bisect_right

from raftstore.messages import Record
from raftstore.types import RecordKind, Seq

BATCH_KINDS = frozenset({RecordKind.BATCH_MARK, RecordKind.BATCH_APPLY})
"""Records that end a micro-batch."""
MARKS_MAX = 4_096
"""Committed batches whose end is remembered; for older states the number is not known."""
NOT_TOLD = -1
"""In messages: the number is not known to the sender, or it is of an older version."""


class BatchCounts:
    """The batches of one replica's log, and what others told of theirs."""

    def __init__(self, marks_max: int = MARKS_MAX) -> None:
        assert marks_max >= 1
        self._marks_max = marks_max
        self._ends: list[Seq] = []
        self._uncommitted = 0
        self._dropped = 0
        self._dropped_seq = Seq(0)
        self._told: tuple[Seq, int] = (Seq(0), 0)

    def append(self, record: Record) -> None:
        """A record at the log's end."""
        if record.kind in BATCH_KINDS:
            self._ends.append(record.last_seq)
            self._uncommitted += 1

    def truncate(self, from_seq: Seq) -> None:
        """Records from ``from_seq`` on are gone; none of them was committed (S2.5)."""
        while self._uncommitted and self._ends[-1] >= from_seq:
            self._ends.pop()
            self._uncommitted -= 1

    def commit(self, commit_seq: Seq) -> None:
        """Everything up to ``commit_seq`` stays."""
        first = len(self._ends) - self._uncommitted
        while self._uncommitted and self._ends[first] <= commit_seq:
            first += 1
            self._uncommitted -= 1
        while len(self._ends) - self._uncommitted > self._marks_max:
            self._dropped += 1
            self._dropped_seq = self._ends.pop(0)

    def at(self, seq: Seq) -> int | None:
        """Batches in the log up to ``seq``, which must be committed; None: too long ago."""
        if seq < self._dropped_seq:
            return None
        return self._dropped + bisect_right(self._ends, seq)

    def tell(self, seq: Seq) -> int:
        """What messages say of ``seq``."""
        count = self.at(seq)
        return NOT_TOLD if count is None else count

    def told(self, seq: Seq, count: int) -> None:
        """Another replica counted so many batches up to a seq that is committed there."""
        # S7.3: what was not told is not zero; a number is believed only for the seq it is of.
        if count != NOT_TOLD and seq >= self._told[0]:
            self._told = (seq, count)

    def at_least(self, commit_seq: Seq) -> int:
        """The fewest that there are in all that is committed anywhere."""
        own = self.at(commit_seq)
        assert own is not None, "the commit seq is never among what was forgotten"
        return max(own, self._told[1])

    def at_most(self, seq: Seq, commit_seq: Seq) -> int:
        """The most batches that there may be up to ``seq``, which is committed somewhere;
        ``commit_seq`` is how far this log is known to be."""
        own = self.at(min(seq, commit_seq))
        told_seq, told = self._told
        # Of two true pairs the later one says more: a batch needs a seq of its own.
        if told_seq > commit_seq and told_seq <= seq:
            return told + seq - told_seq
        assert own is not None, "the commit seq is never among what was forgotten"
        return own + max(0, seq - commit_seq)
