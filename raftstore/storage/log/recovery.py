"""Reading the log back at start: what is intact, what was promised, what is missing (S0.3).

A damaged entry takes nothing with it but itself. What stands behind it is found again
(``raftstore.storage.log.resync``) and sorted by channel:

* a channel whose next record continues what it held before lost nothing. That is proven by its seq
  if exactly one entry is damaged, which cannot both truncate and append; else by its term too: a
  log that holds (t, s + 1) holds (t, s) before it (S2.1, S2.4);
* a channel that misses records has a *hole*. What follows is kept and is no part of its log before
  the hole is filled from other replicas; until then it neither votes, nor acknowledges, nor serves
  (docs/decisions/0015-*);
* terms, votes and drops are in the mark without lag.

The end of the last file is distinguished from that by the mark, not by the look of the bytes:

* the cut is there and every channel holds before it what its mark row promises: a torn write that
  that was never acknowledged; it is cut off, whatever looks intact behind it;
* otherwise, if nothing behind it is intact, the bytes are put aside under ``quarantine/`` for
  inspection and the log is cut all the same. Each channel whose promise is not contained in what is
  left has a hole at its end, or, if it is not known what belongs there, a *shortfall*: its replica
  fetches the records again from the leader.

A promise (term, seq) is kept if the intact part ever held that record, even if a truncation removed
it later: a truncation is only done on proof that the record was not committed (S2.5). A truncation
that was damaged itself brings back what it removed: that is the state before it was done, and all
that was acknowledged or voted since is still held or in the mark.

Bytes are only believed as they are on the disk: the last two files are synced and dropped from
memory before they are read (``FileOps.read_file``), since a process that died may have left what
it never managed to sync. Runs in the loop thread, before anything else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftstore.config import FORMAT_VERSION, MIB
from raftstore.errors import NewerFormatError, PromisesLostError, StoreIdentityError
from raftstore.ports.log import EMPTY_BASE
from raftstore.storage.files import FileOps, starting
from raftstore.storage.identity import PROMISES_REMEDY
from raftstore.storage.log.index import ChannelIndex, position_of
from raftstore.storage.log.mark import Floor, MarkRow, Removal
from raftstore.storage.log.records import (
    HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Based,
    DamagedEntryError,
    Drop,
    Entry,
    Fill,
    GiveUp,
    RecordPosition,
    Removed,
    SegmentHeader,
    Truncation,
    Vote,
    decode_body,
    decode_entries,
    encode_segment,
    first_chain,
    peek_header,
)
from raftstore.storage.log.resync import Damage, damage_at, damaged_segment_header
from raftstore.storage.log.segments import list_segments, segment_path
from raftstore.storage.quarantine import free_place
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq, Term

UNCERTAIN_SEGMENTS: Final = 2
"""The last files, whose content a dead process may have left unsynced in memory."""


REPORT_EVERY_BYTES: Final = 1 * MIB
"""The progress of the start is reported this often."""

OnLogRead = Callable[[int, int], None]
"""(bytes of the log that were read, bytes there are); called at the end with both equal, too."""


def unheard(done_bytes: int, total_bytes: int) -> None:
    """Ignore progress: no caller waits for it."""


@dataclass(slots=True)
class Cut:
    """Where the log stops being intact, and why."""

    segment: int
    offset: int
    reason: str


@dataclass(slots=True)
class SegmentFacts:
    """A segment of the log."""

    previous_chain: int
    """The chain that its header continues."""
    size_bytes: int = 0
    """Once it is closed."""


@dataclass(slots=True)
class RecoveredLog:
    """The intact part: channels, where it ends, and the news for an operator."""

    channels: dict[ChannelId, ChannelIndex] = field(default_factory=dict)
    dropped: dict[ChannelId, None] = field(default_factory=dict)
    dropped_bytes: Counter[int] = field(default_factory=Counter)
    """Of records of dropped channels and removed replicas, by the segment that says so."""
    chain: int = 0
    segment: int = 0
    offset: int = 0
    segments: dict[int, SegmentFacts] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unproven: list[ChannelId] = field(default_factory=list)
    """Whole channels of which the log holds nothing behind its damage: before their next record it
    has to say that they were found whole: a later start could not know that it continues them."""
    removals: list[ChannelId] = field(default_factory=list)
    """Channels of which the mark alone knows of a removed replica; the log has to say it again."""


class LogRecovery:
    """One start: scan, compare with the mark, cut."""

    def __init__(
        self,
        ops: FileOps,
        directory: Path,
        store_uuid: bytes,
        promised: dict[ChannelId, MarkRow],
        *,
        floor: Floor | None = None,
        on_read: OnLogRead = unheard,
    ) -> None:
        """``floor``: where the log begins by its mark; None: at its first segment."""
        self._ops = ops
        self._directory = directory
        self._store_uuid = store_uuid
        self._promised = promised
        self._floor = Floor(1, first_chain(store_uuid)) if floor is None else floor
        self._log = RecoveredLog(chain=self._floor.chain, segment=self._floor.segment - 1)
        self._read_bytes = 0
        """Of the segments that were read to their end."""
        self._given_up: dict[ChannelId, None] = {}
        """Channels of which the next record states what was given up."""
        self._held: dict[ChannelId, dict[Term, Seq]] = {}
        self._on_read = on_read
        self._total_bytes = 0
        self._log_chain: int | None = self._log.chain
        """None: behind damage, where the next entry says what it is."""
        self._number_of_last = 0
        self._lost_fills: dict[ChannelId, None] = {}
        """Channels of which a record that was filled in is damaged."""
        self._front_fills: dict[ChannelId, Seq] = {}
        """Channels of which nothing was read yet but records that were filled in, and their highest
        seq: what stood between these and the next record may be in removed segments."""
        self._damages = 0
        """Damaged places so far at which it is not known what was lost."""
        self._is_single = False
        """The last of them was exactly one entry."""
        self._seen: dict[ChannelId, int] = {}
        """How many there were when a record of the channel was read last."""

    def run(self) -> RecoveredLog:
        """Recover. Raises StorageError or StoreIdentityError before anything was changed."""
        with starting(self._directory, "reading the log"):
            self._ops.sync_directory(self._directory)
            every = list_segments(self._ops, self._directory)
            numbers = [number for number in every if number >= self._floor.segment]
            self._check_removable(every[: len(every) - len(numbers)], numbers)
            self._number_of_last = numbers[-1]
            cut = self._scan(numbers)
        self._on_read(self._total_bytes, self._total_bytes)
        missing = self._compare()
        self._remove(every[: len(every) - len(numbers)])
        if cut is not None:
            with starting(self._directory, "cutting the log at its damaged end"):
                self._cut(cut, is_torn=not missing)
        for channel, index in self._log.channels.items():
            if index.shortfall is None and self._seen.get(channel, 0) < self._damages:
                self._log.unproven.append(channel)
            hole, shortfall = index.hole(), missing.get(channel)
            if hole is not None:
                self._log.notes.append(
                    f"channel {channel.hex()} lost what is between seq {hole.from_seq} and "
                    f"{hole.to_seq}: it is recovering until other replicas gave it back (S0.3)"
                )
            elif shortfall is not None:
                self._log.notes.append(
                    f"channel {channel.hex()} holds the log up to {tuple(index.end)} but had "
                    f"acknowledged up to {tuple(shortfall)}: it is recovering (S0.3)"
                )
        return self._log

    # --- segments below the floor -----------------------------------------------------------------

    def _check_removable(self, removable: list[int], needed: list[int]) -> None:
        """S0.1, S0.2: nothing goes before it is certain that the log is there, and is this one."""
        if not needed:
            raise PromisesLostError(
                f"the log of {self._directory.parent} is missing from segment "
                f"{self._floor.segment} on, its mark needs it: what this node promised under its "
                f"id is not known any more (S0.2); {PROMISES_REMEDY}"
            )
        for number in removable:
            path = segment_path(self._directory, number)
            self._refuse_foreign(path, self._ops.read_start(path, SEGMENT_HEADER_BYTES))

    def _remove(self, removable: list[int]) -> None:
        """A crash came between the mark and them, or brought their names back."""
        if not removable:
            return
        with starting(self._directory, "removing segments that are not needed any more"):
            for number in removable:
                self._ops.unlink(segment_path(self._directory, number))
            self._ops.sync_directory(self._directory)

    # --- scanning ---------------------------------------------------------------------------------

    def _scan(self, numbers: list[int]) -> Cut | None:
        paths = [segment_path(self._directory, number) for number in numbers]
        self._total_bytes = sum(map(self._ops.size_bytes, paths))
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            if number != self._log.segment + 1:
                missing = segment_path(self._directory, self._log.segment + 1)
                self._note_loss(f"{missing} is missing")
            path = segment_path(self._directory, number)
            if number > numbers[-1] - UNCERTAIN_SEGMENTS:
                data = self._ops.read_file(path)
            else:
                data = self._ops.read_unsynced(path)
            self._refuse_foreign(path, data)
            self._read_bytes += self._log.offset
            self._log.segment, self._log.offset = number, 0
            header = peek_header(data)
            previous = self._log.chain if header is None else header.previous_chain
            self._log.segments[number] = SegmentFacts(previous, len(data))
            cut = self._scan_segment(number, data, self._chain_of(following))
            if cut is None:
                continue
            if following is None:
                return cut
            self._note_loss(f"{path} is damaged from byte {cut.offset} on: {cut.reason}")
            self._log.offset = len(data)
        return None

    def _chain_of(self, number: int | None) -> int | None:
        """The chain that the next segment continues; None: there is none, or it is not readable."""
        if number != self._log.segment + 1:
            return None
        path = segment_path(self._directory, number)
        header = peek_header(self._ops.read_start(path, SEGMENT_HEADER_BYTES))
        return None if header is None else header.previous_chain

    def _note_loss(self, what: str) -> None:
        """An unknown number of entries is lost: the chain begins anew behind them."""
        self._log.notes.append(f"{what}; what follows was kept")
        self._damages += 1
        self._is_single = False
        self._log_chain = None

    def _refuse_foreign(self, path: Path, data: bytes) -> None:
        """S0.1: files of a newer format or of another store are refused, never cut."""
        header = peek_header(data)
        if header is None:
            return
        if header.version > FORMAT_VERSION:
            raise StoreIdentityError(
                f"{path} has format version {header.version}, this program knows up to "
                f"{FORMAT_VERSION}; start the newer raftstore that wrote it"
            )
        if header.store_uuid != self._store_uuid:
            raise StoreIdentityError(
                f"{path} belongs to store {header.store_uuid.hex()}, not to "
                f"{self._store_uuid.hex()}; put back the files of this store"
            )

    def _scan_segment(self, number: int, data: bytes, following_chain: int | None) -> Cut | None:
        log = self._log
        start = reported = 0
        while True:
            chain = self._log_chain
            try:
                for offset, length, after, entry in decode_entries(data, chain, start):
                    if offset >= reported:
                        reported = offset + REPORT_EVERY_BYTES
                        self._on_read(self._read_bytes + offset, self._total_bytes)
                    self._apply(entry, number, offset, length)
                    self._log_chain = log.chain = after
                    log.offset = offset + length
            except DamagedEntryError as error:
                reason = str(error)
            except NewerFormatError as error:  # GAP-15: never cut
                path = segment_path(self._directory, number)
                raise NewerFormatError(f"{path} at byte {log.offset}: {error}") from error
            else:
                return Cut(number, 0, "it is empty") if log.offset == 0 else None
            damage = self._damage(number, data, following_chain)
            # S0.3: nothing of it was ever promised, so it is the torn end of the last write.
            is_last = self._number_of_last == number
            if damage is None or (is_last and not self._broken_promises()):
                return Cut(number, log.offset, reason)
            self._skip(number, data, damage, reason)
            start = log.offset = damage.end

    def _damage(self, number: int, data: bytes, following_chain: int | None) -> Damage | None:
        log = self._log
        if log.offset == 0 and self._log_chain is not None:
            header, after = encode_segment(self._store_uuid, number, self._log_chain)
            found = damaged_segment_header(data, header, after, following_chain)
            if found is not None:
                return found
        found = damage_at(data, log.offset, self._log_chain, following_chain)
        # A body that nothing intact follows may be the torn end of the log as well.
        if found is not None and found.end == len(data) and self._number_of_last == number:
            return None
        return found

    def _skip(self, number: int, data: bytes, damage: Damage, reason: str) -> None:
        """Take note of what is damaged, and of what is known about it all the same."""
        path = segment_path(self._directory, number)
        place = f"{path} is damaged at byte {damage.offset}: {reason}"
        self._log_chain = damage.chain
        if damage.chain is not None:
            self._log.chain = damage.chain
        if damage.repair is not None:
            with starting(path, "writing a damaged header again"):
                self._write_again(path, damage)
            done = "will be" if self._ops.is_read_only else "was"
            self._log.notes.append(f"{place}; only the header, which {done} written again")
            if damage.offset:
                header = HEADER_BYTES
                entry = decode_body(memoryview(data)[damage.offset + header : damage.end])
                self._apply(entry, number, damage.offset, damage.end - damage.offset)
            return
        match damage.lost:
            case RecordPosition() as lost:
                self._lose(lost)
            case Fill(record):
                self._lost_fills[record.channel] = None  # what it filled is a hole again
            case _:
                self._damages += 1
                self._is_single = damage.is_single
        self._log.notes.append(f"{place}; {damage.end - damage.offset} bytes were passed over")

    def _write_again(self, path: Path, damage: Damage) -> None:
        assert damage.repair is not None
        descriptor = self._ops.open(path, os.O_RDWR)
        try:
            self._ops.pwrite_all(descriptor, damage.repair, damage.offset)
            self._ops.datasync(descriptor)
        finally:
            self._ops.close(descriptor)

    def _index(self, channel: ChannelId) -> ChannelIndex:
        index = self._log.channels.get(channel)
        if index is None:
            index = self._log.channels[channel] = ChannelIndex()
            removed = self._promised.get(channel, MarkRow()).removed
            if removed is not None and removed.segment < self._floor.segment:
                index.removed = removed  # a segment said so that is not needed any more
        return index

    def _apply(self, entry: Entry, number: int, offset: int, length: int) -> None:
        if isinstance(entry, SegmentHeader) != (offset == 0):
            raise DamagedEntryError("a segment header is not where it belongs")
        match entry:
            case RecordPosition():
                self._add(entry, position_of(number, offset), length)
            case Fill(record):
                self._fill(record, position_of(number, offset), length)
            case GiveUp(channel):
                self._give_up(channel)
            case Based():
                self._begin_behind(entry, number)
            case Truncation(channel, from_seq):
                self._index(channel).truncate_parts(from_seq)
            case Vote(channel, term, voted_for):
                index = self._index(channel)
                index.term, index.voted_for = term, voted_for
            case Drop() | Removed():
                self._take_out(entry, number)
            case SegmentHeader():
                _check_number(entry, number)

    def _take_out(self, entry: Drop | Removed, number: int) -> None:
        """Forget what was held and promised until here; it stays in its segments."""
        log, channel = self._log, entry.channel
        if channel in log.channels:
            log.dropped_bytes[number] += sum(log.channels.pop(channel).lengths)
        if isinstance(entry, Drop):
            log.dropped[channel] = None
            return
        removal = Removal(entry.number, number)
        self._begin_after(channel, ChannelIndex.after(removal, entry.term, entry.voted_for))

    def _begin_after(self, channel: ChannelId, index: ChannelIndex) -> None:
        self._log.channels[channel] = index
        for noted in (self._held, self._given_up, self._front_fills, self._lost_fills):
            noted.pop(channel, None)
        self._seen[channel] = self._damages

    def _give_up(self, channel: ChannelId) -> None:
        index = self._index(channel)
        # Behind a floor the first part that is found may be the log itself, and not behind a hole:
        # the next record shows it, for it continues the log.
        if self._is_front_open(index) and index.kept:
            del index.kept[1:]
            self._given_up[channel] = None
        else:
            index.kept.clear()
        # Forgotten is not truncated: nothing proves that it was not committed.
        held = self._held[channel] = {}
        for part in (index, *index.kept):
            held.update((run.term, run.end_seq) for run in part.lineage)
        self._seen[channel] = self._damages

    def _begin_behind(self, entry: Based, number: int) -> None:
        """A base, and all that the log of its channel was when it was written (S6.5)."""
        channel, base = entry.channel, entry.base
        index = self._index(channel)
        is_damaged = self._seen.get(channel, 0) < self._damages
        if index.contradicts(base) and not (entry.replaces or is_damaged):
            raise DamagedEntryError(
                f"the base {tuple(base.history)} of channel {channel.hex()} is none of its log"
            )
        # Gone is not truncated: nothing proves that what was behind a hole, or what was put aside
        # as a whole, was not committed.
        if base == EMPTY_BASE or (entry.replaces and index.kept):
            self._held[channel] = {}
        if entry.replaces:
            index.begin_anew(base)
        else:
            index.settle(base, entry.end)
        self._given_up.pop(channel, None)
        index.base_segment = number
        index.term, index.voted_for = entry.term, entry.voted_for
        self._seen[channel] = self._damages

    def _is_front_open(self, index: ChannelIndex) -> bool:
        """Whether what the log holds in front of its first record may be in removed segments."""
        return self._floor.segment > 1 and not len(index)

    def _forget_given_up(self, channel: ChannelId, index: ChannelIndex, base_seq: Seq) -> None:
        if channel not in self._given_up:
            return
        del self._given_up[channel]
        if base_seq <= index.last_part.last_seq:
            index.kept.clear()
            self._held[channel] = {}

    # --- records, behind damage too ---------------------------------------------------------------

    def _add(self, record: RecordPosition, position: int, length: int) -> None:
        """A record continues its channel, or begins a part behind a hole."""
        channel, term, base_seq, rows = record
        index = self._index(channel)
        self._forget_given_up(channel, index, base_seq)
        damages = self._damages - self._seen.get(channel, 0)
        is_single = damages == 1 and self._is_single
        if is_single and base_seq <= index.last_part.last_seq:
            index.truncate_parts(base_seq)  # the damaged entry was a truncation
        last = index.last_part
        continues = base_seq == last.last_seq + 1 and (
            damages == 0 or is_single or term == last.end.term
        )
        # Behind a floor records begin anywhere: the newest base says what is in front of them.
        is_first = not index.kept or self._front_fills.pop(channel, base_seq) < base_seq
        begins = is_first and not index.base.seq and self._is_front_open(index)
        if rows < 1 or (damages == 0 and not continues and not begins):
            raise DamagedEntryError(
                f"a record at seq {base_seq} of channel {channel.hex()} follows seq {last.last_seq}"
            )
        if not continues:
            follows = base_seq > last.last_seq + 1 and term >= last.end.term
            last = ChannelIndex(Seq(base_seq - 1))
            last.is_suspect = not follows
            index.kept.append(last)
        last.add(term, base_seq, rows, position=position, length=length)
        self._hold(channel, term, last.last_seq)
        self._seen[channel] = self._damages

    def _lose(self, record: RecordPosition) -> None:
        """A record whose fields are intact and whose payload is not: what it was is known."""
        channel, term, base_seq, rows = record
        index = self._index(channel)
        end = Seq(base_seq + rows - 1)
        if base_seq <= index.last_part.last_seq:
            index.truncate_parts(base_seq)
        index.kept.append(ChannelIndex(end, History(term, end)))
        self._hold(channel, term, end)
        self._seen[channel] = self._damages

    def _fill(self, record: RecordPosition, position: int, length: int) -> None:
        channel, term, base_seq, rows = record
        index = self._index(channel)
        if index.term_known(base_seq) == term:
            return  # what was damaged when it was written can be read again
        end = Seq(base_seq + rows - 1)
        if self._is_front_open(index) and (not index.kept or channel in self._front_fills):
            self._front_fills[channel] = max(end, self._front_fills.get(channel, end))
        hole = index.hole_starting_at(base_seq, end)
        if hole is not None:
            index.fill(term, base_seq, rows, position=position, length=length, hole=hole)
        elif base_seq == index.last_seq + 1 and not index.kept:
            # The end was lost, as the mark knew.
            index.add(term, base_seq, rows, position=position, length=length)
        elif (channel not in self._lost_fills and self._floor.segment == 1) or not (
            index.fill_within(term, base_seq, rows, position=position, length=length)
            or index.fill_behind(term, base_seq, rows, position=position, length=length)
        ):
            raise DamagedEntryError(f"a record at seq {base_seq} fills no hole")
        if not index.kept:
            self._seen[channel] = self._damages
        self._hold(channel, term, end)

    def _hold(self, channel: ChannelId, term: Term, seq: Seq) -> None:
        held = self._held.setdefault(channel, {})
        held[term] = max(held.get(term, Seq(0)), seq)

    # --- comparing with the mark ------------------------------------------------------------------

    def _broken_promises(self) -> dict[ChannelId, MarkRow]:
        """Rows of the mark whose record the log never held, as far as it was read."""
        return {
            channel: row
            for channel, row in self._promised.items()
            if not row.dropped and not self._has_held(channel, row)
        }

    def _has_held(self, channel: ChannelId, row: MarkRow) -> bool:
        index, promised = self._index(channel), row.durable
        in_log, in_mark = index.removed_number, row.removed_number
        # S0.1: what one replica promised is compared with what that one held.
        if in_log != in_mark:
            return in_log > in_mark or promised == EMPTY_HISTORY
        if self._held.get(channel, {}).get(promised.term, 0) >= promised.seq:
            return True
        # S6.5: what a base stands for was committed, so what was acknowledged is in it.
        return promised <= index.base.history

    def _compare(self) -> dict[ChannelId, History]:
        """Adopt terms, votes and drops that only the mark still knows; return the shortfalls."""
        missing: dict[ChannelId, History] = {}
        for channel, row in self._promised.items():
            if row.dropped:
                self._log.channels.pop(channel, None)
                self._log.dropped[channel] = None
            if channel in self._log.dropped:
                continue
            self._adopt_removal(channel, row)
            index = self._index(channel)
            self._adopt_vote(channel, index, row)
            # S0.3: the mark is beyond what the log ever held.
            if not self._has_held(channel, row):
                index.shortfall = index.promise = missing[channel] = row.durable
                _note_lost_end(index, row.durable)
        for channel, index in self._log.channels.items():
            if index.kept:
                # Not acknowledged for sure, but never forgotten by the mark before it is filled.
                # Of a part that was cut where it begins the last term is not known: the mark is.
                promised = self._promised.get(channel, MarkRow()).durable
                known = index.shortfall or EMPTY_HISTORY
                index.shortfall = max(index.last_part.end, promised, known)
        return missing

    def _adopt_removal(self, channel: ChannelId, row: MarkRow) -> None:
        """The entry was lost: nothing shows which records are of the replica that was removed."""
        index, removed = self._index(channel), row.removed
        if removed is None or index.removed_number >= removed.number:
            return
        self._begin_after(channel, ChannelIndex.after(removed, index.term, index.voted_for))
        self._log.removals.append(channel)
        self._log.notes.append(
            f"channel {channel.hex()} had its replica {removed.number} removed, and the log lost "
            "the entry that says so: it holds nothing of the channel"
        )

    def _adopt_vote(self, channel: ChannelId, index: ChannelIndex, row: MarkRow) -> None:
        if row.term > index.term:
            index.term, index.voted_for = row.term, row.voted_for
        elif row.term == index.term and row.voted_for is not None:
            if index.voted_for not in (None, row.voted_for):
                raise PromisesLostError(
                    f"channel {channel.hex()} voted for {index.voted_for} by its log and for "
                    f"{row.voted_for} by its mark, both in term {row.term}; this node must not "
                    f"vote again (S0.1); {PROMISES_REMEDY}"
                )
            index.voted_for = row.voted_for

    # --- cutting ----------------------------------------------------------------------------------

    def _cut(self, cut: Cut, *, is_torn: bool) -> None:
        """Cut the last file; a file without an intact header gets one and nothing else."""
        assert cut.segment == self._number_of_last, (
            f"segment {cut.segment} would be cut before {self._number_of_last} (S0.3)"
        )
        path = segment_path(self._directory, cut.segment)
        note = f"{path} is intact up to byte {cut.offset} only: {cut.reason}"
        if self._ops.is_read_only:
            note += "; the next start of the node cuts it there"
        elif not is_torn:
            note += f"; what follows was put aside in {self._quarantine(cut)}"
        self._log.notes.append(note)
        if cut.offset == 0:
            log = self._log
            header, log.chain = encode_segment(self._store_uuid, cut.segment, log.chain)
            # Never removed first: after a kill in between, the log would count as missing (S0.2).
            self._ops.replace_file(path, header)
            log.offset = len(header)
            return
        descriptor = self._ops.open(path, os.O_RDWR)
        try:
            self._ops.truncate(descriptor, cut.offset)
            self._ops.datasync(descriptor)
        finally:
            self._ops.close(descriptor)

    def _quarantine(self, cut: Cut) -> Path:
        """Keep the bytes behind the cut."""
        run = free_place(self._ops, self._directory.parent, "log")
        self._ops.make_directory(run)
        self._ops.sync_directory(run.parent.parent)
        self._ops.sync_directory(run.parent)
        path = segment_path(self._directory, cut.segment)
        tail = self._ops.read_unsynced(path)[cut.offset :]
        self._ops.create_file(run / f"{path.name}.from-{cut.offset}", tail)
        self._ops.sync_directory(run)
        return run


def _check_number(header: SegmentHeader, number: int) -> None:
    if header.number != number:
        raise DamagedEntryError(f"it says that it is segment {header.number}")


def _note_lost_end(index: ChannelIndex, promised: History) -> None:
    """The log ended with this record once: what is in front of it is a hole at its end."""
    last = index.last_part
    if promised.seq > last.last_seq and promised.term >= last.end.term and not last.is_suspect:
        index.kept.append(ChannelIndex(promised.seq, promised))
