"""Simulated tables: the port of ``raftstore.storage.tables.leveldb_tables`` without a disk.

Records are applied when the simulator says so; ``crash`` takes back a random number of each
channel's newest ones, as LevelDB loses what it had not written out.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from raftstore.ports.machine import MachineStop
from raftstore.ports.table_copy import TableCopy
from raftstore.ports.tables import (
    Answers,
    AskBetween,
    Barrier,
    BarrierDone,
    Conflicts,
    FilesDone,
    FoundRows,
    MergeDone,
    MergeStep,
    Page,
    Piece,
    ReadDone,
)
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, RecordMachine, Row
from raftstore.rows.sealing import seal
from raftstore.state_machines.expiry import channel_time
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.keys import MARKER, encode_applied
from raftstore.storage.tables.pieces import Change, index_of_row, rows_of_piece
from raftstore.testing.sim_contents import SimContents, is_sealed
from raftstore.testing.sim_copies import SimCopies, SimCopy, Staged
from raftstore.testing.sim_failpoints import nobody_dies
from raftstore.testing.sim_snapshots import SimSnapshot, SimState, SimView
from raftstore.testing.sim_table_files import SimFilesCopy, SimTableFiles
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq

UNSYNCED_APPLIES_MAX: Final = 256
"""Atomic batches that a crash may take back: what LevelDB's memory buffers stand for."""
SLICE_ROWS: Final = 8
"""Rows of a piece in one atomic batch, so few that crashes come between them."""
TRUNCATED_ROWS: Final = 32
"""Rows that one piece removes."""
NO_EXPIRY: Final[Mapping[bytes, int]] = {}


class _SimTable(SimContents):
    """The contents of one channel as they are, and what readers are shown meanwhile."""

    __slots__ = ("queue", "view", "label", "kept")

    def __init__(self) -> None:
        super().__init__()
        self.queue: AppliedChannel | None = None
        self.view: SimContents | None = None
        self.label = -1
        self.kept: dict[int, SimContents] = {}

    @property
    def shown(self) -> SimContents:
        """The readers' view: the state before a record whose pieces are being applied."""
        return self if self.view is None else self.view

    @property
    def opened(self) -> AppliedChannel:
        """Queued records, once the channel is open."""
        assert self.queue is not None, "open_channel comes first"
        return self.queue

    def stop(self) -> None:
        """The process ends."""
        self.queue = self.view = None
        self.kept.clear()


class _Undo(NamedTuple):
    """An atomic batch: what to put back to be without it."""

    number: int
    table: _SimTable
    applied: History
    rows: list[tuple[bytes, Row | None]]
    state: list[tuple[bytes, bytes | None]]


