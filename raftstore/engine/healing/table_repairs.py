"""Replaces damaged tables by replica snapshots while the node runs.

A damaged table takes nothing from the replica's log: it goes on voting and acknowledging, and what
it reads is verified on every read. So it is only not read any more here, unless this replica leads,
while another replica's table is copied aside and put in its place (``raftstore.engine.snapshots``).
A leader hands its leadership over first.

Nothing is remembered over a restart: a start, a read or the next pass finds the damage again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.healing.repair_rules import (
    ALONE,
    HAND_OVER_RETRY_MS,
    RETRY_MS,
    is_alone,
    leads,
)
from raftstore.engine.node_ports import Tell
from raftstore.types import ChannelId


@dataclass(slots=True)
class _Damaged:
    """A table that cannot be believed."""

    reason: str
    found_ms: int


class TableRepairs:
    """Repairs of one node's damaged tables."""

    def __init__(
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        tell: Tell,
        replace: Callable[[ChannelRunner, int], None],
    ) -> None:
        """``replace``: have the channel's table replaced by another replica's (now_ms); it may be
        called again while that is under way."""
        self._channels = channels
        self._tell = tell
        self._replace = replace
        self.open: dict[ChannelId, _Damaged] = {}
        self.healed_total = 0
        self.deadlines: Deadlines[ChannelId] = Deadlines()

    def found(self, runner: ChannelRunner, reason: str, now_ms: int) -> None:
        """A scrubber read something that is not what was written."""
        if runner.channel in self.open:
            return
        self._tell("table_damaged", channel=runner.name, reason=reason)
        if is_alone(runner):
            self._tell("table_not_healed", channel=runner.name, reason=reason, remedy=ALONE)
            return
        self.open[runner.channel] = _Damaged(reason, now_ms)
        runner.table_damage = reason
        self.deadlines.push(runner.channel, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Begin, or see how far it is."""
        for channel in self.deadlines.due(now_ms):
            runner = self._channels.get(channel)
            if runner is None or is_alone(runner):
                del self.open[channel]
                continue
            if leads(runner):
                self.deadlines.push(channel, now_ms + HAND_OVER_RETRY_MS)
                runner.request_hand_over(None, "its table here is damaged", now_ms)
            else:
                self.deadlines.push(channel, now_ms + RETRY_MS)
                self._replace(runner, now_ms)

    def opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """The channel was opened anew, maybe for another reason."""
        del now_ms
        damaged = self.open.get(runner.channel)
        if damaged is not None:
            runner.table_damage = damaged.reason

    def replaced(self, runner: ChannelRunner, now_ms: int) -> None:
        """A verified copy of another replica's table is in its place, whatever was the reason."""
        damaged = self.open.pop(runner.channel, None)
        if damaged is not None:
            self.healed_total += 1
            self.deadlines.cancel(runner.channel)
            took_ms = now_ms - damaged.found_ms
            self._tell("table_healed", channel=runner.name, reason=damaged.reason, took_ms=took_ms)
