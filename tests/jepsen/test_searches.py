"""The searches against an order-by-order reference, for every model, valid or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jepsen_like.checker import jit, linearizable, wgl, zones
from jepsen_like.checker.evidence import finding_of
from jepsen_like.checker.linearizable import check_linearizable, judge
from jepsen_like.checker.models import Entry, Model, entries_of, model_named
from jepsen_like.checker.problem import Found, Problem
from jepsen_like.checker.race import race
from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from jepsen_like.timeline import timeline_html
from raftstore.types import Outcome

NO = "cannot be"
Object = Callable[[Any, Operation], Any]


def _register(state: Any, operation: Operation) -> Any:
    """Written down once more, so that a slip in the models' own steps is seen."""
    if operation.action == "read":
        return state if state == operation.result else NO
    if operation.action == "write":
        return operation.value
    expected, new = operation.value
    if operation.outcome is Outcome.OK and operation.details.get("conflict"):
        return state if state != expected else NO
    return new if state == expected else NO


def _kv(state: Any, operation: Operation) -> Any:
    if operation.action == "get":
        return state if state == operation.result else NO
    return operation.value if operation.action == "put" else state + operation.value


def _mutex(state: Any, operation: Operation) -> Any:
    wants = "free" if operation.action == "acquire" else "held"
    if operation.outcome is Outcome.OK and operation.details.get("conflict"):
        return state if state != wants else NO
    return ({"free": "held", "held": "free"}[state]) if state == wants else NO


OBJECTS: dict[str, tuple[Object, Any]] = {
    "register": (_register, 0),
    "cas-register": (_register, 0),
    "kv": (_kv, ""),
    "mutex": (_mutex, "free"),
}


def _has_order(model: str, operations: Sequence[Operation]) -> bool:
    """Try every order of everything that must be, and of every choice of what may be."""
    step, initial = OBJECTS[model]
    done = [o for o in operations if o.outcome is Outcome.OK and o.returned is not None]
    open_ = [
        o
        for o in operations
        if o.outcome is not Outcome.NOT_APPLIED
        and not (o.outcome is Outcome.OK and o.returned is not None)
        and o.action not in ("read", "get")
    ]
    for chosen in range(1 << len(open_)):
        some = done + [o for at, o in enumerate(open_) if chosen >> at & 1]
        if any(_fits(step, initial, order) for order in permutations(some)):
            return True
    return False


def _fits(step: Object, state: Any, order: Sequence[Operation]) -> bool:
    for at, operation in enumerate(order):
        later = order[at + 1 :]
        if any(
            o.outcome is Outcome.OK and o.returned is not None and o.returned < operation.invoked
            for o in later
        ):
            return False
        state = step(state, operation)
        if state == NO:
            return False
    return True


def _value_of(model: str, action: str, number: int, small: tuple[int, int]) -> Any:
    if action == "cas":
        return list(small)
    if action == "write":
        return number if model == "register" else small[0]
    return f"{'abc'[small[0]]}{number if small[1] else ''}" if action in ("put", "append") else None


@st.composite
def _histories(draw: st.DrawFn, model: str) -> list[Operation]:
    """Up to six operations: few values and times, so that half of them clash or touch."""
    actions = sorted(model_named(model).actions)
    operations: list[Operation] = []
    written: list[str] = [""]
    for number in range(1, draw(st.integers(1, 6)) + 1):
        action = draw(st.sampled_from(actions))
        small = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
        value = _value_of(model, action, number, small)
        outcome = draw(st.sampled_from([Outcome.OK] * 5 + [Outcome.UNKNOWN, Outcome.NOT_APPLIED]))
        invoked = draw(st.integers(0, 8))
        result: Any = None
        if action == "read":
            result = draw(st.integers(0, 3))
        elif action == "get":
            result = "".join(draw(st.lists(st.sampled_from(written), max_size=2)))
        elif value is not None and model == "kv":
            written.append(value)
        details = {"conflict": True} if action in ("cas", "acquire", "release") else {}
        if details and draw(st.booleans()):
            details = {}
        returned = invoked + draw(st.integers(0, 5))
        has_return = outcome is not Outcome.UNKNOWN or draw(st.booleans())
        operations.append(
            Operation(
                f"c{number}", action, None, value, invoked, returned if has_return else None,
                outcome, result, details,
            )
        )  # fmt: skip
    return operations


