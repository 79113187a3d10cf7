"""Atomic micro-batches: each one once, whole or not at all, and snapshots that never go back.

A run records *attempts*: operations ``batch`` and ``commit`` with the rows they wrote and, in
their details, the batch (``writer`` and ``number``), their ``stamp`` and ``own``, what all accounts
of their writer hold when the attempt is in the table. Every value is ``[amount, stamp]``, so what
is read says whose it is. Each attempt writes all of the *shared* accounts, so these show which
batch came last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jepsen_like.checker.facts import (
    Findings,
    is_answered,
    is_exact,
    is_newest,
    level_of,
    shown,
)
from jepsen_like.checker.verdict import Verdict
from jepsen_like.checker.written import Written
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.types import Level, Outcome

_KINDS: Final = (
    "torn", "half", "wrong_sum", "mixed", "twice", "disordered", "lost", "refused", "invented",
    "early", "stale", "back", "renumbered", "unfenced", "unreadable",
)  # fmt: skip
STAMP: Final = "stamp"
ATTEMPTS: Final = ("batch", "commit")


@dataclass(frozen=True, slots=True)
class Bank:
    """The accounts of the bank."""

    shared: tuple[str, ...]
    own: Mapping[str, tuple[str, ...]]
    """Writer -> its accounts."""
    total: int
    """Sum of the shared accounts, and of each writer's."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    operation: Operation
    writer: str
    number: int
    stamp: int
    rows: Mapping[str, int]
    own: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    operation: Operation
    n: int
    vector: tuple[int, ...]
    rows: Mapping[str, tuple[int, int]]
    """Account -> (amount, stamp)."""


def check_batches(run: Run, table: str, bank: Bank) -> Verdict:
    """Judge attempts, snapshots and single reads of accounts; see the module.

    Torn: the shared accounts are of several batches. Half: a writer's accounts are not those of its
    last batch. Wrong sum. Mixed: rows of two attempts of one batch. Twice: one batch is two
    commits, or is in the log twice. Disordered: a writer's batches are not in its order. Lost: an
    acknowledged batch is not in the log, or not all of it. Refused: visible, and its writer was
    answered that it would not be, or a task run that does not count. Early: seen before it was
    committed. Stale: a read that asked for the newest misses a batch that was acknowledged before
    it, or that another saw. Unfenced: an attempt was committed although its writer had begun a
    later one before. Back: a session saw a newer one before. Renumbered: one number of a
    commit stands for two.
    """
    return _Judge(run, table, bank).verdict()


