"""One node's viewpoint of everything that routing uses (KLIP-33): hints, never a promise (S7.4).

Of a channel that is hosted here the core knows most; of any other channel, what its replicas
reported. Replicas check their own lag again when they are asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from raftstore.cluster.lag import known_lag
from raftstore.config import NodeSettings
from raftstore.engine.channel_runner import ChannelRunner
from raftstore.engine.peer_watch import PeerWatch
from raftstore.engine.reads import Reader
from raftstore.ports import TableStore
from raftstore.requests import ReplicaHint
from raftstore.types import ChannelId, NodeId, Role, Seq


class ViewHost(Protocol):
    """What is looked at of a node."""

    me: NodeId
    settings: NodeSettings
    tables: TableStore
    channels: dict[ChannelId, ChannelRunner]
    watch: PeerWatch
    reader: Reader


def end_of_channel(node: ViewHost, channel: ChannelId, now_ms: int) -> tuple[Seq, int | None]:
    """Highest commit seq known here, and how old the word of the channel's leader is in ms."""
    runner = node.channels.get(channel)
    if runner is None:
        reports = node.watch.reports
        return reports.end_seq(channel), reports.leader_age_ms(channel, now_ms)
    _, age_ms = node.reader.lag(runner, now_ms)
    return node.watch.known_commit(runner), age_ms


def replica_hints(
    node: ViewHost, channel: ChannelId, replicas: Iterable[NodeId], now_ms: int
) -> tuple[ReplicaHint, ...]:
    """What is known of each of these replicas; unknown lags are None, to be taken for infinite."""
    runner = node.channels.get(channel)
    end_seq, age_ms = end_of_channel(node, channel, now_ms)
    look = _Look(node, channel, runner, end_seq, age_ms, now_ms)
    return tuple(look.at(replica) for replica in replicas)


class _Look:
    """At one channel, at one moment."""

    __slots__ = (
        "_acked",
        "_age_ms",
        "_channel",
        "_end_seq",
        "_node",
        "_now_ms",
        "_reported",
        "_runner",
    )

    def __init__(
        self,
        node: ViewHost,
        channel: ChannelId,
        runner: ChannelRunner | None,
        end_seq: Seq,
        age_ms: int | None,
        now_ms: int,
    ) -> None:
        self._node = node
        self._channel = channel
        self._runner = runner
        self._end_seq = end_seq
        self._age_ms = age_ms
        self._now_ms = now_ms
        self._reported = node.watch.reports.positions.get(channel, {})
        self._acked = {} if runner is None else runner.core.progress()

    def at(self, replica: NodeId) -> ReplicaHint:
        """What is known of one replica."""
        node, runner = self._node, self._runner
        if replica == node.me and runner is not None:
            lag, _ = node.reader.lag(runner, self._now_ms)
            applied = node.tables.applied_seq(self._channel)
            return ReplicaHint(replica, applied, lag, None, None, runner.elector.role.value, 0)
        found, told_ms_ago = self._told(replica)
        said = node.watch.hearsay.position(self._channel, replica)
        if said is not None and (told_ms_ago is None or self._now_ms - said.heard_ms < told_ms_ago):
            # KLIP-35: it orders the replicas, but what they are measured by stays what is known.
            found, told_ms_ago = said.applied_seq, max(0, self._now_ms - said.heard_ms)
        role = self._role(replica)
        if found is None:
            return ReplicaHint(replica, Seq(0), None, None, None, role, None)
        age_max_ms = node.settings.read.leader_info_age_max_ms
        lag = known_lag(self._end_seq, found, self._age_ms, age_max_ms)
        return ReplicaHint(replica, found, lag, None, None, role, told_ms_ago)

    def _told(self, replica: NodeId) -> tuple[Seq | None, int | None]:
        """Applied seq and how long ago that was told: by a report, or by an acknowledgement."""
        applied: Seq | None = None
        told_ms_ago: int | None = None
        position = self._reported.get(replica)
        if position is not None:
            applied = position.applied_seq
            told_ms_ago = self._node.watch.reports.updated_ms_ago(replica, self._now_ms)
        acked = self._acked.get(replica)
        if acked is not None and acked.heard_ms is not None:
            acked_ms_ago = max(0, self._now_ms - acked.heard_ms)
            applied = Seq(max(applied or 0, acked.applied_seq))
            told_ms_ago = acked_ms_ago if told_ms_ago is None else min(told_ms_ago, acked_ms_ago)
        return applied, told_ms_ago

    def _role(self, replica: NodeId) -> str:
        if self._runner is not None and self._runner.elector.leader is not None:
            leads = self._runner.elector.leader == replica
        else:
            position = self._reported.get(replica)
            if position is None:
                return ""
            leads = position.is_leader
        return Role.LEADER.value if leads else Role.FOLLOWER.value
