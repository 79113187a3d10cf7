"""Gaps in the replicas of this node, and in those of others as they reported them.

A log has no gaps (S2.1) unless damage made a hole in it (S0.3). What a follower holds in front of
its log may have some: metadata whose payload did not come, or seqs of which nothing was reported to
it. Reports go to nodes that know them, with the lag reports and only while there is something to
report (NATS-207).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.peer_parts import PeerParts
from raftstore.policy.levels import GAP_REPORT_LEVEL
from raftstore.protocol.payload_repair import GAPS_MAX, ChannelGaps, GapReport
from raftstore.types import ChannelId, NodeId, Seq

NO_GAPS: Final[Mapping[NodeId, ChannelGaps]] = {}


class SeenGap(NamedTuple):
    """Seqs that a replica here misses."""

    from_seq: Seq
    to_seq: Seq
    age_ms: int
    """How long it is known of."""


class GapReports:
    """Reports of gaps that one node sends and gets."""

    def __init__(self, parts: PeerParts) -> None:
        self._parts = parts
        self._mine: dict[ChannelId, ChannelGaps] = {}
        self._since_ms: dict[ChannelId, dict[Seq, int]] = {}
        """When the gap that ends there was first seen."""
        self._is_reported: dict[NodeId, bool] = {}
        """Nodes whose last report named any gap."""
        self._others: dict[ChannelId, dict[NodeId, ChannelGaps]] = {}

    # --- reports sent -----------------------------------------------------------------------------

    def look(self, runner: ChannelRunner) -> None:
        """Something happened to this channel."""
        found = gaps_of(runner)
        if found.gaps:
            before = self._since_ms.get(runner.channel, {})
            now_ms = self._parts.clock.now_ms
            self._since_ms[runner.channel] = {
                last: before.get(last, now_ms) for _, last in found.gaps
            }
            self._mine[runner.channel] = found
        elif self._mine.pop(runner.channel, None) is not None:
            del self._since_ms[runner.channel]

    def report(self, node: NodeId, counter: int) -> None:
        """Report all gaps here to a node, and once when there are none any more."""
        if not self._mine and not self._is_reported.get(node):
            return
        if node in self._parts.nodes_at_level(GAP_REPORT_LEVEL):
            self._is_reported[node] = bool(self._mine)
            self._parts.outbox.send_known(node, GapReport(counter, tuple(self._mine.values())))

    def seen(self, runner: ChannelRunner) -> list[SeenGap]:
        """The gaps of a replica here, as they are now."""
        since_ms = self._since_ms.get(runner.channel, {})
        now_ms = self._parts.clock.now_ms
        return [
            SeenGap(first, last, now_ms - since_ms.get(last, now_ms))
            for first, last in gaps_of(runner).gaps
        ]

    # --- reports received -------------------------------------------------------------------------

    def forget_node(self, node: NodeId) -> None:
        """Drop its last report."""
        for reported in self._others.values():
            reported.pop(node, None)
        self._others = {channel: reported for channel, reported in self._others.items() if reported}

    def node_left(self, node: NodeId) -> None:
        """The node has left: nothing is reported to it either."""
        self._is_reported.pop(node, None)
        self.forget_node(node)

    def on_report(self, sender: NodeId, message: GapReport) -> None:
        """All gaps of a node."""
        self.forget_node(sender)
        for found in message.channels:
            if self._parts.exists(found.channel):  # S0.8: a report makes no channel known
                self._others.setdefault(found.channel, {})[sender] = found

    def of(self, channel: ChannelId) -> Mapping[NodeId, ChannelGaps]:
        """Gaps that other nodes reported of their replicas of a channel."""
        return self._others.get(channel, NO_GAPS)

    def forget(self, channel: ChannelId) -> None:
        """The table of the channel was dropped."""
        self._mine.pop(channel, None)
        self._since_ms.pop(channel, None)
        self._others.pop(channel, None)


def gaps_of(runner: ChannelRunner) -> ChannelGaps:
    """The gaps of a replica here, and where what it holds begins and ends."""
    end_seq, gaps = runner.core.gaps()
    if runner.hole is not None:  # S0.3: the log itself lost records
        gaps = ((runner.hole.from_seq, runner.hole.to_seq), *gaps)
        end_seq = max(end_seq, runner.hole.to_seq)
    first_seq = Seq(runner.core.base.seq + 1)
    return ChannelGaps(runner.channel, first_seq, end_seq, gaps[:GAPS_MAX])
