"""All checkers of rows find a right store right, and a damaged history wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from jepsen_like.workload.base import Committed, Run
from raftstore.types import Outcome
from tests.jepsen.row_checks import all_verdicts

OK, UNKNOWN, REFUSED = Outcome.OK, Outcome.UNKNOWN, Outcome.NOT_APPLIED

TABLE = "t"
Log = dict[tuple[str, int], list[Committed]]

# --- a store that is right ------------------------------------------------------------------------


class _Store:
    """One partition that does everything in order; each operation inside its interval."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[Committed] = []
        self.end = 0
        self.versions: dict[Any, list[tuple[int, Any]]] = {}
        self.seen: dict[str, int] = {}
        self.history: list[Operation] = []
        self.value = 0

    def row(self, key: Any, seq: int) -> tuple[int, Any]:
        known = [version for version in self.versions.get(key, []) if version[0] <= seq]
        return known[-1] if known and known[-1][1] is not None else (0, None)

    def commit(self, rows: list[tuple[Any, Any]], at: int, *, conflict: bool = False) -> int:
        self.end += max(1, len(rows))
        guid = str(self.end).encode()
        for key, value in rows:
            self.log.append(Committed(self.end, guid, key, value, conflict, at))
            if not conflict:
                self.versions.setdefault(key, []).append((self.end, value))
        if not rows:
            self.log.append(Committed(self.end, b"", None, None, False, at, is_row=False))
        return self.end

    def run(self, count: int) -> Run:
        self.commit([], 0)
        for number in range(count):
            if self.rng.random() < 0.05:
                self.commit([], number * 10)
            self.step(number * 10 + 40, f"c{number % 6}")
        self.read_back(count * 10 + 100)
        return Run(self.history, {(TABLE, 0): self.log})

    def step(self, at: int, process: str) -> None:
        write = self.rng.random() < 0.5
        operation = self.write(at) if write else self.read(at, process)
        operation.process = process
        operation.invoked = at - self.rng.randint(1, 25)
        operation.returned = at + self.rng.randint(1, 25)
        if operation.outcome is UNKNOWN:
            operation.returned = None
        elif operation.outcome is OK:
            seq = operation.details["positions"][0][1]
            self.seen[process] = max(self.seen.get(process, 0), seq)
        self.history.append(operation)

    def write(self, at: int) -> Operation:
        rng = self.rng
        action = rng.choice(["put", "put", "put_many", "delete", "put_if"])
        outcome = rng.choice([OK] * 6 + [UNKNOWN, REFUSED])
        keys = rng.sample("abcd", 2) if action == "put_many" else [rng.choice("abcd")]
        rows: list[tuple[Any, Any]] = []
        for key in keys:
            self.value += 1
            rows.append((key, None if action == "delete" else self.value))
        conflict = action == "put_if" and rng.random() < 0.5
        positions: list[list[int]] = []
        if outcome is OK or (outcome is UNKNOWN and rng.random() < 0.5):
            positions = [[0, self.commit(rows, at, conflict=conflict)]]
        told = positions if outcome is OK else []
        details: dict[str, Any] = {"table": TABLE, "positions": told}
        if outcome is OK:
            details["conflict"] = conflict
        many = action == "put_many"
        value = [list(row) for row in rows] if many else rows[0][1]
        return Operation("", action, None if many else keys[0], value, 0, 0, outcome, None, details)

    def read(self, at: int, process: str) -> Operation:
        rng = self.rng
        details: dict[str, Any] = {"table": TABLE}
        seq = self.end
        level = rng.choice(["linearizable", "bounded", "any"])
        if level == "bounded":
            bound = rng.choice([0, 3, 9])
            seq -= rng.randint(0, min(bound, self.end - self.seen.get(process, 0)))
            details |= {"max_lag": bound, "lag": self.end - seq}
        elif level == "any":
            least = self.seen.get(process, 0)
            seq = rng.randint(least, self.end)
            details["at_least"] = [[0, least]]
        details |= {"level": level, "positions": [[0, seq]]}
        return self.found(rng.choice(["get", "get_many", "scan"]), seq, details)

    def found(self, action: str, seq: int, details: dict[str, Any]) -> Operation:
        if action == "scan":
            rows = {key: self.row(key, seq)[1] for key in "abcd"}
            result: Any = {key: value for key, value in rows.items() if value is not None}
            return Operation("", "scan", None, None, 0, 0, OK, result, details)
        keys = ["a"] if action == "get" else ["b", "c", "d"]
        details["seqs"] = [self.row(key, seq)[0] for key in keys]
        values = [self.row(key, seq)[1] for key in keys]
        if action == "get":
            return Operation("", "get", "a", None, 0, 0, OK, values[0], details)
        return Operation("", "get_many", None, keys, 0, 0, OK, values, details)

    def read_back(self, at: int) -> None:
        details = {"table": TABLE, "level": "linearizable", "positions": [[0, self.end]]}
        last = self.found("scan", self.end, details | {"final": True})
        last.process, last.invoked, last.returned = "final", at, at + 1
        self.history.append(last)


