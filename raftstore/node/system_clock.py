"""The only place that reads a clock."""

from __future__ import annotations

import time
from time import CLOCK_BOOTTIME, clock_gettime_ns

from raftstore import faults


def monotonic_ms() -> int:
    """Milliseconds of the monotonic clock, which also counts while the machine sleeps.

    CLOCK_BOOTTIME, so that a suspended machine finds its knowledge of others old (S7.2).
    """
    now_ms = clock_gettime_ns(CLOCK_BOOTTIME) // 1_000_000
    return now_ms if faults.armed is None else faults.armed.monotonic_ms(now_ms)


def elapsed_s() -> float:
    """Seconds since some moment, finely: how long something took here."""
    return time.monotonic()


def wall_ms() -> int:
    """Milliseconds since 1970: record timestamps and display, never a decision."""
    now_ms = time.time_ns() // 1_000_000
    return now_ms if faults.armed is None else faults.armed.wall_ms(now_ms)
