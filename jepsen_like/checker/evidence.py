"""Why a history is not linearizable: the first operation without a place, and those it needs.

Every effort here is bounded: a history of any length is explained, if need be by more operations
than the fewest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from jepsen_like.checker.models import ANY, Entry, Model
from jepsen_like.checker.problem import Found, Problem
from jepsen_like.checker.race import race

_TRUNCATED_BUDGET: Final = 100_000
_TRUNCATED_STEPS: Final = 20
"""Steps to find out whether the history up to a moment is linearizable: at least; per operation."""
_EFFORT_FIRST: Final = 200_000
"""Operations looked at to find the first failure."""
_GUESSES_MAX: Final = 4
_TRIAL_BUDGET: Final = 4_000
"""Steps to find out whether some operations can be left out."""
_EFFORT: Final = 20_000
"""Steps, and operations looked at, for all trials together."""
_SIZES: Final = (12, 48, 200, 500)
"""How many of the last operations are tried as evidence."""
_CHANGES_MAX: Final = 4
_RELATED_MAX: Final = 8
_SHOWN_MAX: Final = 40
"""Operations that a person reads; if it takes more, only those around the culprit."""
_STATES_OF_MAX: Final = 5_000
_STATES_MAX: Final = 4
_TEXT_MAX: Final = 60


class Finding(NamedTuple):
    """The fault in the history of one key."""

    culprit: Entry
    """The first operation, in order of returns, that has no place."""
    evidence: list[Entry]
    """In order of invocation: the fewest that show it, or those around the culprit."""
    reason: str
    """A clause that goes on after the name of the culprit."""


def finding_of(model: Model, part: Sequence[Entry], found: Found) -> Finding:
    """Explain what a search found; ``part`` is not linearizable."""
    culprit = _first_failure(model, part, found)
    window = _until(model, part, culprit)
    must = _shrunk(model, window, culprit)
    reason = f"{answer_of(model, culprit)}, which fits no order of the operations"
    if len(must) > _SHOWN_MAX:
        must = _under_way(window, culprit)
        states = _states_before(model, window, culprit)
        if states:
            reason = f"{reason}: what was answered before leaves {' or '.join(states)}"
        return Finding(culprit, must, reason)
    states = _states_before(model, must, culprit)
    if len(must) == 1 and model.shape is not None and model.shape(culprit).need is not ANY:
        reason = f"{reason}: nothing invoked by then could leave what it needs"
    elif states:
        reason = f"{reason}: the others shown leave {' or '.join(states)}"
    return Finding(culprit, must, reason)


def answer_of(model: Model, entry: Entry) -> str:
    """The answer, as a verb and its object."""
    if entry.conflict:
        return "got a conflict"
    if entry.action in model.reads:
        return f"answered {text_of(entry.result)}"
    return "succeeded"


def _first_failure(model: Model, part: Sequence[Entry], found: Found) -> Entry:
    """The first return that cannot be explained; of a very long history one soon after it."""
    done = [entry for entry in part if entry.returned is not None]
    returns = sorted(done, key=_return_of)
    place = {id(entry): at for at, entry in enumerate(returns)}
    low, high = place[id(done[found.culprit])], len(returns) - 1
    if model.leads_to is None and model.shape is None:
        return returns[low]
    # A search that looks ahead gives up before the operation that is in the way. It is often the
    # last of those that could no longer come, else bisect.
    guesses = sorted({place[id(done[at])] for at in found.suspects})[-_GUESSES_MAX:]
    fallback = guesses[-1] if guesses else low
    effort = 0
    while low < high and effort < _EFFORT_FIRST:
        inside = [at for at in guesses if low <= at < high]
        middle = inside[-1] if inside else (low + high) // 2
        window = _until(model, part, returns[middle])
        effort += len(window)
        budget = max(_TRUNCATED_BUDGET, _TRUNCATED_STEPS * len(window))
        answer = race(model, window, budget)
        if answer is not None and answer.culprit >= 0:
            # Often the one before is fine, and nothing is left to find.
            high = fallback = middle
            guesses.append(high - 1)
        else:
            low = middle + 1
    return returns[high if low >= high else max(fallback, low)]


def _until(model: Model, part: Iterable[Entry], culprit: Entry) -> list[Entry]:
    """Entries invoked before the culprit returned; of those that returned later, only the effect
    may count.
    """
    limit = _return_of(culprit)
    return [
        entry if entry.returned is not None and entry.returned <= limit else _optional(entry)
        for entry in part
        if entry.call <= limit
        and (not model.is_pure(entry) or (entry.returned is not None and entry.returned <= limit))
    ]


def _shrunk(model: Model, window: list[Entry], culprit: Entry) -> list[Entry]:
    """The operations without which an order exists.

    An operation is left out by letting it happen at any time or never, not by forgetting it: a
    forgotten write would make a sound read look wrong.
    """
    must = sorted((entry for entry in window if entry.returned is not None), key=_return_of)
    values = _values(culprit)
    related = [entry for entry in must if not values.isdisjoint(_values(entry))][-_RELATED_MAX:]
    # Most often it is something that was changed in the meantime.
    changes = [e for e in must if _return_of(e) < culprit.call and not model.is_pure(e)]
    guesses = [changes[-_CHANGES_MAX:], *(must[-size:] for size in _SIZES)]
    for guess in guesses:
        needed = _relaxed(model, window, _ids([*guess, *related, culprit]))
        if _is_invalid(model, needed):
            return _fewest(model, needed, culprit)
        if len(guess) == len(must):
            break
    return must


def _under_way(window: list[Entry], culprit: Entry) -> list[Entry]:
    """Entries that overlap the culprit: the last of them, if there are many."""
    overlapping = [
        entry
        for entry in window
        if entry is culprit or (entry.returned is not None and entry.returned >= culprit.call)
    ]
    kept = _ids([*overlapping[-_SHOWN_MAX + 1 :], culprit])
    return [entry for entry in overlapping if id(entry) in kept]


def _fewest(model: Model, entries: list[Entry], culprit: Entry) -> list[Entry]:
    """Leave out halves, then quarters, at last single operations, as far as the effort goes."""
    effort = 0
    must = [entry for entry in entries if entry.returned is not None]
    size = max(1, len(must) // 2)
    while effort < _EFFORT:
        at = 0
        while at < len(must) and effort < _EFFORT:
            kept = _ids([*must[:at], *must[at + size :], culprit])
            trial = _relaxed(model, entries, kept)
            effort += len(entries) + _TRIAL_BUDGET // 100
            if len(kept) < len(must) and _is_invalid(model, trial):
                entries = trial
                must = [entry for entry in entries if entry.returned is not None]
            else:
                at += size
        if size == 1:
            break
        size = max(1, size // 2)
    return must


def _relaxed(model: Model, entries: Iterable[Entry], kept: frozenset[int]) -> list[Entry]:
    """Only those kept have to happen; what could not matter any more is left out."""
    trial = [
        entry if entry.returned is None or id(entry) in kept else _optional(entry)
        for entry in entries
        if entry.returned is None or id(entry) in kept or not model.is_pure(entry)
    ]
    problem = Problem(model, trial)
    return sorted([*problem.done, *(one.entry for one in problem.lost)], key=_call_of)


def _is_invalid(model: Model, entries: list[Entry]) -> bool:
    found = race(model, entries, _TRIAL_BUDGET)
    return found is not None and found.culprit >= 0


def _states_before(model: Model, entries: list[Entry], culprit: Entry) -> list[str]:
    """Possible states of the object when the culprit is answered; empty if they are not known."""
    if len(entries) > _STATES_OF_MAX:
        return []
    # As it is, without what makes the searches fast: they may miss states that lead nowhere.
    found = race(replace(model, shape=None, leads_to=None), entries, _TRIAL_BUDGET)
    done = [entry for entry in entries if entry.returned is not None]
    if found is None or found.culprit < 0 or done[found.culprit] is not culprit:
        return []
    texts = sorted({text_of(state) for state in found.states})
    return texts if len(texts) <= _STATES_MAX else []


def _values(entry: Entry) -> frozenset[Any]:
    values = entry.value if isinstance(entry.value, tuple) else (entry.value,)
    return frozenset((*values, entry.result)) - {None}


def _optional(entry: Entry) -> Entry:
    return entry._replace(returned=None)


def _ids(entries: Iterable[Entry]) -> frozenset[int]:
    return frozenset(map(id, entries))


def _return_of(entry: Entry) -> int:
    return entry.returned or 0


def _call_of(entry: Entry) -> int:
    return entry.call


def text_of(state: Any) -> str:
    """A state in a sentence; of a long one the end, where it grows."""
    text = "nil" if state is None else repr(state)
    return text if len(text) <= _TEXT_MAX else f"…{text[-_TEXT_MAX:]}"
