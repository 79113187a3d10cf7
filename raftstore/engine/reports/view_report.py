"""One node's viewpoint of everything that routing uses (KLIP-33): hints, never a promise (S7.4).

Of a channel that is hosted here the core knows most; of any other channel, what its replicas
reported. Replicas check their own lag again when they are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from raftstore.engine.catalog.table_definition import bounds_of
from raftstore.engine.reports.channel_views import ChannelViewCache, PlacedChannel
from raftstore.engine.reports.node_parts import NodeParts
from raftstore.policy.bounds import UNBOUNDED
from raftstore.policy.health import HealthState
from raftstore.protocol.admin import ChannelView, ClusterView, ClusterViewAnswer, NodeView
from raftstore.protocol.reads import Bounds
from raftstore.state_machines.catalog import Catalog
from raftstore.types import ChannelId, NodeId, Seq, channel_id

VIEW_KEPT_MS: Final = 100
"""A view is built once in this time, however many ask, or in a quarter as many milliseconds as it
has channels, whichever is longer: while a large table gets its leaders everything in it changes."""


class ViewReport:
    """The node's viewpoint as one answer, built without dicts and kept for a moment."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self._built: ClusterViewAnswer | None = None
        self._built_ms = 0
        self._by_channel: dict[ChannelId, ChannelView] = {}
        self.kept = ChannelViewCache(node)
        """The views of single channels, of which some may be out of date."""
        self._catalog: Catalog | None = None
        """What the kept channels are of."""

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
        kept_ms = max(VIEW_KEPT_MS, len(self._by_channel) // 4)
        if built is None or not 0 <= now_ms - self._built_ms < kept_ms:
            built = self._built = self._build(now_ms)
            self._built_ms = now_ms
            self._by_channel = {channel.channel: channel for channel in built.channels}
        return built

    def _build(self, now_ms: int) -> ClusterViewAnswer:
        node = self._node
        controller = node.controller
        if self._catalog is not controller.catalog:
            self._catalog = controller.catalog
            self.kept.follow(self._channels())
        lag, age_ms = node.reader.lag(controller.metadata, now_ms)
        query = node.settings.query
        domains = controller.catalog.domains()
        return ClusterViewAnswer(
            request_id=0,
            viewpoint=node.me,
            cluster_id=node.identity.cluster_id,
            version=controller.catalog.version,
            age_ms=age_ms if lag == 0 else None,
            bounds=Bounds(query.max_lag),
            table_bounds={
                table.name: bounds
                for table in controller.catalog.tables.values()
                if (bounds := bounds_of(table)) != UNBOUNDED
            },
            nodes=tuple(
                self._node_view(peer, at, domains.get(peer, ""), now_ms)
                for peer, at in controller.endpoints().items()
            ),
            channels=tuple(self.kept.views(now_ms)),
            metadata_term=controller.metadata.elector.term,
        )

    def _node_view(self, peer: NodeId, endpoint: str, domain: str, now_ms: int) -> NodeView:
        node = self._node
        drains = peer in node.controller.catalog.draining
        watch, health = node.watch, node.watch.health
        http = watch.reports.http_of.get(peer, "")
        if peer == node.me:
            return NodeView(peer, endpoint, http, HealthState.UP.value, 0, 0, 0, domain, drains)
        heard_ms = health.last_heard_ms(peer)
        state = health.state(peer)
        shown: HealthState
        if state is HealthState.SUSPECT and node.settings.heartbeat.enable:
            # KLIP-49: asked last, and down only when its heartbeats are missed, too.
            shown = HealthState.SUSPECT
        elif not watch.is_routable(peer, now_ms):
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
            failure_domain=domain,
            is_draining=drains,
        )

    def _channels(self) -> Iterable[PlacedChannel]:
        catalog = self._node.controller.catalog
        for table in catalog.tables.values():
            for partition, replicas in enumerate(catalog.placement_of(table)):
                channel = channel_id(table.uuid, partition)
                roles = catalog.roles_of(channel)
                entry = catalog.changes.get(channel)
                config_seq = Seq(0) if entry is None else entry.config_seq
                yield PlacedChannel(
                    channel, table.name, partition, tuple(replicas), roles, config_seq
                )
