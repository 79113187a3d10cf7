"""Looks through a node's channels, from time to time and at a bounded number of them.

A look begins where the one before ended: a node may have thousands of channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.types import ChannelId

CHANNELS_PER_LOOK: Final = 512
"""Channels that one look goes through."""


class Looks:
    """The looks of one part of a node."""

    def __init__(
        self, channels: Mapping[ChannelId, ChannelRunner], interval_ms: int, *, is_wanted: bool
    ) -> None:
        """A look every ``interval_ms``, if any ``is_wanted``."""
        self._channels = channels
        self._interval_ms = interval_ms
        self._is_wanted = is_wanted
        self.deadlines: Deadlines[int] = Deadlines()

    def start(self, now_ms: int) -> None:
        """Look from time to time, if that is wanted at all."""
        if self._is_wanted:
            self.next_at(now_ms + self._interval_ms)

    def next_at(self, at_ms: int) -> None:
        """The next look is then, and not when it would be by itself."""
        self.deadlines.push(0, at_ms)

    def is_due(self, now_ms: int) -> bool:
        """Whether a look is due; the one after it follows by itself."""
        for _ in self.deadlines.due(now_ms):
            self.next_at(now_ms + self._interval_ms)
            return True
        return False

    def channels(self, start: int) -> tuple[int, Iterator[ChannelRunner]]:
        """Where the look begins, and the channels from there on, with the first behind the last."""
        runners = list(self._channels.values())
        start = start if start < len(runners) else 0
        return start, islice(chain(runners[start:], runners[:start]), CHANNELS_PER_LOOK)
