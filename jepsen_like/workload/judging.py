"""What several workloads need to judge a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from raftstore.types import Level, Outcome

Finding = tuple[str, Operation]
"""What is wrong, and the operation that shows it."""


def succeeded(history: Iterable[Operation], *actions: str) -> list[Operation]:
    """Operations of these actions that were answered OK and, if conditional, took effect."""
    return [
        operation
        for operation in history
        if operation.action in actions
        and operation.outcome is Outcome.OK
        and not operation.details.get("conflict")
    ]


def verdict_of(checker: str, findings: Sequence[Finding], judged: int, what: str) -> Verdict:
    """INVALID with the first finding, UNDECIDED when nothing could be judged, VALID otherwise."""
    figures = {"judged": judged, "findings": len(findings)}
    if findings:
        text, culprit = findings[0]
        return Verdict(checker, Validity.INVALID, text, (culprit,), culprit, figures)
    if not judged:
        summary = f"no {what} was answered, so nothing was shown"
        return Verdict(checker, Validity.UNDECIDED, summary, figures=figures)
    return Verdict(checker, Validity.VALID, f"{judged} {what} are right", figures=figures)


def as_register(history: Iterable[Operation]) -> list[Operation]:
    """Puts, conditional puts and linearizable gets in the words of a register's model.

    A conditional put compares seqs; as every written value is unique, that is the same as
    comparing with the value that was read with the seq.
    """
    told: list[Operation] = []
    for operation in history:
        if operation.action == "put":
            told.append(replace(operation, action="write"))
        elif operation.action == "put_if":
            change = [operation.details.get("from"), operation.value]
            told.append(replace(operation, action="cas", value=change))
        elif operation.action == "get":
            if operation.details.get("level") == Level.LINEARIZABLE.value:
                told.append(replace(operation, action="read"))
    return told
