"""Replicas of channels: which are ordered, and what became of the orders (M20)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from raftstore.client.context import Context
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.errors import UnsupportedRequestError
from raftstore.policy.levels import MEMBERS_LEVEL
from raftstore.protocol.message import Done
from raftstore.protocol.replica_orders import (
    ORDER_ID_BYTES,
    AskOrders,
    CancelOrder,
    OrderedReplicas,
    OrderReplicas,
    OrdersAnswer,
)
from raftstore.types import ChannelId, MemberRole, NodeId, node_name


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """The replicas of a channel, and the order for others, as the catalog knows them."""

    channel: str
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    config_seq: int
    """Of the committed configuration that was reported last; 0: that of the creation."""
    change: int
    """Number of the open order; 0: none is open."""
    stage: str
    """``waiting``, ``learner``, ``joint``, ``cancelled``; ``done`` or ``undone`` once the last
    order has ended; empty: there was none."""
    ordered: tuple[str, ...]
    """Voters that the open order names."""
    ordered_learners: tuple[str, ...]
    reason: str
    ordered_ms: int
    """Wall clock of the order in milliseconds; 0: none is open."""
    witnesses: tuple[str, ...] = ()
    """Those of the voters, and of replicas on their way to vote, that have no rows."""
    ordered_witnesses: tuple[str, ...] = ()

    def role_of(self, name: str) -> str:
        """``voter``, ``witness``, ``reader`` (a learner that an order names as one, or has left as
        one), ``learner`` (on its way to vote); empty: it has no replica."""
        if name in self.witnesses:
            return MemberRole.WITNESS.value
        if name in self.voters:
            return MemberRole.VOTER.value
        if name not in self.learners:
            return ""
        is_joining = name in self.ordered
        return (MemberRole.LEARNER if is_joining else MemberRole.READER).value


class ReplicaOrders:
    """Orders and questions of one client. Every method is bounded by its deadline."""

    def __init__(self, context: Context, leaders: LeaderRequests) -> None:
        self._context = context
        self._leaders = leaders

    async def order(
        self,
        channel: tuple[str, ChannelId],
        voters: Sequence[str],
        learners: Sequence[str],
        reason: str,
        deadline_ms: int,
        *,
        is_forced: bool,
        witnesses: Sequence[str] = (),
    ) -> int:
        """Order the replicas of a channel; returns the number of the order."""
        name, channel_id = channel
        # One for all attempts: a repeated request is the same order.
        order = secrets.token_bytes(ORDER_ID_BYTES)

        def build(request_id: int, left_ms: int) -> OrderReplicas:
            return OrderReplicas(
                request_id, channel_id, tuple(voters), order, reason, left_ms, tuple(learners),
                is_forced, tuple(witnesses),
            )  # fmt: skip

        asked = Asked(f"order replicas of {name}", is_read=False, level=MEMBERS_LEVEL)
        done = await self._leaders.ask(self._metadata(), build, deadline_ms, asked=asked)
        change = done.detail.get("change") if isinstance(done, Done) else None
        if type(change) is not int:
            raise UnsupportedRequestError(f"{asked.what}: the answer names no order: {done}")
        return change

    async def cancel(self, channel: tuple[str, ChannelId], change: int, deadline_ms: int) -> None:
        """End an order where it is."""
        name, channel_id = channel
        asked = Asked(f"cancel order {change} of {name}", is_read=False, level=MEMBERS_LEVEL)
        await self._leaders.ask(
            self._metadata(),
            lambda request_id, left_ms: CancelOrder(request_id, channel_id, change, left_ms),
            deadline_ms,
            asked=asked,
        )

    async def list(self, deadline_ms: int) -> tuple[ReplicaChange, ...]:
        """Return every channel, by name, with its replicas and orders."""
        await self._context.discovery.refresh(deadline_ms)
        asked = Asked("list the orders of replicas", is_read=True, level=MEMBERS_LEVEL)
        answer = await self._leaders.ask(
            self._metadata(),
            lambda request_id, _left_ms: AskOrders(request_id),
            deadline_ms,
            asked=asked,
        )
        if not isinstance(answer, OrdersAnswer):
            raise UnsupportedRequestError(f"{asked.what}: the answer is none: {answer}")
        known = {each.channel: each for each in answer.channels}
        topology = self._context.topology
        return tuple(
            _change(f"{table.name}/{number}", placed.replicas, known.get(placed.channel))
            for table in topology.tables()
            for number, placed in enumerate(table.channels)
        )

    def _metadata(self) -> ChannelId:
        channel = self._context.topology.metadata_channel
        assert channel is not None
        return channel


def _change(name: str, replicas: Sequence[NodeId], found: OrderedReplicas | None) -> ReplicaChange:
    if found is None:
        return ReplicaChange(name, _names(replicas), (), 0, 0, "", (), (), "", 0)
    config = found.config
    return ReplicaChange(
        name,
        _names(config.voters),
        _names(config.learners),
        found.config_seq,
        found.change,
        _stage(found),
        _names(found.voters),
        _names(found.learners),
        found.reason,
        found.ordered_ms,
        _names([node for node in config.members if config.is_witness(node)]),
        _names([node for node, role in found.roles.items() if role is MemberRole.WITNESS]),
    )


def _stage(found: OrderedReplicas) -> str:
    if not found.change:
        return "" if not found.ended_change else "done" if found.is_done else "undone"
    if found.cancelled:
        return "cancelled"
    if found.config.is_joint:
        return "joint"
    entering = [node for node in found.voters if node in found.config.learners]
    return "learner" if entering else "waiting"


def _names(nodes: Sequence[NodeId]) -> tuple[str, ...]:
    return tuple(map(node_name, nodes))
