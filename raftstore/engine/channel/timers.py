"""The next deadline of every channel of a node, and those that are due, a slice at a time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from raftstore.types import ChannelId

SLICE: Final = 64
"""Channels whose timers run in one turn. With a thousand channels due at once, as after the end of
a node or the creation of a large table, messages get their turns in between."""


class ChannelTimers:
    """At most one deadline per channel; a newer one replaces it."""

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, ChannelId]] = []
        self._due: dict[ChannelId, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def arm(self, channel: ChannelId, due_ms: int | None) -> None:
        """The channel's next deadline is this one; None: it has none."""
        if due_ms is None:
            self._due.pop(channel, None)
        elif self._due.get(channel) != due_ms:
            self._due[channel] = due_ms
            heapq.heappush(self._heap, (due_ms, channel))

    def take_due(self, now_ms: int) -> Iterator[ChannelId]:
        """Disarm and name the channels that are due, the earliest first, at most one slice."""
        heap, taken = self._heap, 0
        while heap and heap[0][0] <= now_ms and taken < SLICE:
            due_ms, channel = heapq.heappop(heap)
            if self._due.get(channel) == due_ms:
                del self._due[channel]
                taken += 1
                yield channel

    def next_ms(self) -> int | None:
        """The earliest deadline, or one that was replaced since: looking too early does no harm."""
        return self._heap[0][0] if self._heap else None

    def tidy(self) -> None:
        """Replaced deadlines must not grow without bound."""
        if len(self._heap) > 64 + 4 * len(self._due):
            self._heap = [(due_ms, channel) for channel, due_ms in self._due.items()]
            heapq.heapify(self._heap)
