"""Reports over HTTP: heartbeats and positions that no peer connection carried.

Anybody who may post can say such things, so they order queries and nothing else (KLIP-19, KLIP-35):
no election, no known commit position, no bound of a read ever looks here (S7.3, S12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raftstore.config import HeartbeatSettings
from raftstore.types import ChannelId, NodeId, Seq


@dataclass(frozen=True, slots=True)
class SaidPosition:
    """Where a replica is said to be, and when that was said."""

    applied_seq: Seq
    end_seq: Seq
    heard_ms: int


class HttpReports:
    """Heartbeats by node and positions by channel and node, as they were posted."""

    def __init__(self, settings: HeartbeatSettings) -> None:
        self._settings = settings
        self._beats: dict[NodeId, int] = {}
        self._positions: dict[ChannelId, dict[NodeId, SaidPosition]] = {}

    def on_heartbeat(self, node: NodeId, now_ms: int) -> None:
        """Somebody says that this node lives."""
        self._beats[node] = now_ms

    def on_positions(
        self, node: NodeId, positions: Iterable[tuple[ChannelId, Seq, Seq]], now_ms: int
    ) -> None:
        """Somebody says where the replicas of this node are: channel, applied and end seq."""
        for channel, applied_seq, end_seq in positions:
            said = SaidPosition(applied_seq, end_seq, now_ms)
            self._positions.setdefault(channel, {})[node] = said

    def forget(self, channel: ChannelId, node: NodeId, *, until_ms: int) -> bool:
        """The node itself reported where its replica is: whether anything was said of it before."""
        said = self._positions.get(channel)
        if said is None or node not in said or said[node].heard_ms > until_ms:
            return False
        del said[node]
        if not said:
            del self._positions[channel]
        return True

    def forget_node(self, node: NodeId) -> None:
        """The node has left the cluster."""
        self._beats.pop(node, None)
        for positions in self._positions.values():
            positions.pop(node, None)

    def forget_unless(self, exists: Callable[[ChannelId], bool]) -> None:
        """Tables were dropped."""
        for channel in [channel for channel in self._positions if not exists(channel)]:
            del self._positions[channel]

    def lives(self, node: NodeId, now_ms: int, *, after_ms: int | None) -> bool:
        """Whether a heartbeat came in the time in which a silent node is found to be down, and
        after ``after_ms``, when the node was last found to be down."""
        beat_ms = self._beats.get(node)
        if beat_ms is None or (after_ms is not None and beat_ms <= after_ms):
            return False
        limit_ms = self._settings.missed_threshold * self._settings.send_interval_ms
        return now_ms - beat_ms <= limit_ms

    def channels(self) -> Iterable[ChannelId]:
        """Every channel of which something was said."""
        return self._positions

    def position(self, channel: ChannelId, node: NodeId) -> SaidPosition | None:
        """Where the replica of this node is said to be."""
        return self._positions.get(channel, {}).get(node)
