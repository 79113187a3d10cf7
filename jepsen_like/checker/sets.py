"""Sets: an element whose add was acknowledged is in every strong read that began later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from raftstore.types import Outcome


def check_set(history: Sequence[Operation]) -> Verdict:
    """Judge ``add`` of unique values and answered strong ``read`` operations listing them.

    The caller leaves out reads of weaker levels. Lost: absent from the last read begun after the
    acknowledgement. Stale: absent from an earlier such read only. Never read: no such read.
    """
    adds = {op.value: op for op in history if op.action == "add"}
    acked = sorted(
        (op.returned, index, op)
        for index, op in enumerate(history)
        if op.action == "add" and op.outcome is Outcome.OK and op.returned is not None
    )
    reads = [op for op in history if op.action == "read" and op.outcome is Outcome.OK]
    reads.sort(key=lambda op: op.invoked)
    known: set[Any] = set()
    missed: dict[Any, Operation] = {}
    repeated: dict[Any, Operation] = {}
    phantom: dict[Any, Operation] = {}
    absent: set[Any] = set()
    for read in reads:
        while len(known) < len(acked) and acked[len(known)][0] < read.invoked:
            known.add(acked[len(known)][2].value)
        found = set(read.result)
        absent = known - found
        for value in absent:
            missed.setdefault(value, read)
        for value in _repeated(read.result):
            repeated.setdefault(value, read)
        for value in found:
            if value not in adds or adds[value].outcome is Outcome.NOT_APPLIED:
                phantom.setdefault(value, read)
    figures = {
        "reads": len(reads),
        "acknowledged": len(acked),
        "lost": len(absent),
        "stale": len(missed) - len(absent),
        "never_read": len(acked) - len(known),
        "duplicated": len(repeated),
        "phantom": len(phantom),
    }
    wrongs = (
        ({v: r for v, r in missed.items() if v in absent}, "lost"),
        (phantom, "read but never applied"),
        (repeated, "read twice in one answer"),
        (missed, "missing from a read begun after its acknowledgement"),
    )
    for wrong, what in wrongs:
        for value, read in wrong.items():
            text = f"element {value!r} is {what} ({len(wrong)} such elements)"
            window = [adds[value], read] if value in adds else [read]
            return Verdict("set", Validity.INVALID, text, window, read, figures)
    if len(known) < len(acked) or not reads:
        text = f"{len(acked) - len(known)} acknowledged elements have no read after them"
        return Verdict("set", Validity.UNDECIDED, text, figures=figures)
    text = f"{len(acked)} acknowledged elements are in all {len(reads)} later reads"
    return Verdict("set", Validity.VALID, text, figures=figures)


def _repeated(values: Sequence[Any]) -> list[Any]:
    """The values listed more than once."""
    return [value for value, count in Counter(values).items() if count > 1]