class SimTables:
    """TableStore of one simulated node: applies what is queued when the simulator says so."""

    def __init__(self) -> None:
        self._tables: dict[ChannelId, _SimTable] = {}
        self._queue: deque[tuple[ChannelId, Sequence[Record] | Piece]] = deque()
        self._undo: deque[_Undo] = deque(maxlen=UNSYNCED_APPLIES_MAX)
        self._written = 0
        """Atomic batches so far."""
        self._reads: deque[Callable[[], ReadDone]] = deque()
        self._snapshots: dict[int, SimSnapshot] = {}
        self._kept: dict[int, object] = {}
        """Files of tables, for other replicas."""
        self._copies = SimCopies()
        self._copied: dict[ChannelId, History] = {}
        self.has_links = True
        """The files of a table can be kept; else it is given in pairs, as on some file systems."""
        self.reach: Callable[[str], bool] = nobody_dies
        """Called with the name of each failpoint passed; True when the node died there."""

    # --- TableStore -------------------------------------------------------------------------------

    def open_channel(self, channel: ChannelId, machine: RecordMachine) -> Seq:
        """Attach the channel's state machine; return the applied seq found in the store."""
        table = self._tables.setdefault(channel, _SimTable())
        table.stop()
        marked, time_ms = table.marked(channel), channel_time(table.state.get)
        table.queue = AppliedChannel(channel, machine, table.applied, marked, time_ms)
        return table.applied.seq

    def applied_seq(self, channel: ChannelId) -> Seq:
        """Highest applied seq that reads of this channel see."""
        return self._tables[channel].shown.applied.seq

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Queue committed records, contiguous with what was queued before."""
        self._tables[channel].opened.queue(records)
        self._queue.append((channel, records))

    def apply_piece(self, channel: ChannelId, piece: Piece) -> None:
        """Queue a piece of a committed record; from the first to the last, readers see a view."""
        table = self._tables[channel]
        table.opened.queue_piece(piece)
        if piece.first:
            # Before any slice is written. What a crash left in pieces is nobody's version.
            table.label = piece.version if self.unserved_until(channel) == 0 else -1
            table.view = table.copy()
        self._queue.append((channel, piece))

    def channel_time(self, channel: ChannelId) -> int:
        """About the channel time of what is applied, never less than readers see; 0: none."""
        return self._tables[channel].opened.time_ms

    def truncated(self, channel: ChannelId) -> bytes | None:
        """Where the truncating piece applied last ended; None: no row is left."""
        return self._tables[channel].opened.truncated

    def unserved_until(self, channel: ChannelId) -> Seq:
        """Seq to be applied before anything is answered from this channel; 0: all may be."""
        marked_seq = self._tables[channel].opened.marked_seq
        return marked_seq if marked_seq > self.applied_seq(channel) else Seq(0)

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state beside the rows, of the applied state."""
        return self._tables[channel].shown.state.get(key)

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of that state in [start, stop), in key order."""
        return self._tables[channel].shown.state_between(start, stop, limit)

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row; raises CorruptRecordError if its checksum is wrong."""
        return self._tables[channel].shown.get_shown(key)

    def get_many(self, channel: ChannelId, keys: Sequence[bytes], bytes_max: int) -> FoundRows:
        """Several rows of one applied state, and the applied seq of it."""
        values, seqs = list[bytes | None](), list[Seq]()
        size = 0
        for key in keys:
            row = self.get(channel, key)
            values.append(None if row is None else seal(key, row.value))
            seqs.append(Seq(0) if row is None else row.seq)
            size += 0 if row is None else row.size
            if size > bytes_max:
                break
        return FoundRows(values, seqs, size, self.applied_seq(channel))

    def scan(
        self,
        channel: ChannelId,
        start: bytes,
        stop: bytes,
        limit: int,
        bytes_max: int | None = None,
    ) -> Page:
        """Rows of [start, stop) in key order of one applied state, bounded by rows and bytes."""
        return self._tables[channel].shown.page(start, stop, limit, bytes_max)

    def snapshot(self, channel: ChannelId) -> SimSnapshot:
        """The applied state as it is now."""
        table = self._tables[channel]
        contents = table.copy() if table.view is None else table.view
        return SimSnapshot(channel, contents, self._snapshots)

    def snapshot_at(self, channel: ChannelId, version: int) -> SimSnapshot | None:
        """The kept state with this label; None: it is not kept."""
        table = self._tables[channel]
        is_shown = table.view is not None and table.label == version
        contents = table.view if is_shown else table.kept.get(version)
        return None if contents is None else SimSnapshot(channel, contents, self._snapshots)

    def versions(self, channel: ChannelId) -> tuple[int, ...]:
        """Labels of the kept states, oldest first."""
        return tuple(self._tables[channel].kept)

    def release_version(self, channel: ChannelId, label: int) -> None:
        """Keep the state no longer; who holds a snapshot of it goes on reading."""
        self._tables[channel].kept.pop(label, None)

    def start_read(self, read: Callable[[], ReadDone]) -> None:
        """Queue the read until the simulator says so."""
        self._reads.append(read)

    def start_query(self, ask: Callable[[], ReadDone]) -> None:
        """Queue the question until the simulator says so."""
        self._reads.append(ask)

    def start_between(self, channel: ChannelId, ask: AskBetween) -> None:
        """Queue the question until the simulator says so: then nothing is being applied."""
        table = self._tables[channel]
        self._reads.append(lambda: ask(SimState(table), table.applied.seq))

    def start_barrier(self, channel: ChannelId, done: BarrierDone) -> None:
        """Make what readers see now survive a power cut, when the simulator says so."""
        table, written = self._tables[channel], self._written
        applied, base_max = table.shown.applied.seq, self.base_max(channel)

        def flush() -> ReadDone:
            kept = (u for u in self._undo if u.table is not table or u.number > written)
            self._undo = deque(kept, maxlen=UNSYNCED_APPLIES_MAX)
            return partial(done, Barrier(applied, base_max))

        self._reads.append(flush)

    def start_merge(
        self, channel: ChannelId, done: MergeDone, *, is_quiet: bool, is_urgent: bool
    ) -> None:
        """Nothing is worth it: rows take no more than their bytes."""
        del channel, is_quiet, is_urgent
        self._reads.append(lambda: partial(done, MergeStep()))

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq it was taken at."""
        return self._tables[channel].shown.content_hash()

    def start_content_hash(
        self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]
    ) -> None:
        """The same; ``done`` is called at once."""
        done(*self.content_hash(channel))

    def applied_history(self, channel: ChannelId) -> History:
        """Term and seq of the last record that is applied."""
        return self._tables[channel].shown.applied

    def base_max(self, channel: ChannelId) -> Seq:
        """The highest base that the channel's log may have beside what is applied."""
        table = self._tables[channel]
        shown = table.shown
        needed = table.opened.machine.first_needed(SimState(shown))
        applied = shown.applied.seq
        return applied if needed is None else Seq(min(applied, needed - 1))

    def is_idle(self, channel: ChannelId) -> bool:
        """Whether everything that was queued for the channel is applied."""
        queue = self._tables[channel].opened
        return queue.queued_seq == queue.applied.seq and not queue.in_pieces

    def table_bytes(self, channel: ChannelId) -> int:
        """Bytes of keys and values of the channel's rows."""
        return sum(row.size for row in self._tables[channel].rows.values())

    def start_files(self, channel: ChannelId, done: FilesDone) -> None:
        """Take a barrier and keep the files of what is there then, when the simulator says so."""
        table, applied = self._tables[channel], self.applied_history(channel)
        is_whole = self.has_links and table.view is None and applied.seq > 0

        def keep(barrier: Barrier, now_ms: int) -> None:
            done(linked[0], barrier, now_ms)

        linked = list[SimTableFiles | None]()
        self.start_barrier(channel, keep)
        flush = self._reads.pop()

        def link() -> ReadDone:
            barrier = flush()
            is_there = is_whole and not self.reach("files.before-link")
            linked.append(SimTableFiles(channel, table, applied, self._kept) if is_there else None)
            self.reach("files.after-link")
            return barrier

        self._reads.append(link)

    def begin_copy(
        self, channel: ChannelId, position: History, *, in_files: bool = False
    ) -> SimCopy | SimFilesCopy:
        """Begin a table for the channel aside from the one it has."""
        return self._copy(channel, Staged(position, in_files=in_files))

    def begun_copy(self, channel: ChannelId) -> SimCopy | SimFilesCopy | None:
        """Hand over the copy that an earlier life of the node began."""
        staged = self._copies.staged.get(channel)
        return None if staged is None else self._copy(channel, staged)

    def _copy(self, channel: ChannelId, staged: Staged) -> SimCopy | SimFilesCopy:
        kind = SimFilesCopy if staged.in_files else SimCopy
        return kind(channel, staged, self._copies, self._pass)

    def _pass(self, failpoint: str) -> bool:
        return self.reach(failpoint)

    def start_copy_step(self, channel: ChannelId | None, step: Callable[[], ReadDone]) -> None:
        """Queue the step until the simulator says so."""
        del channel
        self._reads.append(step)

    def install(self, channel: ChannelId, copy: TableCopy, *, keeps_former: bool = False) -> None:
        """The copy, which is complete, is the channel's table from now on."""
        del keeps_former
        assert isinstance(copy, SimCopy | SimFilesCopy)
        assert self.is_idle(channel), "records would get lost"
        contents = self._copies.switched.pop(channel, None)
        if contents is not None:  # else the process died at the switch
            self._switch(channel, contents)

    def _switch(self, channel: ChannelId, contents: SimContents) -> None:
        # What a crash takes back of the former one is nobody's any more.
        table = self._tables[channel] = _SimTable()
        table.rows, table.state = contents.rows, contents.state
        table.applied = self._copied[channel] = contents.applied

    def drop(self, channel: ChannelId) -> None:
        """Delete everything of a dropped table's channel."""
        self._tables.pop(channel, None)
        self._copies.forget(channel)
        self._queue = deque(job for job in self._queue if job[0] != channel)

    def is_leaving(self, channel: ChannelId) -> bool:
        """Never: everything goes at once."""
        del channel
        return False

    def stoppable(self, channel: ChannelId) -> AppliedChannel:
        """Whether the channel's machine stopped, and the way to have it go on."""
        return self._tables[channel].opened

    def queued_bytes(self) -> int:
        """None that count: what is queued is applied before long."""
        return 0

    def size_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(
            len(row.key) + len(row.value)
            for table in self._tables.values()
            for row in table.rows.values()
        )

    # --- the simulator's side ---------------------------------------------------------------------

    def has_queued(self) -> bool:
        """Whether ``apply_next`` has something to do."""
        return bool(self._queue)

    def apply_next(self) -> tuple[ChannelId, Seq, Conflicts, Answers]:
        """Apply what one call queued; return what ``on_applied`` is called with."""
        channel, job = self._queue.popleft()
        table = self._tables[channel]
        if isinstance(job, Piece):
            self._apply_piece(table, job)
            return channel, table.shown.applied.seq, (), ()
        conflicts: list[tuple[Seq, Seq]] = []
        answers: list[tuple[Seq, bytes]] = []
        for record in job:
            if table.opened.stop is not None:
                break
            result = self._apply_record(table, record)
            if result is not None and result.conflict_seq is not None:
                conflicts.append((record.last_seq, result.conflict_seq))
            if result is not None and result.answer is not None:
                answers.append((record.last_seq, result.answer))
        return channel, table.applied.seq, tuple(conflicts), tuple(answers)

    def has_reads(self) -> bool:
        """Whether ``read_next`` has something to do."""
        return bool(self._reads)

    def read_next(self) -> ReadDone:
        """Do the read that was started first; return what ``on_read`` is called with."""
        return self._reads.popleft()()

    @property
    def open_snapshots(self) -> int:
        """Snapshots that were not closed, and files that are kept."""
        return len(self._snapshots) + len(self._kept)

    def stop(self, *, lost: int = 0) -> None:
        """The process ends, and of the newest atomic batches this many are lost."""
        self._end_process(list(islice(reversed(self._undo), lost)))

    def crash(self, rng: random.Random, *, keeps_all: bool = False) -> None:
        """Take back newest atomic batches: those that the system had not written out yet.

        Each channel has a database of its own, and loses all of its among them or only some: what
        one loses says nothing of others. ``keeps_all``: the process was killed, and the system
        still holds what it wrote.
        """
        if keeps_all:
            self._end_process([])
            return
        self._copies.lose_power()
        unwritten = list(islice(reversed(self._undo), rng.randint(0, len(self._undo))))
        chance = random.Random(len(unwritten))
        left = Counter(id(undo.table) for undo in unwritten)
        for table, count in left.items():
            left[table] = count if chance.random() < 0.5 else chance.randint(0, count)
        lost = []
        for undo in unwritten:
            if left[id(undo.table)]:
                left[id(undo.table)] -= 1
                lost.append(undo)
        self._end_process(lost)

    def _end_process(self, lost: Iterable[_Undo]) -> None:
        """``lost``: newest first."""
        self._queue.clear()
        self._reads.clear()
        self._snapshots.clear()
        self._kept.clear()
        for table in self._tables.values():
            table.stop()
        for undo in lost:
            for key, row in reversed(undo.rows):
                undo.table.put(key, row)
            for key, value in reversed(undo.state):
                undo.table.put_state(key, value)
            undo.table.applied = undo.applied
        self._undo.clear()
        for channel, contents in self._copies.switched.items():
            self._switch(channel, contents)
        self._copies.switched.clear()

    # --- compared with the log at a start (``raftstore.storage.reconcile``) -----------------------

    def stored_channels(self) -> tuple[ChannelId, ...]:
        """Channels that have rows or a position in the store, in a stable order."""
        return tuple(sorted(self._tables))

    def stored_position(self, channel: ChannelId) -> History:
        """(term, seq) of the last applied record found in the store."""
        return self._tables[channel].applied

    def stored_marker(self, channel: ChannelId) -> History:
        """(term, seq) of the record that was being written in pieces; (0, 0): none was."""
        return self._tables[channel].marked(channel)

    def copied_position(self, channel: ChannelId) -> History:
        """Up to where the table was copied from another replica; (0, 0): it was built here."""
        return self._copied.get(channel, EMPTY_HISTORY)

    def begun_channels(self) -> tuple[ChannelId, ...]:
        """Channels that an earlier life of the node began to copy, in a stable order."""
        return tuple(sorted(self._copies.staged))

    def forget_copy(self, channel: ChannelId) -> None:
        """Remove what an earlier life of the node copied of the channel."""
        self._copies.staged.pop(channel, None)

    def reset_channel(self, channel: ChannelId) -> None:
        """Forget everything of a channel, so that it is applied again from the log's beginning."""
        self._copied.pop(channel, None)
        self._tables[channel].clear()

    def lose(self) -> None:
        """Between a crash and the restart: the whole store is gone and is rebuilt from the log."""
        self._copied.clear()
        for table in self._tables.values():
            table.clear()

    def is_intact(self, channel: ChannelId) -> bool:
        """Whether every row matches its checksum."""
        return all(is_sealed(row) for row in self._tables[channel].rows.values())

    def stored_keys(self, channel: ChannelId) -> list[bytes]:
        """Keys of all rows, in order."""
        return self._tables[channel].keys_in_order()

    def reset_damaged(self) -> None:
        """Between a crash and the restart: damaged tables are put aside, as LevelDB's are."""
        for channel in self.stored_channels():
            if not self.is_intact(channel):
                self.reset_channel(channel)

    def corrupt(self, channel: ChannelId, key: bytes) -> None:
        """Flip a bit of a stored value; reading it raises CorruptRecordError."""
        table = self._tables[channel]
        row = table.rows[key]
        table.put(key, replace(row, value=row.value[:-1] + bytes([row.value[-1] ^ 1])))

    # --- atomic batches ---------------------------------------------------------------------------

    def _apply_record(self, table: _SimTable, record: Record) -> ApplyResult | None:
        writes: Iterable[tuple[bytes, bytes | None]] = ()
        opened = table.opened
        result = opened.compute(record, SimView(table))
        if result is not None:
            if result.failure is not None:
                opened.stop = MachineStop.at(record, result)
                return None
            writes = list(result.writes)
        state_writes = () if result is None else tuple(result.state_writes)
        position = History(record.term, record.last_seq)
        expires_ms = 0 if result is None else result.expires_ms
        expires_of = dict.fromkeys((key for key, _ in writes), expires_ms)
        self._write(
            table, record.last_seq, writes, state_writes, applied=position, expires_of=expires_of
        )
        return result

    def _apply_piece(self, table: _SimTable, piece: Piece) -> None:
        """Write one piece, some rows at a time, each an atomic batch of its own."""
        record, opened = piece.record, table.opened
        position = History(record.term, record.last_seq)
        outcomes: list[tuple[bytes, bytes | None]] = []
        if piece.truncate_from is not None:
            keys = table.keys_between(piece.truncate_from, b"")
            changes: list[Change] = [(key, None) for key in keys[:TRUNCATED_ROWS]]
            expires_of: dict[bytes, int] = {}
            opened.truncated = keys[TRUNCATED_ROWS] if len(keys) > TRUNCATED_ROWS else None
        else:
            changes, outcomes, expires_of = rows_of_piece(
                opened,
                piece,
                lambda _channel, key: table.get(key),
                lambda _channel, key: table.state.get(key),
            )

        def indexed(slice_: Iterable[Change]) -> list[Change]:
            """Changes of the index of expiries that go with these rows."""
            found: list[Change] = []
            for change in slice_:
                expires_ms = expires_of.get(change[0], 0)
                found += index_of_row(opened, change, expires_ms, lambda _, key: table.get(key))
            return found

        is_begun = not piece.first
        for outcome in outcomes:
            marker = () if is_begun else ((MARKER, encode_applied(opened.channel, position)),)
            self._write(table, record.last_seq, (), (outcome, *marker))
            is_begun = True
        while len(changes) > SLICE_ROWS or (changes and not piece.last):
            marker = () if is_begun else ((MARKER, encode_applied(opened.channel, position)),)
            now, beside = changes[:SLICE_ROWS], (*indexed(changes[:SLICE_ROWS]), *marker)
            self._write(table, record.last_seq, now, beside, expires_of=expires_of)
            if self.reach("batch.mid-slice" if is_begun else "batch.first-slice"):
                return
            is_begun = True
            del changes[:SLICE_ROWS]
        if piece.last:
            if self.reach("batch.before-last-slice"):
                return
            ending = (*indexed(changes), *piece.state_writes, (MARKER, None))
            self._write(
                table, record.last_seq, changes, ending, applied=position, expires_of=expires_of
            )
            self.reach("batch.after-apply")
            if table.label >= 0:
                assert table.view is not None
                table.kept[table.label] = table.view
            table.view, table.label = None, -1

    def _write(
        self,
        table: _SimTable,
        seq: Seq,
        writes: Iterable[tuple[bytes, bytes | None]],
        state_writes: Iterable[tuple[bytes, bytes | None]],
        *,
        applied: History | None = None,
        expires_of: Mapping[bytes, int] = NO_EXPIRY,
    ) -> None:
        self._written += 1
        undo = _Undo(self._written, table, table.applied, [], [])
        for key, value in writes:
            row = None if value is None else Row(key, value, seq, expires_of.get(key, 0))
            undo.rows.append((key, table.put(key, row)))
        for key, value in state_writes:
            undo.state.append((key, table.put_state(key, value)))
        if applied is not None:
            table.applied = applied
            table.opened.applied = applied
        self._undo.append(undo)
