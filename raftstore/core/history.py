"""The terms of a log: which term stands at a seq, and where two logs still agree (S2.4, S2.6).

A log is a list of runs, one per term, terms strictly rising: ``[(term, end_seq), ...]``. By log
matching, two logs that hold the same term at the same seq are equal up to there, so this short list
is all that is needed to compare logs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from raftstore.types import EMPTY_HISTORY, History, LineageEntry, Seq, Term

LINEAGE_ENTRIES_MAX = 64
"""Runs offered in one MsgSyncRequest; older ones follow in the next request if none is shared."""


class Lineage:
    """Runs of terms of one log, oldest first."""

    __slots__ = ("_ends", "_terms", "last_seq")

    def __init__(self, entries: Iterable[LineageEntry] = ()) -> None:
        self._terms: list[Term] = []
        self._ends: list[Seq] = []
        self.last_seq = Seq(0)
        """Seq of the last record; 0 for an empty log."""
        for term, end_seq in entries:
            self.append(term, end_seq)

    @property
    def last(self) -> History:
        """Term and seq of the last record; (0, 0) for an empty log."""
        if not self._ends:
            return EMPTY_HISTORY
        return History(self._terms[-1], self._ends[-1])

    def append(self, term: Term, last_seq: Seq) -> None:
        """Extend the log to ``last_seq`` with a record of ``term``."""
        assert last_seq > self.last_seq, "a log only grows at its end"
        self.last_seq = last_seq
        if self._terms and self._terms[-1] == term:
            self._ends[-1] = last_seq
            return
        assert not self._terms or term > self._terms[-1], "terms never decrease along a log"
        self._terms.append(term)
        self._ends.append(last_seq)

    def truncate(self, from_seq: Seq) -> None:
        """Forget everything from ``from_seq`` on."""
        keep = Seq(from_seq - 1)
        while self._ends and self._start(len(self._ends) - 1) > keep:
            self._ends.pop()
            self._terms.pop()
        if self._ends:
            self._ends[-1] = min(self._ends[-1], keep)
        self.last_seq = self._ends[-1] if self._ends else Seq(0)

    def holds(self, term: Term, seq: int) -> bool:
        """Tell whether the log has a record of ``term`` at ``seq``; every log holds (0, 0)."""
        if seq <= 0:
            return seq == 0 and term == 0
        return seq <= self.last_seq and self.term_at(seq) == term

    def term_at(self, seq: int) -> Term:
        """Term of the record at ``seq``, which must not be beyond the end; 0 for seq 0."""
        assert 0 <= seq <= self.last_seq, "no record there"
        if seq == 0:
            return Term(0)
        if len(self._ends) == 1 or seq > self._ends[-2]:  # the newest run is asked for mostly
            return self._terms[-1]
        return self._terms[bisect_left(self._ends, seq)]

    def newest(self, *, below: Term | None = None) -> tuple[LineageEntry, ...]:
        """At most LINEAGE_ENTRIES_MAX runs, newest first; only terms under ``below`` if given."""
        stop = len(self._terms) if below is None else bisect_left(self._terms, below)
        picked = range(stop - 1, max(-1, stop - 1 - LINEAGE_ENTRIES_MAX), -1)
        return tuple(LineageEntry(self._terms[i], self._ends[i]) for i in picked)

    def match_point(self, theirs: Iterable[LineageEntry]) -> Seq:
        """Where another log, given by its newest runs (newest first), may still equal this one.

        S2.6 (KIP-279): the end of the largest term both know, in the shorter of the two. When they
        share none, the end of our largest term below the oldest asked; the asker then checks what
        it holds there and asks again with older runs.
        """
        oldest: Term | None = None
        for term, end_seq in theirs:
            oldest = term
            index = bisect_left(self._terms, term)
            if index < len(self._terms) and self._terms[index] == term:
                return min(end_seq, self._ends[index])
        if oldest is None:
            return Seq(0)
        index = bisect_left(self._terms, oldest)
        return self._ends[index - 1] if index > 0 else Seq(0)

    def _start(self, index: int) -> int:
        return self._ends[index - 1] + 1 if index > 0 else 1
