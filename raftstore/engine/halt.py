"""The end of a node whose storage or whose invariants failed (S0.4)."""

from __future__ import annotations

from collections.abc import Callable


class NodeHalt:
    """The reason for which one node stops. Nothing leaves it once there is a reason; its driver
    exits with code 70."""

    def __init__(self, on_halt: Callable[[str], None]) -> None:
        self._on_halt = on_halt
        self.reason: str | None = None
        """Why the node halted first."""

    def halt(self, reason: str) -> None:
        """Stop the node; it has to be started again."""
        if self.reason is None:
            self.reason = reason
            self._on_halt(reason)
