"""All of a node that looks for damage and makes it good, as its runner and its reports see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raftstore.config import ScrubSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.healing.log_repairs import LogRepairs
from raftstore.engine.healing.scrubber import Scrubber
from raftstore.engine.healing.table_repairs import TableRepairs
from raftstore.engine.node_ports import Tell
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.types import ChannelId


@dataclass(frozen=True, slots=True)
class HealingParts:
    """The parts of a node that healing works with."""

    channels: Mapping[ChannelId, ChannelRunner]
    log: MessageLog
    tables: TableStore
    settings: ScrubSettings
    tell: Tell
    reopen: Callable[[ChannelRunner], None]
    """Open a channel anew from what log and table hold of it."""
    replace: Callable[[ChannelRunner, int], None]
    """Have a channel's table replaced by another replica's (now_ms)."""


class Healing:
    """Of one node."""

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
        self.deadlines: tuple[Deadlines[Any], ...] = (
            self.scrubber.deadlines,
            self.table_repairs.deadlines,
            self.log_repairs.deadlines,
        )

    def start(self, now_ms: int) -> None:
        """Look for damage from now on."""
        self.scrubber.start(now_ms)

    def opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel was opened, maybe anew."""
        self.table_repairs.opened(runner, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Run what is due."""
        self.scrubber.on_timer(now_ms)
        self.table_repairs.on_timer(now_ms)
        self.log_repairs.on_timer(now_ms)

    def told(self, channel: ChannelId) -> str:
        """The damage of a channel that is being made good, for people; empty: nothing has to be."""
        damaged = self.table_repairs.open.get(channel)
        if damaged is not None:
            return f"its table is damaged and is being replaced: {damaged.reason}"
        if channel in self.log_repairs.open:
            return "its log is damaged, which is made good as soon as another replica leads"
        return ""
