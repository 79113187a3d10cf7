"""A verdict in words: the shortest window of operations that shows what is wrong."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Any

from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from raftstore.types import Outcome

LINES_MAX = 40
"""Operations shown; of a window that needs more, the last ones."""
TEXT_MAX = 60
MILLISECOND_NS = 1_000_000
_READS = frozenset({"read", "get"})


class Clock(enum.Enum):
    """The unit of the times in a history."""

    NANOSECONDS = "nanoseconds"
    EVENTS = "events"
    """Places in a file that records no times, from 0."""


def explain(verdict: Verdict, clock: Clock = Clock.NANOSECONDS) -> str:
    """The summary and the evidence as an aligned table; ``>`` marks the culprit."""
    shown = evidence_of(verdict)
    if not shown:
        return verdict.summary
    start = min(operation.invoked for operation in shown)
    rows: list[tuple[str, ...]] = [("", "#", "process", "began", "ended", "what", "outcome")]
    rows += [
        _row(number, operation, verdict, start, clock) for number, operation in enumerate(shown, 1)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    left_out = len(verdict.evidence) - LINES_MAX
    if left_out > 0:
        lines.append(f"… and {left_out} operations before these")
    return "\n".join([verdict.summary, *lines])


def evidence_of(verdict: Verdict) -> list[Operation]:
    """The operations shown, in the order of their numbers, the culprit among them."""
    shown = list(verdict.evidence[-LINES_MAX:])
    if verdict.culprit is not None and verdict.culprit not in shown:
        shown.append(verdict.culprit)
    return shown


def describe(operation: Operation) -> str:
    """One operation in a few words: ``write k1 := 7``, ``read k1 -> 7``, ``cas k1 7 => 8``."""
    key = "" if operation.key is None else f" {_text(operation.key)}"
    argument = "" if operation.value is None else f" := {_text(operation.value)}"
    if operation.action == "cas" and isinstance(operation.value, list | tuple):
        argument = f" {' => '.join(_text(value) for value in operation.value)}"
    result = f" -> {_text(operation.result)}"
    if operation.action in _READS:
        argument = ""
        result = result if operation.outcome is Outcome.OK else ""
    elif operation.result is None or operation.result == operation.value:
        result = ""
    return f"{operation.action}{key}{argument}{result}"


def outcome_of(operation: Operation) -> str:
    """How it ended, in words of its client."""
    if operation.outcome is Outcome.OK and operation.details.get("conflict"):
        return "OK: conflict, nothing changed"
    if operation.outcome is Outcome.UNKNOWN:
        return "UNKNOWN: may have happened"
    return operation.outcome.name


def moment(at: int | None, start: int, clock: Clock = Clock.NANOSECONDS) -> str:
    """A moment relative to the window's start, or the number of the event, from 1."""
    if at is None:
        return "never"
    if clock is Clock.EVENTS:
        return f"event {at + 1}"
    return f"{(at - start) / MILLISECOND_NS:.3f} ms"


def _row(
    number: int, operation: Operation, verdict: Verdict, start: int, clock: Clock
) -> tuple[str, ...]:
    return (
        ">" if operation is verdict.culprit or operation == verdict.culprit else "",
        str(number),
        operation.process,
        moment(operation.invoked, start, clock),
        moment(operation.returned, start, clock),
        describe(operation),
        outcome_of(operation),
    )


def _text(value: Any) -> str:
    if value is None:
        return "nil"
    try:
        text = value if isinstance(value, str) and value else json.dumps(value, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def window(history: Sequence[Operation], evidence: Sequence[Operation]) -> list[Operation]:
    """Everything that was under way while the evidence happened, in order of invocation."""
    if not evidence:
        return []
    began = min(operation.invoked for operation in evidence)
    ended = max(operation.returned or operation.invoked for operation in evidence)
    return [
        operation
        for operation in history
        if operation.invoked <= ended
        and (operation.returned is None or operation.returned >= began)
    ]
