"""Replicas of a channel that operators order, and what becomes of it (M20)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from raftstore.protocol.message import Message, Request
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    ChangeNumber,
    ChannelConfig,
    ChannelId,
    MemberRole,
    NodeId,
    ReplicaNumber,
    RequestId,
    Seq,
    TimeoutMs,
    TimestampMs,
)

ORDER_ID_BYTES = 16
OrderId = Annotated[bytes, Meta(min_length=ORDER_ID_BYTES, max_length=ORDER_ID_BYTES)]


class OrderReplicas(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: let the channel have these replicas; names or ids of nodes.

    The same ``order`` again is the same request. Answered when the order is in the catalog: Done
    with its number as ``change``.
    """

    channel: ChannelId
    voters: tuple[str, ...]
    order: OrderId
    reason: str
    timeout_ms: TimeoutMs
    learners: tuple[str, ...] = ()
    is_forced: bool = False
    """Also where too few nodes are up for it to be carried out now."""
    witnesses: tuple[str, ...] = ()
    """New voters that shall have no rows."""


class CancelOrder(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: end this order where it is. The channel's log says what became of it."""

    channel: ChannelId
    change: ChangeNumber
    timeout_ms: TimeoutMs


class AskOrders(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: which channels have other replicas than those of their creation, or shall have?"""


class OrderedReplicas(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A channel whose replicas were ordered to be others."""

    channel: ChannelId
    config: ChannelConfig
    """The newest committed configuration that was reported."""
    config_seq: Seq
    change: ChangeNumber = 0
    """The open order; 0: none."""
    voters: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    numbers: dict[NodeId, ReplicaNumber] = {}
    cancelled: bool = False
    reason: str = ""
    ordered_ms: TimestampMs = 0
    ended_change: ChangeNumber = 0
    """The order that ended last; 0: none."""
    is_done: bool = False
    """That one was carried out; False: it was cancelled before."""
    roles: dict[NodeId, MemberRole] = {}
    """Of witnesses and readers that the open order names."""


class OrdersAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """As the node that answers has it in its copy of the catalog."""

    request_id: RequestId
    channels: tuple[OrderedReplicas, ...]
