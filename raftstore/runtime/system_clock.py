"""The only place that reads a clock."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Milliseconds of the monotonic clock, which also counts while the machine sleeps.

    CLOCK_BOOTTIME, so that a suspended machine finds its knowledge of others old (S7.2).
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970: record timestamps and display, never a decision."""
    return time.time_ns() // 1_000_000
