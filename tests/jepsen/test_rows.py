"""The checkers of rows and positions: lost writes, streams, staleness and sessions."""

from __future__ import annotations

import random
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
from tests.jepsen.row_checks import all_verdicts

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
        "timed", "unplaced", "worst_lag",
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
    """The last values that some order of the writes leaves; doubtful writes may be missing."""
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


def _heard(since_ms: int, age_ms: int | None, applied: int = 1) -> tuple[Operation, Committed]:
    """A read whose replica reported no lag, and the row it lacks, committed so long before it."""
    at = 20_000_000_000
    read = _bounded(at, applied, applied, 0, 0, leader_info_age_ms=age_ms)
    return read, _row(2, "a", 2, at=at - since_ms * 1_000_000)


@pytest.mark.parametrize(
    ("since_ms", "age_ms", "is_beyond"),
    [
        (2_300, 0, False), (2_500, 0, True), (2_500, 500, False), (4_000, 1_000, True),
        (9_900, 0, True), (11_000, 9_900, False), (9_900, None, False), (10_100, None, True),
    ],
)  # fmt: skip
def test_staleness_is_judged_by_the_age_of_the_word_that_was_told(
    since_ms: int, age_ms: int | None, is_beyond: bool
) -> None:
    """Staleness is judged by the age of the leader's report: rows committed long before it count in
    every lag.
    """
    read, missed = _heard(since_ms, age_ms)
    verdict = check_staleness(_run([read], _row(1, "a", 1, at=0), missed), TABLE)
    assert _kinds(verdict) == (["beyond", "under_reported"] if is_beyond else [])


@pytest.mark.parametrize(
    ("fault", "held_ms", "is_beyond"),
    [
        ({"kind": "isolate-follower", "started": 0}, 0, True),
        ({"kind": "clock-slow", "started": 0, "ended": 1}, 0, False),
        ({"kind": "narrow-link", "started": 0}, 0, False),
        ({"kind": "narrow-link", "started": 0, "ended": 1_000_000_000}, 0, True),
        ({"kind": "machine-starved", "started": 19_000_000_000}, 0, False),
        ({"kind": "machine-starved", "started": 20_100_000_000}, 0, True),
        ({"kind": "kill-leader", "started": 0}, 3_000, False),
    ],
)
def test_staleness_allows_for_messages_that_were_held_back(
    fault: dict[str, Any], held_ms: float, is_beyond: bool
) -> None:
    """An age counts from the arrival of the word, and a network may take its time to deliver."""
    read, missed = _heard(3_000, 0)
    run = _run([read], _row(1, "a", 1, at=0), missed)
    run.faults, run.held_ms = [fault], held_ms
    assert check_staleness(run, TABLE).is_valid is not is_beyond


def test_bounded_read_of_a_replica_that_heard_nothing_for_too_long_is_named() -> None:
    """Beyond ten seconds nobody knows how many rows a replica lacks, however few it states."""
    read, newest = _heard(15_000, 10_001, applied=2)
    verdict = check_staleness(_run([read], _row(1, "a", 1, at=0), newest), TABLE)
    assert _kinds(verdict) == ["over_bound"]


def _timed(at_ms: int, applied: int, bound: int, told: int | None) -> Operation:
    """A read that may miss what is younger than the bound, in milliseconds."""
    details = {
        "table": TABLE, "level": "bounded", "positions": [[0, applied]], "lag": None,
        "max_lag": None, "max_staleness_ms": bound, "staleness_ms": told,
    }  # fmt: skip
    at = at_ms * 1_000_000
    return Operation("c1", "get", "a", None, at, at + 1, OK, applied, details)


@pytest.mark.parametrize(
    ("read", "kinds"),
    [
        (_timed(1_000, 2, 50, 0), []),
        (_timed(1_000, 1, 990, 990), []),
        (_timed(1_000, 1, 50, 990), ["too_old", "over_bound"]),
        (_timed(1_000, 1, 50, 50), ["too_old", "understated"]),
        (_timed(1_000, 1, 990, 20), ["understated"]),
        (_timed(1_000, 2, 50, None), ["unreported"]),
    ],
)
def test_staleness_by_time_is_judged_by_when_the_log_was_committed(
    read: Operation, kinds: list[str]
) -> None:
    """Staleness in time is judged by the log: rows committed before the bound must be in the
    answer, whatever a report claims.
    """
    log = [_row(1, "a", 1, at=0), _row(2, "a", 2, at=100_000_000)]
    verdict = check_staleness(_run([read], *log), TABLE)
    assert sorted(_kinds(verdict)) == sorted(kinds)


def test_staleness_by_time_allows_for_clocks_that_ran_slow() -> None:
    """A replica counts with its own clock, which a fault may have let run at half its rate."""
    read = _timed(1_000, 1, 500, 500)
    log = [_row(1, "a", 1, at=0), _row(2, "a", 2, at=100_000_000)]
    run = _run([read], *log)
    assert sorted(_kinds(check_staleness(run, TABLE))) == ["too_old", "understated"]
    run.faults = [{"kind": "clock-slow"}]
    assert check_staleness(run, TABLE).is_valid


def test_staleness_is_judged_by_acknowledgements_without_a_log() -> None:
    """Without a log, staleness is judged by acknowledgements: an acknowledged row is committed."""
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
    """Without a read that states its position there is no verdict."""
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
    """A position that one process saw binds no other; a read that claims a position must have all
    rows up to it.
    """
    history = [_put(0, "a", 1, seq=5), _get(2, "a", None, seq=4, process="other")]
    assert check_sessions(history).is_valid
    history[1].details["positions"] = [[0, 5]]
    assert _kinds(check_sessions(history)) == ["missing"]


def test_sessions_of_nothing_prove_nothing() -> None:
    """Without an answered read there is no verdict."""
    assert check_sessions([_put(0, "a", 1, seq=1)]).validity is Validity.UNDECIDED


# --- absurd answers ---

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
    assert len(all_verdicts(Run([*SENT, *history], {(TABLE, 0): [START, A, B]}))) == 4
