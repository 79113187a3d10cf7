"""Samples and histograms: the shapes of what is counted, used by every room that counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from raftstore.types import Count63

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]
"""Name, labels, value."""
Histogram = tuple[str, Labels, tuple[tuple[float, Count63], ...], float, Count63]
"""Name, labels, cumulated (upper bound, count) pairs, sum, count."""

DURATIONS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


class FixedHistogram:
    """Counts in buckets with fixed upper bounds.

    One thread observes; another may look meanwhile and see a value in one place and not yet in the
    other.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0

    def observe(self, value: int) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def shown(self, name: str, labels: Labels, *, scale: float = 1.0) -> Histogram:
        """Cumulated, in the unit of ``scale``; the last bucket has no bound."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((bound * scale, total))
        return name, labels, tuple(buckets), self._sum * scale, total
