"""Leaders of a world, counted by node: even within a bound, and by moves that cost no more than a
hand-over (NATS-001)."""

from __future__ import annotations

from math import ceil
from typing import Final

from raftstore.testing.invariants import InvariantError
from raftstore.testing.sim_cluster import SimCluster
from raftstore.types import ChannelId, NodeId

EVEN_MS_MAX: Final = 60_000.0
"""Once nothing happens to nodes any more leaders are even within this."""
LEADERLESS_MS_MAX: Final = 1_000.0
"""A move leaves its channel without a leader that is ready for no longer: the time after which a
hand-over is given up."""


class LeaderCounts:
    """Watches who leads what in a world."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._leaderless_since: dict[ChannelId, float] = {}
        self.leaderless_ms_most = 0.0
        self.moves_at_once_most = 0

    def led(self) -> dict[NodeId, int]:
        """Partitions that each live node leads."""
        leaders = self._cluster.leaders()
        counts = {node.node: 0 for node in self._cluster.nodes.values() if node.is_up}
        for channel in self._cluster.table_channels:
            if channel in leaders:
                counts[leaders[channel].node] += 1
        return counts

    def is_even(self) -> bool:
        """Whether no node leads more than its share, and one more."""
        led, channels = self.led(), self._cluster.table_channels
        return sum(led.values()) == len(channels) and (
            max(led.values()) <= ceil(len(channels) / len(led)) + 1
        )

    def check_even(self) -> None:
        """Leaders are even in time, stay as they are then, and no channel waited for long."""
        scheduler = self._cluster.scheduler
        begun_ms = scheduler.now_ms
        scheduler.run_until(begun_ms + EVEN_MS_MAX, self._looks_done)
        if not self.is_even():
            message = (
                f"leaders are not even {EVEN_MS_MAX:.0f} ms after the last fault: {self.led()}"
            )
            raise InvariantError(message)
        if self.leaderless_ms_most > LEADERLESS_MS_MAX:
            message = f"a move left a channel without a leader for {self.leaderless_ms_most:.0f} ms"
            raise InvariantError(message)

    def _looks_done(self) -> bool:
        self.look()
        return self.is_even() and not self._moves_under_way()

    def _moves_under_way(self) -> int:
        return sum(
            len(node.runner.leaders.balancer.moves_under_way)
            for node in self._cluster.nodes.values()
            if node.runner is not None
        )

    def look(self) -> None:
        """See who leads now; called after each step."""
        now_ms, leaders = self._cluster.scheduler.now_ms, self._cluster.leaders()
        self.moves_at_once_most = max(self.moves_at_once_most, self._moves_under_way())
        for channel in self._cluster.table_channels:
            node = leaders.get(channel)
            runner = None if node is None else node.runner
            if runner is not None and runner.channels[channel].core.leader_is_ready:
                since_ms = self._leaderless_since.pop(channel, now_ms)
                self.leaderless_ms_most = max(self.leaderless_ms_most, now_ms - since_ms)
            else:
                self._leaderless_since.setdefault(channel, now_ms)
