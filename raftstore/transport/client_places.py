"""The places of a node's clients: how many there are, and who makes room for a new one.

The client that has been silent longest and waits for nothing gives its place to a new one when all
are taken: connections that are only held open keep nobody out. Operators have places of their own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from raftstore.transport.connection import FramedProtocol

LOOKED_AT_MAX: Final = 64
"""Connections looked at for one that is idle: bounded work for each that comes."""


class Places:
    """One kind of places, by the handles of the connections that have them."""

    def __init__(
        self,
        places_max: int,
        is_idle: Callable[[int, FramedProtocol], bool],
        now_s: Callable[[], float],
    ) -> None:
        self.places_max = places_max
        self._is_idle = is_idle
        self._now_s = now_s
        self._taken: dict[int, FramedProtocol] = {}
        self._silent: list[tuple[float, int]] = []
        """A heap of (when it was not idle for certain, handle); corrected when it is looked at."""

    def __len__(self) -> int:
        """Places that are taken."""
        return len(self._taken)

    @property
    def are_full(self) -> bool:
        """Whether all places are taken: a client must go before another gets in."""
        return len(self._taken) >= self.places_max

    def take(self, handle: int, connection: FramedProtocol) -> None:
        """Give a client a place from now on."""
        self._taken[handle] = connection
        heapq.heappush(self._silent, (connection.heard_s, handle))

    def give(self, handle: int) -> None:
        """Take the place of a client back that is gone."""
        self._taken.pop(handle, None)
        if len(self._silent) > LOOKED_AT_MAX + 2 * len(self._taken):
            self._silent = [each for each in self._silent if each[1] in self._taken]
            heapq.heapify(self._silent)

    def longest_idle(self) -> int | None:
        """The one that makes room; None: all that were looked at are at work."""
        now_s = self._now_s()
        for _ in range(LOOKED_AT_MAX):
            if not self._silent:
                break
            busy_s, handle = heapq.heappop(self._silent)
            connection = self._taken.get(handle)
            if connection is None:
                continue
            if connection.heard_s > busy_s:
                heapq.heappush(self._silent, (connection.heard_s, handle))
            elif self._is_idle(handle, connection):
                heapq.heappush(self._silent, (busy_s, handle))
                return handle
            elif busy_s < now_s:
                # Those at work must not hide the idle ones behind them.
                heapq.heappush(self._silent, (now_s, handle))
            else:
                heapq.heappush(self._silent, (busy_s, handle))
                break  # all are at work
        return None

    def idle_since(self, before_s: float) -> list[int]:
        """Clients that said nothing since then, and wait for nothing."""
        return [
            handle
            for handle, connection in self._taken.items()
            if connection.heard_s <= before_s and self._is_idle(handle, connection)
        ]
