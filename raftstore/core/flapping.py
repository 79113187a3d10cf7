"""A replica that leaves steady state again and again (NATS-153).

Each time costs a message and a batch, and what was wrong with its live requests is so again. From
the fifth time within ten minutes on it is *flapping*: it stays with history for a while, twice as
long each time. Nothing else waits meanwhile: it asks for every new record, and what it stores
counts for a quorum as ever (S3.4).
"""

from __future__ import annotations

from collections import deque
from typing import Final

FLAPPING_ENTRIES: Final = 5
FLAPPING_MS: Final = 600_000
"""So often within this time."""
STAY_MIN_MS: Final = 1_000
STAY_MAX_MS: Final = 60_000
"""So long it stays with history at least: doubled from the first to the second."""


class Flapping:
    """Counts how often one replica left steady state, under any leader."""

    def __init__(self) -> None:
        self._entered_ms: deque[int] = deque(maxlen=FLAPPING_ENTRIES)
        self._stay_ms = 0
        self.stays_until_ms = 0
        """Before this it does not go back to steady state."""

    def entered(self, now_ms: int) -> int | None:
        """Count that it left steady state; return for how long it stays away if it is flapping."""
        self._entered_ms.append(now_ms)
        if not self.is_flapping(now_ms):
            self._stay_ms = 0
            return None
        self._stay_ms = min(max(STAY_MIN_MS, 2 * self._stay_ms), STAY_MAX_MS)
        self.stays_until_ms = now_ms + self._stay_ms
        return self._stay_ms

    def is_flapping(self, now_ms: int) -> bool:
        """Whether it left steady state so often within the time that ends now."""
        entered = self._entered_ms
        return len(entered) == FLAPPING_ENTRIES and now_ms - entered[0] < FLAPPING_MS

    def stays(self, now_ms: int) -> bool:
        """Whether it is to stay with history now."""
        return now_ms < self.stays_until_ms
