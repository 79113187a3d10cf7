"""Why a history is not linearizable: the first operation without a place, and those it needs.

Every effort here is bounded: a history of any length is explained, if need be by more operations
than the fewest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from jepsen_like.checker.models import Entry, Model
from jepsen_like.checker.problem import Found, Problem
from jepsen_like.checker.race import race

_TRUNCATED_BUDGET: Final = 100_000
"""Steps to find out whether the history up to a moment is linearizable."""
_TRIAL_BUDGET: Final = 4_000
"""Steps to find out whether some operations can be left out."""
_EFFORT: Final = 60_000
"""Steps, and operations looked at, for all trials together."""
_SIZES: Final = (12, 48, 200)
"""How many of the last operations are tried as evidence."""
_RELATED_MAX: Final = 8
_FALLBACK: Final = 40
_STATES_MAX: Final = 4
_TEXT_MAX: Final = 60


class Finding(NamedTuple):
    """What is wrong with the history of one key."""

    culprit: Entry
    """The first operation, in order of returns, that has no place."""
    evidence: list[Entry]
    """In order of invocation; without any of them there would be an order, if it is small."""
    reason: str
    """A clause that goes on after the name of the culprit."""


def finding_of(model: Model, part: Sequence[Entry], found: Found) -> Finding:
    """Explain what a search found; ``part`` is not linearizable."""
    culprit = _first_failure(model, part, found)
    window = _until(model, part, culprit)
    must = _shrunk(model, window, culprit)
    states = _states_before(model, must, culprit)
    reason = "has no place in any order of the operations"
    if states:
        reason = f"{reason}: those shown leave {' or '.join(states)}"
    return Finding(culprit, must, reason)


def _first_failure(model: Model, part: Sequence[Entry], found: Found) -> Entry:
    """The first return that cannot be explained."""
    returns = sorted((e for e in part if e.returned is not None), key=_return_of)
    culprit = [e for e in part if e.returned is not None][found.culprit]
    if model.leads_to is None and model.shape is None:
        return culprit
    # A search that looks ahead gives up before the operation that is in the way: bisect.
    low, high = returns.index(culprit), len(returns) - 1
    while low < high:
        middle = (low + high) // 2
        answer = race(model, _until(model, part, returns[middle]), _TRUNCATED_BUDGET)
        if answer is not None and answer.culprit >= 0:
            high = middle
        else:
            low = middle + 1
    return returns[high]


def _until(model: Model, part: Iterable[Entry], culprit: Entry) -> list[Entry]:
    """What had been invoked when it returned; of what returned later, only the effect may count."""
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
    related = [entry for entry in must[-10_000:] if _is_related(entry, culprit)][-_RELATED_MAX:]
    for size in _SIZES:
        kept = _ids([*must[-size:], *related, culprit])
        needed = _relaxed(model, window, kept)
        if _is_invalid(model, needed):
            return _fewest(model, needed, culprit)
        if size >= len(must):
            break
    shown = _ids([*must[-_FALLBACK:], *related, culprit])
    return [entry for entry in window if id(entry) in shown]


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


def _states_before(model: Model, must: list[Entry], culprit: Entry) -> list[str]:
    """What the object can be when the culprit is answered, by the evidence alone."""
    if len(must) > _FALLBACK:
        return []
    found = race(replace(model, shape=None, leads_to=None), must, _TRIAL_BUDGET)
    if found is None or found.culprit < 0 or must[found.culprit] is not culprit:
        return []
    texts = sorted({_text(state) for state in found.states})
    return texts if len(texts) <= _STATES_MAX else []


def _is_related(entry: Entry, culprit: Entry) -> bool:
    """It has a value in common with the culprit."""
    return bool(_values(entry) & _values(culprit))


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


def _text(state: Any) -> str:
    text = repr(state)
    return text if len(text) <= _TEXT_MAX else f"…{text[-_TEXT_MAX:]}"
