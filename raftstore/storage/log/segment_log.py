"""The node's log in real files: every channel's records, terms and votes, one fsync for all.

Threads. Everything here is called from the node's loop thread; ``committer`` belongs to the log
writer thread (``raftstore.storage.log.writer``). The two sides share only immutable batches and the
reason of a failure: the loop thread decides where each byte goes and keeps the index; the writer
thread writes the bytes there and syncs them.

S0.4: any failure, of either side, poisons the log: the failed call and every later one raise,
nothing is retried, and the node stops. What the failed write did is found out at the next start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from raftstore import faults
from raftstore.config import StorageSettings
from raftstore.errors import (
    CorruptRecordError,
    PersistError,
    StorageError,
    UnknownChannelError,
)
from raftstore.ports.log import Base, RecoveredChannel
from raftstore.ports.scrub import LogVerifying
from raftstore.protocol.node import Hole
from raftstore.protocol.records import Record
from raftstore.storage.files import FileOps, starting
from raftstore.storage.log.base_rules import entry_of, refusal_of
from raftstore.storage.log.group_commit import (
    OPERATION_BYTES,
    Batch,
    GroupCommitter,
    Operation,
    RaisedFloor,
    next_batch,
)
from raftstore.storage.log.index import ChannelIndex, offset_of, position_of, segment_of
from raftstore.storage.log.log_facts import LogFacts
from raftstore.storage.log.machine_boot import machine_boot
from raftstore.storage.log.mark import MARK_NAME, Floor, MarkFile, MarkRow, Removal
from raftstore.storage.log.record_cache import RecordCache
from raftstore.storage.log.records import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    DamagedEntryError,
    EntryKind,
    Removed,
    decode_record,
    decode_record_head,
    encode_base,
    encode_drop,
    encode_give_up,
    encode_record,
    encode_removed,
    encode_segment,
    encode_truncation,
    encode_vote,
    first_chain,
    record_channel,
)
from raftstore.storage.log.recovery import (
    LogRecovery,
    OnLogRead,
    SegmentFacts,
    unheard,
)
from raftstore.storage.log.scrub import LogScrub
from raftstore.storage.log.segments import LOG_DIRECTORY, SegmentReader, check_pieces, segment_path
from raftstore.types import ChannelId, Durability, History, NodeId, RecordKind, Seq, Term

FLOOR_SEGMENTS_MAX: Final = 8
"""Files that one operation removes, while others wait for their group commit."""


class SegmentLog(LogFacts):
    """MessageLog over segment files and the mark. Use ``create`` once, then ``open``."""

    def __init__(
        self,
        ops: FileOps,
        directory: Path,
        store_uuid: bytes,
        settings: StorageSettings,
        *,
        on_read: OnLogRead = unheard,
        reach: Callable[[str], None] = faults.reach,
        boot: bytes | None = None,
    ) -> None:
        """``reach`` is called with the name of each failpoint that is passed; ``boot``: of the
        machine, None: as the system shows it."""
        self._ops, self._reach = ops, reach
        self.directory = self._directory = directory / LOG_DIRECTORY
        self._store_uuid, self._settings = store_uuid, settings
        with starting(directory / MARK_NAME, "looking for log and mark"):
            check_pieces(ops, directory)
        mark = MarkFile.open(ops, directory / MARK_NAME, store_uuid)
        promised = dict(mark.rows)
        found = LogRecovery(
            ops, self._directory, store_uuid, promised, floor=mark.floor, on_read=on_read
        ).run()
        self._channels: dict[ChannelId, ChannelIndex] = found.channels
        self._dropped = found.dropped
        self._chain = found.chain
        self._segment = found.segment
        self._offset = found.offset
        self._segments = found.segments
        self._floor = min(found.segments)
        self._dropped_bytes = found.dropped_bytes
        self._is_left = False
        """The next operation begins another segment."""
        closed = (facts for number, facts in found.segments.items() if number != found.segment)
        self._closed_bytes = sum(facts.size_bytes for facts in closed)
        self.notes: tuple[str, ...] = tuple(found.notes)
        """News of the start that an operator must see."""
        with starting(self._directory, "opening the log"):
            self.committer = GroupCommitter(ops, self._directory, self._segment, mark, reach)
        self._boot = machine_boot() if boot is None else boot
        for channel, index in self._channels.items():
            index.learn_doubt(promised.get(channel, MarkRow()), self._boot)
        self._mark_what_was_found(mark)
        self._reader = SegmentReader(ops, self._directory)
        self._pending: deque[Operation] = deque()
        self._taken_bytes: deque[int] = deque()
        """Of the batches that were taken and are not durable."""
        self._durable_position = position_of(self._segment, self._offset)
        self.verifying: LogVerifying = LogScrub(
            ops, self._directory, self._segments, self._channels, lambda: self._durable_position
        )
        self._cache = RecordCache(settings.log_cache_bytes)
        for channel in found.removals if not ops.is_read_only else ():
            self._write_removal(channel)
        for channel in found.unproven if not ops.is_read_only else ():
            self.give_up(channel)  # nothing: there is no hole, and the log says so

    def _mark_what_was_found(self, mark: MarkFile) -> None:
        """S0.3: the mark lagged when the node ended, and what it lacks may be acknowledged."""
        # Of a channel with a hole, too: what it gives up is nowhere but in the mark then.
        rows = {name: index.next_mark_row() for name, index in self._channels.items()}
        unmarked = {name: row for name, row in rows.items() if mark.rows.get(name) != row}
        if unmarked and not self._ops.is_read_only:
            self.committer.write_mark_rows(unmarked)

    @classmethod
    def create(cls, ops: FileOps, directory: Path, store_uuid: bytes) -> None:
        """Create the log and mark of a new store, before its marker exists (S0.2)."""
        log = directory / LOG_DIRECTORY
        ops.make_directory(log)
        header, _ = encode_segment(store_uuid, 1, first_chain(store_uuid))
        ops.create_file(segment_path(log, 1), header)
        MarkFile.create(ops, directory / MARK_NAME, store_uuid)

    # --- MessageLog -------------------------------------------------------------------------------

    def open_channel(self, channel: ChannelId, number: int | None = None) -> RecoveredChannel:
        """The recovered state of the channel; an empty one for a new channel.

        ``number``: of the replica; None: whichever the log is of. Raises UnknownChannelError for a
        dropped one (S0.8), and for a replica that was removed.
        """
        index = self._open(channel)
        if number is not None and number <= index.removed_number:
            raise UnknownChannelError(
                f"replica {number} of channel {channel.hex()} was removed from this node and never "
                "serves again (S0.1)"
            )
        return RecoveredChannel(
            channel=channel,
            term=index.term,
            voted_for=index.voted_for,
            lineage=tuple(index.lineage),
            last_seq=index.last_seq,
            shortfall=index.shortfall,
            hole=index.hole(),
            base=index.base,
            in_doubt=index.in_doubt,
        )

    def base(self, channel: ChannelId) -> Base:
        """The base of the channel's log: the state in front of its first record."""
        return self._open(channel).base

    def rebase(self, channel: ChannelId, base: Base) -> int:
        """Buffer that the channel's log begins behind ``base``; return the operation number."""
        index = self._open(channel)
        reason = refusal_of(index, base)
        if reason is not None:
            raise self._poison(
                f"the log of channel {channel.hex()} cannot begin behind {tuple(base.history)}: "
                f"{reason}"
            )
        based = entry_of(channel, index, base)
        replaces = based.replaces
        encode_base(based, 0)  # refused before anything changes if it is too large
        opens = self._roll()
        entry, self._chain = encode_base(based, self._chain)
        parts = [entry]
        if replaces:
            index.begin_anew(base)
            # If the one is damaged, the next record may seem to continue what was replaced.
            entry, self._chain = encode_base(replace(based, replaces=False), self._chain)
            parts.append(entry)
        else:
            index.begin_behind(base)
        index.base_segment = self._segment
        index.term, index.voted_for = based.term, based.voted_for
        size = sum(map(len, parts))
        self._offset += size
        flags, row = {"is_urgent": replaces, "forgets": replaces}, index.next_mark_row()
        return self._buffer(channel, row, tuple(parts), size, opens=opens, **flags)

    def leave_segment(self, segment: int) -> None:
        """Have the next operation begin another segment if this one is the newest."""
        self._is_left = segment == self._segment and self._offset > SEGMENT_HEADER_BYTES

    def begin_floor(self, segment: int) -> int:
        """Buffer that segments below are removed, ``FLOOR_SEGMENTS_MAX`` at once."""
        self._check()
        if not self._floor < segment <= self.floor_max():
            raise self._poison(
                f"the floor of the log cannot go from segment {self._floor} to {segment}: "
                f"segments from {self.floor_max()} on are needed (S6.5)"
            )
        # After damage some are missing; those below the floor wait to be removed.
        known = sorted(number for number in self._segments if number >= self._floor)
        removed = tuple(number for number in known if number < segment)[:FLOOR_SEGMENTS_MAX]
        segment = known[len(removed)]
        raised = RaisedFloor(Floor(segment, self._segments[segment].previous_chain), removed)
        self._reader.forget_below(segment)
        self._floor = segment
        for number in removed:
            del self._dropped_bytes[number]
        self._operation = number = self._operation + 1
        self._unsynced_bytes += OPERATION_BYTES
        end, row = position_of(self._segment, self._offset), MarkRow()
        self._pending.append(
            Operation(number, None, (), 0, end, row, is_urgent=True, forgets=False, floor=raised)
        )
        return self._operation

    def append(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records contiguous with the channel's end; return the operation number."""
        index = self._open_whole(channel)
        return self._append(channel, index, records, EntryKind.RECORD)

    def _append(
        self, channel: ChannelId, index: ChannelIndex, records: Sequence[Record], kind: EntryKind
    ) -> int:
        opens = self._roll()
        parts: list[bytes] = []
        start = self._offset
        note = index.add if kind is EntryKind.RECORD else index.fill
        for record in records:
            if record.base_seq != index.last_seq + 1 or record.rows < 1:
                raise self._poison(
                    f"a record at seq {record.base_seq} with {record.rows} rows cannot follow seq "
                    f"{index.last_seq} of channel {channel.hex()}"
                )
            try:
                head, self._chain = encode_record(channel, record, self._chain, kind)
            except StorageError as error:
                raise self._poison(str(error)) from error
            # S1.5: a log of falling terms loses every election against its own past.
            assert not index.lineage or record.term >= index.lineage[-1].term, (
                f"a record of term {record.term} at seq {record.base_seq} would follow one of "
                f"{index.lineage[-1]} in channel {channel.hex()}"
            )
            length = len(head) + len(record.payload)
            position = position_of(self._segment, self._offset)
            note(record.term, record.base_seq, record.rows, position=position, length=length)
            self._offset += length
            parts.append(head)
            parts.append(record.payload)
            self._cache.put(position, record)
        self._cache.evict(self._durable_position)
        size = self._offset - start
        return self._buffer(channel, index.next_mark_row(), tuple(parts), size, opens=opens)

    def truncate(self, channel: ChannelId, from_seq: Seq) -> int:
        """Buffer the removal of records with base_seq >= from_seq; return the operation number."""
        self._reach("log.before-truncate")
        index = self._open_whole(channel)
        # S6.5: what is not held any more was committed.
        if from_seq <= index.base.seq:
            raise self._poison(
                f"channel {channel.hex()} cannot be truncated from seq {from_seq} on: its log "
                f"begins behind seq {index.base.seq}"
            )
        opens = self._roll()
        index.truncate(from_seq)
        entry, self._chain = encode_truncation(channel, from_seq, self._chain)
        self._offset += len(entry)
        return self._buffer(channel, index.next_mark_row(), (entry,), len(entry), opens=opens)

    def fill(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records that take their place at the start of the channel's first hole; return the
        operation number.

        The caller has the proof that they are those that were lost (``protocol.node.Hole``).
        """
        index = self._open(channel)
        hole = index.hole()
        if hole is None or not records or records[-1].last_seq > hole.to_seq:
            raise self._poison(f"channel {channel.hex()} has no hole for these records: {hole}")
        return self._append(channel, index, records, EntryKind.FILL)

    def give_up(self, channel: ChannelId) -> int:
        """Buffer that what is kept behind the first hole is forgotten; return the operation number.

        The channel is recovering after that, from a leader that holds what was committed (S0.3).
        """
        index = self._open(channel)
        opens = self._roll()
        index.kept.clear()
        entry, self._chain = encode_give_up(channel, self._chain)
        self._offset += len(entry)
        row = index.next_mark_row()
        return self._buffer(channel, row, (entry,), len(entry), opens=opens, forgets=True)

    def refill(self, channel: ChannelId, hole: Hole, *, bytes_max: int) -> list[Record]:
        """Records from the start of another replica's hole on, at most ``bytes_max`` of payload.

        None if this log holds none, or if nothing proves that they are the same (S2.4). What is
        kept behind a hole of this log is given, too.
        """
        index = self._channels.get(channel)
        found = None if index is None else index.part_serving(hole)
        if found is None:
            return []
        part, to_seq = found
        records = self._read_part(channel, part, hole.from_seq, to_seq=to_seq, bytes_max=bytes_max)
        return records if records and records[0].base_seq == hole.from_seq else []

    def set_vote(self, channel: ChannelId, term: Term, voted_for: NodeId | None) -> int:
        """Buffer the term and vote; return the operation number."""
        index = self._open(channel)
        # S13: a term never decreases and a vote never changes within its term.
        if term < index.term or (
            term == index.term and index.voted_for is not None and voted_for != index.voted_for
        ):
            raise self._poison(
                f"channel {channel.hex()} is at term {index.term} with the vote "
                f"{index.voted_for}; it must not go to term {term} with the vote {voted_for}"
            )
        index.term, index.voted_for = term, voted_for
        return self._write_vote(channel, index)

    def _write_vote(self, channel: ChannelId, index: ChannelIndex) -> int:
        opens = self._roll()
        entry, self._chain = encode_vote(channel, index.term, index.voted_for, self._chain)
        self._offset += len(entry)
        row = index.next_mark_row()
        return self._buffer(channel, row, (entry,), len(entry), opens=opens, is_urgent=True)

    def promise(self, channel: ChannelId, durability: Durability) -> int:
        """Buffer that the channel acknowledges at ``durability`` from now on (S0.6), beside its
        vote; return the operation number. What is in front of it is synced before."""
        index = self._open(channel)
        index.durability = durability
        index.boot = self._boot if durability is Durability.BUFFERED else b""
        return self._write_vote(channel, index)

    def end_doubt(self, channel: ChannelId) -> int:
        """Buffer that what the channel acknowledged is held again; return the operation number."""
        index = self._open(channel)
        index.in_doubt = False
        return self._write_vote(channel, index)

    def take_promises_back(self) -> None:
        """Everything is synced (``flush``), and nothing more is acknowledged in this life."""
        rows: dict[ChannelId, MarkRow] = {}
        for channel, index in self._channels.items():
            if index.durability is not Durability.FSYNC:
                index.durability, index.boot = Durability.FSYNC, b""
                rows[channel] = index.next_mark_row()
        if rows:
            self.committer.write_mark_rows(rows)

    def drop_channel(self, channel: ChannelId) -> int:
        """Buffer the removal of a dropped table's channel; its id is refused for ever after."""
        index = self._open(channel)
        opens = self._roll()
        # All of its records are in segments up to this one.
        self._dropped_bytes[self._segment] += sum(index.lengths)
        del self._channels[channel]
        self._dropped[channel] = None
        entry, self._chain = encode_drop(channel, self._chain)
        self._offset += len(entry)
        row = MarkRow(dropped=True)
        return self._buffer(channel, row, (entry,), len(entry), opens=opens, is_urgent=True)

    def remove_replica(self, channel: ChannelId, number: int) -> int:
        """Buffer that replicas of the channel up to ``number`` are removed from this node; return
        the operation number. What they held is gone, their term and vote go on."""
        index = self._open(channel)
        if number <= index.removed_number:
            raise self._poison(
                f"replica {number} of channel {channel.hex()} was removed before (S0.1)"
            )
        self._dropped_bytes[self._segment] += sum(index.lengths)
        removal = Removal(number, self._segment)
        self._channels[channel] = ChannelIndex.after(removal, index.term, index.voted_for)
        return self._write_removal(channel)

    def _write_removal(self, channel: ChannelId) -> int:
        index = self._channels[channel]
        assert index.removed is not None, f"no replica of {channel.hex()} was removed"
        opens = self._roll()
        index.removed = index.removed._replace(segment=self._segment)
        entry = Removed(channel, index.removed.number, index.term, index.voted_for)
        data, self._chain = encode_removed(entry, self._chain)
        self._offset += len(data)
        row = index.next_mark_row()
        return self._buffer(channel, row, (data,), len(data), opens=opens, is_urgent=True)

    def read(
        self, channel: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int
    ) -> list[Record]:
        """Whole records with last_seq <= to_seq from the one containing ``from_seq`` on, verified
        by CRC: at least one if any, then bounded by ``bytes_max`` of payload."""
        return self._read_part(
            channel, self._open(channel), from_seq, to_seq=to_seq, bytes_max=bytes_max
        )

    def _read_part(
        self,
        channel: ChannelId,
        index: ChannelIndex,
        from_seq: Seq,
        *,
        to_seq: Seq,
        bytes_max: int,
    ) -> list[Record]:
        records: list[Record] = []
        size = 0
        for at in range(index.locate(from_seq), len(index)):
            record = self._record(channel, index, at)
            size += len(record.payload)
            if record.last_seq > to_seq or (records and size > bytes_max):
                break
            records.append(record)
        return records

    def records(self, channel: ChannelId) -> Iterator[Record]:
        """All records in order, without payloads except of CONFIG and BATCH_MARK records."""
        index = self._open(channel)
        yield from (self._outline(channel, index, at) for at in range(len(index)))

    def heads(self, channel: ChannelId, after: Seq, *, to_seq: Seq, limit: int) -> list[Record]:
        """At most ``limit`` records behind ``after``, up to ``to_seq``, as in ``records``."""
        index = self._open(channel)
        first = index.locate(Seq(after + 1))
        found = (self._outline(channel, index, at) for at in range(first, len(index)))
        return list(takewhile(lambda record: record.last_seq <= to_seq, islice(found, limit)))

    def extent(self, channel: ChannelId) -> ChannelIndex:
        """The index of the channel's records: which there are, how large, and where."""
        return self._open(channel)

    # --- more for the start and for status --------------------------------------------------------

    def require(self, channel: ChannelId, promised: History) -> None:
        """Something else proves that this was acknowledged here: the channel is recovering (S0.3).

        Remembered in the mark at once; only for the start, before a writer thread exists.
        """
        self._check()
        index = self._open(channel)
        index.shortfall = max(promised, index.shortfall or promised)
        self.committer.write_mark_rows({channel: index.mark_row(index.shortfall)})

    # --- group commit -----------------------------------------------------------------------------

    def take_pending(self) -> Batch | None:
        """Take buffered operations for one group commit, at most ``group_commit_bytes_max`` of them
        (at least one); None when nothing is buffered. Loop thread."""
        if self.committer.failure is not None:
            self._check()
        if not self._pending:
            return None
        batch, taken = next_batch(self._pending, self._settings.group_commit_bytes_max)
        self._taken_bytes.append(taken)
        return batch

    def completed(self, batch: Batch) -> int:
        """Note that a batch is durable; return the durable operation number. Loop thread."""
        assert self._durable_operation < batch.operation <= self._operation, (
            f"operation {batch.operation} completes after {self._durable_operation}, "
            f"begun are {self._operation} (S0.5)"
        )
        assert batch.end_position > self._durable_position or batch.floor is not None, (
            f"the durable log would shrink from {self._durable_position} to {batch.end_position}"
        )
        self._durable_operation = batch.operation
        self._durable_position = batch.end_position
        for number in batch.floor.removed if batch.floor is not None else ():
            self._closed_bytes -= self._segments.pop(number).size_bytes
        self._unsynced_bytes -= self._taken_bytes.popleft()
        assert self._unsynced_bytes >= 0, f"{self._unsynced_bytes} bytes are not synced"
        assert self._taken_bytes or self._pending or self._unsynced_bytes == 0, (
            f"{self._unsynced_bytes} bytes of no operation are not synced"
        )
        self._cache.evict(self._durable_position)
        return self._durable_operation

    def flush(self) -> None:
        """Make everything durable, mark included, in the calling thread; no writer may run."""
        while (batch := self.take_pending()) is not None:
            self.committer.write_and_sync(batch)
            self.completed(batch)
        self.committer.write_mark()

    def close(self) -> None:
        """Close all files; what is still buffered is not written (``flush`` first)."""
        self.committer.failure = self.committer.failure or "it was closed"
        self.committer.close()
        self._reader.close()

    # --- inside -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.committer.failure is not None:
            raise PersistError(f"the log is not usable any more: {self.committer.failure}")

    def _poison(self, reason: str) -> PersistError:
        self.committer.failure = self.committer.failure or reason
        return PersistError(reason)

    def _open(self, channel: ChannelId) -> ChannelIndex:
        if self.committer.failure is not None:
            self._check()
        index = self._channels.get(channel)
        if index is None:
            # S0.8: the id of a dropped table never votes, acknowledges or serves again.
            if channel in self._dropped:
                raise UnknownChannelError(
                    f"channel {channel.hex()} belongs to a dropped table; its id is never "
                    "used again"
                )
            index = self._channels[channel] = ChannelIndex()
        return index

    def _open_whole(self, channel: ChannelId) -> ChannelIndex:
        """Return the index of a channel, without what was kept behind a hole: a write that does not
        fill the hole comes from a leader (S0.3)."""
        index = self._open(channel)
        if index.kept:
            self.give_up(channel)
        return index

    def _roll(self) -> tuple[int, bytes] | None:
        """Decide whether the next operation starts a new segment."""
        if self._offset < self._settings.segment_bytes and not self._is_left:
            return None
        self._is_left = False
        self._closed_bytes += self._offset
        self._segments[self._segment].size_bytes = self._offset
        self._segment += 1
        self._segments[self._segment] = SegmentFacts(self._chain)
        header, self._chain = encode_segment(self._store_uuid, self._segment, self._chain)
        self._offset = len(header)
        return self._segment, header

    def _buffer(
        self,
        channel: ChannelId,
        row: MarkRow,
        parts: tuple[bytes, ...],
        size: int,
        *,
        opens: tuple[int, bytes] | None,
        is_urgent: bool = False,
        forgets: bool = False,
    ) -> int:
        assert not self._pending or self._pending[-1].number == self._operation, (
            f"operation {self._pending[-1].number} is the newest of {self._operation}"
        )
        self._operation += 1
        self._unsynced_bytes += size + OPERATION_BYTES
        end = position_of(self._segment, self._offset)
        assert not self._pending or self._pending[-1].end_position < end, (
            f"an operation would end at {end}, before {self._pending[-1].end_position} (S0.5)"
        )
        self._pending.append(
            Operation(self._operation, channel, parts, size, end, row, is_urgent, forgets, opens)
        )
        return self._operation

    def _record(self, channel: ChannelId, index: ChannelIndex, at: int) -> Record:
        position = index.positions[at]
        record = self._cache.get(position)
        if record is not None:
            return record
        data = self._read(position, index.lengths[at])
        try:
            record = decode_record(data)
        except DamagedEntryError as error:
            raise self._damaged(position, str(error)) from error
        self._verify_place(channel, index, at, data, record)
        return record

    def _outline(self, channel: ChannelId, index: ChannelIndex, at: int) -> Record:
        """A record without its payload, unless what is derived from the log needs that."""
        record = self._head(channel, index, at)
        if record.kind in (RecordKind.CONFIG, RecordKind.BATCH_MARK):
            return self._record(channel, index, at)
        return record

    def _head(self, channel: ChannelId, index: ChannelIndex, at: int) -> Record:
        position = index.positions[at]
        cached = self._cache.get(position)
        if cached is not None:
            return cached
        head = self._read(position, RECORD_HEAD_BYTES)
        try:
            record = decode_record_head(head)
        except DamagedEntryError as error:
            raise self._damaged(position, str(error)) from error
        self._verify_place(channel, index, at, head, record)
        return record

    def _verify_place(
        self, channel: ChannelId, index: ChannelIndex, at: int, head: bytes, record: Record
    ) -> None:
        if record_channel(head) != channel or record.base_seq != index.base_seqs[at]:
            raise self._damaged(index.positions[at], "another record is stored there")

    def _read(self, position: int, size: int) -> bytes:
        try:
            return self._reader.read(position, size)
        except OSError as error:
            path = segment_path(self._directory, segment_of(position))
            raise self._poison(
                f"reading {path} failed: {error.strerror}; the node stops"
            ) from error

    def _damaged(self, position: int, reason: str) -> CorruptRecordError:
        path = segment_path(self._directory, segment_of(position))
        reason = (
            f"the record at byte {offset_of(position)} of {path} is damaged: {reason}; "
            "the node stops, and fetches what is missing from the leader when it starts again"
        )
        self.committer.failure = reason
        return CorruptRecordError(reason)
