"""Simulated tables: the port of ``raftstore.storage.leveldb_tables`` without a disk.

Records are applied when the simulator says so; ``crash`` takes back a random number of the newest
ones, as LevelDB loses what it had not written out.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from raftstore.errors import PersistError
from raftstore.messages import Record
from raftstore.ports import Counted, Page, ReadDone, Row, StateMachine
from raftstore.rows.sealing import unseal
from raftstore.storage.keys import ContentHasher
from raftstore.testing.sim_log import SimLog
from raftstore.types import EMPTY_HISTORY, ChannelId, History, RecordKind, Seq

UNSYNCED_APPLIES_MAX: Final = 256
"""Applied records that a crash may take back: what LevelDB's memory buffer stands for."""

_STATELESS: Final = (RecordKind.TERM_START, RecordKind.CONFIG)

Conflicts = tuple[tuple[Seq, Seq], ...]


class _SimTable:
    """Applied rows of one channel."""

    __slots__ = ("machine", "rows", "sorted_keys", "applied", "queued_seq", "hashed")

    def __init__(self) -> None:
        self.machine: StateMachine | None = None
        self.rows: dict[bytes, Row] = {}  # values sealed, as on a disk
        self.sorted_keys: list[bytes] | None = None
        self.applied = EMPTY_HISTORY
        self.queued_seq = Seq(0)
        self.hashed: tuple[bytes, int] | None = None
        """Digest and number of the rows as they are; None: not known."""

    def clear(self) -> None:
        """Every row is gone."""
        self.rows.clear()
        self.sorted_keys = self.hashed = None
        self.applied = EMPTY_HISTORY

    def put(self, key: bytes, row: Row | None) -> Row | None:
        """Set or remove a row; return the one before."""
        before = self.rows.get(key)
        self.hashed = None
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row
        if (before is None) != (row is None):
            self.sorted_keys = None
        return before

    def keys_in_order(self) -> list[bytes]:
        """All keys, sorted."""
        if self.sorted_keys is None:
            self.sorted_keys = sorted(self.rows)
        return self.sorted_keys


def _range(keys: list[bytes], start: bytes, stop: bytes) -> tuple[int, int]:
    """Where [start, stop) begins and ends among sorted keys."""
    return bisect_left(keys, start), bisect_left(keys, stop) if stop else len(keys)


def _page(
    keys: list[bytes], stored: dict[bytes, Row], limit: int, bytes_max: int | None, applied: Seq
) -> Page:
    rows: list[Row] = []
    size = 0
    for key in keys[:limit]:
        row = _unsealed(stored[key])
        size += row.size
        if rows and bytes_max is not None and size > bytes_max:
            break
        rows.append(row)
    return Page(rows, len(rows) < len(keys), applied)


def _unsealed(stored: Row) -> Row:
    """The row with its seal checked and taken off; CorruptRecordError if it does not fit."""
    return Row(stored.key, unseal(stored.key, stored.value), stored.seq)


class SimSnapshot:
    """ports.TableSnapshot: a copy of the rows."""

    def __init__(self, table: _SimTable, open_ones: dict[int, SimSnapshot]) -> None:
        self._keys = table.keys_in_order()
        self._rows = dict(table.rows)
        self._open_ones = open_ones
        self.applied_seq: Seq = table.applied.seq
        open_ones[id(self)] = self

    def page(self, start: bytes, stop: bytes, limit: int, bytes_max: int | None = None) -> Page:
        """Rows of [start, stop) in key order, bounded by rows and bytes; a first row always."""
        self._check()
        first, end = _range(self._keys, start, stop)
        return _page(self._keys[first:end], self._rows, limit, bytes_max, self.applied_seq)

    def count(self, start: bytes, stop: bytes, limit: int) -> Counted:
        """Count rows of [start, stop), at most ``limit`` of them."""
        self._check()
        first, end = _range(self._keys, start, stop)
        rows = min(limit, max(0, end - first))
        is_full = rows == limit
        return Counted(rows, self._keys[first + rows - 1] + b"\0" if is_full else None)

    def close(self) -> None:
        """Nobody reads it any more; closing it again does nothing."""
        self._open_ones.pop(id(self), None)

    def _check(self) -> None:
        assert id(self) in self._open_ones, "a closed snapshot was read"


class _Undo(NamedTuple):
    table: _SimTable
    applied: History
    rows: list[tuple[bytes, Row | None]]


