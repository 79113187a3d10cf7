"""Answers to writes that a leader refuses while it hands over: they wait for its successor's name.

Answered at once, a publisher learned only that it had to look for the next leader, and asked all
nodes again and again until one knew it: that was most of the time in which a planned switch took no
write. What is held is the answer. That the write gets no seq here was decided before (S5.6).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from raftstore.errors import Refusal
from raftstore.types import Guid

HELD_MAX: Final = 1_024
"""Answers of a channel that wait at a time; further ones leave at once."""
HELD_MS: Final = 100
"""A successor that is not known within this time is not waited for: a switch takes some 20 ms, and
publishers ask around by themselves after ``ClientSettings.suspect_ms``."""


class RefusedAttempt(NamedTuple):
    """The attempt at a write that an answer names."""

    guid: Guid
    attempt: int


class HeldRefusal(NamedTuple):
    """An answer that waits."""

    due_ms: int
    client: int
    asked: RefusedAttempt
    refusal: Refusal


class RefusedWrites:
    """Answers of one channel that wait."""

    def __init__(self) -> None:
        self._held: deque[HeldRefusal] = deque()  # the first due first
        self._expected_until_ms = 0

    @property
    def due_ms(self) -> int | None:
        """When the first one must leave; None while none waits."""
        return self._held[0].due_ms if self._held else None

    def expect(self, now_ms: int) -> None:
        """A successor was asked to take over, and may be known in a moment."""
        self._expected_until_ms = now_ms + HELD_MS

    def is_expected(self, now_ms: int) -> bool:
        """Whether a successor was asked a moment ago, and is not known yet."""
        return now_ms < self._expected_until_ms

    def hold(self, client: int, asked: RefusedAttempt, refusal: Refusal, now_ms: int) -> bool:
        """Keep an answer until the successor is known; False: too many wait already."""
        if len(self._held) >= HELD_MAX:
            return False
        self._held.append(HeldRefusal(now_ms + HELD_MS, client, asked, refusal))
        return True

    def take_all(self) -> tuple[HeldRefusal, ...]:
        """Return and forget all held answers: there is a leader, or this one stays."""
        self._expected_until_ms = 0
        held = tuple(self._held)
        self._held.clear()
        return held

    def take_overdue(self, now_ms: int) -> list[HeldRefusal]:
        """Return and forget the answers that have waited long enough."""
        found: list[HeldRefusal] = []
        while self._held and self._held[0].due_ms <= now_ms:
            found.append(self._held.popleft())
        return found
