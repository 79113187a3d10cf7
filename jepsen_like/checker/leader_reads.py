"""Reads at level leader: a session sees what was acknowledged to it, unless its leader is deposed.

A leader that was deposed and does not know it answers from the state of its own term. So what a
read must show depends on the term it was answered in: all that was acknowledged to the process
before, with a record of that term or of an earlier one. A leader that has committed a record of its
own term holds every record of an earlier term that was ever acknowledged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from jepsen_like.checker.facts import (
    Findings,
    elements,
    is_answered,
    level_of,
    positions_of,
    shown,
    table_of,
    token,
)
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from raftstore.types import Level

_KINDS: Final = ("position", "value")


@dataclass(frozen=True, slots=True)
class _Write:
    """An acknowledged one."""

    term: int
    place: tuple[str, int]
    row: tuple[str, Hashable]
    value: Hashable
    seq: int
    answer: Operation


def check_leader_reads(history: Sequence[Operation]) -> Verdict:
    """Judge answered gets at level leader against the process's own acknowledged puts before.

    For processes that write keys of their own, each value once. A write of unknown outcome may be
    applied late, so rows are judged by the seqs that wrote them. Undecided unless a read had
    something to show.
    """
    findings = Findings("leader_reads", *_KINDS)
    sessions: dict[str, list[_Write]] = {}
    judged = deposed = 0
    for operation in sorted(history, key=lambda each: each.invoked):
        written = sessions.setdefault(operation.process, [])
        if not is_answered(operation):
            continue
        if operation.action == "put":
            _note(written, operation)
        elif operation.action == "get" and level_of(operation) == Level.LEADER.value and written:
            seen = _visible(written, operation)
            deposed += len(seen) < len(written)
            if seen:
                judged += 1
                _judge(findings, operation, seen)
    figures = {"reads": judged, "of_deposed_leaders": deposed}
    sound = f"{judged} reads at level leader show what was acknowledged to their processes"
    doubt = None if judged else "no read at level leader had an acknowledged write to show"
    return findings.verdict(figures, sound, doubt)


def _note(written: list[_Write], put: Operation) -> None:
    row, value = (table_of(put), token(put.key)), token(put.value)
    term, positions = put.details.get("term"), positions_of(put)
    if isinstance(term, int) and len(positions) == 1:
        ((partition, seq),) = positions.items()
        written.append(_Write(term, (row[0], partition), row, value, seq, put))


def _visible(written: list[_Write], read: Operation) -> list[_Write]:
    """The acknowledged writes that the leader of the read's term holds; a process asks for one
    thing after the other, so all of them were acknowledged before."""
    term = read.details.get("term")
    return [write for write in written if isinstance(term, int) and write.term <= term]


def _judge(findings: Findings, read: Operation, seen: list[_Write]) -> None:
    table, row = table_of(read), (table_of(read), token(read.key))
    for partition, applied in positions_of(read).items():
        newest = _newest(write for write in seen if write.place == (table, partition))
        if newest is not None and applied < newest.seq:
            text = f"{read.process} was served seq {applied}, seq {newest.seq} was acknowledged"
            findings.add("position", text, read, newest.answer)
    last = _newest(write for write in seen if write.row == row)
    version = _version(read, seen, row)
    if last is not None and version is not None and version < last.seq:
        text = (
            f"{read.process} read {shown(read.result)} as of seq {version}, seq {last.seq} with "
            f"{shown(last.answer.value)} was acknowledged"
        )
        findings.add("value", text, read, last.answer)


def _newest(written: Iterable[_Write]) -> _Write | None:
    return max(written, key=lambda write: write.seq, default=None)


def _version(read: Operation, seen: list[_Write], row: tuple[str, Hashable]) -> int | None:
    """The seq of the write that was read: of the acknowledged one of this value, or as answered."""
    value = token(read.result)
    if value is None:
        return 0
    known = [write.seq for write in seen if (write.row, write.value) == (row, value)]
    reported = elements(read.details.get("seqs")) or [None]
    return max(known) if known else reported[0] if isinstance(reported[0], int) else None