class SimTables:
    """TableStore of one simulated node: applies what is queued when the simulator says so."""

    def __init__(self) -> None:
        self._tables: dict[ChannelId, _SimTable] = {}
        self._queue: deque[tuple[ChannelId, Sequence[Record]]] = deque()
        self._undo: deque[_Undo] = deque(maxlen=UNSYNCED_APPLIES_MAX)
        self._reads: deque[Callable[[], ReadDone]] = deque()
        self._snapshots: dict[int, SimSnapshot] = {}

    # --- TableStore -------------------------------------------------------------------------------

    def open_channel(self, channel: ChannelId, machine: StateMachine) -> Seq:
        """Attach the channel's state machine; return the applied seq found in the store."""
        table = self._tables.setdefault(channel, _SimTable())
        table.machine = machine
        table.queued_seq = table.applied.seq
        return table.applied.seq

    def applied_seq(self, channel: ChannelId) -> Seq:
        """Highest applied seq that reads of this channel see."""
        return self._tables[channel].applied.seq

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Queue committed records, contiguous with what was queued before."""
        table = self._tables[channel]
        for record in records:
            if record.base_seq != table.queued_seq + 1:
                raise PersistError(
                    f"a record at seq {record.base_seq} of channel {channel.hex()} cannot be "
                    f"applied behind seq {table.queued_seq}; the node stops"
                )
            table.queued_seq = record.last_seq
        self._queue.append((channel, records))

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row; raises CorruptRecordError if its checksum is wrong."""
        stored = self._tables[channel].rows.get(key)
        return None if stored is None else _unsealed(stored)

    def get_many(
        self, channel: ChannelId, keys: Sequence[bytes], bytes_max: int
    ) -> tuple[list[Row | None], Seq]:
        """Several rows of one applied state, and the applied seq of it."""
        rows: list[Row | None] = []
        size = 0
        for key in keys:
            row = self.get(channel, key)
            rows.append(row)
            size += 0 if row is None else row.size
            if size > bytes_max:
                break
        return rows, self.applied_seq(channel)

    def scan(
        self,
        channel: ChannelId,
        start: bytes,
        stop: bytes,
        limit: int,
        bytes_max: int | None = None,
    ) -> Page:
        """Rows of [start, stop) in key order of one applied state, bounded by rows and bytes."""
        table = self._tables[channel]
        keys = table.keys_in_order()
        first, end = _range(keys, start, stop)
        return _page(keys[first:end], table.rows, limit, bytes_max, table.applied.seq)

    def snapshot(self, channel: ChannelId) -> SimSnapshot:
        """The applied state as it is now."""
        return SimSnapshot(self._tables[channel], self._snapshots)

    def start_read(self, read: Callable[[], ReadDone]) -> None:
        """Queue the read until the simulator says so."""
        self._reads.append(read)

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq it was taken at."""
        table = self._tables[channel]
        if table.hashed is None:
            hasher = ContentHasher()
            for key in table.keys_in_order():
                row = _unsealed(table.rows[key])
                hasher.add(key, row.value, row.seq)
            table.hashed = hasher.digest(), hasher.rows
        return *table.hashed, table.applied.seq

    def start_content_hash(
        self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]
    ) -> None:
        """The same; ``done`` is called at once."""
        done(*self.content_hash(channel))

    def drop(self, channel: ChannelId) -> None:
        """Delete all rows of a dropped table's channel."""
        self._tables.pop(channel, None)
        self._queue = deque(job for job in self._queue if job[0] != channel)

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

    def apply_next(self) -> tuple[ChannelId, Seq, Conflicts]:
        """Apply what one call of ``apply`` queued; return what ``on_applied`` is told."""
        channel, records = self._queue.popleft()
        table = self._tables[channel]
        conflicts: list[tuple[Seq, Seq]] = []
        for record in records:
            conflict = self._apply_record(channel, table, record)
            if conflict is not None:
                conflicts.append((record.last_seq, conflict))
        return channel, records[-1].last_seq, tuple(conflicts)

    def has_reads(self) -> bool:
        """Whether ``read_next`` has something to do."""
        return bool(self._reads)

    def read_next(self) -> ReadDone:
        """Do the read that was started first; return what ``on_read`` is told."""
        return self._reads.popleft()()

    @property
    def open_snapshots(self) -> int:
        """Snapshots that were not closed."""
        return len(self._snapshots)

    def crash(self, rng: random.Random, log: SimLog, *, keeps_all: bool = False) -> None:
        """Take back a random number of the newest applied records, then compare with the log.

        As at a real start: an applied position beyond the log's end proves a loss (S0.3).
        ``keeps_all``: the process was killed, and the system still holds what it wrote.
        """
        self._queue.clear()
        self._reads.clear()
        self._snapshots.clear()
        for _ in range(0 if keeps_all else rng.randint(0, len(self._undo))):
            undo = self._undo.pop()
            for key, row in reversed(undo.rows):
                undo.table.put(key, row)
            undo.table.applied = undo.applied
        self._undo.clear()
        for channel, table in self._tables.items():
            if table.applied.seq and log.term_at(channel, table.applied.seq) is None:
                if not log.is_dropped(channel):
                    log.require(channel, table.applied)
                table.clear()

    def lose(self) -> None:
        """Between a crash and the restart: the whole store is gone and is rebuilt from the log."""
        for table in self._tables.values():
            table.clear()

    def corrupt(self, channel: ChannelId, key: bytes) -> None:
        """Flip a bit of a stored value; reading it raises CorruptRecordError."""
        table = self._tables[channel]
        row = table.rows[key]
        table.hashed = None
        table.rows[key] = Row(key, row.value[:-1] + bytes([row.value[-1] ^ 1]), row.seq)

    def _apply_record(self, channel: ChannelId, table: _SimTable, record: Record) -> Seq | None:
        assert table.machine is not None
        undo = _Undo(table, table.applied, [])
        conflict = None
        if record.kind not in _STATELESS:
            result = table.machine.apply(record, partial(self.get, channel))
            conflict = result.conflict_seq
            for key, value in list(result.writes):
                row = None if value is None else Row(key, value, record.last_seq)
                undo.rows.append((key, table.put(key, row)))
        table.applied = History(record.term, record.last_seq)
        self._undo.append(undo)
        return conflict
