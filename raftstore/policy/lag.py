"""How far behind each replica is, from what nodes report of themselves (KLIP-35, KLIP-36).

Lag counts rows: the highest commit_seq that anybody reported for a channel, minus the replica's
applied_seq, never below 0. Commit positions only grow, so the highest is right from any sender; but
whether it is *recent* is known only from the channel's present leader. Without a recent report of a
leader lag is unknown, and unknown counts as infinite (S7.3: fail closed).

Everything is in memory (KIP-30). Ages are measured by arrival on the local monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raftstore.protocol.node import ChannelPosition
from raftstore.types import ChannelId, NodeId, Seq, Term


@dataclass(frozen=True, slots=True)
class LagInfo:
    """KIP-535's LagInfo: where a replica is, where the channel is, and the difference in rows."""

    current_offset_position: Seq
    end_offset_position: Seq
    offset_lag: int
    time_lag_ms: int | None = None
    """Everything committed longer ago than this has been applied; None is unknown."""


def rows_behind(end_seq: Seq, applied_seq: Seq) -> int:
    """Lag in rows, whichever nodes reported the two positions: never below 0 (KLIP-36)."""
    return max(0, end_seq - applied_seq)


def known_lag(end_seq: Seq, applied_seq: Seq, age_ms: int | None, age_max_ms: int) -> int | None:
    """Lag in rows, or None for unknown, to be taken for infinite (S7.3).

    ``age_ms``: the age of the newest report of the channel's leader, None if there is none.
    """
    # S7.3: without a recent report of the leader nobody knows how far the channel has gone.
    if age_ms is None or age_ms > age_max_ms:
        return None
    return rows_behind(end_seq, applied_seq)


@dataclass(slots=True)
class _Channel:
    commit_seq: Seq = Seq(0)
    applied: dict[NodeId, Seq] = field(default_factory=dict)
    leader: NodeId | None = None
    leader_term: Term = Term(0)
    leader_heard_ms: int | None = None


class LagTable:
    """Positions of all replicas of the channels a node or client is interested in."""

    def __init__(self, *, leader_info_age_max_ms: int) -> None:
        self._age_max_ms = leader_info_age_max_ms
        self._channels: dict[ChannelId, _Channel] = {}

    # --- reports received -----------------------------------------------------------------------

    def on_positions(self, node: NodeId, positions: Iterable[ChannelPosition], now_ms: int) -> None:
        """A node reported the positions of its replicas (a LagReport, or this node's own state)."""
        for position in positions:
            known = self._channels.setdefault(position.channel, _Channel())
            known.applied[node] = position.applied_seq
            known.commit_seq = max(known.commit_seq, position.commit_seq)
            if position.is_leader:
                self._heard_leader(known, node, position.term, now_ms)

    # --- what is known ---------------------------------------------------------------------------

    def end_seq(self, channel: ChannelId) -> Seq:
        """The highest commit_seq anybody reported; 0 for an unknown channel."""
        known = self._channels.get(channel)
        return Seq(0) if known is None else known.commit_seq

    def leader(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        """The leader of the highest term known (a hint, S7.4), and that term."""
        known = self._channels.get(channel)
        return (None, Term(0)) if known is None else (known.leader, known.leader_term)

    def leader_info_age_ms(self, channel: ChannelId, now_ms: int) -> int | None:
        """The age of the newest report of the leader of the highest known term; None if none
        came."""
        known = self._channels.get(channel)
        if known is None or known.leader_heard_ms is None:
            return None
        return max(0, now_ms - known.leader_heard_ms)

    def lag(self, node: NodeId, channel: ChannelId, now_ms: int) -> int | None:
        """Rows the replica is behind; None is unknown, to be taken for infinite (S7.3)."""
        info = self.lag_info(node, channel)
        if info is None:
            return None
        age_ms = self.leader_info_age_ms(channel, now_ms)
        applied, end = info.current_offset_position, info.end_offset_position
        return known_lag(end, applied, age_ms, self._age_max_ms)

    def lag_info(self, node: NodeId, channel: ChannelId) -> LagInfo | None:
        """Last known positions of a replica, for display; None if it never reported."""
        known = self._channels.get(channel)
        if known is None or node not in known.applied:
            return None
        applied = known.applied[node]
        return LagInfo(applied, known.commit_seq, rows_behind(known.commit_seq, applied))

    @staticmethod
    def _heard_leader(known: _Channel, node: NodeId, term: Term, now_ms: int) -> None:
        """S7.3: only the leader of the highest term counts, not one of the past."""
        if term >= known.leader_term:
            known.leader, known.leader_term, known.leader_heard_ms = node, term, now_ms
