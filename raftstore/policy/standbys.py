"""Which replicas could lead at once: in-sync standbys, judged by what they have applied (FIP-17).

A *hot standby* is a replica that keeps the table up to date without leading. It is *in sync* once
it has applied all that the leader's log held at some moment, and as long as it stays within a bound
after that and is heard. So one that is just fast enough is not taken in and put out by turns.

Everything here is pure; ``raftstore.engine.leaders.standbys`` feeds it what replicas report.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftstore.types import ChannelConfig, MemberRole, NodeId, Seq

HOT_STANDBY_ROLES: Final = (MemberRole.VOTER, MemberRole.LEARNER)
"""Roles of replicas that have the table and may come to lead."""
SILENT: Final = "it is not heard"
"""Why a replica is no standby in sync."""
CATCHES_UP: Final = "it catches up"


class Judgement(NamedTuple):
    """The outcome of a look at one replica."""

    in_sync: bool
    has_changed: bool
    reason: str = ""
    """Why it is not in sync."""


def is_hot_standby_candidate(config: ChannelConfig, node: NodeId) -> bool:
    """Whether the node's replica has the table and may come to lead: no witness, no reader."""
    return config.role_of(node) in HOT_STANDBY_ROLES


def hot_standbys(config: ChannelConfig, leader: NodeId) -> tuple[NodeId, ...]:
    """FIP-05, FIP-07: replicas that keep the table up to date; the leader is none of them."""
    return tuple(
        node for node in config.members if node != leader and is_hot_standby_candidate(config, node)
    )


class InSyncStandbys:
    """The standbys in sync of one channel, while one replica leads it in one term."""

    def __init__(self, max_lag: int) -> None:
        """``max_lag``: rows that one may have to apply to stay in sync."""
        self._max_lag = max_lag
        self._in_sync: dict[NodeId, None] = {}
        self._ends: dict[NodeId, Seq] = {}
        """Where the leader's log ended at the last look at a replica that is not in sync."""

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Standbys in sync, the longest first."""
        return tuple(self._in_sync)

    def __contains__(self, node: object) -> bool:
        return node in self._in_sync

    def judge(self, node: NodeId, applied_seq: Seq, end_seq: Seq, why_not: str = "") -> Judgement:
        """A replica has applied so far, and the leader's log ends there (FIP-17, FIP-18).

        ``why_not``: why it is out of sync whatever it has applied; empty: nothing speaks against.
        """
        lag = max(0, end_seq - applied_seq)
        if why_not or lag > self._max_lag:
            was = self.leave(node)
            self._ends[node] = end_seq
            return Judgement(False, was, why_not or f"it has {lag} rows to apply")
        if node in self._in_sync:
            return Judgement(True, False)
        # Under load nobody is ever equal to the present end: to the one of a moment ago is enough.
        if applied_seq < self._ends.get(node, end_seq):
            self._ends.setdefault(node, end_seq)
            return Judgement(False, False, f"it has {lag} rows to apply")
        self._ends.pop(node, None)
        self._in_sync[node] = None
        return Judgement(True, True)

    def leave(self, node: NodeId) -> bool:
        """A replica is not in sync, whatever it has applied; False: it was not before."""
        self._ends.pop(node, None)
        if node not in self._in_sync:
            return False
        del self._in_sync[node]
        return True
