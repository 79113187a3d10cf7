"""When the channels of a node are stepped again: when the log is durable, at their deadlines, and
which of them a turn has done anything to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.channel.candidacies import Candidacies
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.types import ChannelId

CHANNELS_PER_TURN: Final = 64
"""Channels whose timers run in one turn. With a thousand channels due at once, as after the end of
a node or the creation of a large table, messages get their turns in between."""


class ChannelSchedule:
    """The channels of one node and when each is to be stepped."""

    def __init__(self, channels: Mapping[ChannelId, ChannelRunner], active: ActiveChannels) -> None:
        self._channels = channels
        self._active = active
        self.deadlines: Deadlines[ChannelId] = Deadlines()
        """Of each channel, as it was at the end of the last turn that touched it."""
        self._candidacies = Candidacies()
        self._moved: dict[ChannelId, None] = {}
        """Channels that the calls of the present turn have done anything to."""

    def on_closed(self, runner: ChannelRunner) -> None:
        """The channel was closed."""
        self.deadlines.cancel(runner.channel)
        self._candidacies.forget(runner.channel)
        self._active.forget(runner.channel)

    def on_log_durable(self, operation: int, now_ms: int) -> None:
        """The log is durable up to ``operation``: notify the channels that await it."""
        for channel in self._active.take_awaiting():
            runner = self._channels.get(channel)
            if runner is None:
                continue  # closed by what another one did just now
            self._active.touched[channel] = None
            runner.on_log_durable(operation, now_ms)
            if runner.awaits_durability:
                self._active.await_log(channel)

    def on_log_written(self, operation: int, now_ms: int) -> None:
        """The system has the log up to ``operation``: step the channels that await anything."""
        for channel in self._active.awaiting():
            runner = self._channels.get(channel)
            if runner is not None:
                self._active.touch(channel)
                runner.on_log_written(operation, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Run the timers of the channels that are due, a slice of them at a time."""
        for channel in self.deadlines.due(now_ms, CHANNELS_PER_TURN):
            runner = self._channels.get(channel)
            if runner is not None:
                self._active.touch(channel)
                runner.on_timer(now_ms, may_stand=self._candidacies.may_stand(runner, now_ms))

    @property
    def has_moved(self) -> bool:
        """Whether ``settle`` has anything to do."""
        return bool(self._moved)

    def take_touched(self) -> dict[ChannelId, None]:
        """Channels that were touched since this was asked last; ``settle`` looks at them all."""
        active = self._active
        touched, active.touched = active.touched, {}
        self._moved |= touched
        return touched

    def settle(self) -> None:
        """The turn ends: re-arm the timers of the channels that it touched."""
        moved, self._moved = self._moved, {}
        channels, candidacies = self._channels, self._candidacies
        for channel in moved:
            runner = channels.get(channel)
            if runner is not None:
                due_ms = runner.next_deadline_ms()
                if candidacies.waiting:
                    due_ms = candidacies.not_before(channel, due_ms)
                if due_ms is None:
                    self.deadlines.cancel(channel)
                else:
                    self.deadlines.push(channel, due_ms)
