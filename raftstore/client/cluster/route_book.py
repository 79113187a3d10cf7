"""The router's map of the replicas that a client may ask, fed by every answer. Pure.

Everything here only orders the replicas (S7.4): whether one may serve is for the replica to judge
by its own state at the moment it answers. So a replica that nothing is known of lately is taken for
one that is not behind: if it is, that costs one refusal. One that said itself that it does not know
how far behind it is counts as infinitely far (S7.3), until it may have learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from raftstore.policy.health import HealthState
from raftstore.policy.routing import ReplicaView
from raftstore.protocol.admin import ClusterInfoAnswer
from raftstore.protocol.reads import Served
from raftstore.types import ChannelId, NodeId

PENALTY_MS: Final = 1_000
"""How long a replica is asked last in a channel after it failed there."""
HINT_AGE_MS_MAX: Final = 1_000
"""Lag reported longer ago than this is unknown: the replica may have caught up since."""
_SMOOTHING: Final = 0.2
"""Weight of the newest round trip in the mean."""

Stamp = tuple[int, int, tuple[HealthState, ...]]


@dataclass(frozen=True, slots=True)
class _Reported:
    """The last report about one replica of one channel."""

    at_ms: int
    lag: int | None
    batches_behind: int | None
    """Where it was not reported, no more than rows: each micro-batch ends with one of its own."""

    def is_repeated_by(self, newer: _Reported) -> bool:
        """Whether the newer word changes nothing but its age."""
        return (
            self.lag == newer.lag
            and self.batches_behind == newer.batches_behind
            and newer.at_ms - self.at_ms <= HINT_AGE_MS_MAX
        )


@dataclass(slots=True)
class _Channel:
    """Known facts about the replicas of one channel."""

    change: int
    """Number of the newest change: another one whenever something else is known than before."""
    turn: int = 0
    reported: dict[NodeId, _Reported] = field(default_factory=dict)
    failed_ms: dict[NodeId, int] = field(default_factory=dict)


class RouteBook:
    """See the module. ``reach`` returns how the link to a node is: up, down, or not tried yet."""

    def __init__(self, reach: Callable[[NodeId], HealthState]) -> None:
        self._reach = reach
        self._channels: dict[ChannelId, _Channel] = {}
        self._round_trips: dict[NodeId, float] = {}
        self._lost_ms: dict[NodeId, int] = {}
        self._changes = 0
        self._loss = 0
        """Number of the newest change of ``_lost_ms``."""

    # --- news ------------------------------------------------------------------------------------

    def learn(self, served: Served, now_ms: int) -> None:
        """An answer stated where its replica is (KLIP-48)."""
        channel, node = self._channel(served.channel), served.node
        if not served.pinned:  # a pinned state is old on purpose
            batches = served.batches_behind
            before = channel.reported.get(node)
            reported = channel.reported[node] = _Reported(
                now_ms, served.lag, served.lag if batches is None else batches
            )
            if before is None or not before.is_repeated_by(reported):
                channel.change = self._next_change()
        if channel.failed_ms.pop(node, None) is not None:
            channel.change = self._next_change()
        if self._lost_ms.pop(node, None) is not None:
            self._loss = self._next_change()

    def learn_cluster(self, answer: ClusterInfoAnswer, now_ms: int) -> None:
        """A node reported the lags that it knows of all replicas; forget what was dropped."""
        known = {info.channel: info for table in answer.tables for info in table.channels}
        for info in known.values():
            if len(info.replica_lags) != len(info.replicas):
                continue
            channel = self._channel(info.channel)
            reported = channel.reported
            for node, lag in zip(info.replicas, info.replica_lags, strict=True):
                newest = reported.get(node)
                if lag is not None and (newest is None or newest.at_ms < now_ms):
                    reported[node] = _Reported(now_ms, lag, lag)
                    channel.change = self._next_change()
        if answer.tables:
            gone = [channel for channel in self._channels if channel not in known]
            for dropped in gone:
                del self._channels[dropped]

    def failed(self, channel_id: ChannelId, node: NodeId, now_ms: int) -> None:
        """The replica refused a read, was lost or stayed silent."""
        channel = self._channel(channel_id)
        channel.failed_ms[node] = now_ms
        channel.change = self._next_change()

    def lost(self, node: NodeId, now_ms: int) -> None:
        """The connection to a node broke (KLIP-49)."""
        self._lost_ms[node] = now_ms
        self._loss = self._next_change()

    def took(self, node: NodeId, round_trip_ms: float) -> None:
        """An answer took that long."""
        mean = self._round_trips.get(node, round_trip_ms)
        self._round_trips[node] = mean + _SMOOTHING * (round_trip_ms - mean)

    # --- questions -------------------------------------------------------------------------------

    def next_turn(self, channel_id: ChannelId) -> int:
        """Number the reads of a channel, so that replicas take turns."""
        channel = self._channel(channel_id)
        channel.turn += 1
        return channel.turn - 1

    def views(
        self,
        channel_id: ChannelId,
        replicas: Sequence[NodeId],
        leader: NodeId | None,
        now_ms: int,
    ) -> tuple[ReplicaView, ...]:
        """Return what routing goes by, one view per replica."""
        channel = self._channel(channel_id)
        return tuple(self._view(channel, node, leader, now_ms) for node in replicas)

    def stamp(self, channel_id: ChannelId, replicas: Sequence[NodeId]) -> Stamp:
        """Return what the views are made of besides the time and round trips: equal stamps, equal
        views, until ``views_change_ms``."""
        channel = self._channel(channel_id)
        return channel.change, self._loss, tuple([self._reach(node) for node in replicas])

    def views_change_ms(
        self, channel_id: ChannelId, replicas: Sequence[NodeId], now_ms: int
    ) -> float:
        """Return when the mere passing of time changes the views next."""
        channel = self._channel(channel_id)
        moments = []
        for node in replicas:
            reported = channel.reported.get(node)
            if reported is not None:
                moments.append(reported.at_ms + HINT_AGE_MS_MAX + 1)
            failures = (channel.failed_ms.get(node), self._lost_ms.get(node))
            moments += [failed_ms + PENALTY_MS for failed_ms in failures if failed_ms is not None]
        return min((moment for moment in moments if moment > now_ms), default=inf)

    # --- inside ----------------------------------------------------------------------------------

    def _channel(self, channel: ChannelId) -> _Channel:
        known = self._channels.get(channel)
        if known is None:
            known = self._channels[channel] = _Channel(self._next_change())
        return known

    def _next_change(self) -> int:
        self._changes += 1
        return self._changes

    def _view(
        self,
        channel: _Channel,
        node: NodeId,
        leader: NodeId | None,
        now_ms: int,
    ) -> ReplicaView:
        reported = channel.reported.get(node)
        is_recent = reported is not None and now_ms - reported.at_ms <= HINT_AGE_MS_MAX
        return ReplicaView(
            node=node,
            state=self._state(channel, node, now_ms),
            lag=reported.lag if reported is not None and is_recent else 0,
            is_leader=node == leader,
            batches_behind=reported.batches_behind if reported is not None and is_recent else 0,
            round_trip_ms=self._round_trips.get(node),
        )

    def _state(self, channel: _Channel, node: NodeId, now_ms: int) -> HealthState:
        state = self._reach(node)
        for failed in (channel.failed_ms.get(node), self._lost_ms.get(node)):
            has_failed = failed is not None and now_ms - failed < PENALTY_MS
            if has_failed and state is not HealthState.DOWN:
                return HealthState.SUSPECT
        return state
