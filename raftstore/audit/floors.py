"""How far one channel is known to have been committed, over time."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

FLOORS_MAX: Final = 256
"""Moments that are remembered of one channel."""


class Floors:
    """The highest committed position that was known at a moment; it never goes back."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._seqs: list[int] = []

    @property
    def newest(self) -> int:
        """Return the highest position that is known; 0 without any."""
        return self._seqs[-1] if self._seqs else 0

    def note(self, at_ms: float, seq: int) -> None:
        """A position was known to be committed at this moment."""
        if seq <= self.newest:
            return
        if self._times and at_ms <= self._times[-1]:
            self._seqs[-1] = seq
            return
        if len(self._times) >= FLOORS_MAX:
            # Every other one of the older half: what is known of long ago is known less exactly.
            half = FLOORS_MAX // 2
            self._times[:half] = self._times[1:half:2]
            self._seqs[:half] = self._seqs[1:half:2]
        self._times.append(at_ms)
        self._seqs.append(seq)

    def before(self, at_ms: float) -> int:
        """Return what was known to be committed before this moment; 0: nothing was."""
        found = bisect_left(self._times, at_ms)
        return self._seqs[found - 1] if found else 0