class _Judge:
    def __init__(self, run: Run, table: str, bank: Bank) -> None:
        self._bank = bank
        self._logs = {at: log for (name, at), log in sorted(run.commits.items()) if name == table}
        self._findings = Findings("batches", *_KINDS)
        history = [op for op in run.history if op.details.get("table") == table]
        self._attempts: dict[int, _Attempt] = {}
        for operation in history:
            attempt = _attempt_of(operation)
            if attempt is not None:
                self._attempts[attempt.stamp] = attempt
        self._history = history
        self._stamp_of: dict[int, int] = {}
        """Number of a commit -> stamp of the attempt that it is."""
        self._number_of: dict[tuple[str, int], int] = {}
        """(writer, batch) -> number of its commit."""
        self._reported: list[tuple[int, int, Operation]] = []
        """(answered at, commit, operation) of whatever must be seen from then on."""
        self._snapshots: list[_Snapshot] = []
        self._reads = 0
        self._accounts = {*bank.shared, *(key for keys in bank.own.values() for key in keys)}
        self._written = Written(history)

    def verdict(self) -> Verdict:
        self._learn_answers()
        self._learn_snapshots()
        for snapshot in self._snapshots:
            self._judge_snapshot(snapshot)
        self._judge_order()
        self._judge_fence()
        self._reported.sort(key=lambda reported: reported[0])
        self._judge_newest()
        self._judge_sessions()
        self._judge_reads()
        self._judge_log()
        acknowledged = sum(1 for _, _, op in self._reported if op.action in ATTEMPTS)
        figures = {
            "acknowledged": acknowledged, "attempts": len(self._attempts),
            "commits": len(self._stamp_of), "snapshots": len(self._snapshots),
            "reads": self._reads, "log": sum(map(len, self._logs.values())),
        }  # fmt: skip
        sound = (
            f"{acknowledged} acknowledged batches of {len(self._attempts)} attempts are in the "
            f"table once, and whole in {len(self._snapshots)} snapshots"
        )
        return self._findings.verdict(figures, sound, self._doubt(acknowledged))

    def _doubt(self, acknowledged: int) -> str | None:
        if not acknowledged:
            return "no batch was acknowledged, so none could be lost or torn"
        if not any(snapshot.n for snapshot in self._snapshots):
            return "no snapshot with a batch was read"
        return None

    # --- what was answered
    # ----------------------------------------------------------------------------

    def _learn_answers(self) -> None:
        for attempt in self._attempts.values():
            operation = attempt.operation
            if not is_answered(operation):
                continue
            reported = operation.result
            n = reported.get("n") if isinstance(reported, Mapping) else None
            if not isinstance(n, int) or isinstance(n, bool):
                text = f"{operation.process} got {shown(reported)} of a batch"
                self._findings.add("unreadable", text, operation)
                continue
            if not reported.get("already"):
                self._name(n, attempt.stamp, operation)
            self._number((attempt.writer, attempt.number), n, operation)
            self._reported.append((operation.returned or 0, n, operation))

    def _learn_snapshots(self) -> None:
        for operation in self._history:
            if operation.action != "snapshot" or not is_answered(operation):
                continue
            snapshot = _snapshot_of(operation, self._bank)
            if snapshot is None:
                text = f"{operation.process} was answered {shown(operation.result)}"
                self._findings.add("unreadable", text, operation)
                continue
            self._snapshots.append(snapshot)
            self._judge_plain(operation)
            stamps = {stamp for key, (_, stamp) in snapshot.rows.items() if key in self._shared}
            if len(stamps) == 1 and snapshot.n:
                [stamp] = stamps
                self._name(snapshot.n, stamp, operation)

    @property
    def _shared(self) -> tuple[str, ...]:
        return self._bank.shared

    def _name(self, n: int, stamp: int, operation: Operation) -> None:
        """Commit ``n`` is this attempt."""
        known = self._stamp_of.setdefault(n, stamp)
        if known != stamp:
            text = f"commit {n} is attempt {known}, and to {operation.process} attempt {stamp}"
            self._findings.add("renumbered", text, operation)
        attempt = self._attempts.get(stamp)
        if attempt is not None:
            self._number((attempt.writer, attempt.number), n, operation)

    def _number(self, batch: tuple[str, int], n: int, operation: Operation) -> None:
        known = self._number_of.setdefault(batch, n)
        if known != n:
            text = f"batch {batch[1]} of {batch[0]} is commit {known} and commit {n}"
            self._findings.add("twice", text, operation)

    # --- snapshots --------------------------------------------------------------------------------

    def _judge_plain(self, operation: Operation) -> None:
        """Each row that a snapshot shows beside the accounts was written before, row by row."""
        for key, value in operation.result["rows"].items():
            if key in self._accounts or self._written.may_show(operation, key, value):
                continue
            text = f"{operation.process} saw {shown(value)} in {key}, which nobody wrote there"
            self._findings.add("invented", text, operation)

    def _judge_snapshot(self, snapshot: _Snapshot) -> None:
        operation = snapshot.operation
        for key, (_, stamp) in snapshot.rows.items():
            self._judge_visible(key, stamp, operation)
        newest = self._judge_shared(snapshot)
        for writer, accounts in self._bank.own.items():
            self._judge_own(snapshot, writer, accounts, newest)
        wanted = operation.details.get("wanted")
        if isinstance(wanted, Mapping):
            floor = max(wanted.get("vector") or (0,))
            if snapshot.n < floor or (wanted.get("is_exact") and snapshot.n != floor):
                text = f"{operation.process} asked for commit {floor} and was given {snapshot.n}"
                self._findings.add("stale", text, operation)

    def _judge_visible(self, key: str, stamp: int, operation: Operation) -> None:
        attempt = self._attempts.get(stamp)
        what = f"{operation.process} saw attempt {stamp} in {key}"
        if attempt is None or key not in attempt.rows:
            self._findings.add("invented", f"{what}, which nobody committed there", operation)
        elif attempt.operation.outcome is Outcome.NOT_APPLIED:
            text = f"{what}, which was refused"
            self._findings.add("refused", text, operation, attempt.operation)
        elif operation.returned is not None and attempt.operation.invoked > operation.returned:
            text = f"{what} before it was committed"
            self._findings.add("early", text, operation, attempt.operation)

    def _judge_shared(self, snapshot: _Snapshot) -> _Attempt | None:
        """All of one attempt, and all that it wrote there."""
        operation = snapshot.operation
        found = {key: snapshot.rows.get(key) for key in self._shared}
        if not any(found.values()):
            if snapshot.n:
                text = f"{operation.process} saw no row of commit {snapshot.n}"
                self._findings.add("half", text, operation)
            return None
        stamps = Counter(row[1] if row else 0 for row in found.values())
        if len(stamps) > 1:
            text = f"{operation.process} saw {len(stamps)} batches in one: {shown(dict(stamps))}"
            self._findings.add("torn", text, operation)
            return None
        attempt = self._attempts.get(next(iter(stamps)))
        amounts = {key: row[0] for key, row in found.items() if row}
        self._judge_sum(amounts.values(), "the shared accounts", operation)
        expected = {} if attempt is None else {key: attempt.rows.get(key) for key in self._shared}
        if attempt is not None and amounts != expected:
            text = f"{operation.process} saw {shown(amounts)}, written were {shown(expected)}"
            self._findings.add("half", text, operation, attempt.operation)
        return attempt

    def _judge_own(
        self, snapshot: _Snapshot, writer: str, accounts: Sequence[str], newest: _Attempt | None
    ) -> None:
        """A writer's accounts are what its last batch left behind."""
        operation = snapshot.operation
        rows = {key: snapshot.rows[key] for key in accounts if key in snapshot.rows}
        tried = [self._attempts[stamp] for _, stamp in rows.values() if stamp in self._attempts]
        last = max(tried, key=lambda attempt: attempt.number, default=None)
        if newest is not None and newest.writer == writer and newest is not last:
            text = (
                f"{operation.process} saw batch {newest.number} of {writer} in the shared accounts "
                f"and {'nothing' if last is None else f'batch {last.number}'} in its own"
            )
            self._findings.add("half", text, operation, newest.operation)
        if last is None:
            return
        same = {attempt.stamp for attempt in tried if attempt.number == last.number}
        if len(same) > 1:
            text = f"{operation.process} saw attempts {sorted(same)} of batch {last.number}"
            self._findings.add("mixed", text, operation, last.operation)
        amounts = {key: row[0] for key, row in rows.items()}
        self._judge_sum(amounts.values(), f"the accounts of {writer}", operation)
        if amounts != last.own:
            text = (
                f"{operation.process} saw {shown(amounts)} for {writer}; its batch {last.number} "
                f"left {shown(dict(last.own))}"
            )
            self._findings.add("half", text, operation, last.operation)

    def _judge_sum(self, amounts: Iterable[int], what: str, operation: Operation) -> None:
        found = sum(amounts)
        if found != self._bank.total:
            text = f"{operation.process} saw {found} in {what} instead of {self._bank.total}"
            self._findings.add("wrong_sum", text, operation)

    # --- orders -----------------------------------------------------------------------------------

    def _judge_order(self) -> None:
        """I2: numbers of commits rise with the batches of each writer."""
        last: dict[str, tuple[int, int]] = {}
        for (writer, number), n in sorted(self._number_of.items(), key=lambda item: item[1]):
            before = last.get(writer)
            if before is not None and number <= before[0]:
                text = f"batch {number} of {writer} is commit {n}, after batch {before[0]}"
                self._findings.add("disordered", text, None)
            last[writer] = (number, n)

    def _judge_fence(self) -> None:
        """Rule 1: a begin ends the attempt that its writer had open."""
        begun: dict[str, list[tuple[int, int, Operation]]] = {}
        staged: dict[int, int] = {}
        for operation in self._history:
            number = _begun_as(operation)
            if number is None:
                continue
            writer = operation.details["batch"]["writer"]
            begun.setdefault(writer, []).append((operation.returned or 0, number, operation))
            staged[operation.details[STAMP]] = number
        for attempt in self._attempts.values():
            operation, number = attempt.operation, staged.get(attempt.stamp)
            reported = operation.result if is_answered(operation) else None
            if number is None or not isinstance(reported, Mapping) or reported.get("already"):
                continue
            for returned, other, by in begun[attempt.writer]:
                if other > number and returned < operation.invoked:
                    text = f"attempt {number} of {attempt.writer} was committed, {other} had begun"
                    self._findings.add("unfenced", text, operation, by)

    def _judge_newest(self) -> None:
        """A snapshot of the newest state has every commit that was reported before it began."""
        reported = list(self._reported)
        for snapshot in self._snapshots:
            operation = snapshot.operation
            is_strong = level_of(operation) == Level.LINEARIZABLE.value
            if not is_strong or is_exact(operation):
                continue
            before = [each for each in reported if each[0] < operation.invoked]
            best = max(before, key=lambda each: each[1], default=None)
            if best is not None and snapshot.n < best[1]:
                text = f"{operation.process} was given commit {snapshot.n}, reported was {best[1]}"
                self._findings.add("stale", text, operation, best[2])
        strong = [s for s in self._snapshots if is_newest(s.operation)]
        highest: tuple[int, Operation] | None = None
        ended = sorted(strong, key=lambda s: s.operation.returned or 0)
        cursor = 0
        for snapshot in sorted(strong, key=lambda s: s.operation.invoked):
            while (ended[cursor].operation.returned or 0) < snapshot.operation.invoked:
                if highest is None or ended[cursor].n > highest[0]:
                    highest = (ended[cursor].n, ended[cursor].operation)
                cursor += 1
            if highest is not None and snapshot.n < highest[0]:
                text = (
                    f"{snapshot.operation.process} was given commit {snapshot.n} after another "
                    f"had been given {highest[0]}"
                )
                self._findings.add("stale", text, snapshot.operation, highest[1])

    def _judge_sessions(self) -> None:
        """I7: what one process sees never goes back, from its own batches on."""
        events: list[tuple[int, int, Operation, bool]] = [
            (snapshot.operation.invoked, snapshot.n, snapshot.operation, True)
            for snapshot in self._snapshots
            if not is_exact(snapshot.operation)
        ]
        events += [(op.invoked, n, op, False) for _, n, op in self._reported]
        seen: dict[str, tuple[int, Operation]] = {}
        for _, n, operation, is_read in sorted(events, key=lambda event: event[0]):
            before = seen.get(operation.process)
            if is_read and before is not None and n < before[0]:
                text = f"{operation.process} saw commit {n} after commit {before[0]}"
                self._findings.add("back", text, operation, before[1])
            if before is None or n > before[0]:
                seen[operation.process] = (n, operation)

    def _judge_reads(self) -> None:
        """A key that is read at its leader shows every batch that was reported before."""
        numbers = {stamp: n for n, stamp in self._stamp_of.items()}
        for operation in self._history:
            if operation.action != "get" or operation.key not in self._shared:
                continue
            if not is_answered(operation) or level_of(operation) != Level.LINEARIZABLE.value:
                continue
            self._reads += 1
            row = _row(operation.result)
            if row is None and operation.result is not None:
                text = f"{operation.process} was answered {shown(operation.result)}"
                self._findings.add("unreadable", text, operation)
                continue
            if row is not None:
                self._judge_visible(operation.key, row[1], operation)
                self._judge_amount(operation.key, row, operation)
            shown_n = 0 if row is None else numbers.get(row[1])
            before = [each for each in self._reported if each[0] < operation.invoked]
            best = max(before, key=lambda each: each[1], default=None)
            if best is not None and shown_n is not None and shown_n < best[1]:
                text = (
                    f"{operation.process} read {operation.key} as of commit {shown_n}; commit "
                    f"{best[1]} was reported as done before"
                )
                self._findings.add("stale", text, operation, best[2])

    def _judge_amount(self, key: str, row: tuple[int, int], operation: Operation) -> None:
        """One row gives its attempt, which gives the amount."""
        attempt = self._attempts.get(row[1])
        if attempt is not None and attempt.rows.get(key, row[0]) != row[0]:
            text = f"{operation.process} saw {row[0]} in {key}, written was {attempt.rows[key]}"
            self._findings.add("half", text, operation, attempt.operation)

    # --- the committed log ------------------------------------------------------------------------

    def _judge_log(self) -> None:
        """Each attempt stands in the log whole and once, or not at all; the acknowledged do."""
        if not any(self._logs.values()):
            return
        batches: dict[tuple[str, int], int] = {}
        for stamp, keys in self._applied().items():
            attempt = self._attempts.get(stamp)
            if attempt is None:
                text = f"the log has rows of attempt {stamp}, which nobody committed"
                self._findings.add("invented", text, None)
                continue
            operation = attempt.operation
            if operation.outcome is Outcome.NOT_APPLIED:
                self._findings.add("refused", f"the log has refused attempt {stamp}", operation)
            if keys != set(attempt.rows):
                text = f"of attempt {stamp} {len(keys)} of {len(attempt.rows)} rows are applied"
                self._findings.add("lost", text, operation)
            other = batches.setdefault((attempt.writer, attempt.number), stamp)
            if other != stamp:
                text = (
                    f"batch {attempt.number} of {attempt.writer} is in the log as attempts {other} "
                    f"and {stamp}"
                )
                self._findings.add("twice", text, operation, self._attempts[other].operation)
        for _, n, operation in self._reported:
            attempt = _attempt_of(operation)
            if attempt is not None and (attempt.writer, attempt.number) not in batches:
                text = f"batch {attempt.number} of {attempt.writer} (commit {n}) is not in the log"
                self._findings.add("lost", text, operation)

    def _applied(self) -> dict[int, set[str]]:
        """Stamp -> keys that came with it; no attempt comes twice to a partition."""
        found: dict[int, set[str]] = {}
        places: dict[tuple[int, int], int] = {}
        for partition, log in self._logs.items():
            for row in log:
                value = _row(row.value) if row.is_batch else None
                if value is None:
                    continue
                stamp = value[1]
                found.setdefault(stamp, set()).add(str(row.key))
                place = places.setdefault((stamp, partition), row.seq)
                if place != row.seq:
                    text = f"attempt {stamp} is applied at {place} and {row.seq}"
                    self._findings.add("twice", text, None)
        return found


