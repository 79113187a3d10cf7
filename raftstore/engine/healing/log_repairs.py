"""Makes damage of the log good while the node runs: what it lost is a hole from then on.

A hole is what a start makes of the same damage, and it is filled in the same way
(``raftstore.engine.channel.hole_repairs``): the channel is opened anew with it and ignores its
peers until other nodes gave the records back. A leader hands its leadership over first; nothing is
begun while no other replica is up.

A base entry that may have been hit is written anew: the node has what it says in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.healing.repair_rules import (
    ALONE,
    HAND_OVER_PATIENCE_MS,
    HAND_OVER_RETRY_MS,
    RETRY_MS,
    is_alone,
    leads,
    others_up,
)
from raftstore.engine.node_ports import Tell
from raftstore.ports.log import MessageLog
from raftstore.ports.scrub import LogDamage
from raftstore.ports.tables import TableStore
from raftstore.types import ChannelId

QUIET_MS = 20
"""Between two looks whether all that was written is durable, and all that was queued applied."""


@dataclass(slots=True)
class _Hit:
    """A channel that lacks records on the disk."""

    found_ms: int
    damages: list[LogDamage] = field(default_factory=list)
    paused: ChannelRunner | None = None
    """It takes part in nothing any more, to be opened anew."""
    operation: int = 0
    """Of the log: what has to be durable first."""


class LogRepairs:
    """Repairs of damaged records in one node's log."""

    def __init__(
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        log: MessageLog,
        tables: TableStore,
        tell: Tell,
        reopen: Callable[[ChannelRunner], None],
    ) -> None:
        """``reopen``: open a channel anew from what log and table hold of it."""
        self._channels = channels
        self._log = log
        self._tables = tables
        self._tell = tell
        self._reopen = reopen
        self.open: dict[ChannelId, _Hit] = {}
        self.healed_total = 0
        self.deadlines: Deadlines[ChannelId] = Deadlines()

    def found(self, damage: LogDamage, now_ms: int) -> None:
        """The scrubber read bytes of the log that are not what was written."""
        verifying = self._log.verifying
        hit = verifying.channels_hit(damage)
        self._tell(
            "log_damaged",
            segment=damage.segment,
            offset=damage.offset,
            end=damage.end,
            reason=damage.reason,
            channels=len(hit),
        )
        for channel in verifying.bases_hit(damage):
            runner = self._channels.get(channel)
            # The log's base may be newer than the runner's, which is opened anew with it next.
            base = self._log.base(channel)
            # Not while the channel has a hole: what is reported of the hole states the base, too.
            if runner is not None and runner.hole is None and base.seq:
                self._log.rebase(channel, base)
        for channel in hit:
            self.open.setdefault(channel, _Hit(now_ms)).damages.append(damage)
            self.deadlines.push(channel, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Begin, or go on."""
        for channel in self.deadlines.due(now_ms):
            hit, runner = self.open[channel], self._channels.get(channel)
            if runner is None:
                del self.open[channel]  # its table was dropped
            elif hit.paused is runner:
                self._lose_when_quiet(hit, runner, now_ms)
            elif self._may_begin(hit, runner, now_ms):
                hit.paused = runner
                runner.pause()
                hit.operation = self._log.last_operation()
                self._lose_when_quiet(hit, runner, now_ms)

    def _may_begin(self, hit: _Hit, runner: ChannelRunner, now_ms: int) -> bool:
        if is_alone(runner):
            del self.open[runner.channel]
            self._tell("log_not_healed", channel=runner.name, remedy=ALONE)
            return False
        self.deadlines.push(runner.channel, now_ms + RETRY_MS)
        # While it is paused it neither votes nor acknowledges, so another node has to be up that
        # can fill the hole.
        if runner.is_paused or not others_up(runner):
            return False
        if leads(runner) and now_ms < hit.found_ms + HAND_OVER_PATIENCE_MS:
            self.deadlines.push(runner.channel, now_ms + HAND_OVER_RETRY_MS)
            runner.request_hand_over(None, "its log here is damaged", now_ms)
            return False
        return True

    def _lose_when_quiet(self, hit: _Hit, runner: ChannelRunner, now_ms: int) -> None:
        """S0.5: as at a start, all that was written is durable, and all that was queued applied."""
        channel = runner.channel
        is_quiet = runner.feed.is_idle and self._tables.is_idle(channel)
        if not is_quiet or self._log.durable_operation() < hit.operation:
            self.deadlines.push(channel, now_ms + QUIET_MS)
            return
        del self.open[channel]
        self.deadlines.cancel(channel)
        for damage in hit.damages:
            self._log.verifying.lose(channel, damage)
        self.healed_total += 1
        self._reopen(runner)
