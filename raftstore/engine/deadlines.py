"""Moments at which something is due: one class for all that a node waits for.

When a node wants to be called next is asked after everything that happens to it, and most of that
moves no deadline. So the earliest moment is kept as an attribute: to know it costs no call.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=int | bytes)

NEVER_MS: Final = 2**63
"""Nothing waits."""
IDLE_ENTRIES_MAX: Final = 64
"""Moments that were replaced or cancelled and may be kept besides twice those that count."""


class Deadlines(Generic[KeyT]):
    """At most one moment per key; a newer one replaces it."""

    __slots__ = ("_due", "_heap", "_replaced", "next_ms")

    def __init__(self) -> None:
        self._due: dict[KeyT, int] = {}
        self._heap: list[tuple[int, KeyT]] = []
        self._replaced = 0
        """Entries of the heap that were replaced or cancelled."""
        self.next_ms = NEVER_MS
        """The earliest moment; NEVER_MS while nothing waits."""

    def __len__(self) -> int:
        """Keys that wait."""
        return len(self._due)

    def __contains__(self, key: KeyT) -> bool:
        """Whether the key waits."""
        return key in self._due

    def push(self, key: KeyT, due_ms: int) -> None:
        """The key is due then, and at no other moment."""
        before_ms = self._due.get(key)
        if before_ms == due_ms:
            return
        self._due[key] = due_ms
        heapq.heappush(self._heap, (due_ms, key))
        if before_ms is None:
            self.next_ms = min(self.next_ms, due_ms)
        else:
            self._replaced += 1
            self._settle()

    def cancel(self, key: KeyT) -> None:
        """Remove a deadline; nothing happens if there is none."""
        if self._due.pop(key, None) is not None:
            self._replaced += 1
            self._settle()

    def due(self, now_ms: int, at_most: int | None = None) -> Iterator[KeyT]:
        """Take out the keys that are due, the earliest first, ``at_most`` so many of them."""
        taken = 0
        while self.next_ms <= now_ms and (at_most is None or taken < at_most):
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._settle()
            taken += 1
            yield key

    def _settle(self) -> None:
        """Drop what was replaced or cancelled from the front, and what there is too much of."""
        heap, due = self._heap, self._due
        if self._replaced > IDLE_ENTRIES_MAX and len(heap) > IDLE_ENTRIES_MAX + 2 * len(due):
            heap[:] = [(due_ms, key) for key, due_ms in due.items()]
            heapq.heapify(heap)
            self._replaced = 0
        while heap and due.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
            self._replaced -= 1
        self.next_ms = heap[0][0] if heap else NEVER_MS
