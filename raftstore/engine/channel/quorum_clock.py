"""The time that a leader writes into records: its own clock decides nothing alone (S10).

These stamps are the time by which leases and other deadlines of state machines end, and from which
lifetimes of rows count. They never go back, so a single stamp of a clock that is a day ahead would
have all leases end at once, and then none for a day; a leader whose clock is a day behind would
have none end while it leads. So the leader's clock is held to what the clocks of a quorum of the
voters have reached, as their heartbeats report it.
"""

from __future__ import annotations

from collections.abc import Callable

from raftstore.core.quorum import quorum_ms
from raftstore.types import ChannelConfig, NodeId


class QuorumClock:
    """The wall clock of a node, held to those of the voters of a channel."""

    __slots__ = ("_ahead_ms", "_me", "_peer_ms", "_wall_ms")

    def __init__(
        self,
        me: NodeId,
        wall_ms: Callable[[], int],
        peer_ms: Callable[[NodeId], int],
        ahead_ms: int,
    ) -> None:
        """``peer_ms``: the wall clock that another node has certainly reached; 0: unknown."""
        self._me, self._wall_ms, self._peer_ms = me, wall_ms, peer_ms
        self._ahead_ms = ahead_ms

    def stamp_ms(self, config: ChannelConfig) -> int:
        """This node's clock, no earlier than a quorum's clocks have reached, and no more than
        ``ahead_ms`` above that. As it is where too few clocks are known: a write waits for none."""
        wall_ms = self._wall_ms()
        clocks = {node: self._peer_ms(node) for node in config.voters}
        clocks[self._me] = wall_ms
        reached_ms = quorum_ms(config, clocks)
        if not reached_ms:
            return wall_ms
        return min(max(wall_ms, reached_ms), reached_ms + self._ahead_ms)
