"""The judge of one process: holds what it observes against what it observed before.

For one channel it knows the committed positions over time (``floors``) and for each watched key
what the row was at which positions (``row_spans``). A history of a register whose operations carry
positions is linearizable if and only if the positions respect real time and each read shows the
newest write at its position; so the two are checked, and no order is searched for.

Clocks are only compared with themselves; an age that another machine stated is stretched by what
two clocks may differ in rate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from raftstore.audit.finding import AuditFinding, FindingKind, distinct
from raftstore.audit.floors import Floors
from raftstore.audit.observation import WRITES, Action, Observation
from raftstore.audit.row_spans import RowSpans

CLOCKS_DIFFER: Final = 0.01
"""Of the rate of two clocks: far more than any that is kept by NTP."""
ROUNDING_MS: Final = 2
"""Nodes state whole milliseconds."""
CHANNELS_MAX: Final = 4_096
"""Channels whose positions are remembered: those that were used last."""
LINEARIZABLE: Final = "linearizable"
BOUNDED: Final = "bounded"


@dataclass(slots=True)
class _Channel:
    name: str
    floors: Floors = field(default_factory=Floors)
    rows: dict[bytes, RowSpans] = field(default_factory=dict)
    newest: Observation | None = None
    """The operation with the highest position."""


class Judge:
    """See the module."""

    def __init__(self, *, keys_max: int, clocks_differ: float = CLOCKS_DIFFER) -> None:
        self._channels: OrderedDict[Hashable, _Channel] = OrderedDict()
        """The one that was used last at the end."""
        self._keys_max = keys_max
        self._clocks_differ = clocks_differ
        self._keys = 0
        self.observed = 0
        """Operations that were judged."""
        self.dropped = 0
        """Operations whose row was not judged: too many keys are watched."""
        self.violations = 0

    def rotate(self) -> None:
        """Other keys are watched from now on: forget rows, and keep positions."""
        self._keys = 0
        for known in self._channels.values():
            known.rows.clear()

    def forget(self, channel: Hashable) -> None:
        """The channel is gone."""
        known = self._channels.pop(channel, None)
        if known is not None:
            self._keys -= len(known.rows)

    def committed(self, channel: Hashable, name: str, at_ms: float, seq: int) -> None:
        """A position is known to be committed."""
        known = self._known(channel, name)
        known.floors.note(at_ms, seq)

    def observe(self, channel: Hashable, name: str, seen: Observation) -> list[AuditFinding]:
        """Judge an operation; return what is wrong with it."""
        known = self._known(channel, name)
        self.observed += 1
        found = list(self._judge_place(known, seen))
        if not found:  # a position that is wrong says nothing about rows
            found.extend(self._judge_row(known, seen))
        if seen.seq > known.floors.newest:
            known.newest = seen
        known.floors.note(seen.ended_ms, seen.seq)
        self.violations += len(found)
        return found

    # --- rules ------------------------------------------------------------------------------------

    def _judge_place(self, known: _Channel, seen: Observation) -> Iterator[AuditFinding]:
        before = known.floors.before(seen.began_ms)
        if seen.action in WRITES:
            if seen.seq <= before:
                text = f"a {seen.action} was acknowledged at seq {seen.seq}, and {before} was "
                yield _finding(FindingKind.OLD_WRITE, known, text + "committed before", seen)
            return
        if seen.version > seen.seq:
            text = f"a row of seq {seen.version} was read from the state of seq {seen.seq}"
            yield _finding(FindingKind.AHEAD, known, text, seen)
        if seen.level == LINEARIZABLE and seen.seq < before:
            text = f"a linearizable read was answered as of seq {seen.seq}, and {before} was "
            yield _finding(FindingKind.STALE_READ, known, text + "committed before it began", seen)
        if seen.seq < seen.min_seq:
            text = f"a read that had to hold seq {seen.min_seq} was answered as of {seen.seq}"
            yield _finding(FindingKind.TOO_EARLY, known, text, seen)
        yield from self._judge_age(known, seen)

    def _judge_age(self, known: _Channel, seen: Observation) -> Iterator[AuditFinding]:
        age_ms = seen.staleness_ms
        if age_ms is not None:
            stretched_ms = (age_ms + ROUNDING_MS) * (1 + self._clocks_differ)
            missed = known.floors.before(seen.began_ms - stretched_ms)
            if seen.seq < missed:
                text = f"a read stated an age of {age_ms} ms as of seq {seen.seq}, and {missed} "
                text += "was committed longer ago"
                yield _finding(FindingKind.TOO_OLD, known, text, seen)
        if seen.level != BOUNDED:
            return
        stated = (("ms", seen.max_staleness_ms, age_ms), ("rows", seen.max_lag, seen.lag))
        for unit, bound, amount in stated:
            if bound is not None and (amount is None or amount > bound):
                shown = "unknown" if amount is None else f"{amount} {unit}"
                text = f"a read bounded to {bound} {unit} was answered with {shown}"
                yield _finding(FindingKind.OVER_BOUND, known, text, seen)

    def _judge_row(self, known: _Channel, seen: Observation) -> Iterator[AuditFinding]:
        row = known.rows.get(seen.key)
        if row is None:
            if self._keys >= self._keys_max:
                self.dropped += 1
                return
            self._keys += 1
            row = known.rows[seen.key] = RowSpans()
        other = row.learn(seen)
        if other is None:
            return
        is_write = seen.action in WRITES or other.action in WRITES
        kind = FindingKind.LOST_WRITE if is_write else FindingKind.TWO_ROWS
        text = f"key {seen.key.hex()}: {_said(seen)}, and {_said(other)}"
        yield AuditFinding(kind, known.name, text, distinct((seen, other, *row.operations)))

    def _known(self, channel: Hashable, name: str) -> _Channel:
        known = self._channels.get(channel)
        if known is not None:
            self._channels.move_to_end(channel)
            return known
        if len(self._channels) >= CHANNELS_MAX:  # tables come and go unnoticed
            self.forget(next(iter(self._channels)))
        known = self._channels[channel] = _Channel(name)
        return known


def _finding(kind: FindingKind, known: _Channel, text: str, seen: Observation) -> AuditFinding:
    row = known.rows.get(seen.key)
    before = () if row is None else tuple(row.operations)
    return AuditFinding(kind, known.name, text, distinct((seen, known.newest, *before)))


def _said(seen: Observation) -> str:
    """The row as an operation saw it, for people."""
    if seen.action in WRITES:
        return f"a {seen.action} was acknowledged at seq {seen.seq}"
    who = f" by {seen.node}" if seen.node else ""
    if not seen.version:
        return f"it was absent as of seq {seen.seq}{who}"
    kind = "a check" if seen.action is Action.CHECK else "a read"
    return f"{kind} as of seq {seen.seq}{who} showed the row {seen.row.hex()[:8]} of {seen.version}"
