"""A node that is about to stop gives its leaderships away (S9)."""

from __future__ import annotations

from collections.abc import Mapping

from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.clock import Clock
from raftstore.types import ChannelId, Role


class Drain:
    """Hands the leaderships of one node over before it stops."""

    def __init__(
        self, channels: Mapping[ChannelId, ChannelRunner], active: ActiveChannels, clock: Clock
    ) -> None:
        self._channels = channels
        self._active = active
        self._clock = clock
        self.is_draining = False

    def begin(self) -> None:
        """Refuse new writes here and hand every leadership over."""
        self.is_draining = True
        for runner in tuple(self._channels.values()):
            if runner.elector.role is Role.LEADER:
                self._give_away(runner)

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """A channel's role, term or leader changed; what is won now is given away, too."""
        del before, now_ms
        if self.is_draining and runner.elector.role is Role.LEADER:
            self._give_away(runner)

    def _give_away(self, runner: ChannelRunner) -> None:
        self._active.touch(runner.channel)
        runner.request_hand_over(None, "node is stopping", self._clock.now_ms, keeps_trying=True)

    def is_done(self) -> bool:
        """No channel is led here any more that another node could lead."""
        return not any(
            runner.elector.role is Role.LEADER and len(runner.core.config().voters) > 1
            for runner in self._channels.values()
        )
