"""When the parts of a node want to be called: a part is asked only while something waits in it."""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol


class Timed(Protocol):
    """A part of the node that waits for moments."""

    def next_deadline_ms(self) -> int | None:
        """The next one; None: nothing waits."""


class PartDeadlines:
    """The parts of one node, each with what waits in it."""

    def __init__(self, *parts: tuple[Sized, Timed]) -> None:
        self._parts = parts

    def earliest_ms(self, deadline_ms: int) -> int:
        """Return that moment, or an earlier one that a part waits for."""
        for waiting, part in self._parts:
            if waiting:
                due_ms = part.next_deadline_ms()
                if due_ms is not None and due_ms < deadline_ms:
                    deadline_ms = due_ms
        return deadline_ms
