"""Content that the log of a simulated node must have after a start, whatever it says of itself.

Fed with every change that is written and with what was reported durable; asked after each start:

* After any crash the log holds exactly what it held after some number of changes, in their order,
  and at least those that were reported durable (S0.3, S0.4).
* After damage every channel holds all that was reported durable, or is recovering from at least
  there; terms and votes are what they were, and a dropped channel stays dropped (S0.3, S0.8, S1.3).
* A channel that is recovering stays so over further starts until it holds what was promised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from raftstore.protocol.records import Record
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.testing.invariants import InvariantError
from raftstore.types import EMPTY_HISTORY, ChannelId, History, NodeId, Seq, Term


class _Held(NamedTuple):
    """A record, as far as the start of a log reports it."""

    base_seq: Seq
    last_seq: Seq
    term: Term


class _Vote(NamedTuple):
    term: Term
    voted_for: NodeId | None


class _Cut(NamedTuple):
    from_seq: Seq


class _Based(NamedTuple):
    base: History
    replaces: bool


class _Dropped(NamedTuple):
    """The channel's id is refused."""


class _Removed(NamedTuple):
    """Replicas up to this number are removed."""

    number: int


class _Whole(NamedTuple):
    """The last hole was filled."""


_Change = _Held | _Vote | _Cut | _Based | _Dropped | _Removed | _Whole


class _Expected:
    """Content that one channel must have."""

    __slots__ = ("base", "vote", "records", "is_dropped", "removed", "promise", "has_hole")

    def __init__(self) -> None:
        self.base = EMPTY_HISTORY
        """In front of its first record."""
        self.vote = _Vote(Term(0), None)
        self.records: list[_Held] = []
        self.is_dropped = False
        self.removed = -1
        """The highest number of a replica that was removed."""
        self.promise: History | None = None
        """It was recovering from here at the last start."""
        self.has_hole = False
        """At the last start: which records it holds is not followed before the next."""

    @property
    def end(self) -> History:
        if not self.records:
            return self.base
        last = self.records[-1]
        return History(last.term, last.last_seq)

    def apply(self, change: _Change) -> None:
        match change:
            case _Held():
                self._hold(change)
            case _Whole():
                self.promise = None
            case _Vote():
                self.vote = change
            case _Cut(from_seq):
                while self.records and self.records[-1].base_seq >= from_seq:
                    self.records.pop()
            case _Based(base, replaces):
                held = () if replaces else self.records
                self.records = [record for record in held if record.base_seq > base.seq]
                self.base = base
                if replaces:
                    self.has_hole = False
            case _Dropped():
                self.is_dropped = True
            case _Removed(number):
                self.removed = number
                self.base, self.records = EMPTY_HISTORY, []
                self.promise, self.has_hole = None, False

    def _hold(self, held: _Held) -> None:
        self.records.append(held)
        if self.promise is not None and self.end >= self.promise:
            self.promise = None

    def is_like(self, log: SegmentLog, channel: ChannelId, index: ChannelIndex) -> bool:
        """Whether the log holds this, judged by its last record."""
        if self.is_dropped or log.is_dropped(channel):
            return self.is_dropped == log.is_dropped(channel)
        if (*self.vote, self.removed) != (index.term, index.voted_for, index.removed_number):
            return False
        if self.has_hole:
            return True
        held = (len(index), index.end, index.base.history)
        return (len(self.records), self.end, self.base) == held


