"""Rests of threads of background work between two steps, so that requests are not slowed.

A step (a chunk of a copied table, some of what is read to find damage) takes the processor, the
interpreter's lock and the disk that requests need, too. Whether they miss them, the main loop says:
how late it takes in what a step brought it. Where that is at once, as on a machine with processors
to spare, nothing rests. The later it is, the longer, but never longer than a few times the work
before, so that a copy always goes on. A main loop that is late although nobody asks this node for
anything is late by the copy's own chunks, as that of a node that gets its tables anew: nothing
rests for that. Work is processor time: a step that waits for a processor or
for the disk takes nothing from anybody meanwhile, and on a busy machine that is most of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from typing import Final

LATE_S: Final = 0.002
"""A main loop that is no later than this misses nothing: its own turns take as long."""
REMEMBERED: Final = 0.8
"""Of how late it was, at the next look: a single turn that came at once says little."""
REST_S_MAX: Final = 0.1
"""Behind a step that takes long as a whole, such as opening a copied table: what it kept others
from is done by then."""
ASKED_S: Final = 0.1
"""So long after a request others are expected: between two steps there may be none by chance."""


class _Thread(local):
    """A thread, as far as its rests concern it."""

    rested_at_s = 0.0
    """What it had worked when it rested last."""


class GivingWay:
    """The rests of some threads; ``rested_s`` is read by any."""

    def __init__(
        self,
        rest_times_max: int,
        clock_s: Callable[[], float],
        worked_s: Callable[[], float],
        wait: Callable[[float], object],
        requests: Callable[[], int] | None = None,
    ) -> None:
        """A rest is at most ``rest_times_max`` times as long as the work before it, 0: there is
        none. ``worked_s`` says in a thread how much processor time it took so far; ``wait`` waits
        so many seconds, or ends sooner. ``requests``: how many there were so far, loop thread;
        without it there always are some."""
        self._rest_times_max = rest_times_max
        self.now_s = clock_s
        self._worked_s = worked_s
        self._wait = wait
        self._requests = requests
        self._seen = 0
        self._asked_until_s = 0.0
        self._late_s = 0.0
        self._thread = _Thread()
        self.rested_s = 0.0
        """Seconds that the threads gave way in all, as far as two did not rest at once."""

    def took_in(self, since_s: float) -> None:
        """The main loop takes in what waits since then; loop thread."""
        now_s = self.now_s()
        late_s = now_s - since_s if self._is_asked(now_s) else 0.0
        self._late_s = max(late_s, REMEMBERED * self._late_s)

    def _is_asked(self, now_s: float) -> bool:
        if self._requests is None:
            return True
        seen, self._seen = self._seen, self._requests()
        if self._seen != seen:
            self._asked_until_s = now_s + ASKED_S
        return now_s < self._asked_until_s

    def rest_s(self) -> float:
        """How long the thread rests before it goes on; the thread itself."""
        if self._late_s <= LATE_S:
            return 0.0
        times = min(self._late_s / LATE_S, self._rest_times_max)
        return min(times * (self._worked_s() - self._thread.rested_at_s), REST_S_MAX)

    def rest(self) -> None:
        """Rest before more work; the thread itself."""
        seconds = self.rest_s()
        self._thread.rested_at_s = self._worked_s()
        if seconds > 0:
            began_s = self.now_s()
            self._wait(seconds)
            self.rested_s += self.now_s() - began_s
