"""Which replica is asked for a payload that is missing here (NATS-205)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from raftstore.types import NodeId, Seq


class ReportedLog(NamedTuple):
    """A log as its replica reported it: all from ``first_seq`` to ``end_seq`` but ``gaps``."""

    first_seq: Seq
    end_seq: Seq
    gaps: Sequence[tuple[Seq, Seq]] = ()

    def misses(self, seq: Seq) -> bool:
        """Whether it reported that it does not have this one; a later one it did not know of."""
        return seq < self.first_seq or any(first <= seq <= last for first, last in self.gaps)


def next_source(
    seq: Seq,
    *,
    leader: NodeId | None,
    able: Sequence[NodeId],
    reported: Mapping[NodeId, ReportedLog],
    asked: Collection[NodeId],
) -> NodeId | None:
    """The leader first, then who reported to be furthest; None: all of ``able`` were asked, or
    reported that they miss it. ``able``: who can be asked, the leader among them or not."""
    left = [node for node in able if node not in asked]
    if leader in left:
        return leader
    logs = {node: reported.get(node, ReportedLog(Seq(0), Seq(0))) for node in left}
    holders = [node for node in left if not logs[node].misses(seq)]
    return max(holders, key=lambda node: logs[node].end_seq, default=None)
