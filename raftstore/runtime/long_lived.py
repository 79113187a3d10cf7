"""Keeps what lives as long as the node out of the garbage collector's sight.

A thousand channels are some hundred thousand objects that nobody lets go of. A full collection
would look at all of them, with every thread waiting for it: 0.1 s, again and again.
"""

from __future__ import annotations

import gc
from typing import Final

GROWTH: Final = 32
"""Channels that are opened before the collector is told anew; what is in a cycle just then and
dead soon is never freed, so this must not happen all the time."""


class LongLived:
    """Of one node; knows how many channels the collector has been told of."""

    def __init__(self) -> None:
        self._channels = 0

    def started(self, channels: int) -> None:
        """Everything that was opened at the start is here to stay."""
        self._channels = channels
        gc.collect()
        gc.freeze()

    def look(self, channels: int) -> None:
        """So many channels are open now."""
        if channels - self._channels >= GROWTH:
            self._channels = channels
            gc.freeze()
