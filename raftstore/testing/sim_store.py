"""Simulated log and tables: the ports of ``raftstore.storage`` without a disk.

What is written is volatile until the simulator says that a sync completed; ``crash`` keeps a random
prefix of the rest, as a disk would. The objects stand for the disk: they outlive the node that uses
them, and a restarted node opens its channels again. The mark is modelled too (S0.3):
``SimLog.damage`` loses durable records, and a channel that had promised them comes back
*recovering*.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from raftstore.errors import PersistError, UnknownChannelError
from raftstore.messages import Record
from raftstore.ports import RecoveredChannel, Row, StateMachine
from raftstore.rows.sealing import unseal
from raftstore.storage.index import ChannelIndex
from raftstore.storage.keys import ContentHasher
from raftstore.storage.mark import MarkRow
from raftstore.types import (
    EMPTY_HISTORY,
    ChannelId,
    History,
    NodeId,
    RecordKind,
    Seq,
    Term,
)

UNSYNCED_APPLIES_MAX: Final = 256
"""Applied records that a crash may take back: what LevelDB's memory buffer stands for."""

_STATELESS: Final = (RecordKind.TERM_START, RecordKind.CONFIG)

Conflicts = tuple[tuple[Seq, Seq], ...]


class _SimChannel:
    """A channel's index and its records; ``promised`` beyond its end makes it recovering."""

    __slots__ = ("index", "records", "promised")

    def __init__(self) -> None:
        self.index = ChannelIndex()
        self.records: list[Record] = []
        self.promised = EMPTY_HISTORY

    def remember(self, promised: History) -> None:
        """Something proves that this much was acknowledged (S0.3)."""
        self.promised = max(promised, self.promised)
        self.index.shortfall = self.promised

    def recheck(self) -> None:
        """After a crash: recovering again, unless the promise was kept durably meanwhile."""
        if self.index.end < self.promised:
            self.index.shortfall = self.promised
        else:
            self.promised = EMPTY_HISTORY

    def add(self, record: Record, operation: int) -> None:
        """Append a record written by ``operation``."""
        self.index.add(record.term, record.base_seq, record.rows, position=operation, length=0)
        self.records.append(record)

    def truncate(self, from_seq: Seq) -> list[tuple[Record, int]]:
        """Remove records with base_seq >= from_seq; return them with their operations."""
        first = bisect_left(self.index.base_seqs, from_seq)
        removed = list(zip(self.records[first:], self.index.positions[first:], strict=True))
        self.index.truncate(from_seq)
        del self.records[first:]
        return removed

    def restore(self, removed: list[tuple[Record, int]]) -> None:
        """Take a truncation back."""
        for record, operation in removed:
            self.add(record, operation)


class _Operation(NamedTuple):
    number: int
    channel: ChannelId
    row: MarkRow
    is_urgent: bool
    undo: Callable[[], object]
    appended: tuple[Record, ...] = ()


