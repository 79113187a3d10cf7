"""A verdict in words: the shortest window of operations that shows what is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation

LINES_MAX = 40
"""Operations shown; a window that needs more is better looked at in the report."""
TEXT_MAX = 60
MILLISECOND_NS = 1_000_000


def explain(verdict: Verdict) -> str:
    """The summary and the evidence as an aligned table; ``>`` marks the culprit."""
    shown = list(verdict.evidence[:LINES_MAX])
    if verdict.culprit is not None and verdict.culprit not in shown:
        shown.append(verdict.culprit)
    if not shown:
        return verdict.summary
    start = min(operation.invoked for operation in shown)
    rows: list[tuple[str, ...]] = [("", "process", "began", "ended", "what", "outcome")]
    rows += [_row(operation, verdict, start) for operation in shown]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    left_out = len(verdict.evidence) - LINES_MAX
    if left_out > 0:
        lines.append(f"… and {left_out} more operations")
    return "\n".join([verdict.summary, *lines])


def describe(operation: Operation) -> str:
    """One operation in a few words: ``write k1 := 7``, ``read k1 -> 7``."""
    key = "" if operation.key is None else f" {_text(operation.key)}"
    argument = "" if operation.value is None else f" := {_text(operation.value)}"
    result = "" if operation.result is None else f" -> {_text(operation.result)}"
    return f"{operation.action}{key}{argument}{result}"


def milliseconds(moment: int | None, start: int) -> str:
    """A moment relative to the window's start."""
    return "never" if moment is None else f"{(moment - start) / MILLISECOND_NS:.3f} ms"


def _row(operation: Operation, verdict: Verdict, start: int) -> tuple[str, ...]:
    return (
        ">" if operation is verdict.culprit or operation == verdict.culprit else "",
        operation.process,
        milliseconds(operation.invoked, start),
        milliseconds(operation.returned, start),
        describe(operation),
        operation.outcome.name,
    )


def _text(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
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
