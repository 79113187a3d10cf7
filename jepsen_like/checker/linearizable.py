"""Linearizability: every key on its own; zones where they apply, else WGL raced against JIT."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from jepsen_like.checker import jit, wgl, zones
from jepsen_like.checker.models import Entry, Model, entries_of
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation

NAME = "linearizable"
DEFAULT_BUDGET = 5_000_000
"""Steps of both searches together, for one key."""
_TURN = 256
"""Steps of one search before the other has its turn."""
_SHRINK_BUDGET = 2_000
"""Steps to find out whether one operation can be left out of the evidence."""
_SHRINK_LIMIT = 400
"""Windows of more operations are shown as they are."""


def check_linearizable(
    model: Model, operations: Iterable[Operation], budget: int = DEFAULT_BUDGET
) -> Verdict:
    """Judge a history; the evidence is of the first key that is not linearizable."""
    entries = entries_of(model, list(operations))
    keys = partition(entries)
    undecided = 0
    for part in keys:
        answer = _check_part(model, part, budget)
        if answer is None:
            undecided += 1
        elif not answer:
            return _invalid(model, part, budget)
    figures = {"operations": len(entries), "keys": len(keys)}
    if undecided:
        summary = f"{undecided} of {len(keys)} keys undecided after {budget} steps each"
        return Verdict(NAME, Validity.UNDECIDED, summary, figures=figures)
    summary = f"{len(entries)} operations on {len(keys)} keys are linearizable"
    return Verdict(NAME, Validity.VALID, summary, figures=figures)


def partition(entries: list[Entry]) -> list[list[Entry]]:
    """One history per key: the whole is linearizable exactly if each of them is."""
    parts: dict[str, list[Entry]] = {}
    for entry in entries:
        key = entry.operation.key
        name = key if isinstance(key, str) else json.dumps(key, default=repr)
        parts.setdefault(f"{type(key).__name__} {name}", []).append(entry)
    return list(parts.values())


def race(model: Model, entries: list[Entry], budget: int = DEFAULT_BUDGET) -> bool | None:
    """Give WGL and JIT turns of equal length; None when the budget ends first."""
    searches = [wgl.search(model, entries), jit.search(model, entries)]
    for _ in range(0, budget, 2 * _TURN):
        for search in searches:
            for _, answer in zip(range(_TURN), search, strict=False):
                if answer is not None:
                    return answer is True
    return None


def _check_part(model: Model, part: list[Entry], budget: int) -> bool | None:
    if zones.applies(model, part):
        return not zones.culprit_of(model, part)
    return race(model, part, budget)


def _invalid(model: Model, part: list[Entry], budget: int) -> Verdict:
    culprit, window = _first_failure(model, part, budget)
    must = _shrunk(model, window)
    summary = (
        f"{culprit.operation.action} of process {culprit.operation.process} on key "
        f"{culprit.operation.key!r} has no place in any order of the operations"
    )
    evidence = [entry.operation for entry in must]
    figures = {"operations": len(part), "window": len(evidence)}
    return Verdict(NAME, Validity.INVALID, summary, evidence, culprit.operation, figures)


def _first_failure(model: Model, part: list[Entry], budget: int) -> tuple[Entry, list[Entry]]:
    """The first return that cannot be explained, and what had been invoked until then."""
    for _, answer in zip(range(budget), jit.search(model, part), strict=False):
        if isinstance(answer, Entry):
            limit = answer.returned or 0
            return answer, [
                entry
                if entry.returned is not None and entry.returned <= limit
                else replace(entry, returned=None, known=False)
                for entry in part
                if entry.call <= limit
            ]
    return part[-1], part


def _shrunk(model: Model, window: list[Entry]) -> list[Entry]:
    """The operations without which an order exists.

    An operation is left out by letting it happen at any time or never, not by forgetting it: a
    forgotten write would make a sound read look wrong.
    """
    must = [entry for entry in window if entry.returned is not None]
    if len(window) > _SHRINK_LIMIT:
        return must
    rest = window
    for entry in must:
        trial = [_optional(other) if other is entry else other for other in rest]
        kept = [other for other in trial if other.returned is not None or not _reads(model, other)]
        if race(model, kept, _SHRINK_BUDGET) is False:
            rest = kept
    return [entry for entry in rest if entry.returned is not None]


def _optional(entry: Entry) -> Entry:
    return replace(entry, returned=None, known=False)


def _reads(model: Model, entry: Entry) -> bool:
    return entry.action in model.reads or entry.conflict
