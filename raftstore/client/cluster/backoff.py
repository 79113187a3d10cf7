"""Growing pauses with jitter; randomness is given."""

from __future__ import annotations

from collections.abc import Callable

Jitter = Callable[[], float]
"""Return a number in [0, 1), as ``random.Random().random`` does."""


class Backoff:
    """Pauses between attempts, in ms: doubled up to a maximum, each between half and all of it.

    The jitter keeps clients that lost the same leader from coming back in one wave.
    """

    __slots__ = ("_min_ms", "_max_ms", "_jitter", "_attempts")

    def __init__(self, *, min_ms: int, max_ms: int, jitter: Jitter) -> None:
        self._min_ms = min_ms
        self._max_ms = max_ms
        self._jitter = jitter
        self._attempts = 0

    def next_ms(self) -> int:
        """Return the next pause; at least 1."""
        full = min(self._max_ms, self._min_ms << min(self._attempts, 30))
        self._attempts += 1
        return max(1, int(full * (1 + self._jitter()) / 2))

    def reset(self) -> None:
        """Start again from the shortest pause: something worked."""
        self._attempts = 0
