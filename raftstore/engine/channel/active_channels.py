"""Channels of a node that something has happened to: the schedule looks at these alone."""

from __future__ import annotations

from raftstore.types import ChannelId


class ActiveChannels:
    """The channels of one node that the present call has touched, or that await the log."""

    def __init__(self) -> None:
        self.touched: dict[ChannelId, None] = {}
        """What the present call has done anything to, up to now; channels note themselves."""
        self._awaiting: dict[ChannelId, None] = {}

    def touch(self, channel: ChannelId) -> None:
        """Something happened to the channel: its next deadline may be another."""
        self.touched[channel] = None

    def await_log(self, channel: ChannelId) -> None:
        """The channel has operations in the log that are not durable yet."""
        self._awaiting[channel] = None

    def forget(self, channel: ChannelId) -> None:
        """The channel is closed and awaits nothing."""
        self._awaiting.pop(channel, None)

    def take_touched(self) -> dict[ChannelId, None]:
        """Channels that were touched since this was asked last."""
        touched, self.touched = self.touched, {}
        return touched

    def awaiting(self) -> tuple[ChannelId, ...]:
        """Channels that await the log."""
        return tuple(self._awaiting)

    def take_awaiting(self) -> dict[ChannelId, None]:
        """Channels that await the log; each that goes on awaiting it notes itself again."""
        awaiting, self._awaiting = self._awaiting, {}
        return awaiting
