"""Virtual time: one heap of things to do, and clocks that may drift from it."""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., None]
WALL_START_MS = 1_700_000_000_000
"""Wall clocks show this when a world begins."""


class Scheduler:
    """Runs actions in order of (virtual time, insertion); nothing else decides the order."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._counter = 0

    def at(self, when_ms: float, action: Action, *args: object) -> None:
        """Run ``action(*args)`` at that virtual time (now, if it has passed)."""
        self._counter += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._counter, action, args))

    def after(self, delay_ms: float, action: Action, *args: object) -> None:
        """Run ``action(*args)`` after a delay."""
        self._counter += 1
        when_ms = self.now_ms + delay_ms if delay_ms > 0 else self.now_ms
        heapq.heappush(self._heap, (when_ms, self._counter, action, args))

    def run_until(
        self,
        end_ms: float,
        stop: Callable[[], bool] | None = None,
        *,
        not_before_ms: float = 0.0,
    ) -> None:
        """Run everything up to ``end_ms``, or until ``stop()``, asked before each step from
        ``not_before_ms`` on, says so."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= end_ms:
            if stop is not None and self.now_ms >= not_before_ms and stop():
                return
            self.now_ms, _, action, args = pop(heap)
            self.steps += 1
            action(*args)
        self.now_ms = max(self.now_ms, end_ms)


class DriftingClock:
    """A node's monotonic clock: starts somewhere and runs at its own rate."""

    def __init__(self, scheduler: Scheduler, *, start_ms: float, rate: float) -> None:
        self._scheduler = scheduler
        self._start_ms = start_ms
        self.rate = rate
        self._zero = scheduler.now_ms
        self._before: DriftingClock | None = None
        """The same clock until its last shift."""

    def now_ms(self) -> int:
        """Local time in whole milliseconds."""
        return int(self._start_ms + (self._scheduler.now_ms - self._zero) * self.rate)

    def shift(self, *, jump_ms: float, rate: float) -> None:
        """Jump ahead, as after a suspended machine (it never goes back), and run at this rate."""
        self._before = copy.copy(self)
        here = self._start_ms + (self._scheduler.now_ms - self._zero) * self.rate
        self._start_ms = here + max(0.0, jump_ms)
        self._zero = self._scheduler.now_ms
        self.rate = rate

    def virtual_ms(self, local_ms: float) -> float:
        """The virtual time at which the local clock shows ``local_ms``."""
        return self._zero + (local_ms - self._start_ms) / self.rate

    def showed_ms(self, local_ms: float) -> float:
        """The last virtual time, up to now, at which the local clock showed at most ``local_ms``.

        Unlike ``virtual_ms`` it follows the clock through its shifts, for what a node says of the
        past: its clock may have run at another rate then. A jump passed over what it skipped.
        """
        clock, end_ms = self, self._scheduler.now_ms
        while local_ms < clock._start_ms and clock._before is not None:
            clock, end_ms = clock._before, clock._zero
        return min(end_ms, clock.virtual_ms(local_ms))
