"""Places of the channels of a node that take something at a time, and who waits for one.

Tables are large and few are copied at a time. A base is one message, and it is what a copied table
needs next: a channel that had to wait for a place among the tables would be overtaken by the
trimming of its leader's log, and its copy would have been in vain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Final

from raftstore.engine.snapshots.transfer import Transfer
from raftstore.types import ChannelId, NodeId

BASES_MAX: Final = 16
"""Channels that take a base at a time."""
WOKEN: Final = 4
"""Channels that look when a place is free: the first may have no use for it any more."""


class Places:
    """The places of one node."""

    def __init__(self, transfers: Mapping[ChannelId, Transfer], tables_max: int) -> None:
        self._transfers = transfers
        self._tables_max = tables_max
        self._queue: dict[ChannelId, bool] = {}
        """Channels that found no place, the oldest first, and whether it is for a base; each looks
        again from time to time."""

    def is_full(self, *, for_base: bool) -> bool:
        """Whether one more has to wait."""
        taken = sum(each.is_for_base == for_base for each in self._transfers.values())
        return taken >= (BASES_MAX if for_base else self._tables_max)

    def sending(self) -> Counter[NodeId]:
        """How many tables come from each node now."""
        return Counter(each.source for each in self._transfers.values() if not each.is_for_base)

    def wait(self, channel: ChannelId, *, for_base: bool) -> None:
        """The channel found no place."""
        self._queue[channel] = for_base

    def leave(self, channel: ChannelId) -> None:
        """Take a channel from the queue: it looks now, or needs no place any more."""
        self._queue.pop(channel, None)

    def first(self, *, for_base: bool) -> tuple[ChannelId, ...]:
        """The channels that have waited longest for such a place."""
        return tuple(
            islice((each for each, base in self._queue.items() if base == for_base), WOKEN)
        )
