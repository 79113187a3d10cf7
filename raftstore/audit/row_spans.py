"""Knowledge of one row: from which position to which it was which version."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from raftstore.audit.observation import Observation

SPANS_MAX: Final = 16
"""Versions of one row that are remembered, the newest."""
OPERATIONS_MAX: Final = 16
"""Newest operations on one key that are remembered as evidence."""


@dataclass(slots=True)
class Span:
    """The row was this version at every position from ``first`` to ``last``."""

    first: int
    last: int
    version: int
    """0: there was no row, and nothing is known of the positions before."""
    row: bytes
    proof: Observation

    def contradicts(self, other: Span) -> bool:
        """Return whether both cannot be: two versions, or two rows of one version, at one
        position."""
        if self.version == other.version:
            return self.row != other.row
        return self.first <= other.last and other.first <= self.last


def span_of(seen: Observation) -> Span:
    """Return what an operation says: a row has been there since the record that wrote it."""
    return Span(seen.version or seen.seq, seen.seq, seen.version, seen.row, seen)


class RowSpans:
    """One row; see the module."""

    def __init__(self) -> None:
        self.operations: deque[Observation] = deque(maxlen=OPERATIONS_MAX)
        self._spans: list[Span] = []

    def learn(self, seen: Observation) -> Observation | None:
        """Note an operation; return the one that it contradicts. Which of the two is wrong nobody
        knows, so what was known before is forgotten, or each later answer would be reported."""
        self.operations.append(seen)
        new = span_of(seen)
        for known in self._spans:
            if known.contradicts(new):
                self._spans = [new]
                return known.proof
        for known in self._spans:
            if known.version == new.version and (new.version or known.first == new.first):
                if new.last > known.last:
                    known.last, known.proof = new.last, seen
                return None
        self._spans.append(new)
        if len(self._spans) > SPANS_MAX:
            self._spans.remove(min(self._spans, key=lambda span: span.last))
        return None
