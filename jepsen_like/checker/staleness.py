"""Bounded staleness: judged by the committed log, never by what a replica says of itself (S7.3).

A replica measures its lag against the newest commit position it knows of, states how old that
knowledge is, and may answer as long as it is younger than ``INFO_AGE_MS``. So the truth to compare
with is the end of the committed log when that was sent (``hearing``).

A bound of time has no such allowance: what was committed longer than ``max_staleness_ms`` before
the read began must be in it. Only clocks that run slow stretch the bound, for replicas count with
their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from jepsen_like.checker.channelsets import COMMAND, QUERY
from jepsen_like.checker.facts import (
    READS,
    WRITES,
    Findings,
    is_answered,
    is_conflict,
    level_of,
    positions_of,
    rows_of_read,
    shown,
    table_of,
    token,
)
from jepsen_like.checker.hearing import INFO_AGE_MS, ROUNDING_MS, Hearing
from jepsen_like.checker.row_history import RowHistory
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Committed, Run
from raftstore.types import Level

SLOW_CLOCKS: Final = {"clock-slow": 0.5, "clock-strobe": 0.7}
"""Faults that let a clock run at so little of its rate."""
RATE_MIN: Final = 0.9
"""Of a clock without such a fault, in the worlds that are drawn."""
_READS: Final = (*READS, QUERY)
_WRITES: Final = (*WRITES, COMMAND)
_KINDS: Final = (
    "too_old", "understated", "beyond", "under_reported", "unreported", "over_bound", "too_early",
    "future", "ahead", "wrong", "batches_beyond", "batches_understated",
)  # fmt: skip
_MS: Final = 1_000_000


def check_staleness(run: Run, table: str, *, info_age_ms: float = INFO_AGE_MS) -> Verdict:
    """Judge every answered read of the table that states the position it was served from.

    Beyond: a bounded read more rows behind than ``max_lag``. Under-reported: a lag stated below the
    true one; over bound: stated above ``max_lag``, or older than ``INFO_AGE_MS``, and served. Too
    early: before ``at_least``. ``info_age_ms`` is taken for the age that a read does not state.
    Too old: without what was committed longer than ``max_staleness_ms`` ago; under-stated: the same
    of the staleness it stated. Future: of a position that was not committed yet. Ahead: a row
    newer than the position stated, so that a later read from there may go back. Wrong: not the
    rows of that position. Batches beyond and under-stated: as beyond and under-reported, of the
    ends of micro-batches.
    Without a committed log, or when nobody knows when it grew, the acknowledged writes are the
    truth of the end: they are in it.
    """
    return _Judge(run, table, info_age_ms).verdict()


class _Ends:
    """The committed end of one partition over time."""

    def __init__(self, known: Sequence[tuple[int, int]]) -> None:
        ordered = sorted(known)
        self._times = [at for at, _ in ordered]
        self._ends = list(accumulate((seq for _, seq in ordered), max))

    def at(self, moment: float) -> int:
        """The highest seq known to be committed then."""
        found = bisect_right(self._times, moment)
        return self._ends[found - 1] if found else 0


class _Judge:
    def __init__(self, run: Run, table: str, info_age_ms: float) -> None:
        struck = [SLOW_CLOCKS.get(str(fault.get("kind")), RATE_MIN) for fault in run.faults]
        self._clock_ns = _MS / min([RATE_MIN, *struck])
        self._hearing = Hearing(run, self._clock_ns, info_age_ms)
        self._findings = Findings("staleness", *_KINDS)
        history = [operation for operation in run.history if table_of(operation) == table]
        self._reads = [op for op in history if op.action in _READS and is_answered(op)]
        logs = {partition: log for (name, partition), log in run.commits.items() if name == table}
        self._has_log = any(logs.values())
        self._known: dict[int, list[tuple[int, int]]] = {}
        self._marks: dict[int, list[int]] = {}
        """Seqs of the ends of micro-batches, by partition."""
        self._rows = RowHistory()
        for partition, log in logs.items():
            self._learn(partition, log)
        self._is_timed = bool(self._known)
        if not self._is_timed:
            self._learn_from_answers(history)
        self._ends = {partition: _Ends(known) for partition, known in self._known.items()}
        self._last = {
            partition: max(row.seq for row in log) for partition, log in logs.items() if log
        }
        counts = ("reads", "bounded", "timed", "batched", "unplaced", "worst_lag")
        self._figures = dict.fromkeys(counts, 0)

    def _learn(self, partition: int, log: Sequence[Committed]) -> None:
        for row in log:
            if row.committed_at is not None:
                self._known.setdefault(partition, []).append((row.committed_at, row.seq))
            if row.is_mark:
                self._marks.setdefault(partition, []).append(row.seq)
            if row.is_row and not row.is_conflict:
                self._rows.learn(partition, token(row.key), row.seq, token(row.value))

    def _learn_from_answers(self, history: Sequence[Operation]) -> None:
        for write in history:
            if write.action in _WRITES and is_answered(write) and not is_conflict(write):
                for partition, seq in positions_of(write).items():
                    self._known.setdefault(partition, []).append((write.returned or 0, seq))

    def verdict(self) -> Verdict:
        figures = self._figures
        for read in self._reads:
            positions = positions_of(read)
            is_bounded = level_of(read) == Level.BOUNDED.value
            if not positions:
                figures["unplaced"] += 1
                continue
            figures["reads"] += 1
            figures["bounded"] += is_bounded
            figures["timed"] += is_bounded and isinstance(read.details.get("max_staleness_ms"), int)
            bound = read.details.get("max_batches_behind")
            figures["batched"] += is_bounded and isinstance(bound, int)
            for partition, applied in positions.items():
                self._judge_position(read, partition, applied)
                if is_bounded:
                    self._judge_lag(read, partition, applied)
                    self._judge_batches(read, partition, applied)
            if is_bounded:
                self._judge_report(read)
            if self._has_log and read.action != QUERY:
                self._judge_rows(read, positions)
        doubt = None if figures["reads"] else "no read stated its position, so no lag was judged"
        if self._known == {} and doubt is None and figures["bounded"]:
            doubt = "nothing is known to be committed, so no lag was judged"
        what = "the rows of their positions" if self._has_log else "no log to compare rows with"
        if any(read.action == QUERY for read in self._reads):
            what = "what they show is judged by a sequential run"
        sound = (
            f"{figures['reads']} reads, {figures['bounded']} of them bounded, are within what "
            f"they asked for ({what})"
        )
        return self._findings.verdict(figures, sound, doubt)

    def _judge_position(self, read: Operation, partition: int, applied: int) -> None:
        wanted = positions_of(read, "at_least").get(partition, 0)
        if applied < wanted:
            text = f"{read.process} asked for seq {wanted} and was served seq {applied}"
            self._findings.add("too_early", text, read)
        end = self._last.get(partition, 0)
        if self._is_timed and partition in self._ends:
            end = self._ends[partition].at(read.returned or 0)
        if self._has_log and applied > end:
            text = f"{read.process} was served seq {applied}, committed were {end}"
            self._findings.add("future", text, read)

    def _judge_lag(self, read: Operation, partition: int, applied: int) -> None:
        ends = self._ends.get(partition)
        if ends is None:
            return
        self._figures["worst_lag"] = max(
            self._figures["worst_lag"], ends.at(read.invoked) - applied
        )
        lag = max(0, ends.at(self._hearing.counted_until(read)) - applied)
        bound, seen = read.details.get("max_lag"), read.details.get("lag")
        if isinstance(bound, int) and lag > bound:
            text = f"{read.process} was served {lag} rows behind, allowed are {bound}"
            self._findings.add("beyond", text, read)
        if isinstance(seen, int) and seen < lag:
            text = f"{read.process} got a lag of {seen} rows, it was {lag}"
            self._findings.add("under_reported", text, read)
        bound, seen = read.details.get("max_staleness_ms"), read.details.get("staleness_ms")
        if isinstance(bound, int) and (missed := self._missed(ends, read, applied, bound)):
            text = f"{read.process} was served without {missed} rows older than {bound} ms"
            self._findings.add("too_old", text, read)
        if isinstance(seen, int) and (missed := self._missed(ends, read, applied, seen)):
            text = f"{read.process} got {seen} ms, and missed {missed} rows older than that"
            self._findings.add("understated", text, read)

    def _judge_batches(self, read: Operation, partition: int, applied: int) -> None:
        ends, marks = self._ends.get(partition), self._marks.get(partition, [])
        if ends is None:
            return
        end = max(applied, ends.at(self._hearing.counted_until(read)))
        missed = bisect_right(marks, end) - bisect_right(marks, applied)
        bound, said = read.details.get("max_batches_behind"), read.details.get("batches_behind")
        if isinstance(bound, int) and missed > bound:
            text = f"{read.process} was served {missed} micro-batches behind, allowed are {bound}"
            self._findings.add("batches_beyond", text, read)
        if isinstance(said, int) and said < missed:
            text = f"{read.process} got {said} micro-batches behind, it was {missed}"
            self._findings.add("batches_understated", text, read)

    def _missed(self, ends: _Ends, read: Operation, applied: int, age_ms: int) -> int:
        """Rows that were committed so long before the read began and are not in its answer."""
        return max(0, ends.at(read.invoked - (age_ms + ROUNDING_MS) * self._clock_ns) - applied)

    def _judge_report(self, read: Operation) -> None:
        age, stated_age = read.details.get("max_staleness_ms"), read.details.get("staleness_ms")
        bound, seen = read.details.get("max_lag"), read.details.get("lag")
        if isinstance(age, int) and not isinstance(stated_age, int):
            text = f"{read.process} was served within {age} ms by a replica that knows no age"
            self._findings.add("unreported", text, read)
        elif isinstance(age, int) and isinstance(stated_age, int) and stated_age > age:
            text = f"{read.process} got a staleness of {stated_age} ms, allowed are {age}"
            self._findings.add("over_bound", text, read)
        batches, said = read.details.get("max_batches_behind"), read.details.get("batches_behind")
        if isinstance(batches, int) and not isinstance(said, int):
            text = f"{read.process} was served within {batches} micro-batches that nobody counted"
            self._findings.add("unreported", text, read)
        elif isinstance(batches, int) and isinstance(said, int) and said > batches:
            text = f"{read.process} got {said} micro-batches behind, allowed are {batches}"
            self._findings.add("over_bound", text, read)
        if bound is None and (isinstance(age, int) or isinstance(batches, int)):
            return
        silence = read.details.get("leader_info_age_ms")
        if isinstance(bound, int) and isinstance(silence, int) and silence > INFO_AGE_MS:
            text = f"{read.process} was served by a replica that heard its leader {silence} ms ago"
            self._findings.add("over_bound", text, read)
        if not isinstance(seen, int):
            text = f"{read.process} was served within a bound by a replica that knows no lag"
            self._findings.add("unreported", text, read)
        elif isinstance(bound, int) and seen > bound:
            text = f"{read.process} got a lag of {seen} rows, allowed are {bound}"
            self._findings.add("over_bound", text, read)

    def _judge_rows(self, read: Operation, positions: Mapping[int, int]) -> None:
        found: dict[Any, Any] = dict(rows_of_read(read))
        if read.action == "scan":
            expected = self._rows.all(positions)
        else:
            expected = {key: self._rows.at(positions, key) for key in found}
        if found == expected:
            return
        different = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
        kinds: dict[str, str] = {}
        for key in different:
            text = (
                f"{read.process} read {shown(found.get(key))} from {shown(key)} at "
                f"{shown(dict(positions))}, committed there is {shown(expected.get(key))}"
            )
            later = self._rows.seq_after(positions, key, found.get(key))
            if later is None:
                kinds.setdefault("wrong", text)
            else:
                kinds.setdefault("ahead", f"{text}; what was read came with seq {later}")
        for kind, text in kinds.items():
            self._findings.add(kind, text, read)
