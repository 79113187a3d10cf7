"""Sessions: what one process may expect of the order of its own reads and writes.

Read your writes, monotonic reads, monotonic writes, and writes follow reads. A position (the seq a
read was served from, or a write was given) orders everything in one partition; a version (the seq
of the write that made a row what it is) orders the values of one row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Any, Final, TypeVar

from jepsen_like.checker.facts import (
    READS,
    WRITES,
    Findings,
    attempts,
    elements,
    is_answered,
    is_conflict,
    keys_of,
    positions_of,
    rows_of_read,
    rows_of_write,
    shown,
    table_of,
)
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from raftstore.types import Outcome

_KINDS: Final = (
    "read_your_writes", "monotonic_reads", "monotonic_writes", "writes_follow_reads", "missing",
)  # fmt: skip
_Row = tuple[str, Hashable]
"""(table, key)."""
_Mark = tuple[int, Operation]
"""A seq, and who learned it."""
_Name = TypeVar("_Name", bound=Hashable)


def check_sessions(history: Sequence[Operation]) -> Verdict:
    """Judge the answered reads and writes of each process; all reads must promise a session.

    The caller leaves out reads that ask neither for a position nor for the newest. The version of
    a row comes from the answer's ``seqs``, or from the one acknowledged write of its value. After
    a write of unknown outcome, and a value nobody knows the seq of, only positions are judged.
    Missing: an acknowledged write is not in a read that claims its position.
    """
    return _Judge(history).verdict()


class _Session:
    """The positions that one process has seen."""

    def __init__(self) -> None:
        self.read: dict[tuple[str, int], _Mark] = {}
        self.written: dict[tuple[str, int], _Mark] = {}
        self.read_rows: dict[_Row, _Mark] = {}
        self.written_rows: dict[_Row, _Mark] = {}


class _Judge:
    def __init__(self, history: Sequence[Operation]) -> None:
        asked = [op for op in history if op.action in (*READS, *WRITES) and is_answered(op)]
        self._operations = sorted(asked, key=lambda op: op.invoked)
        self._versions = _Versions(history)
        self._sessions: dict[str, _Session] = {}
        self._findings = Findings("sessions", *_KINDS)

    def verdict(self) -> Verdict:
        reads = writes = 0
        for operation in self._operations:
            session = self._sessions.setdefault(operation.process, _Session())
            if operation.action in READS:
                reads += 1
                self._judge_read(session, operation)
            elif not is_conflict(operation):
                writes += 1
                self._judge_write(session, operation)
        figures = {"sessions": len(self._sessions), "reads": reads, "writes": writes}
        sound = f"{reads} reads and {writes} writes of {len(self._sessions)} sessions are in order"
        doubt = None if reads else "no read of a session was answered"
        return self._findings.verdict(figures, sound, doubt)

    def _judge_write(self, session: _Session, write: Operation) -> None:
        table = table_of(write)
        positions = positions_of(write)
        for partition, seq in positions.items():
            place = (table, partition)
            for kind, marks in (
                ("monotonic_writes", session.written),
                ("writes_follow_reads", session.read),
            ):
                before = marks.get(place)
                if before is not None and seq <= before[0]:
                    text = f"{write.process} was given seq {seq} after seq {before[0]}"
                    self._findings.add(kind, text, write, before[1])
            _raise(session.written, place, seq, write)
        if len(positions) == 1:
            (seq,) = positions.values()
            for key, _ in rows_of_write(write):
                _raise(session.written_rows, (table, key), seq, write)

    def _judge_read(self, session: _Session, read: Operation) -> None:
        table = table_of(read)
        positions = positions_of(read)
        for partition, seq in positions.items():
            place = (table, partition)
            for kind, marks in (
                ("read_your_writes", session.written),
                ("monotonic_reads", session.read),
            ):
                before = marks.get(place)
                if before is not None and seq < before[0]:
                    text = f"{read.process} was served seq {seq} after seq {before[0]}"
                    self._findings.add(kind, text, read, before[1])
            _raise(session.read, place, seq, read)
        for row, version in self._rows_of(read):
            for kind, rows in (
                ("read_your_writes", session.written_rows),
                ("monotonic_reads", session.read_rows),
            ):
                before = rows.get(row)
                if before is not None and version < before[0]:
                    text = (
                        f"{read.process} read {shown(row[1])} as of seq {version} after seq "
                        f"{before[0]}"
                    )
                    self._findings.add(kind, text, read, before[1])
            _raise(session.read_rows, row, version, read)
            newer = self._versions.between(row, version, positions)
            if newer is not None:
                text = (
                    f"{read.process} read {shown(row[1])} as of seq {version} at "
                    f"{shown(positions)}, which lacks the acknowledged seq {newer[0]}"
                )
                self._findings.add("missing", text, read, newer[1])

    def _rows_of(self, read: Operation) -> list[tuple[_Row, int]]:
        """The rows a read found, or not, with their versions where these are known."""
        table = table_of(read)
        found = dict(rows_of_read(read))
        reported = elements(read.details.get("seqs")) or []
        keys = [*found] if read.action == "scan" else keys_of(read)
        known: list[tuple[_Row, int]] = []
        for at, key in enumerate(keys):
            label = reported[at] if len(reported) == len(keys) else None
            version = self._versions.of((table, key), found.get(key), label)
            if version is not None:
                known.append(((table, key), version))
        return known


class _Versions:
    """The seqs of rows, as far as acknowledged writes show."""

    def __init__(self, history: Sequence[Operation]) -> None:
        self._of_value: dict[tuple[_Row, Hashable], int | None] = {}
        self._deleted: dict[_Row, None] = {}
        places: dict[tuple[_Row, int], list[_Mark]] = {}
        for write, (key, value) in attempts(history):
            if write.outcome is Outcome.NOT_APPLIED or is_conflict(write):
                continue
            row = (table_of(write), key)
            if value is None:
                self._deleted[row] = None
            reported = positions_of(write) if is_answered(write) else {}
            seq = None
            if len(reported) == 1:
                partition, seq = next(iter(reported.items()))
                places.setdefault((row, partition), []).append((seq, write))
            is_first = (row, value) not in self._of_value
            self._of_value[row, value] = seq if is_first else None
        self._acked = {
            place: sorted(marks, key=lambda mark: mark[0]) for place, marks in places.items()
        }

    def of(self, row: _Row, value: Hashable, label: Any) -> int | None:
        """The seq of the write that made it so; ``label`` is what the answer says."""
        if value is None:
            return None if row in self._deleted else 0
        known = self._of_value.get((row, value))
        return label if known is None and isinstance(label, int) else known

    def between(self, row: _Row, version: int, positions: dict[int, int]) -> _Mark | None:
        """An acknowledged write of the row above the version, and not above a single position."""
        if len(positions) != 1:
            return None
        ((partition, applied),) = positions.items()
        marks = self._acked.get((row, partition), [])
        found = bisect_right(marks, applied, key=lambda mark: mark[0])
        return marks[found - 1] if found and marks[found - 1][0] > version else None


def _raise(marks: dict[_Name, _Mark], row: _Name, seq: int, who: Operation) -> None:
    if row not in marks or seq > marks[row][0]:
        marks[row] = (seq, who)
