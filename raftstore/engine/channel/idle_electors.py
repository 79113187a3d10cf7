"""Elections are rare: between them a channel needs no instance of pysyncobj."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.types import ChannelId

EVICT_INTERVAL_MS: Final = 10_000
"""How often elections that are over give their memory back."""


class IdleElectors:
    """The electors of one node's channels that need no ticks."""

    def __init__(self, channels: Mapping[ChannelId, ChannelRunner]) -> None:
        self._channels = channels
        self._due_ms = 0

    def on_timer(self, now_ms: int) -> None:
        """Evict what is idle, every now and then."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + EVICT_INTERVAL_MS
        for runner in self._channels.values():
            if runner.elector.next_deadline_ms() is None:
                runner.elector.evict()
