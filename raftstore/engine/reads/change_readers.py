"""Readers of changes that asked this node not long ago, and how far each of them got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from raftstore.types import ChannelId, Seq

READERS_MAX: Final = 4_096
"""Of one node, each in one channel; the one that asked longest ago is forgotten first."""


class _Asked(NamedTuple):
    """The last question of a reader."""

    after: Seq
    at_ms: int


class ChangeReaders:
    """Readers of changes at one node. A reader is a connection of a client, in one channel."""

    def __init__(self, idle_ms: int) -> None:
        self._idle_ms = idle_ms
        self._asked: dict[tuple[ChannelId, int], _Asked] = {}

    def asked(self, channel: ChannelId, client: int, after: Seq, now_ms: int) -> None:
        """A reader wants what comes behind ``after``."""
        key = (channel, client)
        self._asked.pop(key, None)  # the order of the keys is that of the questions
        self._asked[key] = _Asked(after, now_ms)
        if len(self._asked) > READERS_MAX:
            del self._asked[next(iter(self._asked))]

    def client_gone(self, client: int) -> None:
        """Forget a client whose connection ended."""
        for key in [key for key in self._asked if key[1] == client]:
            del self._asked[key]

    def channel_closed(self, channel: ChannelId) -> None:
        """There is nothing to be asked any more."""
        for key in [key for key in self._asked if key[0] == channel]:
            del self._asked[key]

    def positions(self, channel: ChannelId, now_ms: int) -> Iterator[tuple[int, Seq]]:
        """(client, position) of those that asked not long ago."""
        while self._asked:
            oldest = next(iter(self._asked))
            if now_ms - self._asked[oldest].at_ms < self._idle_ms:
                break
            del self._asked[oldest]
        for (of_channel, client), asked in self._asked.items():
            if of_channel == channel:
                yield client, asked.after
