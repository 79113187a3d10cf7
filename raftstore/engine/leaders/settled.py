"""Since when channels have had their leaders, and which of these are to stay for a while.

A leader that was just elected or moved stays for a moment: a channel that recovers is left alone,
and nothing goes to and fro. A leadership that another node took over while the one that had it was
up was moved on purpose, as by `raftstore channel step-down`, or for a reason that is not known
here. It stays for longer, and the node that gave it away is given no other one meanwhile. That is
in memory, at the leader of the metadata channel, and ends when a node comes or goes. What operators
asked for is known to the nodes that they asked (``given_away``), and ends with its time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from raftstore.config import RebalanceSettings
from raftstore.types import ChannelId, NodeId


@dataclass(slots=True)
class _Seen:
    """The leader of a channel as it was seen last."""

    leader: NodeId
    since_ms: int
    kept_until_ms: int = 0
    given_by: NodeId | None = None
    """The node that gave it away, while it is kept where it is."""


class SettledLeaders:
    """Leaders of all channels, as the planner has seen them."""

    def __init__(self, settings: RebalanceSettings) -> None:
        self._settings = settings
        self._seen: dict[ChannelId, _Seen] = {}
        self._asked_for: Collection[ChannelId] = ()
        """Channels that operators had nodes give away."""
        self._asked: Collection[NodeId] = ()
        """Those nodes."""

    def respect(self, asked_for: Collection[tuple[ChannelId, NodeId]]) -> None:
        """These leaderships were given away because an operator asked, and stay, as nodes report:
        whatever happened to nodes, or to who plans, since then."""
        self._asked_for = {channel for channel, _ in asked_for}
        self._asked = {node for _, node in asked_for}

    def clear(self) -> None:
        """Nothing is known: this node has not planned before, or not for a while."""
        self._seen.clear()

    def nodes_changed(self) -> None:
        """A node came or went: what was moved on purpose before may be moved again."""
        for seen in self._seen.values():
            seen.kept_until_ms = 0

    def forget_unless(self, channels: Collection[ChannelId]) -> None:
        """Only these channels are left."""
        if len(self._seen) > len(channels):
            self._seen = {each: seen for each, seen in self._seen.items() if each in channels}

    def look(
        self,
        channel: ChannelId,
        leader: NodeId | None,
        now_ms: int,
        *,
        up: Collection[NodeId],
        is_planned: bool,
        replicas: Collection[NodeId],
    ) -> None:
        """The channel has this leader now; ``is_planned``: the planner has moved it there. One that
        has no replica of it any more gave it away for that, and nobody asked for it."""
        seen = self._seen.get(channel)
        if leader is None:
            if seen is not None:
                seen.since_ms = now_ms
        elif seen is None:
            self._seen[channel] = _Seen(leader, now_ms)
        elif seen.leader != leader:
            given_by, was_settled = seen.leader, self._is_settled(seen, now_ms)
            seen.leader, seen.since_ms = leader, now_ms
            # A new channel has one leader after the other, and so has one whose leader died.
            is_kept = was_settled or now_ms < seen.kept_until_ms
            if is_planned or given_by not in up or not is_kept:
                seen.kept_until_ms = 0
            else:
                seen.kept_until_ms = now_ms + self._settings.respect_ms
                seen.given_by = given_by
        # Looked at each time: the catalog gets to know of the replica's end behind the new leader.
        if seen is not None and seen.given_by is not None and seen.given_by not in replicas:
            seen.kept_until_ms = 0

    def may_move(self, channel: ChannelId, now_ms: int) -> bool:
        """Whether the channel has had its leader for long enough."""
        seen = self._seen.get(channel)
        return (
            seen is not None
            and self._is_settled(seen, now_ms)
            and now_ms >= seen.kept_until_ms
            and channel not in self._asked_for
        )

    def relieved(self, now_ms: int) -> set[NodeId]:
        """Nodes that gave a leadership away which is kept where it is: they get no other one."""
        return {*self._asked} | {
            seen.given_by
            for seen in self._seen.values()
            if seen.given_by is not None and now_ms < seen.kept_until_ms
        }

    def _is_settled(self, seen: _Seen, now_ms: int) -> bool:
        return now_ms - seen.since_ms >= self._settings.calm_ms
