"""Figures of a history: throughput, latency and silences, for reports and for people.

All times are nanoseconds on the history's clock; results are in seconds and milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jepsen_like.history import Operation
from raftstore.types import Outcome

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
AFTER_FAULT_NS = 5 * SECOND_NS
"""How long after a fault began its silence is looked for."""
WRITES = ("put", "put_if", "put_many", "delete", "write", "cas", "add", "append", "command")


def kind_of(operation: Operation) -> str:
    """``write``, or ``read <level>``: what a user would distinguish."""
    if operation.action in WRITES:
        return "write"
    level = operation.details.get("level")
    return f"read {level}" if level else "read"


@dataclass(frozen=True, slots=True)
class Totals:
    """How many operations of one kind ended how, and how long those that succeeded took."""

    kind: str
    ok: int
    not_applied: int
    unknown: int
    p50_ms: float | None
    p99_ms: float | None
    longest_gap_ms: float
    """Longest silence between two successes."""


@dataclass(frozen=True, slots=True)
class Silence:
    """The longest silence of one kind around one fault."""

    fault: str
    where: str
    started_s: float
    kind: str
    gap_ms: float


def origin(history: Sequence[Operation]) -> int:
    """The first invocation: second 0 of every picture."""
    return min((operation.invoked for operation in history), default=0)


def by_kind(history: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Operations by `kind_of`, kinds in alphabetical order."""
    found: dict[str, list[Operation]] = {}
    for operation in history:
        found.setdefault(kind_of(operation), []).append(operation)
    return dict(sorted(found.items()))


def successes(operations: Iterable[Operation]) -> list[int]:
    """When operations succeeded, in order."""
    return sorted(
        operation.returned
        for operation in operations
        if operation.outcome is Outcome.OK and operation.returned is not None
    )


def totals(history: Sequence[Operation]) -> list[Totals]:
    """One line a kind."""
    return [_totals_of(kind, operations) for kind, operations in by_kind(history).items()]


def _totals_of(kind: str, operations: Sequence[Operation]) -> Totals:
    outcomes = [operation.outcome for operation in operations]
    took = sorted(
        operation.returned - operation.invoked
        for operation in operations
        if operation.outcome is Outcome.OK and operation.returned is not None
    )
    return Totals(
        kind=kind,
        ok=outcomes.count(Outcome.OK),
        not_applied=outcomes.count(Outcome.NOT_APPLIED),
        unknown=outcomes.count(Outcome.UNKNOWN),
        p50_ms=_quantile_ms(took, 0.50),
        p99_ms=_quantile_ms(took, 0.99),
        longest_gap_ms=_longest_gap(successes(operations)) / MILLISECOND_NS,
    )


def _quantile_ms(ordered: Sequence[int], share: float) -> float | None:
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / MILLISECOND_NS


def _longest_gap(moments: Sequence[int]) -> int:
    return max((b - a for a, b in itertools.pairwise(moments)), default=0)


def silences(history: Sequence[Operation], faults: Sequence[Mapping[str, Any]]) -> list[Silence]:
    """For every fault that fired and every kind: the longest silence that touches its beginning.

    A silence counts when it overlaps the five seconds after the fault began.
    """
    start = origin(history)
    moments = {kind: successes(operations) for kind, operations in by_kind(history).items()}
    found = []
    for fault in faults:
        if not fault.get("fired", True):
            continue
        began = int(fault["started"])
        for kind, times in moments.items():
            gap = _longest_overlapping(times, began, began + AFTER_FAULT_NS)
            if gap is not None:
                found.append(
                    Silence(
                        str(fault["kind"]),
                        str(fault.get("where", "")),
                        (began - start) / SECOND_NS,
                        kind,
                        gap / MILLISECOND_NS,
                    )
                )
    return found


def _longest_overlapping(times: Sequence[int], began: int, ended: int) -> int | None:
    gaps = [
        after - before
        for before, after in itertools.pairwise(times)
        if after >= began and before <= ended
    ]
    return max(gaps, default=None)


def per_second(operations: Iterable[Operation], start: int, seconds: int) -> list[int]:
    """How many operations succeeded in each second after ``start``."""
    counts = [0] * max(1, seconds)
    for moment in successes(operations):
        second = (moment - start) // SECOND_NS
        if 0 <= second < len(counts):
            counts[second] += 1
    return counts