@pytest.mark.slow
@given(seed=st.integers(0, 10**9), count=st.integers(1, 80))
def test_a_right_store_is_valid(seed: int, count: int) -> None:
    """Given any history of a right store, no checker calls it wrong."""
    for verdict in all_verdicts(_Store(seed).run(count)).values():
        assert verdict.validity is not Validity.INVALID, verdict.summary


def _answered(run: Run, *actions: str) -> list[Operation]:
    return [
        operation
        for operation in run.history
        if operation.action in actions and operation.outcome is OK
    ]


def _lose_a_record(run: Run, rng: random.Random) -> None:
    """An acknowledged record is not in the log."""
    seq = rng.choice(_answered(run, "put", "delete"))
    log = run.commits[TABLE, 0]
    kept = [row for row in log if row.seq != seq.details["positions"][0][1]]
    run.commits = {(TABLE, 0): kept}


def _lose_a_row(run: Run, rng: random.Random) -> None:
    """A row that was acknowledged last is gone from the read-back."""
    del rng
    last = run.history[-1]
    newest = max(_answered(run, "put"), key=lambda op: op.details["positions"])
    last.result.pop(newest.key, None)
    kept = [op for op in run.history if op.outcome is not UNKNOWN and op.action != "delete"]
    run.history = kept


def _show_an_unwritten_value(run: Run, rng: random.Random) -> None:
    """A read finds what nobody wrote."""
    rng.choice(_answered(run, "scan")).result["a"] = -1


def _understate_a_lag(run: Run, rng: random.Random) -> None:
    """A replica knows no lag, and answers within a bound all the same."""
    reads = [read for read in _answered(run, "get", "get_many", "scan") if "lag" in read.details]
    rng.choice(reads).details["lag"] = None


def _go_back(run: Run, rng: random.Random) -> None:
    """A session is served from before everything."""
    reads = [read for read in _answered(run, "get", "get_many") if read.process == "c1"]
    late = [read for read in reads[1:] if read.details["positions"][0][1] > 1]
    rng.choice(late).details["positions"] = [[0, 0]]


MUTATIONS: list[tuple[Callable[[Run, random.Random], None], str]] = [
    (_lose_a_record, "stream"), (_lose_a_row, "lost_writes"),
    (_show_an_unwritten_value, "lost_writes"), (_show_an_unwritten_value, "staleness"),
    (_understate_a_lag, "staleness"), (_go_back, "sessions"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("mutate", "checker"), MUTATIONS)
@given(seed=st.integers(0, 10**6))
def test_a_damaged_history_is_invalid(
    mutate: Callable[[Run, random.Random], None], checker: str, seed: int
) -> None:
    """Given a right history with one answer changed, the checker in charge finds it."""
    run = deepcopy(_Store(seed).run(200))
    mutate(run, random.Random(seed))
    verdict = all_verdicts(run)[checker]
    assert verdict.validity is Validity.INVALID, verdict.summary