def _model(name: str) -> Model:
    return model_named(name, {"mutex": "free", "kv": None}.get(name, 0))


def _end(search: Any) -> Found:
    return next(found for found in search if found is not None)


def _until(operations: Sequence[Operation], limit: int) -> list[Operation]:
    """Operations invoked up to the limit; those that returned later need not have happened."""
    cut = []
    for operation in operations:
        if operation.invoked > limit:
            continue
        if operation.outcome is Outcome.OK and (operation.returned or 0) > limit:
            if operation.details.get("conflict"):
                continue
            operation = Operation(
                operation.process, operation.action, None, operation.value, operation.invoked
            )
        cut.append(operation)
    return cut


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OBJECTS))
@settings(
    max_examples=250, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_searches_agree_with_trying_every_order(name: str, data: st.DataObject) -> None:
    """WGL, JIT, zones and the judge say the same, and of invalid ones the first failure."""
    operations = data.draw(_histories(name))
    model = _model(name)
    entries = entries_of(model, operations)
    expected = _has_order(name, operations)
    found = [_end(search(Problem(model, entries))) for search in (wgl.search, jit.search)]
    assert [one.culprit < 0 for one in found] == [expected, expected]
    if zones.applies(model, entries):
        assert (zones.clash_of(model, entries) is None) is expected
    assert (judge(model, operations).how is None) is expected
    if expected:
        return
    for one in found:
        culprit = finding_of(model, entries, one).culprit.operation
        limit = culprit.returned
        assert limit is not None
        assert not _has_order(name, _until(operations, limit)), "something was wrong by then"
        earlier = [
            o.returned
            for o in operations
            if o.outcome is Outcome.OK and o.returned is not None and o.returned < limit
        ]
        assert all(_has_order(name, _until(operations, moment)) for moment in earlier)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OBJECTS))
