"""Counts of the answers that the clients of a simulated world got."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Outcomes:
    """Counts of finished operations."""

    ok: int = 0
    not_applied: int = 0
    unknown: int = 0
    conflicts: int = 0
    reads_ok: int = 0
    reads_refused: int = 0
    started: int = 0

    @property
    def finished(self) -> int:
        """Operations with an outcome."""
        return self.ok + self.not_applied + self.unknown + self.reads_ok + self.reads_refused
