"""Attempts to get a table or a base that failed: the next one asks another replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftstore.types import ChannelId, NodeId


class Attempts:
    """Failed attempts of the channels of one node that still need something."""

    def __init__(self) -> None:
        self._failed: dict[ChannelId, int] = {}
        self._unfilled: dict[ChannelId, None] = {}
        self._in_pairs: dict[ChannelId, None] = {}

    def hole_unfilled(self, channel: ChannelId) -> None:
        """The channel's log has a hole that nobody fills."""
        self._unfilled[channel] = None

    def is_unfilled(self, channel: ChannelId) -> bool:
        """Whether it has one."""
        return channel in self._unfilled

    def tries_base(self, channel: ChannelId) -> bool:
        """Whether a base may stand for its hole, and that is tried next: each replica is asked for
        a base first and for a table then, which a base may need (S6.6)."""
        return channel in self._unfilled and self.failed(channel) % 2 == 0

    def source(
        self, channel: ChannelId, sources: Sequence[NodeId], sending: Mapping[NodeId, int]
    ) -> NodeId:
        """The one whose turn it is: first the one that sends the fewest tables here (``sending``),
        of those the first, so that no node sends all while another one, which leads the channels,
        sends nothing; behind a failure one after the other."""
        turn = self.failed(channel) // (2 if channel in self._unfilled else 1)
        if not turn:
            return min(sources, key=lambda node: sending.get(node, 0))
        return sources[turn % len(sources)]

    def failed(self, channel: ChannelId) -> int:
        """How many failed one after the other."""
        return self._failed.get(channel, 0)

    def fail(self, channel: ChannelId) -> None:
        """One more did."""
        self._failed[channel] = self.failed(channel) + 1

    def files_failed(self, channel: ChannelId) -> None:
        """The files that came are no table: the next ones come in pairs, which the sender reads
        itself."""
        self._in_pairs[channel] = None

    def may_be_in_files(self, channel: ChannelId) -> bool:
        """Whether a table may be asked for in files."""
        return channel not in self._in_pairs

    def begin_anew(self, channel: ChannelId) -> None:
        """Forget the failures: they say nothing of the next attempt."""
        self._failed.pop(channel, None)

    def ended(self, channel: ChannelId) -> None:
        """The channel got what it needed."""
        self.begin_anew(channel)
        self._in_pairs.pop(channel, None)

    def closed(self, channel: ChannelId) -> None:
        """The channel is gone, or opened anew."""
        self._failed.pop(channel, None)
        self._unfilled.pop(channel, None)
        self._in_pairs.pop(channel, None)
