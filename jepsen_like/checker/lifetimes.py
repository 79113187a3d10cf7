"""Rows with a lifetime: none goes early, none stays for ever, none comes back, replicas agree.

What may be said of when a row expires depends on clocks (docs/guarantees.md): it expires so long
after the leader's clock stamped its write, late by what a record takes, and early by no more than
``expiry.clock_ahead_ms`` while the clocks of a majority are right, the leader's among them when it
stamped the write. So "early" is judged of writes at whose time no clock was off, as long as at
most one node's is; "late" once everything has been healed for a while. That a row which has
expired never comes back, and that all replicas show the same at one position, holds whatever the
clocks show.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jepsen_like.checker.facts import (
    Findings,
    is_answered,
    is_conflict,
    level_of,
    positions_of,
    shown,
    table_of,
    token,
)
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.config import ExpirySettings
from raftstore.types import Level, Outcome

EARLY_MS: Final = ExpirySettings().clock_ahead_ms + 100
"""A row may be gone so long before its lifetime is over: what is guaranteed, and what clocks that
are right differ by."""
LATE_MS: Final = 5_000
"""And be there so long after it, when nothing has been wrong for as long."""
SETTLED_MS: Final = 2_000
"""A node is believed to have another clock so long after its own was set right."""
JUMPS_MS: Final = {"clock-forward": 10_000, "clock-hour": 3_600_000}
"""How far these faults put a clock ahead; others do by less than what they last, and a little."""
STROBE_MS: Final = 400
_MS: Final = 1_000_000
_KINDS: Final = ("invented", "lost", "early", "back", "disagree", "late")
_FOREVER: Final = 1 << 62


def check_lifetimes(run: Run, table: str) -> Verdict:
    """Judge the reads of the table's rows, which were written with unique values.

    Invented: nobody can have written by then what was read. Lost: a row without a lifetime is
    absent. Early: a row was absent, or a condition found it absent, before its time. Back: it was
    read after it had been seen to be gone. Disagree: two answers of one position differ. Late: it
    is still shown.
    """
    return _Judge(run, table).verdict()


@dataclass(slots=True)
class _Row:
    """All that was done to one key."""

    writes: list[Operation] = field(default_factory=list)
    """Those that may have taken effect, by when they were begun."""
    reads: list[Operation] = field(default_factory=list)
    """Linearizable ones that were answered, by when they were begun."""
    shown: list[Operation] = field(default_factory=list)
    """All reads that were answered."""


class _Judge:
    def __init__(self, run: Run, table: str) -> None:
        self._findings = Findings("lifetimes", *_KINDS)
        self._rows: dict[Hashable, _Row] = {}
        self._at: dict[tuple[Hashable, int, int], Operation] = {}
        """Of each key, partition and position the first read."""
        self._compared = self._timed = self._overdue = 0
        self._faults = [fault for fault in run.faults if fault.get("fired", True)]
        for operation in sorted(run.history, key=lambda each: each.invoked):
            if table_of(operation) == table:
                self._learn(operation)

    def _learn(self, operation: Operation) -> None:
        row = self._rows.setdefault(token(operation.key), _Row())
        if operation.action in ("put", "put_if"):
            if operation.outcome is not Outcome.NOT_APPLIED and not is_conflict(operation):
                row.writes.append(operation)
        elif operation.action == "get" and is_answered(operation):
            if level_of(operation) == Level.LINEARIZABLE.value:
                row.reads.append(operation)
            row.shown.append(operation)
            self._compare(operation)

    def _compare(self, read: Operation) -> None:
        """S10: what has expired is a matter of the log, at every level and on every replica."""
        for partition, seq in positions_of(read).items():
            other = self._at.setdefault((token(read.key), partition, seq), read)
            if other is read:
                continue
            self._compared += 1
            if token(other.result) != token(read.result):
                text = (
                    f"{shown(read.key)} is {shown(read.result)} at {read.details.get('served_by')} "
                    f"and {shown(other.result)} at {other.details.get('served_by')}, both at seq "
                    f"{seq} of partition {partition}"
                )
                self._findings.add("disagree", text, read, other)

    def verdict(self) -> Verdict:
        for row in self._rows.values():
            self._judge_values(row)
            for at, write in enumerate(row.writes):
                if is_answered(write) and _is_alone_before(row.writes, at):
                    self._judge(write, row, row.writes[at + 1 :])
        judged = {"timed": self._timed, "overdue": self._overdue, "compared": self._compared}
        doubt = None
        if not (self._timed and self._compared):
            doubt = "no row was read within its lifetime, or no two answers were of one position"
        sound = f"{self._timed} times a row was there as long as it lives; replicas agree"
        return self._findings.verdict(judged, sound, doubt)

    def _judge_values(self, row: _Row) -> None:
        begun = {token(write.value): write.invoked for write in row.writes}
        for read in row.shown:
            value = token(read.result)
            if value is not None and begun.get(value, _FOREVER) > (read.returned or 0):
                text = f"{shown(value)} was read from {shown(read.key)}, and nobody had written it"
                self._findings.add("invented", text, read)

    def _judge(self, write: Operation, row: _Row, later: Sequence[Operation]) -> None:
        """All that was seen between an acknowledged write and the next one of its key."""
        end = later[0].invoked if later else _FOREVER
        first = bisect_left(row.reads, write.returned or 0, key=lambda read: read.invoked)
        gone: Operation | None = None
        for read in row.reads[first:]:
            is_there = token(read.result) == token(write.value)
            if gone is not None and is_there and read.invoked > (gone.returned or 0):
                text = f"{_named(write)} was read after it had been gone"
                self._findings.add("back", text, read, gone, write)
            if not is_there and gone is None:
                gone = read
            if (read.returned or 0) < end:
                self._judge_time(write, read, is_there=is_there)
        # A condition that found no row saw this one as gone.
        for other in later[:1]:
            if is_answered(other) and other.action == "put_if" and _is_next(write, other):
                self._judge_time(write, other, is_there=False)

    def _judge_time(self, write: Operation, seen: Operation, *, is_there: bool) -> None:
        ttl_ms = write.details.get("ttl_ms", 0)
        returned = seen.returned or 0
        if not ttl_ms:
            self._timed += 1
            if not is_there:
                self._findings.add("lost", f"{_named(write)} is gone", seen, write)
            return
        if returned < write.invoked + (ttl_ms - EARLY_MS) * _MS:
            if self._clocks_are_right(write, returned):
                self._timed += 1
                if not is_there:
                    left_ms = write.invoked // _MS + ttl_ms - returned // _MS
                    text = f"{_named(write)} was gone {left_ms} ms before its {ttl_ms} ms were over"
                    self._findings.add("early", text, seen, write)
        elif seen.invoked > (write.returned or 0) + (ttl_ms + LATE_MS) * _MS:
            if self._is_calm(write, seen):
                self._overdue += 1
                if is_there:
                    over_ms = seen.invoked // _MS - (write.returned or 0) // _MS - ttl_ms
                    text = f"{_named(write)} is there {over_ms} ms after its {ttl_ms} ms"
                    self._findings.add("late", text, seen, write)

    def _clocks_are_right(self, write: Operation, until: int) -> bool:
        """Every clock when the write was stamped, and all but one node's from then on."""
        off: set[Any] = set()
        for fault in self._faults:
            begun, ended = _times(fault)
            if not _is_of_clocks(fault) or begun > until or ended < write.invoked:
                continue
            if begun <= (write.returned or 0):
                return False
            off.update(fault.get("nodes") or ("one", "another"))
        return len(off) <= 1

    def _is_calm(self, write: Operation, seen: Operation) -> bool:
        """Nothing has been wrong for long, and the write was stamped with the right time.

        The stamps of a channel never go back: behind one of a clock that was ahead, they stay where
        it was until the others have come there.
        """
        for fault in self._faults:
            begun, ended = _times(fault)
            if _is_of_clocks(fault):
                ahead = ended + _ahead_ms(fault, begun, ended) * _MS
                if begun <= (write.returned or 0) and ahead >= write.invoked:
                    return False
            if begun <= seen.invoked and ended > seen.invoked - LATE_MS * _MS:
                return False
        return True


def _is_alone_before(writes: Sequence[Operation], at: int) -> bool:
    """Every write begun before it was answered before it began: it is the newest when it ends."""
    began = writes[at].invoked
    return all(is_answered(each) and (each.returned or 0) < began for each in writes[:at])


def _is_next(write: Operation, other: Operation) -> bool:
    return other.details.get("expected_seq") == 0 and other.invoked > (write.returned or 0)


def _is_of_clocks(fault: Mapping[str, Any]) -> bool:
    return str(fault.get("kind", "")).startswith("clock-")


def _times(fault: Mapping[str, Any]) -> tuple[int, int]:
    """When it began, and when nothing was left of it."""
    ended = fault.get("ended")
    return int(fault["started"]), _FOREVER if ended is None else int(ended) + SETTLED_MS * _MS


def _ahead_ms(fault: Mapping[str, Any], begun: int, ended: int) -> int:
    """How far a clock may have been ahead: by its jump, or by how fast it went."""
    return JUMPS_MS.get(str(fault["kind"]), STROBE_MS + (ended - begun) // _MS)


def _named(write: Operation) -> str:
    return f"{shown(write.value)} of {shown(write.key)}, written by {write.process},"
