"""Which nodes a read asks, in which order: the leader, a named replica, or all within the bounds.

The order of replicas is ``raftstore.policy.routing``'s, by what ``route_book`` knows; whether one
may serve is for the replica to judge by its own state (S7.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from raftstore.client.cluster.topology import Leader
from raftstore.client.context import Context
from raftstore.client.reads.read_spec import ReadSpec
from raftstore.client.reads.routes import Bounded, Routes
from raftstore.policy.routing import Prefer
from raftstore.types import ChannelId, NodeId


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Which nodes may serve a read, and whether a second one is asked meanwhile."""

    at_leader: bool = False
    """The leader alone, as it is known when the read is sent."""
    only: NodeId | None = None
    """This replica alone."""
    prefer: Prefer | None = None
    max_lag: int | None = None
    max_batches_behind: int | None = None
    hedge: bool | None = None
    may_wait: bool = False
    """A replica may have to wait for a position that others have reached already."""
    takes_newer: bool = False
    """Where a replica keeps the state no longer, the caller would rather have a newer one at once
    than ask the others for this one."""
    stopped_wait_ms: int | None = None
    """Where the leader's state machine stopped: what is left from then on, for the leadership to
    go to a replica whose machine goes on. None: all of the read's time, for people to mend it."""

    @classmethod
    def of(cls, spec: ReadSpec, only: NodeId | None) -> RoutingPolicy:
        """Return the policy of a specification whose replica or pin is at ``only``."""
        return cls(
            at_leader=spec.needs_leader and only is None,
            only=only,
            prefer=spec.prefer,
            max_lag=spec.max_lag,
            max_batches_behind=spec.max_batches_behind,
            hedge=spec.hedge,
            may_wait=spec.at_least is not None,
        )


class Router:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._routes = Routes(context.book)

    def leader(self, channel: ChannelId, policy: RoutingPolicy) -> Leader | None:
        """Return the leader to ask, None if the policy asks replicas or no leader is known."""
        return self._context.topology.leader_of(channel) if policy.at_leader else None

    def candidates(self, channel: ChannelId, policy: RoutingPolicy) -> tuple[NodeId, ...]:
        """Return the nodes to ask, best first; none while no leader is known that is needed."""
        if policy.at_leader:
            leader = self._context.topology.leader_of(channel)
            return () if leader is None else (leader.node,)
        if policy.only is not None:
            return (policy.only,)
        turn = self._context.book.next_turn(channel)
        return self.replicas(
            channel, policy.prefer, policy.max_lag, policy.max_batches_behind, turn
        )

    def replicas(
        self,
        channel: ChannelId,
        prefer: Prefer | None,
        max_lag: int | None,
        max_batches_behind: int | None,
        turn: int,
    ) -> tuple[NodeId, ...]:
        """Return all replicas, best first; ``turn`` is for prefer=any_in_bound."""
        context = self._context
        replicas = context.topology.readable_of(channel)
        if not replicas:
            return ()
        leader = context.topology.leader_of(channel)
        bounded = Bounded(
            prefer=prefer or Prefer(context.settings.prefer),
            max_lag=max_lag,
            max_batches_behind=max_batches_behind,
            local=context.home(),
        )
        if bounded.prefer is not Prefer.ANY_IN_BOUND:
            turn = 0
        node = None if leader is None else leader.node
        return self._routes.order(channel, replicas, node, bounded, turn, context.now_ms())
