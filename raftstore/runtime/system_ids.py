"""The only place that makes randomness for a node."""

from __future__ import annotations

import secrets


class SystemIds:
    """``ports.IdSource`` from the operating system."""

    def uuid(self) -> bytes:
        """16 random bytes."""
        return secrets.token_bytes(16)

    def below(self, limit: int) -> int:
        """A random integer in [0, limit)."""
        return secrets.randbelow(limit)
