"""Linearizability: every key on its own; zones where they apply, else WGL raced against JIT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from jepsen_like.checker import zones
from jepsen_like.checker.evidence import Finding, answer_of, finding_of
from jepsen_like.checker.models import Entry, Model, entries_of, frozen
from jepsen_like.checker.problem import Found
from jepsen_like.checker.race import DEFAULT_BUDGET, race
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation

NAME = "linearizable"
_FIRST_BUDGET: Final = 16_384
"""Steps for each key in the first round: nearly every key is decided within them."""
_BUDGET_GROWTH: Final = 4
"""How many times more steps the keys that are left get in the next round.

They are searched anew, so only one search is in memory; all rounds before the last cost a third of
it together.
"""


class Judgement(NamedTuple):
    """The result of a search, before it is explained."""

    operations: int
    keys: int
    undecided: int
    """Keys for which the budget was used up."""
    failed: list[Entry]
    """The history of the key found first not to be linearizable; empty if there is none."""
    how: zones.Clash | Found | None
    observed: int
    """Answers that say something about the state."""


def judge(model: Model, operations: Iterable[Operation], budget: int = DEFAULT_BUDGET) -> Judgement:
    """Whether each key is linearizable, and nothing more; HistoryError: other operations."""
    entries = entries_of(model, operations)
    parts = partition(entries)
    observed = sum(e.returned is not None and e.action not in model.blind for e in entries)
    failed, how, undecided = _first_failure(model, parts, budget)
    return Judgement(len(entries), len(parts), undecided, failed, how, observed)


def _first_failure(
    model: Model, parts: list[list[Entry]], budget: int
) -> tuple[list[Entry], zones.Clash | Found | None, int]:
    """A key that is not linearizable, and how; else the number of keys that stay undecided.

    All keys get few steps before any key gets many: one that fails at once decides the whole
    history, and a search of another key that takes minutes never has to end.
    """
    searched = []
    for part in parts:
        if not zones.applies(model, part):
            searched.append(part)
            continue
        clash = zones.clash_of(model, part)
        if clash is not None:
            return part, clash, 0
    steps = min(_FIRST_BUDGET, budget)
    while True:
        undecided = []
        for part in searched:
            found = race(model, part, steps)
            if found is None:
                undecided.append(part)
            elif found.culprit >= 0:
                return part, found, 0
        if not undecided or steps == budget:
            return [], None, len(undecided)
        searched, steps = undecided, min(steps * _BUDGET_GROWTH, budget)


def check_linearizable(
    model: Model, operations: Iterable[Operation], budget: int = DEFAULT_BUDGET
) -> Verdict:
    """Judge a history; the evidence is of the key found first not to be linearizable."""
    judged = judge(model, operations, budget)
    figures: dict[str, Any] = {
        "operations": judged.operations,
        "keys": judged.keys,
        "observed": judged.observed,
    }
    if judged.how is not None:
        return _invalid(model, judged, figures)
    if judged.undecided:
        summary = (
            f"{judged.undecided} of {judged.keys} keys undecided after {budget} steps each; "
            "allow a larger budget"
        )
        return Verdict(NAME, Validity.UNDECIDED, summary, figures=figures)
    if not judged.observed:
        summary = f"{judged.operations} operations, and no answer says anything about the state"
        return Verdict(NAME, Validity.UNDECIDED, summary, figures=figures)
    summary = f"{judged.operations} operations on {judged.keys} keys are linearizable"
    return Verdict(NAME, Validity.VALID, summary, figures=figures)


def partition(entries: Iterable[Entry]) -> list[list[Entry]]:
    """One history per key: the whole is linearizable exactly if each of them is."""
    parts: dict[Any, list[Entry]] = {}
    for entry in entries:
        key = entry.operation.key
        # 1 and "1" are two keys anyhow; true and 1 would be one.
        name = key if type(key) in (str, int) else (type(key).__name__, frozen(key))
        part = parts.get(name)
        if part is None:
            parts[name] = [entry]
        else:
            part.append(entry)
    return list(parts.values())


def _invalid(model: Model, judged: Judgement, figures: dict[str, Any]) -> Verdict:
    if isinstance(judged.how, zones.Clash):
        clash = judged.how
        culprit_entry = zones.culprit_of(clash)
        reason = f"{answer_of(model, culprit_entry)}, {clash.reason}"
        finding = Finding(culprit_entry, clash.entries, reason)
    else:
        assert judged.how is not None
        finding = finding_of(model, judged.failed, judged.how)
    culprit = finding.culprit.operation
    key = "" if culprit.key is None else f" on key {culprit.key!r}"
    summary = f"{culprit.action} of process {culprit.process}{key} {finding.reason}"
    evidence = [entry.operation for entry in finding.evidence]
    figures["operations of the key"] = len(judged.failed)
    figures["window"] = len(evidence)
    return Verdict(NAME, Validity.INVALID, summary, evidence, culprit, figures)
