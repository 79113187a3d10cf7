"""A channel as a stream: one total order without gap or reuse, each message in it once.

The committed log is the order. Consumers, if there are any, are operations ``poll`` whose result
lists what was delivered: ``[seq, value]``, or ``[seq, value, true]`` for a declared redelivery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from jepsen_like.checker.facts import (
    WRITES,
    Findings,
    elements,
    is_answered,
    positions_of,
    rows_of_write,
    shown,
    table_of,
    token,
)
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Committed, Run
from raftstore.types import Outcome

_KINDS: Final = (
    "lost", "moved", "duplicated", "refused", "invented", "reused", "gap", "disordered",
    "skipped", "repeated", "altered",
)  # fmt: skip
_Row = tuple[Hashable, Hashable]
_Place = tuple[int, int]
"""(partition, seq)."""


def check_stream(run: Run, table: str) -> Verdict:
    """Judge the writes of a table against its committed log, and deliveries against both.

    Lost: an acknowledged message that is not in the log; moved: at another seq than acknowledged.
    Duplicated: one GUID at two seqs, or more copies than attempts. Refused: it stands, and its
    writer got NOT_APPLIED. Reused: one seq for two messages. Disordered: a message that was
    sent after another was acknowledged stands before it. Skipped, repeated, altered: what one
    consumer was delivered. Without a log only seqs and order are judged.
    """
    return _Judge(run, table).verdict()


@dataclass(frozen=True, slots=True)
class _Copy:
    partition: int
    row: Committed


class _Judge:
    def __init__(self, run: Run, table: str) -> None:
        self._logs = {
            partition: log
            for (name, partition), log in sorted(run.commits.items())
            if name == table
        }
        history = [operation for operation in run.history if table_of(operation) == table]
        self._writes = [operation for operation in history if operation.action in WRITES]
        polls = [op for op in history if op.action == "poll" and is_answered(op)]
        self._polls = sorted(polls, key=lambda op: op.invoked)
        self._acked = [op for op in self._writes if is_answered(op) and positions_of(op)]
        self._findings = Findings("stream", *_KINDS)

    def verdict(self) -> Verdict:
        rows = sum(map(len, self._logs.values()))
        for partition, log in self._logs.items():
            self._judge_log(partition, log)
        if rows:
            self._judge_writes()
        self._judge_places()
        self._judge_order()
        self._judge_polls()
        figures = {"acknowledged": len(self._acked), "log": rows, "polls": len(self._polls)}
        sound = f"{len(self._acked)} acknowledged messages stand in one order"
        if not rows:
            sound = f"{sound}; there was no log to find them in"
        doubt = None if self._acked else "no message was acknowledged at a seq"
        return self._findings.verdict(figures, sound, doubt)

    def _judge_log(self, partition: int, log: Sequence[Committed]) -> None:
        """Records are runs of rows with one seq: a record of n rows ends at its n-th seq."""
        seen: dict[bytes, int] = {}
        # Every log begins with the first record of a term; without it, such records are left out.
        is_whole = not all(row.is_row for row in log)
        end: int | None = None
        at = 0
        while at < len(log):
            first = log[at]
            count = 1
            while at + count < len(log) and _is_same(first, log[at + count]):
                count += 1
            at += count
            begin = first.seq - (first.span or count) + 1
            if end is not None and (begin <= end or (is_whole and begin > end + 1)):
                kind = "gap" if begin > end + 1 else "reused"
                text = f"after seq {end} of partition {partition} stands a record from seq {begin}"
                self._findings.add(kind, text, None)
            end = first.seq if end is None else max(end, first.seq)
            if any(first.guid) and seen.setdefault(first.guid, first.seq) != first.seq:
                text = (
                    f"one message of partition {partition} stands at seq {seen[first.guid]} "
                    f"and {first.seq}"
                )
                self._findings.add("duplicated", text, self._writer_of(first))

    def _writer_of(self, row: Committed) -> Operation | None:
        wanted = (token(row.key), token(row.value))
        return next((op for op in self._writes if wanted in rows_of_write(op)), None)

    def _judge_writes(self) -> None:
        """Every message stands as often, and where, its writers may believe."""
        copies: dict[_Row, list[_Copy]] = {}
        for partition, log in self._logs.items():
            for row in log:
                # What an atomic batch wrote is judged where batches are.
                if row.is_row and not row.is_batch:
                    name = (token(row.key), token(row.value))
                    copies.setdefault(name, []).append(_Copy(partition, row))
        tried: Counter[_Row] = Counter()
        refused: dict[_Row, Operation] = {}
        for write in self._writes:
            for name in rows_of_write(write):
                if write.outcome is Outcome.NOT_APPLIED:
                    refused[name] = write
                else:
                    tried[name] += 1
        for write in self._acked:
            self._judge_acked(write, copies)
        for name, found in copies.items():
            if len(found) > tried[name]:
                self._judge_surplus(name, found, tried[name], refused.get(name))

    def _judge_acked(self, write: Operation, copies: Mapping[_Row, list[_Copy]]) -> None:
        reported = positions_of(write)
        for name in rows_of_write(write):
            found = copies.get(name, [])
            if any(reported.get(copy.partition) == copy.row.seq for copy in found):
                continue
            places = [(copy.partition, copy.row.seq) for copy in found]
            kind = "moved" if found else "lost"
            what = f"stands at {shown(places)}" if found else "is not in the log"
            text = f"{shown(name[0])} was acknowledged at {shown(reported)} and {what}"
            self._findings.add(kind, text, write)

    def _judge_surplus(
        self, name: _Row, found: Sequence[_Copy], tried: int, refused: Operation | None
    ) -> None:
        places = shown([(copy.partition, copy.row.seq) for copy in found])
        what = f"{shown(name[0])} with {shown(name[1])} stands at {places}"
        if tried:
            culprit = next(op for op in self._writes if name in rows_of_write(op))
            text = f"{what} and was sent {tried} times"
            self._findings.add("duplicated", text, culprit)
        elif refused is not None:
            self._findings.add("refused", f"{what} and was refused", refused)
        else:
            self._findings.add("invented", f"{what} and was never sent", None)

    def _judge_places(self) -> None:
        """No two writes were acknowledged at the same place."""
        reported: dict[_Place, Operation] = {}
        for write in self._acked:
            for place in positions_of(write).items():
                other = reported.setdefault(place, write)
                if other is not write:
                    text = f"seq {place[1]} of partition {place[0]} was given to two writes"
                    self._findings.add("reused", text, write, other)

    def _judge_order(self) -> None:
        """The order of seqs is an order of time: later sent, later placed."""
        ended = sorted(self._acked, key=lambda op: op.returned or 0)
        highest: dict[int, tuple[int, Operation]] = {}
        cursor = 0
        for write in sorted(self._acked, key=lambda op: op.invoked):
            while (ended[cursor].returned or 0) < write.invoked:
                for partition, seq in positions_of(ended[cursor]).items():
                    if partition not in highest or seq > highest[partition][0]:
                        highest[partition] = (seq, ended[cursor])
                cursor += 1
            for partition, seq in positions_of(write).items():
                if partition in highest and seq < highest[partition][0]:
                    before, other = highest[partition]
                    text = f"{write.process} was given seq {seq} after seq {before} was known"
                    self._findings.add("disordered", text, write, other)

    def _judge_polls(self) -> None:
        """Each consumer of a partition gets the log in its order, again only when declared."""
        order = {
            partition: list(dict.fromkeys(row.seq for row in log if row.is_row))
            for partition, log in self._logs.items()
        }
        after = {partition: dict(pairwise(seqs)) for partition, seqs in order.items()}
        values = {
            (partition, row.seq): token(row.value)
            for partition, log in self._logs.items()
            for row in log
        }
        reached: dict[tuple[str, int], int] = {}
        for poll in self._polls:
            reported = poll.details.get("partition", 0)
            partition = reported if isinstance(reported, int) else 0
            consumer = (poll.process, partition)
            for delivery in elements(poll.result) or []:
                entry = _delivery(delivery)
                if entry is None:
                    text = f"{poll.process} was delivered {shown(delivery)}, which is no message"
                    self._findings.add("altered", text, poll)
                    continue
                seq, value, is_again = entry
                last = reached.get(consumer)
                if (partition, seq) in values and values[partition, seq] != value:
                    text = f"{poll.process} was delivered {shown(value)} at seq {seq}"
                    self._findings.add("altered", text, poll)
                if last is not None and seq <= last:
                    if not is_again:
                        text = f"{poll.process} was delivered seq {seq} again after seq {last}"
                        self._findings.add("repeated", text, poll)
                    continue
                following = after.get(partition, {}).get(last) if last is not None else seq
                if following is not None and seq != following:
                    text = f"{poll.process} was delivered seq {seq} after seq {last}"
                    self._findings.add("skipped", text, poll)
                reached[consumer] = seq


def _is_same(first: Committed, second: Committed) -> bool:
    return first.is_row and second.is_row and (first.seq, first.guid) == (second.seq, second.guid)


def _delivery(reported: Any) -> tuple[int, Hashable, bool] | None:
    if not isinstance(reported, list | tuple) or len(reported) not in (2, 3):
        return None
    if not isinstance(reported[0], int):
        return None
    return reported[0], token(reported[1]), len(reported) == 3 and bool(reported[2])
