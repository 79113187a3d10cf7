"""Which replicas a read asks, in which order; decisions are kept while nothing changes.

Pure, like ``policy.routing``, whose word it is: what is kept is what would be decided anew. That
costs a third of a small read otherwise, and hundreds of reads come between two changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Final, NamedTuple

from raftstore.client.cluster.route_book import RouteBook, Stamp
from raftstore.policy.routing import Prefer, nodes_to_query
from raftstore.types import ChannelId, NodeId

KEPT_MAX: Final = 64
"""Decisions kept per channel: turns times the bounds that a program uses."""
CHANNELS_MAX: Final = 10_000
"""Channels whose decisions are kept; tables come and go."""


class Bounded(NamedTuple):
    """Requirements of a read on its replicas, as far as routing knows them."""

    prefer: Prefer
    max_lag: int | None
    max_batches_behind: int | None
    local: NodeId | None


@dataclass(slots=True)
class _Kept:
    """Decisions of one channel, and what they came from."""

    stamp: Stamp
    replicas: tuple[NodeId, ...]
    leader: NodeId | None
    until_ms: float
    orders: dict[tuple[Bounded, int], tuple[NodeId, ...]]


class Routes:
    """See the module."""

    def __init__(self, book: RouteBook) -> None:
        self._book = book
        self._kept: dict[ChannelId, _Kept] = {}

    def order(
        self,
        channel: ChannelId,
        replicas: tuple[NodeId, ...],
        leader: NodeId | None,
        bounded: Bounded,
        turn: int,
        now_ms: int,
    ) -> tuple[NodeId, ...]:
        """All replicas, those that routing would not ask at the end: the replica decides (S7.4)."""
        if bounded.prefer is Prefer.NEAREST:  # round trips change with every answer
            return self._decide(channel, replicas, leader, bounded, turn, now_ms)
        stamp = self._book.stamp(channel, replicas)
        kept = self._kept.get(channel)
        if (
            kept is None
            or kept.stamp != stamp
            or now_ms >= kept.until_ms
            or kept.leader != leader
            or kept.replicas != replicas
        ):
            if len(self._kept) >= CHANNELS_MAX:
                self._kept.clear()
            until_ms = self._book.views_change_ms(channel, replicas, now_ms)
            kept = self._kept[channel] = _Kept(stamp, replicas, leader, until_ms, {})
        # Whatever number of replicas takes turns, these turns are all there are.
        turn %= lcm(*range(1, len(replicas) + 1))
        order = kept.orders.get((bounded, turn))
        if order is None:
            if len(kept.orders) >= KEPT_MAX:
                kept.orders.clear()
            order = self._decide(channel, replicas, leader, bounded, turn, now_ms)
            kept.orders[bounded, turn] = order
        return order

    def _decide(
        self,
        channel: ChannelId,
        replicas: tuple[NodeId, ...],
        leader: NodeId | None,
        bounded: Bounded,
        turn: int,
        now_ms: int,
    ) -> tuple[NodeId, ...]:
        views = self._book.views(channel, replicas, leader, now_ms)
        chosen = nodes_to_query(
            views,
            max_lag=bounded.max_lag,
            max_batches_behind=bounded.max_batches_behind,
            local=bounded.local,
            prefer=bounded.prefer,
            turn=turn,
        )
        hinted = [view for view in views if view.node in chosen.refused]
        alive = nodes_to_query(hinted, max_lag=None, local=bounded.local).nodes
        dead = [view.node for view in hinted if view.node not in alive]
        return (*chosen.nodes, *alive, *dead)
