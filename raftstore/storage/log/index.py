"""The log's index of one channel in memory: where its records are, and how far it got.

Compact arrays, 20 bytes a record. Owned by the loop thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.node import Hole, Run
from raftstore.storage.log.mark import MarkRow, Removal
from raftstore.storage.log.records import RECORD_HEAD_BYTES
from raftstore.types import (
    EMPTY_HISTORY,
    Durability,
    History,
    LineageEntry,
    NodeId,
    Seq,
    Term,
)

RUNS_MAX: Final = 64
"""Runs of terms reported of a log with a hole, the newest ones."""

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


LENGTHS_AT_ONCE: Final = 4_096
"""Lengths of entries that are summed up in one go, by the interpreter's own loop."""


class ChannelIndex:
    """Term, vote, lineage and the place of every record of one channel."""

    __slots__ = (
        "base",
        "base_segment",
        "has_fills",
        "base_seqs",
        "positions",
        "lengths",
        "lineage",
        "last_seq",
        "term",
        "voted_for",
        "shortfall",
        "start_seq",
        "before",
        "is_suspect",
        "kept",
        "promise",
        "is_doubted",
        "durability",
        "boot",
        "in_doubt",
        "removed",
    )

    def __init__(self, start_seq: Seq = Seq(0), before: History | None = None) -> None:
        self.base = EMPTY_BASE
        """What stands for the records in front of the first one (S6.5); no part has one."""
        self.base_segment = 0
        """Where the newest entry that states the base is; 0: there is none."""
        self.has_fills = False
        """Positions may not grow with the seqs."""
        self.base_seqs = array("Q")
        self.positions = array("Q")
        self.lengths = array("I")
        self.lineage: list[LineageEntry] = []
        self.last_seq = start_seq
        self.term = Term(0)
        self.voted_for: NodeId | None = None
        self.shortfall: History | None = None
        self.start_seq = start_seq
        """The seq in front of the first record: of the base, or of a part behind a hole."""
        self.before = before
        """Term and seq of the record there, if it is not the start of all and they are known."""
        self.is_suspect = False
        """Such a part may not continue what is held before it: nothing proves that it does."""
        self.kept: list[ChannelIndex] = []
        """Parts behind holes; their records are known and are no part of the log yet."""
        self.promise: History | None = None
        """What the mark says of records that the log did not hold at the start."""
        self.is_doubted = False
        """A quorum has another history: all of it may be forgotten, but not what it promised."""
        self.durability, self.boot, self.in_doubt = Durability.FSYNC, b"", False
        """As the mark has them (``MarkRow``)."""
        self.removed: Removal | None = None
        """All here is of the replica of this node that came after those."""

    @classmethod
    def behind(cls, base: Base) -> ChannelIndex:
        """The index of a log that holds nothing yet but its base."""
        index = cls(base.seq, base.history if base.seq else None)
        index.base = base
        return index

    @classmethod
    def after(cls, removal: Removal, term: Term, voted_for: NodeId | None) -> ChannelIndex:
        """The index of a removed replica's log: it holds nothing and promised nothing, and a later
        replica of the node does not vote in a term again in which that one did (S1.3)."""
        index = cls()
        index.removed, index.term, index.voted_for = removal, term, voted_for
        return index

    @property
    def removed_number(self) -> int:
        """The highest number of a removed replica; -1: none was removed."""
        return -1 if self.removed is None else self.removed.number

    @property
    def is_gone(self) -> bool:
        """The replica was removed, and no later one has begun to hold anything."""
        return (
            self.removed is not None
            and not (len(self) or self.kept or self.base.seq)
            and self.shortfall is None
        )

    def __len__(self) -> int:
        return len(self.base_seqs)

    @property
    def end(self) -> History:
        """(term, seq) of the last record."""
        if not self.lineage and self.before is not None:
            return self.before
        return History(self.lineage[-1].term if self.lineage else Term(0), self.last_seq)

    @property
    def last_part(self) -> ChannelIndex:
        """The part that new entries of the log continue."""
        return self.kept[-1] if self.kept else self

    @property
    def is_whole(self) -> bool:
        """Nothing is missing, or the log has got beyond what was (S0.3)."""
        return not self.kept and (self.shortfall is None or self.end >= self.shortfall)

    def add(self, term: Term, base_seq: Seq, rows: int, *, position: int, length: int) -> None:
        """Note a record whose entry of ``length`` bytes is at ``position``."""
        assert base_seq == self.last_seq + 1, f"seq {base_seq} would follow {self.last_seq} (S2.1)"
        assert rows > 0, f"the record at seq {base_seq} has {rows} rows"
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
            start = self.lineage[-1].end_seq if self.lineage else self.start_seq
            if start < self.last_seq:
                self.lineage.append(LineageEntry(term, self.last_seq))
        # A record that begins before the cut stays whole (the port's promise).
        assert self.start_seq <= self.last_seq, (
            f"a cut at seq {from_seq} of a part from {self.start_seq} left {self.last_seq} (S2.5)"
        )
        self._assert_ends_agree()

    # --- bases ------------------------------------------------------------------------------------

    def holds(self, base: Base) -> bool:
        """Whether the last record of the base is in this log, or is its base."""
        return self.term_at(base.seq) == base.term and self.ends_record(base.seq)

    def ends_record(self, seq: Seq) -> bool:
        """Whether a record of this part, or what is in front of it, ends with ``seq``."""
        if not self.start_seq < seq < self.last_seq:
            return seq in (self.start_seq, self.last_seq)
        following = bisect_left(self.base_seqs, seq + 1)
        return following < len(self.base_seqs) and self.base_seqs[following] == seq + 1

    def contradicts(self, base: Base) -> bool:
        """Whether some part holds records behind the base that cannot follow it."""
        for part in (self, *self.kept):
            if part.start_seq < base.seq < part.last_seq and not part.holds(base):
                return True
            runs = (run for run in part.lineage if run.end_seq > base.seq)
            if (first := next(runs, None)) is not None and first.term < base.term:
                return True
        return base.seq < self.base.seq

    def begin_behind(self, base: Base) -> None:
        """Forget records up to the base, in whatever part they are; those behind it stay."""
        parts = [part for part in self.kept if part.last_seq > base.seq]
        for part in (self, *parts):
            part.forget_front(base.seq)
        self.base, self.before = base, base.history
        self.kept = parts
        if parts and self.last_seq == parts[0].start_seq and not parts[0].is_suspect:
            self.join(self.kept.pop(0))

    def begin_anew(self, base: Base) -> None:
        """Forget all records, in whatever part: the log ends with the base."""
        self.kept.clear()
        self.is_doubted = False
        del self.base_seqs[:], self.positions[:], self.lengths[:], self.lineage[:]
        self.base, self.before = base, base.history
        self.start_seq = self.last_seq = base.seq
        self.has_fills = False

    def settle(self, base: Base, end: History) -> None:
        """An entry of the log says that it began behind ``base`` and ended with ``end``.

        By S2.4 a log that ends with the same record is the same; anything else in between was lost.
        """
        if end.seq <= base.seq or self.contradicts(base):
            self.begin_anew(base)
        self.truncate_parts(Seq(end.seq + 1))
        last = self.last_part
        if not len(last) and last.last_seq == end.seq and last is not self:
            last.before = end
        if last.end == end:
            last.is_suspect = False  # its entries follow each other up to here
        else:
            lost = ChannelIndex(end.seq, end)
            lost.is_suspect = end.seq <= last.last_seq or end.term < last.end.term
            self.kept.append(lost)
        self.begin_behind(base)

    def forget_front(self, seq: Seq) -> None:
        """Forget the records of this part up to ``seq``, with which one of them ends."""
        if seq <= self.start_seq:
            return
        count = bisect_right(self.base_seqs, seq)
        del self.base_seqs[:count], self.positions[:count], self.lengths[:count]
        self.lineage = [run for run in self.lineage if run.end_seq > seq]
        self.start_seq, self.before = seq, None
        self.last_seq = max(self.last_seq, seq)

    def live_from(self) -> int | None:
        """The oldest segment that this log needs; None: it needs none. Of a log without holes."""
        segments = [self.base_segment] if self.base_segment else []
        if self.has_fills and len(self):
            segments.append(segment_of(min(self.positions)))
        elif len(self):
            segments.append(segment_of(self.positions[0]))
        return min(segments, default=None)

    # --- how much of it there is ------------------------------------------------------------------

    def bytes_between(self, after: Seq, to_seq: Seq) -> int:
        """Bytes of the entries of records behind ``after`` and up to ``to_seq``."""
        first, stop = bisect_right(self.base_seqs, after), bisect_right(self.base_seqs, to_seq)
        return sum(self.lengths[first:stop])

    def seq_keeping(self, *, bytes_max: int, records_max: int) -> Seq:
        """The lowest seq in front of a record, or the end, behind which no more is held."""
        first = max(0, len(self) - records_max)
        at, size = len(self), 0
        while at > first:
            step = max(first, at - LENGTHS_AT_ONCE)
            some = sum(self.lengths[step:at])
            if size + some > bytes_max:
                break
            at, size = step, size + some
        while at > first and size + self.lengths[at - 1] <= bytes_max:
            at, size = at - 1, size + self.lengths[at - 1]
        return Seq(self.base_seqs[at] - 1) if at < len(self) else self.last_seq

    def end_in(self, segment: int) -> Seq:
        """The last seq in segments up to this one; of the base, if there is none."""
        if self.has_fills:
            count = len(self)
            while count and segment_of(self.positions[count - 1]) > segment:
                count -= 1
        else:
            count = bisect_left(self.positions, position_of(segment + 1, 0))
        if count < len(self):
            return Seq(self.base_seqs[count] - 1)
        return self.last_seq

    def reach(self, from_seq: Seq, *, to_seq: Seq, bytes_max: int, records_max: int) -> Seq:
        """The end of the records from the one with ``from_seq`` to ``to_seq``: the first whatever
        its size, then within the bounds."""
        first = self.locate(from_seq)
        stop = min(len(self), first + records_max)
        if to_seq < self.last_seq:
            stop = max(first, min(stop, bisect_right(self.base_seqs, to_seq + 1) - 1))
        at, size = first, 0
        for length in self.lengths[first:stop]:
            size += length - RECORD_HEAD_BYTES
            if size > bytes_max and at > first:
                break
            at += 1
        if at == first:
            return Seq(from_seq - 1)
        return Seq(self.base_seqs[at] - 1) if at < len(self) else self.last_seq

    def end_between(self, low: Seq, high: Seq) -> Seq | None:
        """The end of the record in the middle of those that end behind ``low`` and before ``high``;
        None: there is none."""
        first, stop = bisect_right(self.base_seqs, low), bisect_right(self.base_seqs, high) - 1
        if first >= stop:
            return None
        return Seq(self.base_seqs[(first + stop - 1) // 2 + 1] - 1)

    def locate(self, seq: Seq) -> int:
        """Return the index of the record that contains ``seq``; len(self) when none does."""
        if not self.start_seq < seq <= self.last_seq:
            return len(self.base_seqs)
        return bisect_right(self.base_seqs, seq) - 1

    def term_at(self, seq: Seq) -> Term | None:
        """Term of the record that contains ``seq``; also of the one that the base ends with."""
        if seq == self.base.seq:
            return self.base.term or None
        if not self.start_seq < seq <= self.last_seq:
            return None
        return self.lineage[bisect_left(self.lineage, seq, key=lambda run: run.end_seq)].term

    def next_mark_row(self) -> MarkRow:
        """The mark's entry once everything so far is durable.

        S0.3: a recovering channel keeps the promise it could not keep yet, so that a second restart
        does not forget that records are missing. Once it could, the promise is forgotten here.
        """
        end = self.end
        if self.shortfall is not None:
            if end < self.shortfall:
                end = self.shortfall
            else:
                self.shortfall = None
        return self.mark_row(end)

    def mark_row(self, promised: History) -> MarkRow:
        """The mark's entry that promises this end."""
        if self.durability is Durability.FSYNC and not (self.in_doubt or self.removed):
            return MarkRow(self.term, self.voted_for, promised)
        return MarkRow(
            self.term,
            self.voted_for,
            promised,
            durability=self.durability,
            boot=self.boot,
            in_doubt=self.in_doubt,
            removed=self.removed,
        )

    def learn_doubt(self, row: MarkRow, boot: bytes) -> None:
        """S0.6: what the mark of an earlier life says of acknowledgements before the sync.

        All that was found is synced by now. ``boot``: of the machine, as it runs now.
        """
        lost_buffers = row.durability is Durability.BUFFERED and row.boot != boot
        self.in_doubt = row.in_doubt or row.durability is Durability.MEMORY or lost_buffers

    # --- damage found while the node runs ---------------------------------------------------------

    def has_records_in(self, low: int, high: int) -> bool:
        """Whether the entry of some record, in whatever part, is at a position of [low, high)."""
        return any(part.numbers_in(low, high) for part in (self, *self.kept))

    def numbers_in(self, low: int, high: int) -> list[int]:
        """Which records of this part have their entries at positions of [low, high)."""
        return [number for number, at in enumerate(self.positions) if low <= at < high]

    def lose_records_in(self, low: int, high: int) -> None:
        """Take records out that are lost: in front of what follows them is a hole now, or a larger
        one, and the channel is recovering, as when a start finds the same damage (S0.3)."""
        kept: list[ChannelIndex] = []
        for part in (self, *self.kept):
            behind = [part.split(number) for number in reversed(part.numbers_in(low, high))]
            if part is not self:
                kept.append(part)
            # Lost records that follow each other are one hole.
            kept += [each for each in reversed(behind[1:]) if len(each)] + behind[:1]
        self.kept = kept
        self.shortfall = max(self.last_part.end, self.shortfall or EMPTY_HISTORY)

    def split(self, number: int) -> ChannelIndex:
        """Forget a record of this part; return what follows it, as a part of its own."""
        is_last = number + 1 == len(self)
        end = self.last_seq if is_last else Seq(self.base_seqs[number + 1] - 1)
        part = ChannelIndex(end, History(self.term_at(end) or Term(0), end))
        part.base_seqs.extend(self.base_seqs[number + 1 :])
        part.positions.extend(self.positions[number + 1 :])
        part.lengths.extend(self.lengths[number + 1 :])
        part.lineage = [run for run in self.lineage if run.end_seq > end]
        part.last_seq = self.last_seq
        self.truncate(Seq(self.base_seqs[number]))
        return part

    # --- holes ------------------------------------------------------------------------------------

    def truncate_parts(self, from_seq: Seq) -> None:
        """Forget records with base_seq >= from_seq, in whatever part they are."""
        keep = Seq(from_seq - 1)
        had_parts = bool(self.kept)
        while self.kept and self.kept[-1].start_seq > keep:
            self.kept.pop()
        self.last_part.truncate(from_seq)
        if had_parts and self.last_part.last_seq < keep:
            self.kept.append(ChannelIndex(keep))

    def fill(
        self, term: Term, base_seq: Seq, rows: int, *, position: int, length: int, hole: int = 0
    ) -> None:
        """Note a record that takes its place at the start of a hole, the first one by default."""
        self.has_fills = True
        part, following = self.kept[hole - 1] if hole else self, self.kept[hole]
        part.add(term, base_seq, rows, position=position, length=length)
        assert part.last_seq <= following.start_seq, (
            f"filled to seq {part.last_seq}, missing was up to {following.start_seq} (S0.3)"
        )
        if part.last_seq == following.start_seq:
            del self.kept[hole]
            part.join(following)
            if not self.kept:
                promise = self.promise
                is_held = promise is None or self.term_at(promise.seq) == promise.term
                self.shortfall = None if is_held else promise

    def fill_within(
        self, term: Term, base_seq: Seq, rows: int, *, position: int, length: int
    ) -> bool:
        """Note a record that takes its place in the middle of a hole; False: no hole has room.

        So it is where the record in front of it was filled as well, and lost again.
        """
        self.has_fills = True
        end_seq, before = Seq(base_seq + rows - 1), self
        for number, following in enumerate(self.kept):
            if following.is_suspect:
                return False
            if before.last_seq < base_seq - 1 and end_seq <= following.start_seq:
                part = ChannelIndex(Seq(base_seq - 1))
                part.add(term, base_seq, rows, position=position, length=length)
                self.kept.insert(number, part)
                if part.last_seq == following.start_seq:
                    del self.kept[number + 1]
                    part.join(following)
                return True
            before = following
        return False

    def fill_behind(
        self, term: Term, base_seq: Seq, rows: int, *, position: int, length: int
    ) -> bool:
        """Note a record that was filled behind one that is lost again, at the end of the log.

        False: it does not come behind what is held, or nothing proves that it belongs there.
        """
        self.has_fills = True
        last = self.last_part
        if last.is_suspect or base_seq <= last.last_seq:
            return False
        if base_seq > last.last_seq + 1:
            last = ChannelIndex(Seq(base_seq - 1))
            self.kept.append(last)
        last.add(term, base_seq, rows, position=position, length=length)
        return True

    def hole_starting_at(self, base_seq: Seq, end_seq: Seq) -> int | None:
        """Number of the hole at whose start records up to ``end_seq`` fit; None: there is none.

        Parts of which nothing proves that they belong to this log have no holes between them.
        """
        before = self
        for number, following in enumerate(self.kept):
            if following.is_suspect:
                return None
            if base_seq == before.last_seq + 1 and end_seq <= following.start_seq:
                return number
            before = following
        return None

    def join(self, following: ChannelIndex) -> None:
        """Go on with the records of the part behind the hole that is filled now."""
        self.base_seqs.extend(following.base_seqs)
        self.positions.extend(following.positions)
        self.lengths.extend(following.lengths)
        assert following.start_seq == self.last_seq, (
            f"a part from seq {following.start_seq} does not continue {self.last_seq} (S2.1)"
        )
        self.last_seq = following.last_seq
        runs = list(following.lineage)
        if runs and self.lineage and self.lineage[-1].term == runs[0].term:
            self.lineage.pop()
        self.lineage.extend(runs)
        self._assert_ends_agree()

    def _assert_ends_agree(self) -> None:
        """Terms and places are of the same records: else a read gives one of another term."""
        end = self.lineage[-1].end_seq if self.lineage else self.start_seq
        assert end == self.last_seq, f"terms end at seq {end}, records at {self.last_seq} (S2.1)"
        assert len(self.base_seqs) == len(self.positions) == len(self.lengths), (
            f"{len(self.base_seqs)} records have {len(self.positions)} places"
        )

    def parts(self) -> Iterator[ChannelIndex]:
        """Runs of records held: the log, then those behind holes, as far as they belong to it."""
        yield self
        for part in self.kept:
            if part.is_suspect:
                return
            yield part

    def term_known(self, seq: Seq) -> Term | None:
        """Term of the record that contains ``seq``, in whatever part it is."""
        return next(filter(None, (part.term_at(seq) for part in self.parts())), None)

    def may_hold(self, promised: History) -> bool:
        """Whether that record is held, or was lost with a hole that will be filled (S0.3).

        What is in front of the hole must be of the same term, which proves that the lost record
        followed it (S2.4): a lost truncation brings back records that were not committed.
        """
        if promised.seq < self.base.seq:
            return promised <= self.base.history  # S6.5: all of that was committed
        held = self.term_known(promised.seq)
        if held is not None:
            return held == promised.term
        return promised.seq <= self.last_part.last_seq and self.end.term == promised.term

    def runs(self) -> Iterator[Run]:
        """Which seqs of which terms this log has held, its holes included where that is known.

        By log matching (S2.4) another log that has held one of them was equal up to there.
        """
        before: ChannelIndex | None = None
        for part in self.parts():
            first = Seq(part.start_seq + 1)
            if part.before is not None:
                yield Run(part.before.term, part.before.seq, part.before.seq)
            for entry in part.lineage:
                if before is not None and before.end.term == entry.term:
                    first = Seq(before.last_seq + 1)  # terms never fall: the hole is of it, too
                yield Run(entry.term, first, entry.end_seq)
                first, before = Seq(entry.end_seq + 1), None
            before = part

    def hole(self) -> Hole | None:
        """The first hole; None: there is none."""
        if not self.kept:
            return None
        following = self.kept[0]
        return Hole(
            Seq(self.last_seq + 1),
            following.start_seq,
            self.end.term,
            () if following.is_suspect else tuple(self.runs())[-RUNS_MAX:],
        )

    def part_serving(self, hole: Hole) -> tuple[ChannelIndex, Seq] | None:
        """The part that holds the start of another replica's hole, and up to where it is the same.

        None: nothing proves that the two logs were ever equal there.
        """
        common = max(
            (
                min(mine.last, theirs.last)
                for mine in self.runs()
                for theirs in hole.runs
                if mine.term == theirs.term
                and min(mine.last, theirs.last) >= mine.first
                and min(mine.last, theirs.last) >= theirs.first
            ),
            default=Seq(0),
        )
        for part in self.parts():
            if part.start_seq < hole.from_seq <= part.last_seq:
                known = part.term_before(hole.from_seq)
                if known != hole.prev_term:
                    return None
                # S2.4: nothing is proven above the last record that both have held.
                return part, min(common, part.last_seq, hole.to_seq)
        return None

    def term_before(self, seq: Seq) -> Term | None:
        """Term of the record in front of ``seq``, 0 for none; None: not known."""
        if seq == 1:
            return Term(0)
        if seq == self.start_seq + 1:
            return None if self.before is None else self.before.term
        return self.term_at(Seq(seq - 1))
