"""The only place that makes randomness for a node."""

from __future__ import annotations

import random
import secrets


class SystemIds:
    """``ports.ids.IdSource`` from the operating system."""

    def __init__(self) -> None:
        # Delays need no secret, and asking the system for one lets go of the interpreter's lock,
        # which other threads may keep for a while.
        self._delays = random.Random(secrets.randbits(128))

    def uuid(self) -> bytes:
        """16 random bytes."""
        return secrets.token_bytes(16)

    def below(self, limit: int) -> int:
        """A random integer in [0, limit)."""
        return self._delays.randrange(limit)
