"""Requests that wait for a position of a channel: found by the position, not by asking all.

A position is any number that only grows: a seq that is applied, or a commit. What waits for one far
away costs nothing when a nearer one is reached, however many there are.
"""

from __future__ import annotations

import heapq

from raftstore.types import ChannelId


class PositionWaits:
    """Tokens that wait for a position, by channel."""

    def __init__(self) -> None:
        self._heaps: dict[ChannelId, list[tuple[int, int]]] = {}
        self._waiting: dict[int, tuple[ChannelId, int]] = {}
        self._counts: dict[ChannelId, int] = {}

    def __len__(self) -> int:
        """Tokens that wait."""
        return len(self._waiting)

    def __contains__(self, channel: ChannelId) -> bool:
        """Whether anything of the channel waits."""
        return channel in self._heaps

    def add(self, channel: ChannelId, position: int, token: int) -> None:
        """The token waits until the channel has reached the position, or until ``drop``."""
        self.drop(token)
        self._waiting[token] = (channel, position)
        self._counts[channel] = self._counts.get(channel, 0) + 1
        heapq.heappush(self._heaps.setdefault(channel, []), (position, token))

    def drop(self, token: int) -> None:
        """Forget a wait."""
        found = self._waiting.pop(token, None)
        if found is None:
            return
        channel = found[0]
        self._counts[channel] -= 1
        if not self._counts[channel]:
            del self._counts[channel], self._heaps[channel]
            return
        heap = self._heaps[channel]
        # Entries of what was dropped are passed over later; they must not outnumber the others.
        if len(heap) > 64 + 2 * self._counts[channel]:
            heap[:] = [entry for entry in heap if self._is_live(channel, entry)]
            heapq.heapify(heap)

    def take_reached(self, channel: ChannelId, position: int) -> list[int]:
        """Take out who waited for this position of the channel, or for one before it."""
        heap = self._heaps.get(channel)
        reached: list[int] = []
        while heap and heap[0][0] <= position:
            entry = heapq.heappop(heap)
            if self._is_live(channel, entry):
                reached.append(entry[1])
                self.drop(entry[1])
        return reached

    def _is_live(self, channel: ChannelId, entry: tuple[int, int]) -> bool:
        position, token = entry
        return self._waiting.get(token) == (channel, position)
