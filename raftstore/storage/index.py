"""What the log knows of one channel in memory: where its records are, and how far it got.

Compact arrays, 20 bytes a record. Owned by the loop thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from raftstore.storage.mark import MarkRow
from raftstore.types import History, LineageEntry, NodeId, Seq, Term

OFFSET_BITS: Final = 40
"""A position is ``segment << 40 | offset``: a segment holds less than 1 TiB."""


def position_of(segment: int, offset: int) -> int:
    """Build a position; positions grow in the order of writing and are never re-used."""
    return segment << OFFSET_BITS | offset


def segment_of(position: int) -> int:
    """Return the number of the segment."""
    return position >> OFFSET_BITS


def offset_of(position: int) -> int:
    """Return the offset in the segment."""
    return position & ((1 << OFFSET_BITS) - 1)


class ChannelIndex:
    """Term, vote, lineage and the place of every record of one channel."""

    __slots__ = (
        "base_seqs",
        "positions",
        "lengths",
        "lineage",
        "last_seq",
        "term",
        "voted_for",
        "shortfall",
    )

    def __init__(self) -> None:
        self.base_seqs = array("Q")
        self.positions = array("Q")
        self.lengths = array("I")
        self.lineage: list[LineageEntry] = []
        self.last_seq = Seq(0)
        self.term = Term(0)
        self.voted_for: NodeId | None = None
        self.shortfall: History | None = None

    def __len__(self) -> int:
        return len(self.base_seqs)

    @property
    def end(self) -> History:
        """(term, seq) of the last record."""
        return History(self.lineage[-1].term if self.lineage else Term(0), self.last_seq)

    def add(self, term: Term, base_seq: Seq, rows: int, *, position: int, length: int) -> None:
        """Note a record whose entry of ``length`` bytes is at ``position``."""
        assert base_seq == self.last_seq + 1
        assert rows > 0
        self.base_seqs.append(base_seq)
        self.positions.append(position)
        self.lengths.append(length)
        self.last_seq = Seq(base_seq + rows - 1)
        if self.lineage and self.lineage[-1].term == term:
            self.lineage[-1] = LineageEntry(term, self.last_seq)
        else:
            self.lineage.append(LineageEntry(term, self.last_seq))

    def truncate(self, from_seq: Seq) -> None:
        """Forget records with base_seq >= from_seq."""
        first = bisect_left(self.base_seqs, from_seq)
        if first == len(self.base_seqs):
            return
        self.last_seq = Seq(self.base_seqs[first] - 1)
        del self.base_seqs[first:]
        del self.positions[first:]
        del self.lengths[first:]
        while self.lineage and self.lineage[-1].end_seq > self.last_seq:
            term, _ = self.lineage.pop()
            start = self.lineage[-1].end_seq if self.lineage else 0
            if start < self.last_seq:
                self.lineage.append(LineageEntry(term, self.last_seq))

    def locate(self, seq: Seq) -> int:
        """Return the index of the record that contains ``seq``; len(self) when none does."""
        if not 1 <= seq <= self.last_seq:
            return len(self.base_seqs)
        return bisect_right(self.base_seqs, seq) - 1

    def term_at(self, seq: Seq) -> Term | None:
        """Term of the record that contains ``seq``."""
        if not 1 <= seq <= self.last_seq:
            return None
        return self.lineage[bisect_left(self.lineage, seq, key=lambda run: run.end_seq)].term

    def next_mark_row(self) -> MarkRow:
        """What the mark may say once everything so far is durable.

        S0.3: a recovering channel keeps the promise it could not keep yet, so that a second restart
        does not forget that records are missing. Once it could, the promise is forgotten here.
        """
        end = self.end
        if self.shortfall is not None:
            if end < self.shortfall:
                end = self.shortfall
            else:
                self.shortfall = None
        return MarkRow(self.term, self.voted_for, end)
