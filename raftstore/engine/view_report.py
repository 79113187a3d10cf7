"""One node's viewpoint of everything that routing uses (KLIP-33): hints, never a promise (S7.4).

Of a channel that is hosted here the core knows most; of any other channel, what its replicas
reported. Replicas check their own lag again when they are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from raftstore.cluster.bounds import UNBOUNDED
from raftstore.cluster.health import HealthState
from raftstore.cluster.lag import known_lag
from raftstore.config import NodeSettings
from raftstore.core.batches import NOT_TOLD
from raftstore.engine.channel_runner import ChannelRunner
from raftstore.engine.node_ports import NodeIdentity
from raftstore.engine.peer_watch import PeerWatch
from raftstore.engine.reads import Reader
from raftstore.engine.table_definition import bounds_of
from raftstore.machines.catalog import Catalog
from raftstore.ports import TableStore
from raftstore.requests import (
    Bounds,
    ChannelView,
    ClusterView,
    ClusterViewAnswer,
    NodeView,
    ReplicaHint,
)
from raftstore.types import ChannelId, NodeId, Role, Seq, Term, channel_id

VIEW_KEPT_MS: Final = 100
"""A view is built once in this time, however many ask."""


class ViewHost(Protocol):
    """What is looked at of a node."""

    me: NodeId
    settings: NodeSettings
    tables: TableStore
    channels: dict[ChannelId, ChannelRunner]
    watch: PeerWatch
    reader: Reader


class KeptCatalog(Protocol):
    """The node's copy of the catalog and what it knows beside it."""

    catalog: Catalog

    @property
    def metadata(self) -> ChannelRunner:
        """The metadata channel of this node."""

    def endpoints(self) -> dict[NodeId, str]:
        """Every known node with its newest endpoint."""

    def leader_of(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        """Who leads a channel, as far as this node knows."""


class WholeHost(ViewHost, Protocol):
    """What is looked at for the whole view."""

    identity: NodeIdentity

    @property
    def keeper(self) -> KeptCatalog:
        """The catalog."""


class _Look:
    """At one channel, at one moment."""

    __slots__ = (
        "_acked",
        "_channel",
        "_node",
        "_now_ms",
        "_own_lag",
        "_reported",
        "_runner",
        "age_ms",
        "batches",
        "end_seq",
    )

    def __init__(self, node: ViewHost, channel: ChannelId, now_ms: int) -> None:
        self._node = node
        self._channel = channel
        self._runner = runner = node.channels.get(channel)
        self._now_ms = now_ms
        self._own_lag: int | None = None
        if runner is None:
            reports = node.watch.reports
            self.end_seq = reports.end_seq(channel)
            self.age_ms = reports.leader_age_ms(channel, now_ms)
        else:
            self._own_lag, self.age_ms = node.reader.lag(runner, now_ms)
            self.end_seq = node.watch.known_commit(runner)
        self._reported = node.watch.reports.positions.get(channel, {})
        self.batches = self._batches()
        self._acked = {} if runner is None else runner.core.progress()

    def at(self, replica: NodeId) -> ReplicaHint:
        """What is known of one replica."""
        node, runner = self._node, self._runner
        if replica == node.me and runner is not None:
            lag = self._own_lag
            applied = node.tables.applied_seq(self._channel)
            time_ms, batches = self._time_lag_ms(applied, lag), self._behind(replica, applied, lag)
            role = runner.elector.role.value
            return ReplicaHint(replica, applied, lag, time_ms, batches, role, 0)
        found, told_ms_ago = self._told(replica)
        said = node.watch.hearsay.position(self._channel, replica)
        if said is not None and (told_ms_ago is None or self._now_ms - said.heard_ms < told_ms_ago):
            # KLIP-35: it orders the replicas, but what they are measured by stays what is known.
            found, told_ms_ago = said.applied_seq, max(0, self._now_ms - said.heard_ms)
        role = self._role(replica)
        if found is None:
            return ReplicaHint(replica, Seq(0), None, None, None, role, None)
        age_max_ms = node.settings.read.leader_info_age_max_ms
        lag = known_lag(self.end_seq, found, self.age_ms, age_max_ms)
        time_ms, batches = self._time_lag_ms(found, lag), self._behind(replica, found, lag)
        return ReplicaHint(replica, found, lag, time_ms, batches, role, told_ms_ago)

    def _time_lag_ms(self, applied: Seq, lag: int | None) -> int | None:
        """How old the state may be, as a hint: proven by a round trip, or as the leader told.

        Round trips are made only when a read asks for a bound in time; between them a replica that
        lacks nothing is as old as the last word of its leader, however long ago it told its own
        position: that only grows. A replica that serves proves it.
        """
        known: list[int] = []
        if self._runner is not None:
            as_of_ms = self._runner.core.fresh_as_of(applied)
            if as_of_ms is not None:
                known.append(max(0, self._now_ms - as_of_ms))
        if lag == 0 and self.age_ms is not None:
            known.append(self.age_ms)
        return min(known, default=None)

    def _batches(self) -> int | None:
        """Micro-batches in what is committed, as far as anybody told."""
        told = max((p.commit_batches for p in self._reported.values()), default=NOT_TOLD)
        if self._runner is not None:
            core = self._runner.core
            told = max(told, core.tell_batches(core.commit_seq))
        return None if told == NOT_TOLD else told

    def _behind(self, replica: NodeId, applied: Seq, lag: int | None) -> int | None:
        """Micro-batches that the state lacks: never less than it does (S7.3), as a hint."""
        if not lag:
            return lag
        if self._runner is not None:
            core = self._runner.core
            # What is not committed here yet cannot be counted here; a batch needs a seq of its own.
            between = core.batches_between(Seq(min(applied, core.commit_seq)), self.end_seq)
            return None if between is None else between[1]
        position = self._reported.get(replica)
        held = NOT_TOLD if position is None else position.applied_batches
        if held == NOT_TOLD:
            return None
        newest = max(self._reported.values(), key=lambda position: position.commit_seq)
        return None if newest.commit_batches == NOT_TOLD else max(0, newest.commit_batches - held)

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


class ViewReport:
    """The node's viewpoint as one answer, built without dicts and kept for a moment."""

    def __init__(self, node: WholeHost) -> None:
        self._node = node
        self._built: ClusterViewAnswer | None = None
        self._built_ms = 0
        self._by_channel: dict[ChannelId, ChannelView] = {}

    def answer(self, request: ClusterView, now_ms: int) -> ClusterViewAnswer:
        """The present view, or the one of a moment ago, which says how long ago that was."""
        built = self._newest(now_ms)
        since_ms = now_ms - self._built_ms
        return msgspec.structs.replace(
            built,
            request_id=request.request_id,
            age_ms=None if built.age_ms is None else built.age_ms + since_ms,
            channels=built.channels if request.with_channels else (),
            built_ms_ago=since_ms,
        )

    def channels(self, now_ms: int) -> Mapping[ChannelId, ChannelView]:
        """The channels of the same view, to be looked up."""
        self._newest(now_ms)
        return self._by_channel

    def _newest(self, now_ms: int) -> ClusterViewAnswer:
        built = self._built
        if built is None or not 0 <= now_ms - self._built_ms < VIEW_KEPT_MS:
            built = self._built = self._build(now_ms)
            self._built_ms = now_ms
            self._by_channel = {channel.channel: channel for channel in built.channels}
        return built

    def _build(self, now_ms: int) -> ClusterViewAnswer:
        node = self._node
        keeper = node.keeper
        lag, age_ms = node.reader.lag(keeper.metadata, now_ms)
        query = node.settings.query
        return ClusterViewAnswer(
            request_id=0,
            viewpoint=node.me,
            cluster_id=node.identity.cluster_id,
            version=keeper.catalog.version,
            age_ms=age_ms if lag == 0 else None,
            bounds=Bounds(query.max_lag),
            table_bounds={
                table.name: bounds
                for table in keeper.catalog.tables.values()
                if (bounds := bounds_of(table)) != UNBOUNDED
            },
            nodes=tuple(
                self._node_view(peer, at, now_ms) for peer, at in keeper.endpoints().items()
            ),
            channels=tuple(self._channels(now_ms)),
        )

    def _node_view(self, peer: NodeId, endpoint: str, now_ms: int) -> NodeView:
        node = self._node
        watch, health = node.watch, node.watch.health
        http = watch.reports.http_of.get(peer, "")
        if peer == node.me:
            return NodeView(peer, endpoint, http, HealthState.UP.value, 0, 0, 0)
        heard_ms = health.last_heard_ms(peer)
        state = health.state(peer)
        if not watch.is_routable(peer, now_ms):
            shown = HealthState.DOWN
        elif state is HealthState.DOWN or state is None:
            shown = HealthState.UP  # not by its heartbeats here, but for queries
        else:
            shown = state
        return NodeView(
            node=peer,
            endpoint=endpoint,
            http=http,
            state=shown.value,
            last_heard_ms_ago=None if heard_ms is None else max(0, now_ms - heard_ms),
            lag_update_ms_ago=watch.reports.updated_ms_ago(peer, now_ms),
            clock_skew_ms=health.skew_ms(peer),
        )

    def _channels(self, now_ms: int) -> Iterable[ChannelView]:
        node = self._node
        for table in node.keeper.catalog.tables.values():
            for partition, replicas in enumerate(table.placement):
                channel = channel_id(table.uuid, partition)
                leader, term = node.keeper.leader_of(channel)
                look = _Look(node, channel, now_ms)
                yield ChannelView(
                    channel=channel,
                    table=table.name,
                    partition=partition,
                    leader=leader,
                    term=term,
                    end_seq=look.end_seq,
                    leader_info_age_ms=look.age_ms,
                    replicas=tuple([look.at(replica) for replica in replicas]),
                    batches=look.batches,
                )
