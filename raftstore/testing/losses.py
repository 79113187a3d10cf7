"""Records that a table below ``fsync`` may lose in a simulated world (S0.6).

An acknowledged record may be lost when no replica holds it any more, and that only by stops that
cost what was not synced: of machines, or, at ``memory``, of processes, each at some of a quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from raftstore.protocol.records import Record
from raftstore.types import ChannelId, Durability

BEFORE_COMMIT_MS: Final = 5_000.0
"""A replica may stop behind its acknowledgement and before the leader counts it."""


class HeldLog(Protocol):
    """The log of a simulated node, as far as it matters here."""

    def holds_durably(self, channel: ChannelId, record: Record) -> bool:
        """Whether the record is in the log and was durable."""

    def knows(self, channel: ChannelId, record: Record) -> bool:
        """Whether the record is somewhere in the log."""


class StoppingNode(Protocol):
    """A simulated node, as far as it matters here."""

    name: str
    ends: list[tuple[float, str, str]]

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""

    @property
    def log(self) -> HeldLog:
        """The log of its present process, or of the last one."""


class Losses:
    """Judges what the table of one world has lost."""

    def __init__(
        self,
        nodes: Collection[StoppingNode],
        table_channels: Sequence[ChannelId],
        durability: Durability,
    ) -> None:
        """``table_channels``: the list that the world fills when its table is there."""
        self._nodes = nodes
        self._table_channels = table_channels
        self._durability = durability

    def may_lose(self, channel: ChannelId) -> bool:
        """Whether the channel is of a table below ``fsync``."""
        return channel in self._table_channels

    def refusal(self, channel: ChannelId, record: Record, committed_ms: float) -> str:
        """Why a new leader has to have this record; empty: it is lost, as it may be."""
        for node in self._nodes:
            if node.is_up and node.log.knows(channel, record):
                return f"{node.name} holds it"
            if not node.is_up and node.log.holds_durably(channel, record):
                return f"{node.name} has it on its disk"
        hit = [node.name for node in self._nodes if self._has_cost(node.ends, committed_ms)]
        quorum = len(self._nodes) // 2 + 1
        if len(hit) < quorum:
            return f"only {', '.join(hit) or 'nobody'} stopped in a way that may cost it"
        return ""

    def _has_cost(self, ends: list[tuple[float, str, str]], committed_ms: float) -> bool:
        """Whether one of these ends of processes may have cost the record."""
        return any(
            ended_ms >= committed_ms - BEFORE_COMMIT_MS
            and (how == "crash" or self._durability is Durability.MEMORY or "disk error" in why)
            for ended_ms, how, why in ends
        )
