"""All of a node that looks for damage and makes it good, as its runner and its reports see it."""

from __future__ import annotations

from typing import Any

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.healing.chain_walks import ChainWalks
from raftstore.engine.healing.divergence import Divergences
from raftstore.engine.healing.log_repairs import LogRepairs
from raftstore.engine.healing.parts import HealingParts
from raftstore.engine.healing.replacing import Replacing
from raftstore.engine.healing.replica_checks import ReplicaChecks
from raftstore.engine.healing.scrubber import Scrubber
from raftstore.engine.healing.table_repairs import TableRepairs
from raftstore.types import ChannelId


class Healing:
    """All healing of one node."""

    def __init__(self, parts: HealingParts) -> None:
        self.table_repairs = TableRepairs(parts.channels, parts.tell, parts.replace)
        self.log_repairs = LogRepairs(
            parts.channels, parts.log, parts.tables, parts.tell, parts.reopen
        )
        self.scrubber = Scrubber(
            parts.channels,
            parts.log,
            parts.tables,
            parts.settings,
            parts.tell,
            on_log_damage=self.log_repairs.found,
            on_table_damage=self.table_repairs.found,
        )
        self.walks = ChainWalks(parts.channels, parts.log)
        self.replacing = Replacing(parts.channels, parts.log, parts.tables, parts.reopen)
        self.divergences = Divergences(parts, self.walks, self.replacing)
        self.checks = ReplicaChecks(parts)
        self.deadlines: tuple[Deadlines[Any], ...] = (
            self.walks.deadlines,
            self.replacing.deadlines,
            self.divergences.deadlines,
            self.scrubber.deadlines,
            self.table_repairs.deadlines,
            self.log_repairs.deadlines,
            self.checks.deadlines,
            self.checks.waiting.deadlines,
        )

    def start(self, now_ms: int) -> None:
        """Look for damage from now on."""
        self.scrubber.start(now_ms)

    def opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel was opened, maybe anew."""
        self.table_repairs.opened(runner, now_ms)

    def closed(self, runner: ChannelRunner) -> None:
        """A channel is closed, to be opened anew or for good."""
        self.walks.closed(runner)
        self.replacing.closed(runner)
        self.divergences.closed(runner)
        self.checks.closed(runner)

    def on_timer(self, now_ms: int) -> None:
        """Run what is due."""
        self.scrubber.on_timer(now_ms)
        self.table_repairs.on_timer(now_ms)
        self.log_repairs.on_timer(now_ms)
        self.walks.on_timer(now_ms)
        self.replacing.on_timer(now_ms)
        self.divergences.on_timer(now_ms)
        self.checks.on_timer(now_ms)

    def describe(self, channel: ChannelId) -> str:
        """The damage of a channel that is being made good, for people; empty: nothing has to be."""
        damaged = self.table_repairs.open.get(channel)
        if damaged is not None:
            return f"its table is damaged and is being replaced: {damaged.reason}"
        if channel in self.log_repairs.open:
            return "its log is damaged, which is made good as soon as another replica leads"
        return self.divergences.stage(channel)
