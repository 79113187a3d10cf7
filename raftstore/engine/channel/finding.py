"""Compares the table of a channel with its log when the channel is opened."""

from __future__ import annotations

from raftstore.core.found_table import FoundTable
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.types import ChannelId


def found_table(log: MessageLog, tables: TableStore, channel: ChannelId) -> FoundTable:
    """Describe a table that was just opened, where the log does not describe it (S0.3, S6.4)."""
    base_max, history = tables.base_max(channel), tables.applied_history(channel)
    if not history.seq or log.may_hold(channel, history):
        return FoundTable(base_max=base_max)
    is_copied = history == tables.copied_position(channel)
    return FoundTable(ahead=history, is_copied=is_copied, base_max=base_max)