class SimLog:
    """MessageLog of one simulated node."""

    def __init__(self) -> None:
        self._channels: dict[ChannelId, _SimChannel] = {}
        self._dropped: dict[ChannelId, None] = {}
        self._unsynced: deque[_Operation] = deque()
        self._operation = 0
        self._durable_operation = 0
        self._bytes = 0
        self._mark: dict[ChannelId, MarkRow] = {}
        self._unmarked: dict[ChannelId, MarkRow] = {}
        self._failure: str | None = None
        self._is_next_sync_failing = False

    # --- MessageLog -------------------------------------------------------------------------------

    def channels(self) -> tuple[ChannelId, ...]:
        """Channels the log knows, in a stable order."""
        return tuple(sorted(self._channels))

    def open_channel(self, channel: ChannelId) -> RecoveredChannel:
        """What is known of the channel; UnknownChannelError for a dropped one (S0.8)."""
        index = self._open(channel).index
        return RecoveredChannel(
            channel=channel,
            term=index.term,
            voted_for=index.voted_for,
            lineage=tuple(index.lineage),
            last_seq=index.last_seq,
            shortfall=index.shortfall,
        )

    def append(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records contiguous with the channel's end; return the operation number."""
        state = self._open(channel)
        first = records[0].base_seq
        self._operation += 1
        for record in records:
            if record.base_seq != state.index.last_seq + 1 or record.rows < 1:
                raise self._poison(
                    f"a record at seq {record.base_seq} with {record.rows} rows cannot follow seq "
                    f"{state.index.last_seq} of channel {channel.hex()}"
                )
            state.add(record, self._operation)
            self._bytes += len(record.payload)
        undo = partial(state.truncate, first)
        return self._buffer(channel, state.index.mark_row(), undo, appended=tuple(records))

    def truncate(self, channel: ChannelId, from_seq: Seq) -> int:
        """Buffer the removal of records with base_seq >= from_seq; return the operation number."""
        state = self._open(channel)
        self._operation += 1
        undo = partial(state.restore, state.truncate(from_seq))
        return self._buffer(channel, state.index.mark_row(), undo)

    def set_vote(self, channel: ChannelId, term: Term, voted_for: NodeId | None) -> int:
        """Buffer the term and vote; return the operation number."""
        index = self._open(channel).index
        # S13: a term never decreases and a vote never changes within its term.
        if term < index.term or (
            term == index.term and index.voted_for is not None and voted_for != index.voted_for
        ):
            raise self._poison(
                f"channel {channel.hex()} stands at term {index.term} with the vote "
                f"{index.voted_for}; it must not go to term {term} with the vote {voted_for}"
            )
        self._operation += 1
        undo = partial(_set_vote, index, index.term, index.voted_for)
        _set_vote(index, term, voted_for)
        return self._buffer(channel, index.mark_row(), undo, is_urgent=True)

    def drop_channel(self, channel: ChannelId) -> int:
        """Buffer the removal of a dropped table's channel; its id is refused for ever after."""
        state = self._open(channel)
        self._operation += 1
        del self._channels[channel]
        self._dropped[channel] = None
        undo = partial(self._restore_channel, channel, state)
        return self._buffer(channel, MarkRow(dropped=True), undo, is_urgent=True)

    def last_operation(self) -> int:
        """Number of the newest buffered operation (0: none yet)."""
        return self._operation

    def durable_operation(self) -> int:
        """Number of the newest durable operation."""
        return self._durable_operation

    def read(
        self, channel: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int
    ) -> list[Record]:
        """Whole records with last_seq <= to_seq from the one containing ``from_seq`` on: at least
        one if any, then bounded by ``bytes_max`` of payload."""
        state = self._open(channel)
        found: list[Record] = []
        size = 0
        for at in range(state.index.locate(from_seq), len(state.records)):
            record = state.records[at]
            size += len(record.payload)
            if record.last_seq > to_seq or (found and size > bytes_max):
                break
            found.append(record)
        return found

    def records(self, channel: ChannelId) -> Iterator[Record]:
        """All records in order."""
        return iter(tuple(self._open(channel).records))

    def size_bytes(self) -> int:
        """Payload bytes ever appended."""
        return self._bytes

    # --- more of SegmentLog -----------------------------------------------------------------------

    def is_dropped(self, channel: ChannelId) -> bool:
        """Whether the channel's id is refused for ever (S0.8)."""
        return channel in self._dropped

    def term_at(self, channel: ChannelId, seq: Seq) -> Term | None:
        """Term of the record that contains ``seq``; None when the log does not hold it."""
        state = self._channels.get(channel)
        return state.index.term_at(seq) if state else None

    def require(self, channel: ChannelId, promised: History) -> None:
        """Something else proves that this was acknowledged here: the channel is recovering."""
        self._open(channel).remember(promised)

    # --- the simulator's side ---------------------------------------------------------------------

    def sync_completed(self, operation: int) -> None:
        """Everything up to ``operation`` is durable, the mark lagging by one sync (S0.3).

        Raises PersistError when a failure was injected: the node must stop (S0.4), and whether the
        operations survive is decided by ``crash``.
        """
        self._check()
        if self._is_next_sync_failing:
            self._is_next_sync_failing = False
            raise self._poison("writing the log failed: injected error; the node stops")
        self._mark.update(self._unmarked)
        self._unmarked = {}
        is_urgent = False
        while self._unsynced and self._unsynced[0].number <= operation:
            done = self._unsynced.popleft()
            self._unmarked[done.channel] = done.row
            is_urgent |= done.is_urgent
        if is_urgent:
            self.write_mark()
        self._durable_operation = max(self._durable_operation, operation)

    def write_mark(self) -> None:
        """The idle pause is over: the mark covers everything durable."""
        self._mark.update(self._unmarked)
        self._unmarked = {}

    def fail_next_sync(self) -> None:
        """Inject an error into the next sync."""
        self._is_next_sync_failing = True

    def crash(self, rng: random.Random) -> None:
        """Keep a random prefix of what was not synced; the next use is a restarted node's."""
        kept = rng.randint(0, len(self._unsynced))
        while len(self._unsynced) > kept:
            lost = self._unsynced.pop()
            if len(self._unsynced) == kept and len(lost.appended) > 1:
                # The first lost one may be torn: some of its records are whole.
                first_lost = rng.randrange(len(lost.appended))
                self._channels[lost.channel].truncate(lost.appended[first_lost].base_seq)
            else:
                lost.undo()
        for state in self._channels.values():
            state.recheck()
        self._durable_operation = self._operation
        self._failure = None
        self._is_next_sync_failing = False

    def damage(self, rng: random.Random, *, operations: int) -> None:
        """Lose the records of the last 1 to ``operations`` operations, durable ones too.

        Only between ``crash`` and the restart. The mark is intact: terms and votes stay, and a
        channel whose promise is no longer held comes back recovering (S0.3).
        """
        assert not self._unsynced, "damage follows a crash"
        kept = self._operation - rng.randint(1, operations)
        for channel, state in self._channels.items():
            first_lost = bisect_left(state.index.positions, kept + 1)
            if first_lost == len(state.records):
                continue
            state.truncate(state.records[first_lost].base_seq)
            row = self._mark.get(channel)
            if row is None:
                continue
            held = state.index.term_at(row.durable.seq)
            if row.durable.seq and held != row.durable.term:
                state.remember(row.durable)
        self._unmarked = {}

    # --- inside -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise PersistError(f"the log is not usable any more: {self._failure}")

    def _poison(self, reason: str) -> PersistError:
        self._failure = reason
        return PersistError(reason)

    def _open(self, channel: ChannelId) -> _SimChannel:
        self._check()
        state = self._channels.get(channel)
        if state is None:
            if channel in self._dropped:
                raise UnknownChannelError(
                    f"channel {channel.hex()} belongs to a dropped table; "
                    "its id is never used again"
                )
            state = self._channels[channel] = _SimChannel()
        return state

    def _restore_channel(self, channel: ChannelId, state: _SimChannel) -> None:
        del self._dropped[channel]
        self._channels[channel] = state

    def _buffer(
        self,
        channel: ChannelId,
        row: MarkRow,
        undo: Callable[[], object],
        *,
        is_urgent: bool = False,
        appended: tuple[Record, ...] = (),
    ) -> int:
        operation = _Operation(self._operation, channel, row, is_urgent, undo, appended)
        self._unsynced.append(operation)
        return self._operation


def _set_vote(index: ChannelIndex, term: Term, voted_for: NodeId | None) -> None:
    index.term, index.voted_for = term, voted_for


class _SimTable:
    """Applied rows of one channel."""

    __slots__ = ("machine", "rows", "sorted_keys", "applied", "queued_seq")

    def __init__(self) -> None:
        self.machine: StateMachine | None = None
        self.rows: dict[bytes, Row] = {}
        self.sorted_keys: list[bytes] | None = None
        self.applied = EMPTY_HISTORY
        self.queued_seq = Seq(0)

    def put(self, key: bytes, row: Row | None) -> Row | None:
        """Set or remove a row; return the one before."""
        before = self.rows.get(key)
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
        row = self._tables[channel].rows.get(key)
        if row is not None:
            unseal(row.key, row.value)
        return row

    def scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> tuple[list[Row], bool]:
        """Rows of [start, stop) in key order (b"" = open) and whether there are more."""
        table = self._tables[channel]
        keys = table.keys_in_order()
        first = bisect_left(keys, start)
        end = bisect_left(keys, stop) if stop else len(keys)
        rows = [table.rows[key] for key in keys[first : min(end, first + limit)]]
        for row in rows:
            unseal(row.key, row.value)
        return rows, end - first > limit

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq it was taken at."""
        table = self._tables[channel]
        hasher = ContentHasher()
        for key in table.keys_in_order():
            row = table.rows[key]
            unseal(key, row.value)
            hasher.add(key, row.value, row.seq)
        return hasher.digest(), hasher.rows, table.applied.seq

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

    def crash(self, rng: random.Random, log: SimLog) -> None:
        """Take back a random number of the newest applied records, then compare with the log.

        As at a real start: an applied position beyond the log's end proves a loss (S0.3).
        """
        self._queue.clear()
        for _ in range(rng.randint(0, len(self._undo))):
            undo = self._undo.pop()
            for key, row in reversed(undo.rows):
                undo.table.put(key, row)
            undo.table.applied = undo.applied
        self._undo.clear()
        for channel, table in self._tables.items():
            if table.applied.seq and log.term_at(channel, table.applied.seq) is None:
                if not log.is_dropped(channel):
                    log.require(channel, table.applied)
                table.rows.clear()
                table.sorted_keys = None
                table.applied = EMPTY_HISTORY

    def corrupt(self, channel: ChannelId, key: bytes) -> None:
        """Flip a bit of a stored value; reading it raises CorruptRecordError."""
        table = self._tables[channel]
        row = table.rows[key]
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
