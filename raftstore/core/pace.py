"""How fast a follower comes nearer to its leader's end, and whether it ever gets there (NATS-149).

The distance is measured in windows of some seconds. If it grew in each of several windows in a row
the replica stores less than is written: it cannot catch up (NATS-150). A window in which far more
was written than in the last minute is a burst and says nothing (NATS-152).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

BURST_FACTOR: Final = 2
"""A window with so many times the rows of the windows of the last minute is a burst."""
MINUTE_MS: Final = 60_000
RATE_MS: Final = 10_000
"""The present rate is that of so long."""
POINT_MS: Final = 500
"""Pause between two points that a rate is taken from."""


class _Point(NamedTuple):
    """The position at one moment."""

    at_ms: int
    verified: int
    end: int
    bytes: int


class Rates(NamedTuple):
    """Rates of the last seconds."""

    rows: int
    """Rows a second that the log came forward."""
    bytes: int
    """Bytes of history a second."""
    written: int
    """Rows a second that the leader wrote."""


class Pace:
    """The pace of one catching-up, under one leader."""

    def __init__(self, now_ms: int, *, window_ms: int, windows: int) -> None:
        assert window_ms >= 1, f"windows of {window_ms} ms"
        assert windows >= 1, f"{windows} windows"
        self._window_ms = window_ms
        self._windows = windows
        self._window_began_ms = now_ms
        self._window_end = 0
        """The leader's end when the window began."""
        self._window_verified = 0
        self._delta: int | None = None
        """The distance when the window began."""
        self._grown: deque[int] = deque(maxlen=windows)
        """Distances at the ends of the last windows in which it grew, without a break."""
        self._written: deque[int] = deque(maxlen=max(1, MINUTE_MS // window_ms))
        """Rows that the leader wrote in the last windows."""
        self._points: deque[_Point] = deque(maxlen=RATE_MS // POINT_MS + 1)

    def note(self, now_ms: int, *, verified: int, end: int, taken_bytes: int) -> bool:
        """The log is verified up to ``verified``, the leader's ends at ``end``, and so many bytes
        of history were taken; return whether a window ended."""
        if not self._points or now_ms - self._points[-1].at_ms >= POINT_MS:
            self._points.append(_Point(now_ms, verified, end, taken_bytes))
        if end == 0:
            return False
        if self._delta is None:
            self._begin(now_ms, verified, end)
            return False
        if now_ms - self._window_began_ms < self._window_ms:
            return False
        delta, written = max(0, end - verified), end - self._window_end
        mean = sum(self._written) // len(self._written) if self._written else written
        self._written.append(written)
        # Of a replica that waits for its turn, or for a leader, the distance says nothing.
        if delta <= self._delta or verified <= self._window_verified:
            self._grown.clear()
        elif written <= BURST_FACTOR * mean:
            self._grown.append(delta)
        self._begin(now_ms, verified, end)
        return True

    def _begin(self, now_ms: int, verified: int, end: int) -> None:
        self._window_began_ms, self._window_verified, self._window_end = now_ms, verified, end
        self._delta = max(0, end - verified)

    @property
    def falls_behind(self) -> tuple[int, ...]:
        """The distances of the last windows if it grew in each of them; else nothing."""
        return tuple(self._grown) if len(self._grown) == self._windows else ()

    def rates(self, now_ms: int, *, verified: int, end: int, taken_bytes: int) -> Rates:
        """How fast it went in the last seconds, up to these positions."""
        recent = next((point for point in self._points if now_ms - point.at_ms <= RATE_MS), None)
        if recent is None or now_ms <= recent.at_ms:
            return Rates(0, 0, 0)
        took_ms = now_ms - recent.at_ms
        return Rates(
            1000 * max(0, verified - recent.verified) // took_ms,
            1000 * (taken_bytes - recent.bytes) // took_ms,
            1000 * max(0, end - recent.end) // took_ms if recent.end else 0,
        )
