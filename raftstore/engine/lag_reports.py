"""Positions of replicas: what this node tells of its own, and what others told of theirs (KLIP-35).

Every connected node hears the positions of all replicas here, so that each node can order the
replicas of any channel for a query, hosted or not. The commit positions that were told also count
for the lag of a replica here (KLIP-36): the furthest of a channel is kept beside the positions, so
a report that comes late or twice takes nothing back, nor does a replica that knows less than it did
before: a leader that stood still, or whoever was started again. Everything is in memory (KIP-30).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from raftstore.config import LagSettings
from raftstore.core.batches import NOT_TOLD
from raftstore.engine.channel_runner import ChannelRunner
from raftstore.messages import ChannelPosition, LagReport
from raftstore.types import ChannelId, NodeId, Seq, Term

LATE_REPORTS_MAX = 64
"""A report that is up to so many older than the newest one is late or came twice; one that seems
older still is the first of a sender that was started again."""


class Committed(NamedTuple):
    """How far a channel is known to be committed; of two the greater one says more."""

    seq: Seq
    batches: int
    """Micro-batches up to there; NOT_TOLD: who told the seq did not count them."""


NOBODY: Final[dict[NodeId, ChannelPosition]] = {}
NOTHING: Final = Committed(Seq(0), NOT_TOLD)


class LagReports:
    """Positions of the replicas of all channels that exist, by channel and node."""

    def __init__(self, settings: LagSettings, http: str = "") -> None:
        """``http`` is the address of this node's HTTP interface."""
        self._settings = settings
        self._http = http
        self.http_of: dict[NodeId, str] = {}
        """Where the HTTP interface of each node that told it is; empty: it has none."""
        self._counter = 0
        self._newest: dict[NodeId, int] = {}
        self.heard_ms: dict[NodeId, int] = {}
        """When the last report of each node arrived."""
        self.positions: dict[ChannelId, dict[NodeId, ChannelPosition]] = {}
        """As they were told last."""
        self._committed: dict[ChannelId, Committed] = {}

    # --- what is told -----------------------------------------------------------------------------

    def reports(
        self,
        to: Iterable[NodeId],
        mine: list[tuple[ChannelRunner, ChannelPosition]],
        wall_ms: int,
    ) -> Iterable[tuple[NodeId, LagReport]]:
        """One report for each of these nodes: of all replicas here, unless that is switched off.

        Even then nodes that host a channel hear of it, because they compare histories (S13) and
        order their candidacy by it, and everybody hears who leads.
        """
        self._counter += 1
        everything = LagReport(
            wall_ms, tuple(position for _, position in mine), self._counter, self._http
        )
        for node in to:
            if self._settings.enable:
                yield node, everything
                continue
            needed = tuple(
                position
                for runner, position in mine
                if position.is_leader or node in runner.core.config().members
            )
            yield node, LagReport(wall_ms, needed, self._counter, self._http)

    # --- what is heard ----------------------------------------------------------------------------

    def is_late(self, sender: NodeId, message: LagReport) -> bool:
        """Whether a newer report of the sender, or this one, was here before (S12)."""
        newest, counter = self._newest.get(sender, 0), message.counter
        if counter and 0 <= newest - counter < LATE_REPORTS_MAX:
            return True
        self._newest[sender] = counter
        return False

    def restarted(self, node: NodeId) -> None:
        """The node counts its reports anew."""
        self._newest.pop(node, None)

    def heard(self, sender: NodeId, http: str, now_ms: int) -> None:
        """A report of this node arrived; its HTTP interface is there."""
        self.heard_ms[sender] = now_ms
        self.http_of[sender] = http

    def keep(self, sender: NodeId, position: ChannelPosition) -> bool:
        """Remember a position; what was known to be committed stays known (KLIP-36).

        False: it says what was known.
        """
        channel = position.channel
        known = self.positions.get(channel)
        if known is None:
            known = self.positions[channel] = {}
        if known.get(sender) == position:
            return False
        known[sender] = position
        told = Committed(position.commit_seq, position.commit_batches)
        if told > self.committed(channel):
            self._committed[channel] = told
        return True

    def forget(self, channel: ChannelId) -> None:
        """The table of the channel was dropped."""
        self.positions.pop(channel, None)
        self._committed.pop(channel, None)

    def forget_unless(self, exists: Callable[[ChannelId], bool]) -> None:
        """Tables were dropped, among them some whose channels live elsewhere."""
        for channel in [channel for channel in self.positions if not exists(channel)]:
            self.forget(channel)

    # --- what is known ----------------------------------------------------------------------------

    def updated_ms_ago(self, node: NodeId, now_ms: int) -> int | None:
        """How long ago the node's last report arrived; None: none ever did."""
        heard_ms = self.heard_ms.get(node)
        return None if heard_ms is None else max(0, now_ms - heard_ms)

    def committed(self, channel: ChannelId) -> Committed:
        """The furthest that any replica ever reported to be committed."""
        return self._committed.get(channel, NOTHING)

    def teller(self, channel: ChannelId) -> NodeId | None:
        """The leader of the highest term, if it tells its position; one of the past does not count.

        S7.3: it tells none before it has committed in its term, and after it stood still.
        """
        leader: NodeId | None = None
        term = Term(0)
        for node, position in self.positions.get(channel, NOBODY).items():
            if position.is_leader and position.term >= term:
                leader, term = node if position.commit_seq else None, position.term
        return leader
