"""The terms of a log: which term stands at a seq, and where two logs still agree (S2.4, S2.6).

A log is a list of runs, one per term, terms strictly rising: ``[(term, end_seq), ...]``. By log
matching, two logs that hold the same term at the same seq are equal up to there, so this short list
is all that is needed to compare logs. It reaches below the log's base, for others have bases of
their own; a base keeps the newest RUNS_MAX runs, and of what was before nothing is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar, Final

import msgspec

from raftstore.protocol.records import Record
from raftstore.types import EMPTY_HISTORY, History, LineageEntry, RecordKind, Seq, Term

LINEAGE_ENTRIES_MAX = 64
"""Runs offered in one MsgSyncRequest; older ones follow in the next request if none is shared."""
RUNS_MAX: Final = 4_096
"""Runs that a base keeps, the newest; a peer that matches below them needs a replica snapshot."""


class _State(msgspec.Struct, frozen=True, array_like=True):
    """A lineage as a base keeps it."""

    known_from: Seq
    runs: list[LineageEntry]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)


class Lineage:
    """Runs of terms of one log, oldest first."""

    NAME: ClassVar = "lineage"
    FORMAT: ClassVar = 1
    KINDS: ClassVar = frozenset(RecordKind)
    HEEDS_COMMITS: ClassVar = False

    __slots__ = ("_ends", "_known_from", "_newest_from", "_runs_max", "_terms", "last_seq")

    def __init__(self, entries: Iterable[LineageEntry] = (), *, runs_max: int = RUNS_MAX) -> None:
        assert runs_max >= 1
        self._runs_max = runs_max
        self._known_from = Seq(0)
        """Of what is at or below it no term is known; 0: all terms are known."""
        runs = tuple(entries)
        self._terms: list[Term] = [run.term for run in runs]
        self._ends: list[Seq] = [run.end_seq for run in runs]
        self._newest_from = self._ends[-2] if len(runs) > 1 else Seq(0)
        """Behind it all records are of the newest run, which is asked for mostly."""
        self.last_seq = self._ends[-1] if runs else Seq(0)
        """Seq of the last record; 0 for an empty log."""

    @property
    def last(self) -> History:
        """Term and seq of the last record; (0, 0) for an empty log."""
        if not self._ends:
            return EMPTY_HISTORY
        return History(self._terms[-1], self._ends[-1])

    def append(self, record: Record) -> None:
        """A record at the log's end."""
        term, last_seq = record.term, Seq(record.base_seq + record.rows - 1)
        assert last_seq > self.last_seq, f"seq {last_seq} would follow {self.last_seq} (S2.1)"
        before, self.last_seq = self.last_seq, last_seq
        if self._terms and self._terms[-1] == term:
            self._ends[-1] = last_seq
            return
        assert not self._terms or term > self._terms[-1], (
            f"a record of term {term} would follow one of term {self._terms[-1]} (S1.5)"
        )
        self._newest_from = before
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
        self._newest_from = self._ends[-2] if len(self._ends) > 1 else self._known_from
        assert self.last_seq < from_seq, f"seq {self.last_seq} is left of a cut at {from_seq}"

    def commit(self, commit_seq: Seq) -> None:
        """Nothing changes: runs are kept, for other logs match anywhere (S2.6)."""

    # --- asking -----------------------------------------------------------------------------------

    def holds(self, term: Term, seq: int) -> bool:
        """Return whether the log has, or had before its base, a record of ``term`` at ``seq``;
        every log holds (0, 0), and none holds what is not known any more."""
        if seq <= self._known_from:
            return seq == 0 and term == 0
        return seq <= self.last_seq and self.term_at(seq) == term

    def term_at(self, seq: int) -> Term:
        """Term of the record at ``seq``, which must not be beyond the end, nor so old that it is
        not known any more; 0 for seq 0."""
        assert 0 <= seq <= self.last_seq, f"no record at seq {seq}, the log ends at {self.last_seq}"
        if seq == 0:
            return Term(0)
        if seq > self._newest_from:
            return self._terms[-1]
        assert seq > self._known_from, "its term was forgotten"
        return self._terms[bisect_left(self._ends, seq)]

    def is_in_newest_term(self, seq: Seq) -> bool:
        """Whether the record at ``seq`` is of the term of the last one."""
        return self._newest_from < seq <= self.last_seq

    def newest(self, *, below: Term | None = None, above: Seq = Seq(0)) -> tuple[LineageEntry, ...]:
        """At most LINEAGE_ENTRIES_MAX runs, newest first; only terms under ``below`` if given, and
        runs that end above ``above``."""
        stop = len(self._terms) if below is None else bisect_left(self._terms, below)
        first = bisect_right(self._ends, above)
        picked = range(stop - 1, max(first - 1, stop - 1 - LINEAGE_ENTRIES_MAX), -1)
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
        return (self._ends[index - 1] if index > 0 else self._known_from) + 1

    # --- a base -----------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The newest runs, at most RUNS_MAX."""
        dropped = max(0, len(self._ends) - self._runs_max)
        known_from = self._ends[dropped - 1] if dropped else self._known_from
        kept = zip(self._terms[dropped:], self._ends[dropped:], strict=True)
        return _encoder.encode(_State(known_from, [LineageEntry(*run) for run in kept]))

    def restore(self, state: bytes, base_seq: Seq) -> None:
        """Become what was encoded. Raises ValueError for what no log has."""
        known_from, runs = msgspec.structs.astuple(_decoder.decode(state))
        if len(runs) > self._runs_max:
            raise ValueError(f"{len(runs)} runs of terms, and {self._runs_max} are kept at most")
        ends = [known_from, *(run.end_seq for run in runs)]
        if any(after <= before for before, after in pairwise(ends)) or ends[-1] != base_seq:
            raise ValueError(f"runs of seqs that end at {ends[-5:]} and not at {base_seq}")
        terms = [Term(0), *(run.term for run in runs)]
        if any(after <= before for before, after in pairwise(terms)):
            raise ValueError(f"terms that do not rise: {terms[-5:]}")
        self._known_from = known_from
        self._terms, self._ends = terms[1:], ends[1:]
        self._newest_from = ends[-2] if len(ends) > 1 else known_from
        self.last_seq = base_seq
