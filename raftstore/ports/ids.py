"""Where ids and random numbers come from."""

from __future__ import annotations

from typing import Protocol


class IdSource(Protocol):
    """Randomness, injected so that simulations repeat."""

    def uuid(self) -> bytes:
        """16 random bytes."""

    def below(self, limit: int) -> int:
        """A random integer in [0, limit)."""
