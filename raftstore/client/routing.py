"""In which order the replicas of a channel are asked. Pure.

Round robin spreads reads over healthy replicas; one that refused or was lost a moment ago goes to
the end of the list, not out of it: when all are bad, all are still asked (KLIP-37, KIP-535).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from raftstore.types import ChannelId, NodeId

PENALTY_MS: Final = 1_000
"""How long a replica stays at the end of the list of a channel after it failed there."""


class ReplicaOrder:
    """Remembers, per channel, whose turn it is and who failed lately."""

    def __init__(self) -> None:
        self._turns: dict[ChannelId, int] = {}
        self._failed_ms: dict[tuple[ChannelId, NodeId], int] = {}

    def order(
        self,
        channel: ChannelId,
        replicas: Sequence[NodeId],
        is_reachable: Callable[[NodeId], bool],
        now_ms: int,
    ) -> list[NodeId]:
        """Return all replicas: reachable ones without a recent failure first, in turn."""
        if not replicas:
            return []
        turn = self._turns.get(channel, 0) % len(replicas)
        self._turns[channel] = turn + 1
        rotated = [*replicas[turn:], *replicas[:turn]]
        return sorted(
            rotated,
            key=lambda node: (not is_reachable(node), self._has_failed(channel, node, now_ms)),
        )

    def failed(self, channel: ChannelId, node: NodeId, now_ms: int) -> None:
        """The replica refused a read or was lost."""
        self._failed_ms[channel, node] = now_ms

    def answered(self, channel: ChannelId, node: NodeId) -> None:
        """The replica answered a read."""
        self._failed_ms.pop((channel, node), None)

    def _has_failed(self, channel: ChannelId, node: NodeId, now_ms: int) -> bool:
        failed_ms = self._failed_ms.get((channel, node))
        return failed_ms is not None and now_ms - failed_ms < PENALTY_MS
