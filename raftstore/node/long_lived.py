"""Keeps what lives as long as the node out of the garbage collector's sight.

A thousand channels are some hundred thousand objects that nobody lets go of. A full collection
would look at all of them, with every thread waiting for it: 0.1 s, again and again.

The objects of a thousand elections are as many, and live for seconds: too short to be registered,
and long enough to be looked at several times, 0.3 s each on a busy machine. Meanwhile heartbeats
wait, which looks like dead nodes and makes more elections. Reference counts free almost everything
here, elections too, so the collector may look far less often than it would by itself.
"""

from __future__ import annotations

import gc
from typing import Final

GROWTH: Final = 32
"""Channels that are opened before they are registered anew; what is in a cycle just then and
dead soon is never freed, so this must not happen all the time."""


LOOKS: Final = (10_000, 20, 20)
"""How many more objects there are than at the last look at the youngest, before the next; how many
such looks go before one at those that survived them; and how many of these before one at all."""


class LongLived:
    """Registers the long-lived objects of one node; knows of how many channels the objects are
    registered with the collector."""

    def __init__(self) -> None:
        self._channels = 0
        gc.set_threshold(*LOOKS)

    def started(self, channels: int) -> None:
        """Everything that was opened at the start is here to stay."""
        self._channels = channels
        gc.collect()
        gc.freeze()

    def look(self, channels: int) -> None:
        """Look again, now that so many channels are open."""
        if channels - self._channels >= GROWTH:
            self._channels = channels
            gc.freeze()
