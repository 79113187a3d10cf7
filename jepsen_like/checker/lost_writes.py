"""Lost writes: what was acknowledged is read back, what was refused never appears.

A row may be overwritten, so the value that was read back must be one that can have been written
last: by a write that no acknowledged write followed, or by one whose outcome nobody knows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from jepsen_like.checker.facts import (
    READS,
    Findings,
    attempts,
    is_answered,
    is_conflict,
    keys_of,
    level_of,
    positions_of,
    rows_of_read,
    shown,
    table_of,
)
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from raftstore.types import Level, Outcome

_ABSENT = None
_Name = tuple[str, Hashable]
"""(table, key)."""


def check_lost_writes(history: Sequence[Operation]) -> Verdict:
    """Judge writes of rows against reads; those with the detail ``final`` are the read-back.

    Of two acknowledged writes of one row the later is the one that began after the other was
    answered, or the one with the higher seq where both answers give a single position. Every
    read, of whatever level, is searched for values that nobody wrote, that were refused, or that
    were written only later. Undecided: an acknowledged row that was not read back.
    """
    return _Judge(history).verdict()


@dataclass(slots=True)
class _Writes:
    """All writes of one row."""

    by_value: dict[Hashable, list[Operation]] = field(default_factory=dict)
    certain: list[Operation] = field(default_factory=list)


class _Judge:
    def __init__(self, history: Sequence[Operation]) -> None:
        self._rows: dict[_Name, _Writes] = {}
        self._keys: dict[str, dict[Hashable, None]] = {}
        self._acknowledged = 0
        for operation, (key, value) in attempts(history):
            table = table_of(operation)
            writes = self._rows.setdefault((table, key), _Writes())
            self._keys.setdefault(table, {})[key] = None
            writes.by_value.setdefault(value, []).append(operation)
            if is_answered(operation) and not is_conflict(operation):
                writes.certain.append(operation)
                self._acknowledged += 1
        reads = [op for op in history if op.action in READS and is_answered(op)]
        self._reads = sorted(reads, key=lambda op: op.invoked)
        self._findings = Findings("lost_writes", "lost", "refused", "invented", "early")

    def verdict(self) -> Verdict:
        judged: dict[_Name, None] = {}
        finals = 0
        for read in self._reads:
            is_final = (
                bool(read.details.get("final")) and level_of(read) == Level.LINEARIZABLE.value
            )
            finals += is_final
            for name, value in self._rows_of(read, is_final=is_final):
                if not self._is_written(name, value, read) or not is_final:
                    continue
                judged[name] = None
                self._judge_last(name, value, read)
        unread = sum(
            bool(writes.certain) and name not in judged for name, writes in self._rows.items()
        )
        figures = {"acknowledged": self._acknowledged, "rows": len(judged), "unread": unread}
        return self._findings.verdict(
            figures,
            f"{self._acknowledged} acknowledged writes of {len(judged)} rows were read back",
            self._doubt(finals, unread),
        )

    def _doubt(self, finals: int, unread: int) -> str | None:
        if not self._acknowledged:
            return "no write was acknowledged, so none could be lost"
        if not finals:
            return "nothing was read back"
        return f"{unread} rows with acknowledged writes were not read back" if unread else None

    def _rows_of(self, read: Operation, *, is_final: bool) -> Iterator[tuple[_Name, Hashable]]:
        """Rows that the read found; of a final one also those it asked for and did not find."""
        table = table_of(read)
        found = dict(rows_of_read(read))
        for key, value in found.items():
            yield (table, key), value
        if is_final:
            asked = self._keys.get(table, {}) if read.action == "scan" else keys_of(read)
            for key in asked:
                if key not in found:
                    yield (table, key), _ABSENT

    def _is_written(self, name: _Name, value: Hashable, read: Operation) -> bool:
        """Somebody may have written it in time; an absent row needs no writer."""
        writes = self._rows.get(name)
        tried = [] if writes is None else writes.by_value.get(value, [])
        if value is _ABSENT:
            return True
        what = f"{shown(value)} was read from {shown(name[1])}"
        possible = [w for w in tried if w.outcome is not Outcome.NOT_APPLIED and not is_conflict(w)]
        if not tried:
            self._findings.add("invented", f"{what}, and nobody wrote it", read)
        elif not possible:
            self._findings.add("refused", f"{what}, and its write was refused", read, tried[0])
        elif read.returned is not None and possible[0].invoked > read.returned:
            if min(write.invoked for write in possible) > read.returned:
                text = f"{what} before anybody wrote it"
                self._findings.add("early", text, read, possible[0])
                return False
        return bool(possible)

    def _judge_last(self, name: _Name, value: Hashable, read: Operation) -> None:
        writes = self._rows.get(name, _Writes())
        before = [w for w in writes.certain if (w.returned or 0) < read.invoked]
        if not before:
            return
        newest = max(write.invoked for write in before)
        seqs = {id(write): _seq_of(write) for write in before}
        highest = max(seqs.values())
        for write in writes.by_value.get(value, ()):
            if write.outcome is Outcome.NOT_APPLIED or is_conflict(write):
                continue
            seq = seqs.get(id(write))
            if seq is None or ((write.returned or 0) >= newest and seq in (0, highest)):
                return
        last = max(before, key=lambda write: (seqs[id(write)], write.invoked))
        older = writes.by_value.get(value, [])
        text = (
            f"{shown(name[1])} was read back as {shown(value)}, which the acknowledged "
            f"{last.action} of {last.process} had replaced"
        )
        self._findings.add("lost", text, read, last, *older[-1:])


def _seq_of(write: Operation) -> int:
    """Its seq if it has one position, else 0."""
    positions = positions_of(write)
    return next(iter(positions.values())) if len(positions) == 1 else 0
