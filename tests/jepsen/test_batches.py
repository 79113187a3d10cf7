"""The checker of atomic micro-batches, on histories that a broken store would have made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jepsen_like.checker.batches import Bank, check_batches
from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from jepsen_like.workload.bank_batches import BANK, PARTITIONS, PLAIN, TABLE
from jepsen_like.workload.base import Committed, Run
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from raftstore.types import Outcome

NAME = "t"
TINY = Bank(shared=("s0", "s1"), own={"w": ("w0", "w1"), "v": ("v0", "v1")}, total=10)
OK, UNKNOWN, REFUSED = Outcome.OK, Outcome.UNKNOWN, Outcome.NOT_APPLIED


def _attempt(at: int, writer: str, number: int, stamp: int, own: tuple[int, int]) -> Operation:
    """An attempt that spreads 4 and 6, answered ten later as commit ``stamp``."""
    accounts = dict(zip(TINY.own[writer], own, strict=True))
    rows = [["s0", [4, stamp]], ["s1", [6, stamp]], *([k, [v, stamp]] for k, v in accounts.items())]
    batch = {"writer": writer, "number": number, "tasks": 1, "lost": []}
    return Operation(
        "c1", "batch", writer, rows, at, at + 10, OK,
        {"n": stamp, "vector": [stamp, stamp], "already": False},
        {"table": NAME, "batch": batch, "stamp": stamp, "own": accounts},
    )  # fmt: skip


def _snapshot(at: int, n: int, rows: dict[str, list[int]], process: str = "c2") -> Operation:
    told = {"n": n, "vector": [n, n], "rows": rows}
    return Operation(process, "snapshot", None, None, at, at + 5, OK, told, {"table": NAME})


FIRST = _attempt(0, "w", 1, 1, (3, 7))
SECOND = _attempt(20, "v", 1, 2, (5, 5))
THIRD = _attempt(40, "w", 2, 3, (2, 8))
AFTER_1 = {"s0": [4, 1], "s1": [6, 1], "w0": [3, 1], "w1": [7, 1]}
AFTER_2 = {**AFTER_1, "s0": [4, 2], "s1": [6, 2], "v0": [5, 2], "v1": [5, 2]}
AFTER_3 = {**AFTER_2, "s0": [4, 3], "s1": [6, 3], "w0": [2, 3], "w1": [8, 3]}
GOOD = (
    FIRST, _snapshot(12, 1, AFTER_1), SECOND, _snapshot(32, 2, AFTER_2), THIRD,
    _snapshot(52, 3, AFTER_3),
    Operation("c3", "get", "s0", None, 60, 61, OK, [4, 3], {"table": NAME}),
)  # fmt: skip
LOG = {
    (NAME, 0): [
        Committed(3 * stamp, b"", key, [amount, stamp], is_batch=True, span=2)
        for attempt, stamp in ((FIRST, 1), (SECOND, 2), (THIRD, 3))
        for key, (amount, _) in attempt.value
    ]
}


def _verdict(*history: Operation, log: Any = None) -> tuple[Validity, str]:
    verdict = check_batches(Run(history, LOG if log is None else log), NAME, TINY)
    found = [kind for kind, count in verdict.figures.items() if kind in KINDS and count]
    return verdict.validity, " ".join(found)


KINDS = (
    "torn", "half", "wrong_sum", "mixed", "twice", "disordered", "lost", "refused", "invented",
    "early", "stale", "back", "renumbered", "unfenced", "unreadable",
)  # fmt: skip


def _with(at: int, **changes: Any) -> list[Operation]:
    history = list(GOOD)
    history[at] = replace(history[at], **changes)
    return history


def _rows(at: int, **rows: list[int] | None) -> list[Operation]:
    """The history with other rows in one snapshot; None: the row is missing."""
    told = GOOD[at].result
    found = {key: row for key, row in {**told["rows"], **rows}.items() if row is not None}
    return _with(at, result={**told, "rows": found})


def test_right_history_is_valid() -> None:
    """Three batches of two writers, each seen as a whole."""
    assert _verdict(*GOOD) == (Validity.VALID, "")


def test_history_without_batches_or_snapshots_proves_nothing() -> None:
    """Nothing acknowledged or nothing read: undecided."""
    assert _verdict(log={})[0] is Validity.UNDECIDED
    assert _verdict(FIRST, log={})[0] is Validity.UNDECIDED


WRONG: dict[str, Callable[[], list[Operation]]] = {
    "torn": lambda: _rows(3, s1=[6, 1]),
    "half": lambda: _rows(5, w0=[3, 1], w1=[7, 1]),
    "half wrong_sum": lambda: _rows(5, w0=[3, 1]),
    "wrong_sum": lambda: _rows(1, s0=[5, 1]),
    "invented": lambda: _rows(5, v0=[5, 9]),
    "unreadable": lambda: _with(1, result=None),
    "stale": lambda: [*GOOD, _snapshot(70, 2, AFTER_2, "c9")],
    "stale back": lambda: [*GOOD, _snapshot(70, 2, AFTER_2, "c2")],
    "renumbered": lambda: [*GOOD, _snapshot(70, 3, AFTER_2, "c9")],
    "early": lambda: [_snapshot(-50, 1, AFTER_1), *GOOD],
    "disordered": lambda: _with(4, details={**THIRD.details, "batch": {
        "writer": "w", "number": 0, "tasks": 1, "lost": []}}),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_history_of_a_broken_store_is_found(kind: str) -> None:
    """Each kind of wrong answer is called by its name."""
    validity, found = _verdict(*WRONG[kind]())
    assert validity is Validity.INVALID
    assert set(kind.split()) <= set(found.split()), found


def test_rows_of_two_attempts_of_one_batch_are_mixed() -> None:
    """A replay put other rows beside those of the attempt before."""
    other = replace(FIRST, outcome=UNKNOWN, returned=None, result=None)
    again = _attempt(13, "w", 1, 2, (4, 6))
    rows = {"s0": [4, 2], "s1": [6, 2], "w0": [4, 2], "w1": [7, 1]}
    validity, found = _verdict(other, again, _snapshot(30, 2, rows), log={})
    assert (validity, "mixed" in found) == (Validity.INVALID, True)


def test_batch_that_was_committed_twice_is_found() -> None:
    """Two attempts of one batch were both answered that they are the one."""
    again = _attempt(70, "w", 2, 4, (1, 9))
    assert "twice" in _verdict(*GOOD, again)[1]


def test_attempt_that_was_refused_is_never_seen() -> None:
    """NOT_APPLIED is a promise."""
    history = _with(4, outcome=REFUSED, result=None)
    assert "refused" in _verdict(*history)[1]


def test_attempt_that_was_taken_over_is_never_committed() -> None:
    """The fence: its writer has begun another one before it asked."""
    stages = [
        replace(FIRST, action="stage", invoked=at, returned=at + 1, result={"attempt": number},
                details={**FIRST.details, "stamp": stamp})
        for at, number, stamp in ((-9, 7, 1), (-7, 8, 99))
    ]  # fmt: skip
    assert "unfenced" in _verdict(*stages, *GOOD)[1]
    assert _verdict(stages[0], *GOOD) == (Validity.VALID, "")


def test_replay_is_the_commit_that_there_was() -> None:
    """Already committed: the same number, and nothing of the replay's rows."""
    replay = _attempt(70, "w", 2, 9, (0, 10))
    already = {"n": 3, "vector": [3, 3], "already": True}
    assert _verdict(*GOOD, replace(replay, result=already)) == (Validity.VALID, "")
    assert "twice" in _verdict(*GOOD, replace(replay, result={**already, "n": 4}))[1]