def _begun_as(operation: Operation) -> int | None:
    """The number of the attempt that was staged."""
    if operation.action != "stage" or not is_answered(operation):
        return None
    reported = operation.result.get("attempt") if isinstance(operation.result, Mapping) else None
    is_known = isinstance(operation.details.get(STAMP), int)
    return reported if is_known and isinstance(reported, int) else None


def _attempt_of(operation: Operation) -> _Attempt | None:
    """The attempt that the workload noted with it; None for any other operation."""
    batch, stamp = operation.details.get("batch"), operation.details.get(STAMP)
    is_attempt = operation.action in ATTEMPTS and isinstance(stamp, int)
    if not is_attempt or not isinstance(batch, Mapping):
        return None
    rows = {str(key): value[0] for key, value in operation.value}
    own = dict(operation.details.get("own") or {})
    assert isinstance(stamp, int)
    return _Attempt(operation, batch["writer"], batch["number"], stamp, rows, own)


def _row(value: Any) -> tuple[int, int] | None:
    """(amount, stamp); None for whatever is no such pair."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    amount, stamp = value
    if not (isinstance(amount, int) and isinstance(stamp, int)):
        return None
    return amount, stamp


def _snapshot_of(operation: Operation, bank: Bank) -> _Snapshot | None:
    reported = operation.result
    if not isinstance(reported, Mapping):
        return None
    n, vector, rows = reported.get("n"), reported.get("vector"), reported.get("rows")
    if not isinstance(n, int) or not isinstance(vector, list | tuple):
        return None
    if not isinstance(rows, Mapping) or not all(isinstance(each, int) for each in vector):
        return None
    names = [*bank.shared, *(name for accounts in bank.own.values() for name in accounts)]
    found = {name: _row(rows[name]) for name in names if name in rows}
    if any(row is None for row in found.values()):
        return None
    values = {name: row for name, row in found.items() if row is not None}
    return _Snapshot(operation, n, tuple(vector), values)
