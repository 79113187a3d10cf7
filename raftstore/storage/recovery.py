"""Reading the log back at start: what is intact, what was promised, what is missing (S0.3).

Everything up to the first entry that cannot be believed is the log; nothing behind it is, for any
channel, since later entries may depend on the lost one (a truncation, a vote). Whether that is the
ordinary torn end of a crash or a loss is decided by the mark, not by the look of the bytes:

* the cut is in the last file and every channel still holds what its mark row promises: a torn
  write that nobody was ever told about; it is cut off;
* otherwise the bytes are put aside under ``quarantine/`` for inspection, the log is cut all the
  same, and each channel whose promise is not contained in what is left gets a *shortfall*: its
  replica neither votes nor acknowledges until it has fetched the records again.

A promise (term, seq) is kept if the intact part ever held that record, even if a truncation removed
it later: a truncation is only done on proof that the record was not committed (S2.5).

Bytes are only believed as they are on the disk: the last two files are synced and dropped from
memory before they are read (``FileOps.read_file``), since a process that died may have left what
it never managed to sync. Runs in the loop thread, before anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftstore.config import FORMAT_VERSION, MIB
from raftstore.errors import NewerFormatError, PromisesLostError, StoreIdentityError
from raftstore.storage.files import DIRECTORY_MODE, FileOps, starting
from raftstore.storage.identity import PROMISES_REMEDY
from raftstore.storage.index import ChannelIndex, position_of
from raftstore.storage.mark import MarkRow
from raftstore.storage.quarantine import free_place
from raftstore.storage.records import (
    DamagedEntryError,
    Drop,
    Entry,
    RecordPosition,
    SegmentHeader,
    Truncation,
    Vote,
    decode_entries,
    encode_segment,
    first_chain,
    peek_header,
)
from raftstore.storage.segments import list_segments, segment_path
from raftstore.types import ChannelId, History, Seq, Term

UNCERTAIN_SEGMENTS: Final = 2
"""The last files, whose content a dead process may have left unsynced in memory."""


TOLD_EVERY_BYTES: Final = 1 * MIB
"""Whoever waits for the start hears of it this often."""

OnLogRead = Callable[[int, int], None]
"""(bytes of the log that were read, bytes there are); called at the end with both equal, too."""


def unheard(done_bytes: int, total_bytes: int) -> None:
    """Nobody waits for it."""


@dataclass(slots=True)
class Cut:
    """Where the log stops being intact, and why."""

    segment: int
    offset: int
    reason: str


@dataclass(slots=True)
class RecoveredLog:
    """The intact part: channels, where it ends, and what an operator should be told."""

    channels: dict[ChannelId, ChannelIndex] = field(default_factory=dict)
    dropped: dict[ChannelId, None] = field(default_factory=dict)
    chain: int = 0
    segment: int = 0
    offset: int = 0
    closed_bytes: int = 0
    notes: list[str] = field(default_factory=list)


class LogRecovery:
    """One start: scan, compare with the mark, cut."""

    def __init__(
        self,
        ops: FileOps,
        directory: Path,
        store_uuid: bytes,
        promised: dict[ChannelId, MarkRow],
        *,
        on_read: OnLogRead = unheard,
    ) -> None:
        self._ops = ops
        self._directory = directory
        self._store_uuid = store_uuid
        self._promised = promised
        self._log = RecoveredLog(chain=first_chain(store_uuid))
        self._held: dict[ChannelId, dict[Term, Seq]] = {}
        self._on_read = on_read
        self._total_bytes = 0

    def run(self) -> RecoveredLog:
        """Recover. Raises StorageError or StoreIdentityError before anything was changed."""
        with starting(self._directory, "reading the log"):
            self._ops.sync_directory(self._directory)
            numbers = list_segments(self._directory)
            cut = self._scan(numbers)
        self._on_read(self._total_bytes, self._total_bytes)
        missing = self._compare()
        if cut is not None:
            with starting(self._directory, "cutting the log at its damaged end"):
                self._cut(cut, numbers, is_torn=not missing and cut.segment == numbers[-1])
        for channel, shortfall in missing.items():
            self._log.notes.append(
                f"channel {channel.hex()} holds the log up to {tuple(self._index(channel).end)} "
                f"but had acknowledged up to {tuple(shortfall)}: it is recovering (S0.3)"
            )
        return self._log

    # --- scanning ---------------------------------------------------------------------------------

    def _scan(self, numbers: list[int]) -> Cut | None:
        sizes = [segment_path(self._directory, number).stat().st_size for number in numbers]
        self._total_bytes = sum(sizes)
        for expected, number in enumerate(numbers, start=1):
            if number != expected:
                return Cut(expected, 0, f"segment {expected} is missing")
            path = segment_path(self._directory, number)
            if number > numbers[-1] - UNCERTAIN_SEGMENTS:
                data = self._ops.read_file(path)
            else:
                data = path.read_bytes()
            self._refuse_foreign(path, data)
            self._log.closed_bytes += self._log.offset
            self._log.segment, self._log.offset = number, 0
            cut = self._scan_segment(number, data)
            if cut is not None:
                return cut
        return None

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

    def _scan_segment(self, number: int, data: bytes) -> Cut | None:
        log = self._log
        told = 0
        try:
            for offset, length, chain, entry in decode_entries(data, log.chain):
                if offset >= told:
                    told = offset + TOLD_EVERY_BYTES
                    self._on_read(log.closed_bytes + offset, self._total_bytes)
                self._apply(entry, number, offset, length)
                log.chain, log.offset = chain, offset + length
        except DamagedEntryError as error:
            return Cut(number, log.offset, str(error))
        except NewerFormatError as error:  # GAP-15: never cut
            path = segment_path(self._directory, number)
            raise NewerFormatError(f"{path} at byte {log.offset}: {error}") from error
        if log.offset == 0:
            return Cut(number, 0, "it is empty")
        return None

    def _index(self, channel: ChannelId) -> ChannelIndex:
        index = self._log.channels.get(channel)
        if index is None:
            index = self._log.channels[channel] = ChannelIndex()
        return index

    def _apply(self, entry: Entry, number: int, offset: int, length: int) -> None:
        if isinstance(entry, SegmentHeader) != (offset == 0):
            raise DamagedEntryError("a segment header is not where it belongs")
        match entry:
            case RecordPosition(channel, term, base_seq, rows):
                index = self._index(channel)
                if base_seq != index.last_seq + 1 or rows < 1:
                    raise DamagedEntryError(
                        f"a record at seq {base_seq} of channel {channel.hex()} follows "
                        f"seq {index.last_seq}"
                    )
                position = position_of(number, offset)
                index.add(term, base_seq, rows, position=position, length=length)
                held = self._held.setdefault(channel, {})
                held[term] = max(held.get(term, Seq(0)), index.last_seq)
            case Truncation(channel, from_seq):
                self._index(channel).truncate(from_seq)
            case Vote(channel, term, voted_for):
                index = self._index(channel)
                index.term, index.voted_for = term, voted_for
            case Drop(channel):
                self._log.channels.pop(channel, None)
                self._log.dropped[channel] = None
            case SegmentHeader():
                if entry.number != number:
                    raise DamagedEntryError(f"it says that it is segment {entry.number}")

    # --- comparing with the mark ------------------------------------------------------------------

    def _compare(self) -> dict[ChannelId, History]:
        """Adopt terms, votes and drops that only the mark still knows; return the shortfalls."""
        missing: dict[ChannelId, History] = {}
        for channel, row in self._promised.items():
            if row.dropped:
                self._log.channels.pop(channel, None)
                self._log.dropped[channel] = None
            if channel in self._log.dropped:
                continue
            index = self._index(channel)
            self._adopt_vote(channel, index, row)
            term, seq = row.durable
            # S0.3: the mark is beyond what the log ever held.
            if self._held.get(channel, {}).get(term, 0) < seq:
                index.shortfall = missing[channel] = row.durable
        return missing

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

    def _cut(self, cut: Cut, numbers: list[int], *, is_torn: bool) -> None:
        path = segment_path(self._directory, cut.segment)
        note = f"{path} is intact up to byte {cut.offset} only: {cut.reason}"
        if numbers[0] != 1:
            # Before the other files move away: a kill must not leave a log without any (S0.2).
            self._begin_again()
        if not is_torn:
            note += f"; what follows was put aside in {self._quarantine(cut, numbers)}"
        self._log.notes.append(note)
        if cut.offset == 0:
            self._step_back(cut.segment)
            return
        descriptor = self._ops.open(path, os.O_RDWR)
        try:
            self._ops.truncate(descriptor, cut.offset)
            self._ops.datasync(descriptor)
        finally:
            self._ops.close(descriptor)

    def _step_back(self, segment: int) -> None:
        """Remove a segment without an intact header; the log goes on in the one before it."""
        if segment == 1:
            self._begin_again()
            return
        path = segment_path(self._directory, segment)
        if path.exists():
            self._ops.unlink(path)
            self._ops.sync_directory(self._directory)
        log = self._log
        if log.segment == segment:
            log.segment -= 1
            log.offset = segment_path(self._directory, log.segment).stat().st_size
            log.closed_bytes -= log.offset

    def _begin_again(self) -> None:
        """Put an empty first segment in place of whatever is there, or is not."""
        log = self._log
        header, log.chain = encode_segment(self._store_uuid, 1, first_chain(self._store_uuid))
        # Never removed first: after a kill in between, the log would count as missing (S0.2).
        self._ops.replace_file(segment_path(self._directory, 1), header)
        log.segment, log.offset = 1, len(header)

    def _quarantine(self, cut: Cut, numbers: list[int]) -> Path:
        """Keep the bytes behind the cut; whole files first, so a crash here changes nothing."""
        run = free_place(self._directory.parent, "log")
        run.mkdir(DIRECTORY_MODE)
        self._ops.sync_directory(run.parent.parent)
        self._ops.sync_directory(run.parent)
        for number in reversed([number for number in numbers if number > cut.segment]):
            path = segment_path(self._directory, number)
            self._ops.rename(path, run / path.name)
        if cut.segment in numbers:
            path = segment_path(self._directory, cut.segment)
            tail = path.read_bytes()[cut.offset :]
            self._ops.create_file(run / f"{path.name}.from-{cut.offset}", tail)
        self._ops.sync_directory(run)
        self._ops.sync_directory(self._directory)
        return run
