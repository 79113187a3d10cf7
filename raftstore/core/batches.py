"""Counts the micro-batches in a channel's log: a pure function of its records (S10, BLOG-32).

A micro-batch ends in a channel with one record: BATCH_MARK when it was written row by row,
BATCH_APPLY when it was staged. So the number of batches in a committed prefix is the number of such
records in it, the same on every replica, and all replicas report the same number for a seq.

A writer that was started again replays its newest batch, and marks it again: a mark that repeats
the one before of the same writer does not count. Only that much is concluded: ids that go back are
those of a writer that began anew, and counting a batch too few would serve what is too old (S7.3).

Above what is committed here the number is not known, only a limit: a batch needs at least one seq,
so between two seqs there are at most as many batches as seqs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from raftstore.errors import DecodeError
from raftstore.protocol.payload import WRITER_BYTES_MAX, decode_mark
from raftstore.protocol.records import Record
from raftstore.types import BatchId, Count63, RecordKind, Seq

BATCH_KINDS = frozenset({RecordKind.BATCH_MARK, RecordKind.BATCH_APPLY})
"""Records that end a micro-batch."""
MARKS_MAX = 4_096
"""Committed batches whose end is remembered; for older states the number is not known."""
WRITERS_MAX = 1_024
"""Writers whose newest mark is remembered; a replay of one that was quiet for longer counts."""
NOT_REPORTED = -1
"""In messages: the number is not known to the sender, or it is of an older version."""


def mark_of(record: Record) -> tuple[str, int] | None:
    """Writer and id of the micro-batch that the record marks; None: it marks none."""
    if record.kind is not RecordKind.BATCH_MARK:
        return None
    try:
        return decode_mark(record.payload)
    except DecodeError:
        return None  # of an older version, or kept without its payload: it counts for itself


class _Newest(NamedTuple):
    """The newest mark of a writer: its batch, and where it was counted."""

    batch: int
    seq: Seq


class _Change(NamedTuple):
    """The change that one batch made, to be taken back when its record is truncated."""

    seq: Seq
    writer: str
    before: _Newest | None
    forgotten: tuple[str, _Newest] | None


class _MarkState(msgspec.Struct, frozen=True, array_like=True):
    """The newest mark of a writer as a base keeps it."""

    writer: Annotated[str, msgspec.Meta(min_length=1, max_length=WRITER_BYTES_MAX)]
    batch: BatchId
    seq: Seq


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The count as a base keeps it."""

    dropped: Count63
    """Batches whose end is not remembered any more."""
    dropped_seq: Seq
    """Where the last of them ended."""
    ends: list[Seq]
    marks: list[_MarkState]
    """In the order of the log."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)


class BatchMarks:
    """The newest mark of each writer, in the order of the log."""

    def __init__(self, writers_max: int = WRITERS_MAX) -> None:
        self._writers_max = writers_max
        self._newest: dict[str, _Newest] = {}
        self._uncommitted: deque[_Change] = deque()

    def is_replay(self, record: Record) -> bool:
        """Whether the next record of the log only marks again what was marked; remembers it."""
        mark = mark_of(record)
        if mark is None:
            return False
        writer, batch = mark
        before = self._newest.get(writer)
        if before is not None and before.batch == batch:
            return True
        forgotten = None
        if before is None and len(self._newest) >= self._writers_max:
            oldest = min(self._newest, key=lambda name: self._newest[name].seq)
            forgotten = oldest, self._newest.pop(oldest)
        self._newest[writer] = _Newest(batch, record.last_seq)
        self._uncommitted.append(_Change(record.last_seq, writer, before, forgotten))
        return False

    def truncate(self, from_seq: Seq) -> None:
        """Records from ``from_seq`` on are gone."""
        while self._uncommitted and self._uncommitted[-1].seq >= from_seq:
            change = self._uncommitted.pop()
            del self._newest[change.writer]
            if change.before is not None:
                self._newest[change.writer] = change.before
            if change.forgotten is not None:
                self._newest[change.forgotten[0]] = change.forgotten[1]

    def commit(self, commit_seq: Seq) -> None:
        """Nothing up to ``commit_seq`` will be taken back."""
        while self._uncommitted and self._uncommitted[0].seq <= commit_seq:
            self._uncommitted.popleft()

    def encoded(self) -> list[_MarkState]:
        """The newest marks as a base keeps them."""
        assert not self._uncommitted, "a base is of committed records"
        marks = (_MarkState(writer, *newest) for writer, newest in self._newest.items())
        return sorted(marks, key=lambda mark: mark.seq)

    def restore(self, marks: list[_MarkState], base_seq: Seq) -> None:
        """Become what was encoded. Raises ValueError for what no log has."""
        seqs = [Seq(0), *(mark.seq for mark in marks), Seq(base_seq + 1)]
        if any(after <= before for before, after in pairwise(seqs)):
            raise ValueError(f"marks that are not in the order of a log up to {base_seq}")
        self._newest = {mark.writer: _Newest(mark.batch, mark.seq) for mark in marks}
        if len(marks) > self._writers_max or len(self._newest) < len(marks):
            raise ValueError(f"{len(marks)} marks of {len(self._newest)} writers")


class BatchCounts:
    """The batches of one replica's log, and what others reported of theirs."""

    NAME: ClassVar = "batches"
    FORMAT: ClassVar = 1
    KINDS: ClassVar = BATCH_KINDS
    HEEDS_COMMITS: ClassVar = True

    def __init__(self, marks_max: int = MARKS_MAX, writers_max: int = WRITERS_MAX) -> None:
        assert marks_max >= 1, f"{marks_max} batches remembered"
        self._marks_max = marks_max
        self._ends: list[Seq] = []
        self._uncommitted = 0
        self._dropped = 0
        self._dropped_seq = Seq(0)
        self._reported: tuple[Seq, int] = (Seq(0), 0)
        self._marks = BatchMarks(writers_max)

    def append(self, record: Record) -> None:
        """A record at the log's end."""
        if record.kind in BATCH_KINDS and not self._marks.is_replay(record):
            assert not self._ends or self._ends[-1] < record.last_seq, (
                f"a batch ends at seq {record.last_seq} behind one at {self._ends[-1]} (S2.1)"
            )
            self._ends.append(record.last_seq)
            self._uncommitted += 1

    def truncate(self, from_seq: Seq) -> None:
        """Records from ``from_seq`` on are gone; none of them was committed (S2.5)."""
        while self._uncommitted and self._ends[-1] >= from_seq:
            self._ends.pop()
            self._uncommitted -= 1
        assert not self._ends or self._ends[-1] < from_seq, (
            f"the batch that ends at seq {self._ends[-1]} outlived a cut at {from_seq} (S2.5)"
        )
        self._marks.truncate(from_seq)

    def commit(self, commit_seq: Seq) -> None:
        """Everything up to ``commit_seq`` stays."""
        if not self._uncommitted:
            return
        self._marks.commit(commit_seq)
        first = len(self._ends) - self._uncommitted
        while self._uncommitted and self._ends[first] <= commit_seq:
            first += 1
            self._uncommitted -= 1
        surplus = len(self._ends) - self._uncommitted - self._marks_max
        if surplus > 0:
            self._dropped += surplus
            self._dropped_seq = self._ends[surplus - 1]
            del self._ends[:surplus]

    def encode(self) -> bytes:
        """How many there are, where the newest end, and what their writers marked last."""
        assert not self._uncommitted, "a base is of committed records"
        held = _State(self._dropped, self._dropped_seq, self._ends, self._marks.encoded())
        return _encoder.encode(held)

    def restore(self, state: bytes, base_seq: Seq) -> None:
        """Become what was encoded. Raises ValueError for what no log has."""
        held = _decoder.decode(state)
        ends = [held.dropped_seq, *held.ends, Seq(base_seq + 1)]
        if any(after <= before for before, after in pairwise(ends)):
            raise ValueError(f"batches that are not in the order of a log up to {base_seq}")
        # A batch has a seq of its own.
        if len(held.ends) > self._marks_max or held.dropped > held.dropped_seq:
            raise ValueError(
                f"{held.dropped} batches up to {held.dropped_seq}, {len(held.ends)} behind"
            )
        self._marks.restore(held.marks, base_seq)
        self._dropped, self._dropped_seq = held.dropped, held.dropped_seq
        self._ends = held.ends

    def at(self, seq: Seq) -> int | None:
        """Batches in the log up to ``seq``, which must be committed; None: too long ago."""
        if seq < self._dropped_seq:
            return None
        return self._dropped + bisect_right(self._ends, seq)

    def tell(self, seq: Seq) -> int:
        """The number of batches up to ``seq`` as messages carry it."""
        count = self.at(seq)
        return NOT_REPORTED if count is None else count

    def reported(self, seq: Seq, count: int) -> None:
        """Another replica counted so many batches up to a seq that is committed there."""
        # S7.3: what was not reported is not zero; a number is believed only for the seq it is of.
        # S12: more batches than seqs cannot be, and what is counted from them leaves every range.
        if count > seq:
            return
        if count != NOT_REPORTED and seq >= self._reported[0]:
            self._reported = (seq, count)

    def at_least(self, commit_seq: Seq) -> int:
        """The fewest that there are in all that is committed anywhere."""
        own = self.at(commit_seq)
        assert own is not None, f"the batches up to {self._dropped_seq} are forgotten"
        return max(own, self._reported[1])

    def at_most(self, seq: Seq, commit_seq: Seq) -> int:
        """The most batches that there may be up to ``seq``, which is committed somewhere;
        ``commit_seq`` is how far this log is known to be."""
        own = self.at(min(seq, commit_seq))
        reported_seq, reported = self._reported
        # Of two true pairs the later one says more: a batch needs a seq of its own.
        if reported_seq > commit_seq and reported_seq <= seq:
            return reported + seq - reported_seq
        assert own is not None, f"the batches up to {self._dropped_seq} are forgotten"
        return own + max(0, seq - commit_seq)