class LogTruth:
    """The oracle for the log of one node; outlives its processes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._channels: dict[ChannelId, _Expected] = {}
        self._changes: deque[tuple[int, ChannelId, _Change]] = deque()
        """Not reported durable yet, with the number of their operation."""
        self.is_damaged = False
        """Something was taken from the disk since the last start."""
        self.is_damaged_live = False
        """And the node went on writing."""
        self._held: dict[ChannelId, dict[tuple[Seq, Term], None]] = {}
        """Records that are on the disk, by seq and term; also those that were truncated."""
        self._taken: dict[ChannelId, dict[tuple[Seq, Term], None]] = {}
        """Those that a start after damage did not find any more."""

    # --- single records ---------------------------------------------------------------------------

    def held(self, channel: ChannelId, record: Record) -> bool:
        """Whether the record was reported durable here, and no damage took it since."""
        return (record.base_seq, record.term) in self._held.get(channel, ())

    def was_taken(self, channel: ChannelId, record: Record) -> bool:
        """Whether damage ever took the record from here."""
        return (record.base_seq, record.term) in self._taken.get(channel, ())

    def _note_taken(self, log: SegmentLog) -> None:
        """At a start after damage."""
        for channel, held in self._held.items():
            index = _index(log, channel)
            parts = (index, *index.kept)
            for base_seq, term in list(held):
                # S6.5: what the base stands for was not taken by the damage.
                if base_seq > index.base.seq and all(
                    part.term_at(base_seq) != term for part in parts
                ):
                    del held[base_seq, term]
                    self._taken.setdefault(channel, {})[base_seq, term] = None

    # --- what is written --------------------------------------------------------------------------

    def wrote(self, operation: int, channel: ChannelId, records: Sequence[Record]) -> None:
        """Records were buffered."""
        for record in records:
            held = _Held(record.base_seq, record.last_seq, record.term)
            self._changes.append((operation, channel, held))

    def truncated(self, operation: int, channel: ChannelId, from_seq: Seq) -> None:
        """Records with base_seq >= from_seq were removed."""
        self._changes.append((operation, channel, _Cut(from_seq)))

    def rebased(self, operation: int, channel: ChannelId, base: History, *, replaces: bool) -> None:
        """The log begins behind a base from now on; ``replaces``: with nothing behind it."""
        self._changes.append((operation, channel, _Based(base, replaces)))

    def voted(
        self, operation: int, channel: ChannelId, term: Term, voted_for: NodeId | None
    ) -> None:
        """A term and vote were buffered."""
        self._changes.append((operation, channel, _Vote(term, voted_for)))

    def whole(self, operation: int, channel: ChannelId) -> None:
        """The last hole was filled, and all that was promised is held."""
        self._changes.append((operation, channel, _Whole()))

    def dropped(self, operation: int, channel: ChannelId) -> None:
        """A channel's id is refused from now on."""
        self._changes.append((operation, channel, _Dropped()))

    def removed(self, operation: int, channel: ChannelId, number: int) -> None:
        """Replicas of the channel up to this number are removed from now on."""
        self._changes.append((operation, channel, _Removed(number)))

    def durable(self, operation: int) -> None:
        """Everything up to this operation was reported durable."""
        changes = self._changes
        while changes and changes[0][0] <= operation:
            self._apply_first()

    def _apply_first(self) -> ChannelId:
        _, channel, change = self._changes.popleft()
        self._expected(channel).apply(change)
        if type(change) is _Held:
            self._held.setdefault(channel, {})[change.base_seq, change.term] = None
        elif type(change) is _Removed:
            self._held.pop(channel, None)
        return channel

    def _expected(self, channel: ChannelId) -> _Expected:
        found = self._channels.get(channel)
        if found is None:
            found = self._channels[channel] = _Expected()
        return found

    def lost(self, channel: ChannelId, shortfall: History | None) -> None:
        """The running node found damage: the channel has a hole from now on, and is recovering from
        ``shortfall``. All of it was durable."""
        expected = self._expected(channel)
        expected.has_hole, expected.promise = True, shortfall

    # --- after a start ----------------------------------------------------------------------------

    def check(
        self, log: SegmentLog, copied: Mapping[ChannelId, History] = MappingProxyType({})
    ) -> None:
        """Compare, then go on from what was found. Raises InvariantError.

        ``copied``: of channels whose table is another replica's, up to where; a log that does not
        hold that is recovering, though it lost nothing.
        """
        if self.is_damaged:
            if not self.is_damaged_live:
                self._changes.clear()  # after all was durable, or what followed was never written
            self._note_taken(log)
            for channel, expected in self._channels.items():
                self._check_after_damage(log, channel, expected)
            self._changes.clear()
        else:
            self._check_whole(log, copied)
        for channel in [*self._channels, *log.channels()]:
            self._go_on(self._expected(channel), log.index_of(channel))
        self.is_damaged = self.is_damaged_live = False

    def _check_whole(self, log: SegmentLog, copied: Mapping[ChannelId, History]) -> None:
        for _, channel, _ in self._changes:
            self._expected(channel)
        differing = {
            channel: None
            for channel, expected in self._channels.items()
            if not expected.is_like(log, channel, _index(log, channel))
        }
        while differing and self._changes:
            channel = self._apply_first()
            if self._channels[channel].is_like(log, channel, _index(log, channel)):
                differing.pop(channel, None)
            else:
                differing[channel] = None
        self._changes.clear()
        for channel, expected in self._channels.items():
            index = _index(log, channel)
            if channel in differing or not _is_same(expected, index):
                self._fail(
                    f"channel {channel.hex()} came back with {_described(index)}, which it never "
                    f"held after all that was reported as durable; it held {expected.vote[0]}/"
                    f"{expected.vote[1]} and {len(expected.records)} records up to "
                    f"{tuple(expected.end)}"
                )
            if expected.promise is not None:
                self._check_promise(channel, index, expected.promise)
            elif index.shortfall not in (None, copied.get(channel)) and not expected.is_dropped:
                self._fail(f"channel {channel.hex()} is recovering although nothing was lost")

    def _check_after_damage(self, log: SegmentLog, channel: ChannelId, expected: _Expected) -> None:
        """The content is as after some number of the changes that were not reported durable: there
        are some only if the damage came while the node ran."""
        failure: InvariantError | None = None
        for change in (None, *(change for _, name, change in self._changes if name == channel)):
            if change is not None:
                expected.apply(change)
            try:
                self._check_damaged(log, channel, expected)
            except InvariantError as error:
                failure = failure or error
            else:
                return
        assert failure is not None, "it was checked at least once"
        raise failure

    def _check_damaged(self, log: SegmentLog, channel: ChannelId, expected: _Expected) -> None:
        if expected.is_dropped:
            if not log.is_dropped(channel):
                self._fail(f"S0.8: channel {channel.hex()} was dropped and is back")
            return
        index = _index(log, channel)
        if expected.vote != (index.term, index.voted_for):
            self._fail(
                f"S1.3: channel {channel.hex()} had the vote {tuple(expected.vote)} and came back "
                f"with {(index.term, index.voted_for)}"
            )
        if expected.removed != index.removed_number:
            self._fail(
                f"S0.1: channel {channel.hex()} had its replicas up to {expected.removed} removed "
                f"and came back with those up to {index.removed_number} removed"
            )
        promise = max(expected.end, expected.promise or EMPTY_HISTORY)
        if expected.has_hole:
            promise = expected.promise or EMPTY_HISTORY
        self._check_promise(channel, index, promise)
        if index.shortfall is None and not expected.has_hole:
            # The entry of a base may be lost, and the log begin behind an older one.
            behind = [seq for seq in index.base_seqs if seq > expected.base.seq]
            held = behind[: len(expected.records)]
            if held != [record.base_seq for record in expected.records]:
                self._fail(f"channel {channel.hex()} lacks records and does not say so")

    def _check_promise(self, channel: ChannelId, index: ChannelIndex, promise: History) -> None:
        """S0.3: it is held, or the channel is recovering from there."""
        if index.shortfall is None:
            if index.end < promise:
                self._fail(
                    f"channel {channel.hex()} promised {tuple(promise)}, holds "
                    f"{tuple(index.end)} and is not recovering"
                )
        elif index.shortfall < promise:
            self._fail(
                f"channel {channel.hex()} promised {tuple(promise)} and is recovering from "
                f"{tuple(index.shortfall)} only"
            )

    @staticmethod
    def _go_on(expected: _Expected, index: ChannelIndex | None) -> None:
        if index is None:
            return
        expected.base = index.base.history
        expected.vote = _Vote(index.term, index.voted_for)
        expected.removed = index.removed_number
        expected.promise = index.shortfall
        expected.has_hole = bool(index.kept)
        expected.records = _held(index)

    def _fail(self, text: str) -> None:
        raise InvariantError(f"S0.3: {self._name}: {text}")


def _index(log: SegmentLog, channel: ChannelId) -> ChannelIndex:
    found = log.index_of(channel)
    return ChannelIndex() if found is None else found


def _held(index: ChannelIndex) -> list[_Held]:
    bases = index.base_seqs.tolist()
    ends = [base - 1 for base in bases[1:]] + [index.last_seq] * bool(bases)
    runs = iter(index.lineage)
    held = []
    term, end_seq = Term(0), Seq(0)
    for base, end in zip(bases, ends, strict=True):
        while end_seq < end:
            term, end_seq = next(runs)
        held.append(_Held(Seq(base), Seq(end), term))
    return held


def _is_same(expected: _Expected, index: ChannelIndex) -> bool:
    if expected.is_dropped or expected.has_hole:
        return True
    return expected.records == _held(index)


def _described(index: ChannelIndex) -> str:
    lost = "" if index.shortfall is None else f", recovering from {tuple(index.shortfall)}"
    return f"{index.term}/{index.voted_for} and {len(index)} records up to {tuple(index.end)}{lost}"
