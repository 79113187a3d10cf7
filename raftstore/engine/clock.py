"""The time of a node: its thread has no other."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Stands still while the node works on one call of its driver."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.now_ms = 0
        """When the call of the driver that is running began."""
        self.wall_ms = wall_ms
        """The wall clock (record timestamps, display)."""