@settings(
    max_examples=120, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
@given(data=st.data())
def test_evidence_alone_proves_the_violation(name: str, data: st.DataObject) -> None:
    """The evidence alone has no valid order, even if any other operation may have happened."""
    operations = data.draw(_histories(name))
    verdict = check_linearizable(_model(name), operations)
    if verdict.validity is not Validity.INVALID:
        return
    assert verdict.culprit is not None
    assert verdict.culprit in verdict.evidence
    shown = {id(operation) for operation in verdict.evidence}
    relaxed = [
        operation
        if id(operation) in shown
        else Operation(
            operation.process, operation.action, None, operation.value, operation.invoked
        )
        for operation in operations
        if operation.outcome is not Outcome.NOT_APPLIED
        and not (operation.details.get("conflict") and id(operation) not in shown)
    ]
    assert not _has_order(name, relaxed)


def _steps(model: Model, entries: list[Entry]) -> int:
    return sum(1 for _ in wgl.search(Problem(model, entries)))


@pytest.mark.parametrize("is_write_first", [True, False])
def test_configurations_that_used_others_of_the_unanswered_are_kept_apart(
    is_write_first: bool,
) -> None:
    """Two ways to the same state: only one of them leaves what is needed later."""
    write = Operation("a", "write", None, 2, 0 if is_write_first else 1)
    swap = Operation("b", "cas", None, [0, 2], 1 if is_write_first else 0)
    operations = [
        write,
        swap,
        Operation("c", "read", None, None, 10, 11, Outcome.OK, 2),
        Operation("c", "write", None, 1, 20, 21, Outcome.OK),
        Operation("c", "read", None, None, 30, 31, Outcome.OK, 2),
    ]
    model = model_named("cas-register", 0)
    assert _has_order("cas-register", operations)
    for search in (wgl.search, jit.search):
        assert _end(search(Problem(model, entries_of(model, operations)))).culprit < 0


def test_conflict_may_come_from_a_write_that_nobody_answered() -> None:
    """The condition did not hold because the unanswered write had happened; without it, it did."""
    model = model_named("cas-register", 0)
    write = Operation("a", "write", None, 5, 0)
    conflict = Operation(
        "b", "cas", None, [0, 1], 10, 11, Outcome.OK, details={"conflict": True}
    )  # fmt: skip
    for operations, expected in (([write, conflict], True), ([conflict], False)):
        for search in (wgl.search, jit.search):
            found = _end(search(Problem(model, entries_of(model, operations))))
            assert (found.culprit < 0) is expected


def _endless(key: str) -> list[Operation]:
    """Each way from each of four values to each other one, twice: very many orders, all in vain."""
    changes = [[a, b] for a in range(4) for b in range(4) if a != b] * 2
    operations = [
        Operation(f"{key}{n}", "cas", key, change, 0, 100, Outcome.OK)
        for n, change in enumerate(changes)
    ]
    return [*operations, Operation(key, "read", key, None, 101, 102, Outcome.OK, 9)]


def test_search_gives_up_when_the_budget_is_used() -> None:
    """Undecided is an answer of its own, never taken for valid."""
    model = model_named("cas-register", 0)
    operations = _endless("a")
    assert race(model, entries_of(model, operations), 256) is None
    verdict = check_linearizable(model, operations, budget=256)
    assert verdict.validity is Validity.UNDECIDED
    assert "larger budget" in verdict.summary


def test_key_that_fails_at_once_is_found_before_other_keys_are_searched_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One bad key decides a history, however long the search of the keys before it would take."""
    steps: list[int] = []

    def counted(model: Model, part: Sequence[Entry], budget: int) -> Found | None:
        steps.append(budget)
        return race(model, part, budget)

    monkeypatch.setattr(linearizable, "race", counted)
    # A stale conflict: zones, which need no search, do not apply to conditional writes.
    bad = [
        Operation("w", "cas", "z", [0, 1], 0, 1, Outcome.OK),
        Operation("r", "read", "z", None, 2, 3, Outcome.OK, 0),
    ]
    judged = judge(model_named("cas-register", 0), _endless("a") + bad)
    assert judged.failed[0].operation.key == "z"
    assert sum(steps) < 50_000


@pytest.mark.slow
def test_keys_left_undecided_are_searched_until_each_has_used_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last round gives every key that is left the whole budget; keys decided are not asked."""
    steps: dict[str, list[int]] = {}

    def counted(model: Model, part: Sequence[Entry], budget: int) -> Found | None:
        steps.setdefault(part[0].operation.key, []).append(budget)
        return race(model, part, budget)

    monkeypatch.setattr(linearizable, "race", counted)
    fine = [Operation("w", "cas", "z", [0, 1], 0, 1, Outcome.OK)]
    operations = _endless("a") + fine + _endless("b")
    judged = judge(model_named("cas-register", 0), operations, budget=20_000)
    assert judged.undecided == 2
    assert steps == {"a": [16_384, 20_000], "z": [16_384], "b": [16_384, 20_000]}


@pytest.mark.slow
def test_long_histories_of_one_key_take_steps_in_proportion() -> None:
    """Thousands of unanswered writes that nobody read cost nothing."""
    model = model_named("cas-register", 0)
    operations = []
    for n in range(1, 3001):
        at = n * 10
        operations.append(Operation("w", "write", None, n, at, None))
        operations.append(Operation("c", "cas", None, [n - 1, n], at, at + 1, Outcome.OK))
        operations.append(Operation("r", "read", None, None, at + 2, at + 3, Outcome.OK, n))
    entries = entries_of(model, operations)
    assert _steps(model, entries) <= 3 * len(entries) // 256
    assert judge(model, operations).how is None


@pytest.mark.slow
def test_explanation_of_a_long_history_is_short() -> None:
    """A read of what was overwritten thousands of operations ago is explained by a handful."""
    operations = []
    for n in range(1, 1501):
        at = n * 10
        operations.append(Operation("c", "cas", "k", [n - 1, n], at, at + 5, Outcome.OK))
        operations.append(Operation("l", "write", "k", -n, at, None))
        operations.append(Operation("r", "read", "k", None, at + 4, at + 9, Outcome.OK, n))
    stale = Operation("s", "read", "k", None, 14_000, 14_004, Outcome.OK, 70)
    model = model_named("cas-register", 0)
    verdict = check_linearizable(model, [*operations, stale])
    assert verdict.validity is Validity.INVALID
    assert verdict.culprit is stale
    assert stale in verdict.evidence
    assert len(verdict.evidence) <= 8
    page = timeline_html(verdict, [*operations, stale])
    assert len(page) < 40_000, "only what is near is drawn"