def test_success_that_was_told_too_early_is_found_by_a_read_of_one_key() -> None:
    """Rule 5: reported as done, and a key at its leader is as it was before."""
    late = Operation("c3", "get", "s0", None, 60, 61, OK, [4, 2], {"table": NAME})
    assert "stale" in _verdict(*GOOD[:-1], late)[1]
    absent = replace(late, result=None)
    assert "stale" in _verdict(*GOOD[:-1], absent)[1]


def test_snapshot_is_of_the_commit_that_was_asked_for() -> None:
    """As of a commit, or not before it."""
    wanted = {"n": 2, "vector": [2, 2], "is_exact": True}
    asked = replace(GOOD[5], details={"table": NAME, "wanted": wanted})
    assert "stale" in _verdict(*GOOD[:5], asked)[1]
    right = replace(_snapshot(70, 2, AFTER_2), details={"table": NAME, "wanted": wanted})
    assert _verdict(*GOOD, right)[0] is Validity.VALID
    floor = {"table": NAME, "level": "any", "wanted": {**wanted, "is_exact": False}}
    older = replace(_snapshot(70, 1, AFTER_1, "c9"), details=floor)
    assert "stale" in _verdict(*GOOD, older)[1]


def test_batch_that_is_missing_in_the_log_is_lost() -> None:
    """All of it, or one row of it."""
    rows = LOG[NAME, 0]
    assert "lost" in _verdict(*GOOD, log={(NAME, 0): rows[:-1]})[1]
    assert "lost" in _verdict(*GOOD, log={(NAME, 0): rows[:8]})[1]


def test_batch_that_is_in_the_log_twice_is_found() -> None:
    """The same rows at two places of a channel, or rows that were never committed."""
    rows = LOG[NAME, 0]
    again = [replace(row, seq=99) for row in rows[-4:]]
    assert "twice" in _verdict(*GOOD, log={(NAME, 0): [*rows, *again]})[1]
    invented = replace(rows[0], value=[4, 77])
    assert "invented" in _verdict(*GOOD, log={(NAME, 0): [*rows, invented]})[1]


def test_accounts_of_the_bank_are_in_every_partition() -> None:
    """Otherwise half a batch would be nothing to see."""
    for names in (BANK.shared, PLAIN):
        found = {partition_of(encode_key((name,)), PARTITIONS) for name in names}
        assert found == set(range(PARTITIONS))
    for names in BANK.own.values():
        assert len({partition_of(encode_key((name,)), PARTITIONS) for name in names}) > 1
    assert TABLE == "bank_batches"


def test_one_row_shows_what_its_attempt_wrote_there() -> None:
    """A read of one key, and rows beside the accounts in a snapshot: right stamp, wrong value."""
    other = replace(GOOD[-1], result=[5, 3])
    assert _verdict(*GOOD[:-1], other)[1] == "half"
    beside = Operation("c3", "put", "p1", 8, 45, 46, OK, None, {"table": NAME})
    told = {"n": 3, "vector": [3, 3], "rows": {**AFTER_3, "p1": 8}}
    right = replace(_snapshot(70, 3, AFTER_3, "c9"), result=told)
    assert _verdict(*GOOD, beside, right)[0] is Validity.VALID
    assert _verdict(*GOOD, right)[1] == "invented"
    late = replace(beside, invoked=90, returned=91)
    assert _verdict(*GOOD, late, right)[1] == "invented"
    refused = replace(beside, outcome=REFUSED)
    assert _verdict(*GOOD, refused, right)[1] == "invented"
