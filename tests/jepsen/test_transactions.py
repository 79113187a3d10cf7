"""The checkers of transactions: lists and registers, against recorded verdicts and every order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.checker.bank import check_bank
from jepsen_like.checker.list_append import appends_and_gets, check_list_append
from jepsen_like.checker.rw_register import check_rw_register, puts_and_gets
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.formats import read_elle
from jepsen_like.history import Operation
from raftstore.types import Outcome

DATA = Path(__file__).parent.parent / "data" / "linearizability"
INDEX = json.loads((DATA / "index.json").read_text(encoding="utf-8"))
Steps = list[list[Any]]


def _txn(
    at: int, told: Any, outcome: Outcome = Outcome.OK, *, until: int | None = None
) -> Operation:
    """A transaction by its answer; what was asked is the same without what reads found."""
    asked = [[f, k, None if f == "r" else v] for f, k, v in told] if _is_steps(told) else []
    return Operation(
        f"c{at}", "txn", None, asked, at, at + 1 if until is None else until, outcome, told
    )


def _is_steps(told: Any) -> bool:
    return isinstance(told, list) and all(isinstance(s, list) and len(s) == 3 for s in told)


def _kinds(verdict: Verdict) -> list[str]:
    plain = ("transactions", "keys", "reads")
    return [name for name, count in verdict.figures.items() if count and name not in plain]


def _judge_recorded(entry: dict[str, Any]) -> Verdict:
    operations = read_elle(DATA / entry["file"])
    if entry["model"] == "elle list-append":
        return check_list_append(operations, realtime="serializable" not in entry["note"])
    if entry["model"] == "elle rw-register":
        return check_rw_register(operations, is_whole=False)
    sums = [sum(op.result.values()) for op in operations if op.action == "read" and op.result]
    return check_bank(operations, sums[0])


@pytest.mark.slow
def test_transactions_are_judged_as_recorded() -> None:
    """All histories of elle-cli have the verdict that was recorded with them."""
    judged = [entry for entry in INDEX if entry["suite"] == "elle-cli"]
    found = {entry["file"]: _judge_recorded(entry).is_valid for entry in judged}
    assert len(judged) == 8
    assert found == {entry["file"]: entry["valid"] for entry in judged}


LISTS: list[tuple[str, list[Operation]]] = [
    ("unreadable", [_txn(0, [["r", "x", 7]])]),
    ("unreadable", [_txn(0, "nonsense")]),
    ("invented", [_txn(0, [["r", "x", [1]]])]),
    ("duplicate", [_txn(0, [["append", "x", 1]]), _txn(2, [["r", "x", [1, 1]]])]),
    ("G1a", [_txn(0, [["append", "x", 1]], Outcome.NOT_APPLIED), _txn(2, [["r", "x", [1]]])]),
    ("G1b", [_txn(0, [["append", "x", 1], ["append", "x", 2]]), _txn(0, [["r", "x", [1]]])]),
    ("internal", [_txn(0, [["append", "x", 1], ["r", "x", []]])]),
    ("internal", [_txn(0, [["append", "x", 1]]), _txn(0, [["r", "x", []], ["r", "x", [1]]])]),
    ("incompatible", [
        _txn(0, [["append", "x", 1]]), _txn(0, [["append", "x", 2]]),
        _txn(0, [["r", "x", [1]]]), _txn(0, [["r", "x", [2]]]),
    ]),
    ("lost", [_txn(0, [["append", "x", 1]]), _txn(2, [["r", "x", []]])]),
    ("G0", [
        _txn(0, [["append", "x", 1], ["append", "y", 1]]),
        _txn(0, [["append", "x", 2], ["append", "y", 2]]),
        _txn(0, [["r", "x", [1, 2]]]), _txn(0, [["r", "y", [2, 1]]]),
    ]),
    ("G1c", [
        _txn(0, [["append", "x", 1], ["r", "y", [1]]]),
        _txn(0, [["append", "y", 1], ["r", "x", [1]]]),
    ]),
    ("G-single", [
        _txn(0, [["append", "x", 1], ["append", "y", 1]]),
        _txn(0, [["r", "x", [1]], ["r", "y", []]]),
    ]),
    ("G2", [
        _txn(0, [["append", "x", 1], ["r", "y", []]]),
        _txn(0, [["append", "y", 1], ["r", "x", []]]),
    ]),
    ("G0-realtime", [
        _txn(0, [["append", "x", 1]]), _txn(2, [["append", "x", 2]]),
        _txn(2, [["r", "x", [2, 1]]]),
    ]),
    ("G1c-realtime", [_txn(0, [["r", "x", [1]]]), _txn(2, [["append", "x", 1]])]),
    ("G-single-realtime", [
        _txn(0, [["append", "x", 1]]), _txn(1, [["r", "x", [1]]]), _txn(3, [["r", "x", []]]),
    ]),
    ("G2-realtime", [
        _txn(0, [["append", "y", 1]], until=9), _txn(0, [["r", "x", []], ["r", "y", [1]]]),
        _txn(2, [["append", "x", 1]], until=9), _txn(4, [["r", "x", [1]], ["r", "z", []]]),
        _txn(2, [["append", "z", 1]], until=3), _txn(0, [["r", "z", [1]]], until=9),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "history"), LISTS[:-1])
def test_lists_name_each_anomaly(kind: str, history: list[Operation]) -> None:
    """Each anomaly is found under its own name, with operations that show it."""
    verdict = check_list_append(history)
    assert verdict.validity is Validity.INVALID
    assert kind in _kinds(verdict)
    assert verdict.culprit in verdict.evidence
    assert verdict.summary.count(kind) or kind in ("G1a", "G1b")


def test_lists_of_nothing_prove_nothing() -> None:
    """Without a read there is no verdict; a doubtful append may be there or not."""
    assert check_list_append([]).validity is Validity.UNDECIDED
    doubtful = _txn(0, [["append", "x", 1]], Outcome.UNKNOWN)
    for found in ([], [1]):
        assert check_list_append([doubtful, _txn(5, [["r", "x", found]])]).is_valid


def test_stale_reads_are_serializable_but_not_strictly() -> None:
    """Without the order of time an old answer is in order."""
    history = LISTS[-2][1]
    assert check_list_append(history, realtime=False).is_valid
    assert not check_list_append(history).is_valid


REGISTERS: list[tuple[str, list[Operation]]] = [
    ("unreadable", [_txn(0, [["r", "x"]])]),
    ("invented", [_txn(0, [["r", "x", 1]])]),
    ("G1a", [_txn(0, [["w", "x", 1]], Outcome.NOT_APPLIED), _txn(2, [["r", "x", 1]])]),
    ("G1b", [_txn(0, [["w", "x", 1], ["w", "x", 2]]), _txn(0, [["r", "x", 1]])]),
    ("internal", [_txn(0, [["w", "x", 1], ["r", "x", None]])]),
    ("cyclic-versions", [
        _txn(0, [["r", "x", 1], ["w", "x", 2]]), _txn(0, [["r", "x", 2], ["w", "x", 1]]),
    ]),
    ("G0", [
        _txn(0, [["r", "x", None], ["w", "x", 1], ["r", "y", 2], ["w", "y", 3]]),
        _txn(0, [["r", "x", 1], ["w", "x", 2], ["w", "y", 2]]),
    ]),
    ("G1c", [
        _txn(0, [["w", "x", 1], ["r", "y", 1]]), _txn(0, [["w", "y", 1], ["r", "x", 1]]),
    ]),
    ("G-single", [
        _txn(0, [["w", "x", 1], ["w", "y", 1]]), _txn(0, [["r", "x", 1], ["r", "y", None]]),
    ]),
    ("G2", [
        _txn(0, [["r", "x", None], ["w", "x", 1]]), _txn(0, [["r", "x", None], ["w", "x", 2]]),
    ]),
    ("G1c-realtime", [_txn(0, [["r", "x", 1]]), _txn(2, [["w", "x", 1]])]),
    ("G-single-realtime", [
        _txn(0, [["w", "x", 1]]), _txn(2, [["w", "x", 2]]), _txn(4, [["r", "x", 1]]),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "history"), REGISTERS)
def test_registers_name_each_anomaly(kind: str, history: list[Operation]) -> None:
    """Each anomaly is found under its own name, with operations that show it."""
    verdict = check_rw_register(history)
    assert verdict.validity is Validity.INVALID
    assert kind in _kinds(verdict)
    assert verdict.culprit in verdict.evidence


def test_registers_of_nothing_prove_nothing() -> None:
    """Without a read there is no verdict; an unknown writer may be outside of the history."""
    assert check_rw_register([_txn(0, [["w", "x", 1]])]).validity is Validity.UNDECIDED
    assert check_rw_register([_txn(0, [["r", "x", 1]])], is_whole=False).is_valid


# --- against a store that is right, and against every order ---------------------------------------


def _last(found: list[Any]) -> Any:
    return found[-1] if found else None


def _right(rng: random.Random, write: str, count: int) -> list[Operation]:
    """Transactions that took effect one after the other, each inside its interval."""
    lists: dict[str, list[int]] = {}
    history = []
    for number in range(count):
        told: Steps = []
        outcome = rng.choice([Outcome.OK] * 8 + [Outcome.UNKNOWN, Outcome.NOT_APPLIED])
        is_applied = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and rng.random() < 0.5)
        state = lists if is_applied else {key: list(found) for key, found in lists.items()}
        for step in range(rng.randint(1, 3)):
            key = rng.choice("xyz")
            found = state.setdefault(key, [])
            if rng.random() < 0.5:
                told.append(["r", key, list(found) if write == "append" else _last(found)])
            else:
                found.append(number * 4 + step)
                told.append([write, key, number * 4 + step])
        at = number * 10
        operation = _txn(at - rng.randint(0, 25), told, outcome, until=at + rng.randint(0, 25))
        if outcome is not Outcome.OK:
            operation.result = None
            operation.returned = operation.returned if outcome is Outcome.NOT_APPLIED else None
        history.append(operation)
    return history


def _reads(history: list[Operation]) -> list[list[Any]]:
    answered = [operation.result for operation in history if operation.result]
    return [step for told in answered for step in told if step[0] == "r"]


CHECKS: list[tuple[str, Callable[[list[Operation]], Verdict]]] = [
    ("append", check_list_append), ("w", check_rw_register),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("write", "check"), CHECKS)
@given(seed=st.integers(0, 10**9), count=st.integers(1, 30))
def test_transactions_of_a_right_store_are_valid(
    write: str, check: Callable[[list[Operation]], Verdict], seed: int, count: int
) -> None:
    """Given any answers of a sequential store, its transactions are valid, or unknown if nothing
    was read.
    """
    history = _right(random.Random(seed), write, count)
    is_shown = any(operation.result and operation.result[0][0] == "r" for operation in history)
    verdict = check(history)
    assert verdict.validity is not Validity.INVALID, verdict.summary
    assert verdict.is_valid or not is_shown


@pytest.mark.slow
@given(seed=st.integers(0, 10**9), count=st.integers(5, 30))
def test_lists_with_a_damaged_read_are_invalid(seed: int, count: int) -> None:
    """A read with an element twice, or with one never written, is found."""
    rng = random.Random(seed)
    history = _right(rng, "append", count)
    full = [step for step in _reads(history) if step[2]]
    if not full:
        return
    step = rng.choice(full)
    step[2] = [step[2][0], *step[2]] if rng.random() < 0.5 else [*step[2], -1]
    assert check_list_append(history).validity is Validity.INVALID


def _explains(order: tuple[Operation, ...], write: str, *, realtime: bool) -> bool:
    state: dict[str, list[Any]] = {}
    for at, operation in enumerate(order):
        if realtime and any((o.returned or 0) < operation.invoked for o in order[at + 1 :]):
            return False
        for what, key, value in operation.result:
            found = state.setdefault(key, [])
            if what == write:
                found.append(value)
            elif value != (found if write == "append" else _last(found)):
                return False
    return True


def _scrambled(seed: int, write: str) -> list[Operation]:
    """A small history, right or made wrong by reads of other moments."""
    rng = random.Random(seed)
    history = [op for op in _right(rng, write, rng.randint(2, 5)) if op.result]
    reads = _reads(history)
    for step in reads:
        if rng.random() < 0.25:
            others = [other[2] for other in reads if other[1] == step[1]]
            step[2] = rng.choice([*others, [] if write == "append" else None])
    return history


@pytest.mark.slow
@pytest.mark.parametrize("realtime", [True, False])
def test_lists_are_valid_exactly_when_some_order_explains_them(realtime: bool) -> None:
    """The search for cycles says what trying every order says."""
    counts = {True: 0, False: 0}
    for seed in range(1_500):
        history = _scrambled(seed, "append")
        if not _reads(history):
            continue
        orders = permutations(history)
        expected = any(_explains(order, "append", realtime=realtime) for order in orders)
        counts[expected] += 1
        verdict = check_list_append(history, realtime=realtime)
        assert verdict.is_valid is expected, (seed, verdict.summary)
    assert min(counts.values()) > 100


@pytest.mark.slow
@pytest.mark.parametrize("realtime", [True, False])
def test_registers_called_invalid_have_no_order(realtime: bool) -> None:
    """Nothing is called invalid that some order explains; most of the rest is found."""
    missed = found = 0
    for seed in range(1_500):
        history = _scrambled(seed, "w")
        if not _reads(history):
            continue
        is_right = any(_explains(o, "w", realtime=realtime) for o in permutations(history))
        verdict = check_rw_register(history, realtime=realtime)
        is_wrong = verdict.validity is Validity.INVALID
        assert not (is_right and is_wrong), (seed, verdict.summary)
        found += is_wrong
        missed += not is_wrong and not is_right
    assert found > 4 * missed
    assert found > 100


# --- calls of workloads ---------------------------------------------------------------------------


def _call(action: str, at: int, value: Any, result: Any, **details: Any) -> Operation:
    return Operation("c1", action, "k", value, at, at + 1, Outcome.OK, result, details)


def test_appends_by_conditional_puts_are_transactions() -> None:
    """A put that lost its condition appended nothing; one that held read what it was made from."""
    first = _call("put_if", 0, [1], None, append=1)
    second = _call("put_if", 2, [1, 2], None, append=2)
    lost = _call("put_if", 2, [3], None, append=3, conflict=True)
    read = _call("get", 5, None, [1, 2])
    assert check_list_append(appends_and_gets([first, second, lost, read])).is_valid
    blind = _call("put_if", 2, [2], None, append=2)
    seen = _call("get", 5, None, [2])
    verdict = check_list_append(appends_and_gets([first, blind, seen]))
    assert verdict.figures["lost"] == 1


def test_puts_and_gets_are_transactions() -> None:
    """A conditional put read what it compared with; a put is blind."""
    put = _call("put", 0, 1, None)
    swap = _call("put_if", 2, 2, None, **{"from": 1})
    history = [put, swap, _call("get", 4, None, 2)]
    assert check_rw_register(puts_and_gets(history)).is_valid
    stale = check_rw_register(puts_and_gets([*history, _call("get", 6, None, 1)]))
    assert stale.validity is Validity.INVALID
