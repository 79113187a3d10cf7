"""Simulated log: the port of ``raftstore.storage.log.segment_log`` without a disk.

What is written is volatile until the simulator says that a sync completed; ``crash`` keeps a random
prefix of the rest, as a disk would. The object stands for the disk: it outlives the node that uses
it, and a restarted node opens its channels again. The mark is modelled too (S0.3):
``SimLog.damage`` loses durable records, and a channel that had promised them comes back
*recovering*.
"""

from __future__ import annotations

import copy
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from raftstore.errors import PersistError, UnknownChannelError
from raftstore.ports.log import RecoveredChannel
from raftstore.protocol.node import Hole
from raftstore.protocol.records import Record
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.log.mark import MarkRow
from raftstore.testing.sim_failpoints import nobody_dies
from raftstore.types import EMPTY_HISTORY, ChannelId, History, NodeId, Seq, Term


class _SimChannel:
    """A channel's index and its records; ``promised`` beyond its end makes it recovering."""

    __slots__ = ("index", "records", "kept", "promised")

    def __init__(self) -> None:
        self.index = ChannelIndex()
        self.records: list[Record] = []
        self.kept: list[list[Record]] = []
        """Of the parts of the index that are kept behind holes."""
        self.promised = EMPTY_HISTORY

    def remember(self, promised: History) -> None:
        """Something proves that this much was acknowledged (S0.3)."""
        self.promised = max(promised, self.promised)
        self.index.shortfall = self.promised

    def recheck(self) -> None:
        """After a crash: recovering again, unless the promise was kept durably meanwhile."""
        if self.index.kept:
            return  # as long as there is a hole, it is
        if self.index.end < self.promised:
            self.index.shortfall = self.promised
        else:
            self.promised = EMPTY_HISTORY

    def add(self, record: Record, operation: int) -> None:
        """Append a record written by ``operation``."""
        self.index.add(record.term, record.base_seq, record.rows, position=operation, length=0)
        self.records.append(record)

    def flip(self, at: int) -> None:
        """Damage one record of the log: what follows is kept behind a hole."""
        index, end = self.index, self.index.end
        lost, following = self.records[at], self.records[at + 1 :]
        positions = list(index.positions[at:])
        self.truncate(lost.base_seq)
        hole = ChannelIndex(lost.last_seq, History(lost.term, lost.last_seq))
        for record, position in zip(following, positions[1:], strict=True):
            hole.add(record.term, record.base_seq, record.rows, position=position, length=0)
        index.kept.insert(0, hole)
        self.kept.insert(0, following)
        index.promise = max(end, self.promised)
        index.shortfall = max(end, index.shortfall or EMPTY_HISTORY)

    def fill(self, record: Record, operation: int) -> None:
        """Put a record into the first hole."""
        parts = len(self.index.kept)
        self.index.fill(record.term, record.base_seq, record.rows, position=operation, length=0)
        self.records.append(record)
        if len(self.index.kept) < parts:
            self.records.extend(self.kept.pop(0))

    def give_up(self) -> None:
        """Forget what is kept behind the first hole."""
        self.index.kept.clear()
        self.kept.clear()
        self.remember(self.index.shortfall or EMPTY_HISTORY)

    def records_of(self, part: ChannelIndex) -> list[Record]:
        """The records of the log, or of a part behind a hole."""
        return self.records if part is self.index else self.kept[self.index.kept.index(part)]

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
        self.reach: Callable[[str], bool] = nobody_dies
        """Told the name of each failpoint passed; True when the node died there."""
        self.disk_error: str | None = None
        """What every sync fails with until somebody sets it to None: EIO or ENOSPC that stays."""

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
            hole=index.hole(),
        )

    def append(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records contiguous with the channel's end; return the operation number."""
        state = self._whole(channel)
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
        return self._buffer(channel, state.index.next_mark_row(), undo, appended=tuple(records))

    def truncate(self, channel: ChannelId, from_seq: Seq) -> int:
        """Buffer the removal of records with base_seq >= from_seq; return the operation number."""
        state = self._whole(channel)
        self.reach("log.before-truncate")
        self._operation += 1
        undo = partial(state.restore, state.truncate(from_seq))
        return self._buffer(channel, state.index.next_mark_row(), undo)

    def fill(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records that take their place at the start of the channel's hole."""
        state = self._open(channel)
        hole = state.index.hole()
        if hole is None or not records or records[-1].last_seq > hole.to_seq:
            raise self._poison(f"channel {channel.hex()} has no hole for these records: {hole}")
        self._operation += 1
        before = copy.deepcopy(state)
        for record in records:
            state.fill(record, self._operation)
        return self._buffer(
            channel, state.index.next_mark_row(), partial(self._put_back, channel, before)
        )

    def give_up(self, channel: ChannelId) -> int:
        """Buffer that what is kept behind the hole is forgotten."""
        state = self._open(channel)
        self._operation += 1
        before = copy.deepcopy(state)
        state.give_up()
        return self._buffer(
            channel, state.index.next_mark_row(), partial(self._put_back, channel, before)
        )

    def refill(self, channel: ChannelId, hole: Hole, *, bytes_max: int) -> list[Record]:
        """Records from the start of another replica's hole on, if proven to be the same."""
        state = self._channels.get(channel)
        found = None if state is None else state.index.part_serving(hole)
        if state is None or found is None:
            return []
        part, to_seq = found
        records: list[Record] = []
        size = 0
        for record in state.records_of(part)[part.locate(hole.from_seq) :]:
            size += len(record.payload)
            if record.last_seq > to_seq or (records and size > bytes_max):
                break
            records.append(record)
        return records if records and records[0].base_seq == hole.from_seq else []

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
        return self._buffer(channel, index.next_mark_row(), undo, is_urgent=True)

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

    def is_behind(self) -> bool:
        """Whether anything buffered is not durable yet."""
        return self._operation != self._durable_operation

    def read(
        self, channel: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int
    ) -> list[Record]:
        """Whole records with last_seq <= to_seq from the one containing ``from_seq`` on: at least
        one if any, then bounded by ``bytes_max`` of payload."""
        state = self._open(channel)
        index = state.index
        # The record that holds the seq after ``to_seq`` is the first that is too long or too late.
        end = index.locate(Seq(to_seq + 1)) if to_seq > 0 else 0
        found = state.records[index.locate(from_seq) : end]
        size = 0
        for at, record in enumerate(found):
            size += len(record.payload)
            if at and size > bytes_max:
                return found[:at]
        return found

    def records(self, channel: ChannelId) -> Iterator[Record]:
        """All records in order."""
        return iter(tuple(self._open(channel).records))

    def unsynced_bytes(self) -> int:
        """Payload bytes of what is not durable yet."""
        return sum(len(at.payload) for op in self._unsynced for at in op.appended)

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
        return None if state is None else state.index.term_known(seq)

    def may_hold(self, channel: ChannelId, promised: History) -> bool:
        """Whether that record is held, or was lost with a hole that will be filled (S0.3)."""
        state = self._channels.get(channel)
        return state is not None and state.index.may_hold(promised)

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
        if self.disk_error is not None:
            raise self._poison(f"writing the log failed: {self.disk_error}; the node stops")
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
        if is_urgent and not self.reach("mark.before-write"):
            self.write_mark()
            self.reach("mark.after-sync")
        self._durable_operation = max(self._durable_operation, operation)

    def write_mark(self) -> None:
        """The idle pause is over: the mark covers everything durable."""
        self._mark.update(self._unmarked)
        self._unmarked = {}

    def fail_next_sync(self) -> None:
        """Inject an error into the next sync."""
        self._is_next_sync_failing = True

    def spare_next_sync(self) -> None:
        """Take an injected error back that has not struck yet."""
        self._is_next_sync_failing = False

    @property
    def is_next_sync_failing(self) -> bool:
        """Whether an injected error waits for the next sync."""
        return self._is_next_sync_failing

    @property
    def waits_for_urgent_sync(self) -> bool:
        """Whether a term, a vote or a drop is among what is not durable yet."""
        return any(operation.is_urgent for operation in self._unsynced)

    def forget_after(self, operation: int) -> None:
        """Between a death and ``crash``: what was buffered after this never was."""
        while self._unsynced and self._unsynced[-1].number > operation:
            self._unsynced.pop().undo()

    def crash(self, rng: random.Random, *, written: int = 0) -> None:
        """Keep a random prefix of what was not synced; the next use is a restarted node's.

        Operations up to ``written`` survive: after a kill, whatever was handed to the system.
        """
        held = sum(operation.number <= written for operation in self._unsynced)
        kept = rng.randint(held, len(self._unsynced))
        while len(self._unsynced) > kept:
            lost = self._unsynced.pop()
            if len(self._unsynced) == kept and len(lost.appended) > 1:
                # The first lost one may be torn: some of its records are whole.
                first_lost = rng.randrange(len(lost.appended))
                self._channels[lost.channel].truncate(lost.appended[first_lost].base_seq)
            else:
                lost.undo()
        self._unsynced.clear()
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

    def flip(self, rng: random.Random, is_spared: Callable[[ChannelId, Record], bool]) -> bool:
        """Damage one record of some channel, wherever it is, and nothing behind it (S0.3).

        Only between ``crash`` and the restart. Returns whether there was one to damage that is not
        spared.
        """
        assert not self._unsynced, "damage follows a crash"
        channels = [name for name, state in sorted(self._channels.items()) if state.records]
        if not channels:
            return False
        channel = rng.choice(channels)
        state = self._channels[channel]
        at = rng.randrange(len(state.records))
        if is_spared(channel, state.records[at]):
            return False
        state.flip(at)
        return True

    def lacks(self, channel: ChannelId, record: Record) -> bool:
        """Whether a record is not held here, or not any more."""
        state = self._channels.get(channel)
        return state is None or state.index.term_known(record.base_seq) != record.term

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

    def _whole(self, channel: ChannelId) -> _SimChannel:
        state = self._open(channel)
        if state.index.kept:
            self.give_up(channel)
        return state

    def _put_back(self, channel: ChannelId, state: _SimChannel) -> None:
        self._channels[channel] = state

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
