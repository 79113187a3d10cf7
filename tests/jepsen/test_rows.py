"""The checkers of rows and positions: lost writes, streams, staleness and sessions."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.checker.lost_writes import check_lost_writes
from jepsen_like.checker.sessions import check_sessions
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.stream import check_stream
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Committed, Run
from raftstore.types import Outcome

OK, UNKNOWN, REFUSED = Outcome.OK, Outcome.UNKNOWN, Outcome.NOT_APPLIED
TABLE = "t"
Log = dict[tuple[str, int], list[Committed]]


def _put(
    at: int, key: Any, value: Any, outcome: Outcome = OK, *, seq: int = 0, **told: Any
) -> Operation:
    details: dict[str, Any] = {"table": TABLE, "positions": [[0, seq]] if seq else [], **told}
    process = details.pop("process", f"c{at}")
    ended = at + details.pop("takes", 1)
    return Operation(process, "put", key, value, at, ended, outcome, None, details)


def _get(at: int, key: Any, found: Any, *, seq: int = 0, **told: Any) -> Operation:
    details: dict[str, Any] = {"table": TABLE, "positions": [[0, seq]] if seq else [], **told}
    process = details.pop("process", f"c{at}")
    return Operation(process, "get", key, None, at, at + 1, OK, found, details)


def _row(seq: int, key: Any, value: Any, guid: bytes = b"", at: int | None = None) -> Committed:
    return Committed(seq, guid or f"g{seq}".encode(), key, value, committed_at=at)


def _run(history: list[Operation], *log: Committed) -> Run:
    return Run(history, {(TABLE, 0): list(log)} if log else {})


def _kinds(verdict: Verdict) -> list[str]:
    """The anomalies that were counted."""
    figures = (
        "acknowledged", "rows", "unread", "log", "polls", "reads", "writes", "sessions", "bounded",
        "unplaced", "worst_lag",
    )  # fmt: skip
    return [name for name, count in verdict.figures.items() if count and name not in figures]


# --- lost writes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "kinds"),
    [
        ([_put(0, "a", 1), _get(9, "a", 1, final=True)], []),
        ([_put(0, "a", 1), _put(2, "a", 2), _get(9, "a", 2, final=True)], []),
        ([_put(0, "a", 1, takes=4), _put(2, "a", 2), _get(9, "a", 1, final=True)], []),
        ([_put(0, "a", 1, UNKNOWN), _put(2, "a", 2), _get(9, "a", 1, final=True)], []),
        ([_put(0, "a", 1), _put(2, "a", 2), _get(9, "a", 1, final=True)], ["lost"]),
        ([_put(0, "a", 1), _get(9, "a", None, final=True)], ["lost"]),
        (
            [
                _put(0, "a", 1, seq=4, takes=4), _put(2, "a", 2, seq=5),
                _get(9, "a", 1, final=True),
            ],
            ["lost"],
        ),
        ([_put(0, "a", 1, REFUSED), _put(2, "a", 2), _get(9, "a", 1, final=True)], ["refused"]),
        ([_put(0, "a", 1, conflict=True), _put(2, "a", 2), _get(4, "a", 1)], ["refused"]),
        ([_put(0, "a", 1), _get(4, "a", 7), _get(9, "a", 1, final=True)], ["invented"]),
        ([_get(0, "a", 1), _put(4, "a", 1), _get(9, "a", 1, final=True)], ["early"]),
    ],
)  # fmt: skip
def test_lost_writes_name_each_anomaly(history: list[Operation], kinds: list[str]) -> None:
    """A value may be the last unless an acknowledged write certainly followed it."""
    verdict = check_lost_writes(history)
    assert _kinds(verdict) == kinds
    assert (verdict.culprit is not None) is bool(kinds)


def test_lost_writes_find_rows_missing_from_a_scan() -> None:
    """A final scan lists all rows; one that it lacks is lost, unless it was deleted."""
    scan = Operation("c9", "scan", None, None, 9, 10, OK, {}, {"table": TABLE, "final": True})
    assert _kinds(check_lost_writes([_put(0, "a", 1), scan])) == ["lost"]
    delete = Operation("c1", "delete", "a", None, 2, 3, OK, None, {"table": TABLE})
    assert check_lost_writes([_put(0, "a", 1), delete, scan]).is_valid
    scan.result = "nonsense"
    assert _kinds(check_lost_writes([_put(0, "a", 1), scan])) == ["lost"]


@pytest.mark.parametrize(
    "history",
    [
        [],
        [_put(0, "a", 1)],
        [_put(0, "a", 1), _put(0, "b", 1), _get(9, "a", 1, final=True)],
        [_put(0, "a", 1, UNKNOWN), _get(9, "a", None, final=True)],
        [_put(0, "a", 1), _get(9, "a", 1, final=True, level="any")],
    ],
)
def test_lost_writes_are_undecided_when_not_all_was_read_back(history: list[Operation]) -> None:
    """Only a strong read-back of every acknowledged row shows that nothing is lost."""
    assert check_lost_writes(history).validity is Validity.UNDECIDED


def _last_values(writes: list[Operation]) -> set[Any]:
    """What some order of the writes leaves behind; doubtful ones may be missing."""
    certain = [write for write in writes if write.outcome is OK]
    doubtful = [write for write in writes if write.outcome is UNKNOWN]
    found = set()
    for chosen in range(1 << len(doubtful)):
        some = certain + [write for at, write in enumerate(doubtful) if chosen >> at & 1]
        for order in permutations(some):
            late = any(
                after.outcome is OK and (after.returned or 0) < before.invoked
                for at, before in enumerate(order)
                for after in order[at + 1 :]
            )
            if not late:
                found.add(order[-1].value if order else None)
    return found


@pytest.mark.slow
def test_lost_writes_agree_with_every_order_of_the_writes() -> None:
    """A final value is accepted exactly when some order of the writes ends with it."""
    lost = kept = 0
    for seed in range(400):
        rng = random.Random(seed)
        outcomes = [OK, OK, OK, UNKNOWN]
        writes = [
            _put(rng.randint(0, 12), "a", value, rng.choice(outcomes), takes=rng.randint(1, 5))
            for value in range(rng.randint(1, 5))
        ]
        possible = _last_values(writes)
        for value in [None, *range(len(writes))]:
            verdict = check_lost_writes([*writes, _get(90, "a", value, final=True)])
            is_lost = verdict.validity is Validity.INVALID
            assert is_lost is (value not in possible), (seed, value)
            lost, kept = lost + is_lost, kept + (not is_lost)
    assert min(lost, kept) > 300


# --- streams --------------------------------------------------------------------------------------


def _poll(at: int, *delivered: Any, process: str = "p") -> Operation:
    details = {"table": TABLE}
    return Operation(process, "poll", None, None, at, at + 1, OK, list(delivered), details)


START = Committed(1, b"", None, None, is_row=False)
A, B = _row(2, "a", 1), _row(3, "b", 1)
SENT = [_put(0, "a", 1, seq=2), _put(2, "b", 1, seq=3)]


@pytest.mark.parametrize(
    ("history", "log", "kinds"),
    [
        (SENT, [START, A, B], []),
        (SENT, [A, B], []),
        (SENT, [], []),
        ([*SENT, _put(5, "c", 1, UNKNOWN)], [START, A, B, _row(4, "c", 1)], []),
        (SENT, [START, A], ["lost"]),
        (SENT, [START, A, _row(4, "b", 1)], ["moved", "gap"]),
        (SENT, [START, A, B, _row(4, "a", 1, b"g2")], ["duplicated"]),
        (SENT, [START, A, B, _row(4, "a", 1)], ["duplicated"]),
        ([*SENT, _put(5, "c", 1, REFUSED)], [START, A, B, _row(4, "c", 1)], ["refused"]),
        (SENT, [START, A, B, _row(4, "c", 1)], ["invented"]),
        ([*SENT, _put(2, "c", 1, UNKNOWN)], [START, A, B, _row(3, "c", 1, b"x")], ["reused"]),
        ([*SENT, _put(5, "c", 1, seq=5)], [START, A, B, _row(5, "c", 1)], ["gap"]),
        ([_put(0, "a", 1, seq=2), _put(0, "b", 1, seq=2)], [], ["reused"]),
        ([_put(0, "a", 1, seq=3), _put(2, "b", 1, seq=2)], [], ["disordered"]),
        ([*SENT, _poll(5, [2, 1], [3, 1]), _poll(7, [2, 1, True])], [START, A, B], []),
        ([*SENT, _poll(5, [2, 1]), _poll(7, [3, 1])], [START, A, B], []),
        ([*SENT, _poll(5, [2, 1], [3, 1]), _poll(7, [2, 1])], [START, A, B], ["repeated"]),
        ([*SENT, _poll(5, [2, 9])], [START, A, B], ["altered"]),
        ([*SENT, _poll(5, "nonsense")], [START, A, B], ["altered"]),
        (
            [*SENT, _put(5, "c", 1, seq=4), _poll(9, [2, 1], [4, 1])],
            [START, A, B, _row(4, "c", 1)],
            ["skipped"],
        ),
    ],
)
def test_stream_names_each_anomaly(
    history: list[Operation], log: list[Committed], kinds: list[str]
) -> None:
    """Loss, moves, copies, holes, reuse and wrong deliveries each have their own name."""
    verdict = check_stream(_run(history, *log), TABLE)
    assert _kinds(verdict) == kinds
    assert verdict.is_valid is not bool(kinds)


def test_stream_sees_records_of_many_rows_as_one() -> None:
    """Rows of one record share its last seq; two rows take two seqs."""
    rows = [_row(3, "a", 1, b"x"), _row(3, "b", 1, b"x")]
    write = Operation(
        "c1", "put_many", None, [["a", 1], ["b", 1]], 0, 1, OK, None,
        {"table": TABLE, "positions": [[0, 3]]},
    )  # fmt: skip
    assert check_stream(_run([write], START, *rows), TABLE).is_valid
    assert _kinds(check_stream(_run([write], START, rows[0]), TABLE)) == ["lost", "gap"]


def test_stream_of_nothing_proves_nothing() -> None:
    """Without an acknowledged message there is no verdict."""
    assert check_stream(Run([]), TABLE).validity is Validity.UNDECIDED


# --- staleness ------------------------------------------------------------------------------------

TIMED = [_row(1, "a", 1, at=10), _row(2, "a", 2, at=20), _row(3, "b", 1, at=30)]


def _bounded(at: int, found: Any, seq: int, bound: int, lag: Any, **told: Any) -> Operation:
    return _get(at, "a", found, seq=seq, level="bounded", max_lag=bound, lag=lag, **told)


@pytest.mark.parametrize(
    ("read", "kinds"),
    [
        (_bounded(50, 2, 3, 0, 0), []),
        (_bounded(50, 1, 1, 2, 2), []),
        (_bounded(29, 2, 2, 0, 0), []),
        (_bounded(50, 1, 1, 1, 1), ["beyond", "under_reported"]),
        (_bounded(50, 2, 2, 5, 0), ["under_reported"]),
        (_bounded(50, 2, 3, 5, None), ["unreported"]),
        (_bounded(50, 2, 3, 5, 6), ["over_bound"]),
        (_bounded(50, 2, 2, 5, 1, at_least=[[0, 3]]), ["too_early"]),
        (_bounded(11, 2, 2, 5, 0), ["future"]),
        (_bounded(50, 2, 1, 5, 2), ["ahead"]),
        (_bounded(50, 1, 3, 5, 0), ["wrong"]),
        (_bounded(50, None, 3, 5, 0), ["wrong"]),
        (_get(50, "a", 1, seq=2, level="any"), ["wrong"]),
        (_get(50, "a", "x", seq=9, level="any"), ["future", "wrong"]),
    ],
)
def test_staleness_names_each_anomaly(read: Operation, kinds: list[str]) -> None:
    """The committed log says how far behind a read was, and what it had to find there."""
    verdict = check_staleness(_run([read], *TIMED), TABLE, info_age_ms=0)
    assert _kinds(verdict) == kinds
    assert verdict.culprit is (read if kinds else None)


def test_staleness_allows_for_the_age_of_what_a_replica_knows() -> None:
    """The bound holds against what was committed when the replica last may have heard (S7.3)."""
    read = _bounded(30_000_021, 1, 1, 0, 0)
    log = [_row(1, "a", 1, at=0), _row(2, "a", 2, at=20_000_000)]
    assert check_staleness(_run([read], *log), TABLE, info_age_ms=11).is_valid
    assert not check_staleness(_run([read], *log), TABLE, info_age_ms=10).is_valid


def test_staleness_is_judged_by_acknowledgements_without_a_log() -> None:
    """What was acknowledged is committed, whether or not anybody kept the log."""
    history = [_put(0, "a", 1, seq=1), _put(5, "a", 2, seq=9)]
    late, stale = _bounded(20, 2, 9, 0, 0), _bounded(20, 1, 1, 0, 0)
    assert check_staleness(_run([*history, late]), TABLE, info_age_ms=0).is_valid
    for log in ([], [_row(1, "a", 1), _row(9, "a", 2)]):
        verdict = check_staleness(_run([*history, stale], *log), TABLE, info_age_ms=0)
        assert _kinds(verdict) == ["beyond", "under_reported"]


def test_staleness_judges_scans_row_by_row() -> None:
    """A scan finds exactly the rows of its position."""
    details = {"table": TABLE, "level": "any", "positions": [[0, 2]]}
    for found, is_right in (({"a": 2}, True), ({"a": 2, "b": 1}, False), ({}, False)):
        scan = Operation("c1", "scan", None, None, 50, 51, OK, found, details)
        assert check_staleness(_run([scan], *TIMED), TABLE).is_valid is is_right


def test_staleness_of_nothing_proves_nothing() -> None:
    """Without a read that tells its position there is no verdict."""
    for history in ([], [_get(5, "a", 1)]):
        assert check_staleness(_run(history, *TIMED), TABLE).validity is Validity.UNDECIDED


# --- sessions -------------------------------------------------------------------------------------


def _s(made: Operation) -> Operation:
    made.process = "s"
    return made


@pytest.mark.parametrize(
    ("history", "kinds"),
    [
        ([_put(0, "a", 1, seq=2), _get(2, "a", 1, seq=2)], []),
        ([_put(0, "a", 1, seq=5), _get(2, "b", None, seq=4)], ["read_your_writes"]),
        (
            [_put(0, "a", 1, seq=5), _get(2, "a", None, seq=5)],
            ["read_your_writes", "missing"],
        ),
        ([_get(0, "a", None, seq=5), _get(2, "a", None, seq=4)], ["monotonic_reads"]),
        (
            [_get(0, "a", 7, seq=5, seqs=[3]), _get(2, "a", 6, seq=5, seqs=[2])],
            ["monotonic_reads"],
        ),
        ([_put(0, "a", 1, seq=5), _put(2, "b", 1, seq=4)], ["monotonic_writes"]),
        ([_get(0, "a", None, seq=5), _put(2, "b", 1, seq=5)], ["writes_follow_reads"]),
        ([_put(0, "a", 1, UNKNOWN), _get(2, "a", None, seq=5), _get(4, "a", 1, seq=6)], []),
    ],
)
def test_sessions_name_each_anomaly(history: list[Operation], kinds: list[str]) -> None:
    """Each of the four promises is judged by its own name."""
    verdict = check_sessions([_s(operation) for operation in history])
    assert [kind for kind in _kinds(verdict) if kind != "missing" or "missing" in kinds] == kinds


def test_sessions_are_independent() -> None:
    """What one process saw binds no other; a read that claims a position has what is in it."""
    history = [_put(0, "a", 1, seq=5), _get(2, "a", None, seq=4, process="other")]
    assert check_sessions(history).is_valid
    history[1].details["positions"] = [[0, 5]]
    assert _kinds(check_sessions(history)) == ["missing"]


def test_sessions_of_nothing_prove_nothing() -> None:
    """Without an answered read there is no verdict."""
    assert check_sessions([_put(0, "a", 1, seq=1)]).validity is Validity.UNDECIDED


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


def _all_verdicts(run: Run) -> dict[str, Verdict]:
    verdicts = [
        check_lost_writes(run.history), check_stream(run, TABLE), check_sessions(run.history),
        check_staleness(run, TABLE, info_age_ms=0.00003),
    ]  # fmt: skip
    return {verdict.checker: verdict for verdict in verdicts}


@pytest.mark.slow
@given(seed=st.integers(0, 10**9), count=st.integers(1, 80))
def test_a_right_store_is_valid(seed: int, count: int) -> None:
    """Whatever a store does that is in order, no checker calls it wrong."""
    for verdict in _all_verdicts(_Store(seed).run(count)).values():
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


def _show_a_foreign_value(run: Run, rng: random.Random) -> None:
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
    (_show_a_foreign_value, "lost_writes"), (_show_a_foreign_value, "staleness"),
    (_understate_a_lag, "staleness"), (_go_back, "sessions"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("mutate", "checker"), MUTATIONS)
@given(seed=st.integers(0, 10**6))
def test_a_damaged_history_is_invalid(
    mutate: Callable[[Run, random.Random], None], checker: str, seed: int
) -> None:
    """What a broken store would have answered is found by the checker in charge."""
    run = deepcopy(_Store(seed).run(200))
    mutate(run, random.Random(seed))
    verdict = _all_verdicts(run)[checker]
    assert verdict.validity is Validity.INVALID, verdict.summary


ABSURD: list[Any] = [None, 7, "x", [], [None], {"a": [1]}, [[1]], float("nan"), {1: {}}]


@given(
    results=st.lists(st.sampled_from(ABSURD), min_size=1, max_size=6),
    told=st.sampled_from(ABSURD),
    action=st.sampled_from(["get", "get_many", "scan", "put_many", "poll", "put"]),
)
def test_no_checker_raises_on_absurd_answers(results: list[Any], told: Any, action: str) -> None:
    """A broken store may answer anything; that is judged, never raised."""
    details = {
        "table": TABLE, "positions": told, "seqs": told, "lag": told, "max_lag": told,
        "level": "bounded", "at_least": told, "final": True,
    }  # fmt: skip
    history = [
        Operation(f"c{at % 2}", action, told, found, at, at + 1, OK, found, details)
        for at, found in enumerate(results)
    ]
    assert len(_all_verdicts(Run([*SENT, *history], {(TABLE, 0): [START, A, B]}))) == 4
