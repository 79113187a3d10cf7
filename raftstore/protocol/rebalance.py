"""Replicas moved so that nodes hold even shares: what operators ask, what nodes report."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from raftstore.protocol.message import Message, Request
from raftstore.protocol.replica_orders import OrderId
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    ChangeNumber,
    ChannelId,
    Count63,
    NodeId,
    RequestId,
    Seq,
    TimeoutMs,
    TimestampMs,
)


class NodeTag(StrEnum):
    """An operator's word about a node's near future."""

    PERMANENT_OFFLINE = "permanent_offline"
    """It goes for ever, or has gone: the next plan moves all of its replicas away."""
    TEMPORARY_OFFLINE = "temporary_offline"
    """It is away for a while: nothing goes there, and what it holds stays."""


class MoveState(StrEnum):
    """How far the move of a replica is, or a whole rebalance; the last four are ends."""

    NOT_STARTED = "NOT_STARTED"
    EXPANDING = "EXPANDING"
    """Ordered; no configuration with the new replica is committed yet."""
    CATCHING_UP = "CATCHING_UP"
    """The new replica is a learner, and gets the table and the history."""
    SWITCHING = "SWITCHING"
    """Old and new voters count, each set with a majority of its own."""
    SHRINKING = "SHRINKING"
    """The old replica is out, and deletes what it holds."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    TIMEOUT = "TIMEOUT"

    @property
    def rank(self) -> int:
        """A state never goes back to one of a lower rank; all ends have the same."""
        return min(_ORDER.index(self), _ORDER.index(MoveState.COMPLETED))

    @property
    def is_end(self) -> bool:
        """Nothing follows."""
        return self.rank == _ORDER.index(MoveState.COMPLETED)

    @property
    def is_under_way(self) -> bool:
        """Whether it has begun and not ended."""
        return self is not MoveState.NOT_STARTED and not self.is_end


_ORDER = tuple(MoveState)


class WantedMove(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Replicas that a channel is to have in the place of those that it has now."""

    channel: ChannelId
    voters: tuple[NodeId, ...]
    """Afterwards; the first one is preferred to lead."""
    learners: tuple[NodeId, ...]
    old_voters: tuple[NodeId, ...]
    """For which it was planned: with others it is not begun."""
    old_learners: tuple[NodeId, ...]
    table_bytes: Count63 = 0
    """Of its table when it was planned; 0: not known."""

    @property
    def sources(self) -> tuple[NodeId, ...]:
        """Nodes that host a replica now, and no longer then."""
        stays = {*self.voters, *self.learners}
        return tuple(n for n in (*self.old_voters, *self.old_learners) if n not in stays)

    @property
    def targets(self) -> tuple[NodeId, ...]:
        """Nodes that host a replica then, and not yet."""
        had = {*self.old_voters, *self.old_learners}
        return tuple(n for n in (*self.voters, *self.learners) if n not in had)


class MoveReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A move of the last rebalance, as the leader of the metadata channel knows it."""

    move: WantedMove
    state: MoveState
    reason: str = ""
    change: ChangeNumber = 0
    """The order by which it is carried out; 0: there is none yet."""
    begun_ms: TimestampMs = 0
    ended_ms: TimestampMs = 0
    copied_bytes: Count63 = 0
    """That the new replica has taken so far, as its node reports; 0 also before and after."""
    waits_for: str = ""


class RebalanceReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The rebalance that is open, else the last one."""

    number: Seq
    reason: str
    state: MoveState
    begun_ms: TimestampMs
    ended_ms: TimestampMs
    """0: it is open."""
    is_cancelled: bool
    moves: tuple[MoveReport, ...]


class TagNode(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: tag a node by its name or id; None takes the tag away."""

    node: str
    node_tag: NodeTag | None
    timeout_ms: TimeoutMs


class StartRebalance(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: carry these moves out, few at a time.

    The same ``order`` again is the same request. Answered when it is in the catalog: Done with its
    number as ``rebalance``.
    """

    order: OrderId
    moves: tuple[WantedMove, ...]
    reason: str
    timeout_ms: TimeoutMs


class CancelRebalance(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: begin no further move, and end those under way where they are. 0: the open one."""

    number: Seq
    timeout_ms: TimeoutMs


class ThrottleCopies(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: no node sends more than so many bytes of tables a second; 0: its setting counts."""

    bytes_per_s: Count63
    timeout_ms: TimeoutMs


class SwitchLeaders(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Operator: have leaders made even, or (False) leave them where they are; None: as each node is
    set."""

    is_on: bool | None
    timeout_ms: TimeoutMs


class AskRebalance(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """How far is the rebalance that is open, or how did the last one end?"""


class RebalanceAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``rebalance``: None before the first one. ``tags``: of nodes that have one. ``leaders``:
    whether they are made even; None: as each node is set."""

    request_id: RequestId
    rebalance: RebalanceReport | None
    throttle: Count63
    """Bytes a second; 0: the settings of the nodes count."""
    tags: dict[NodeId, NodeTag] = {}
    leaders: bool | None = None


class AskTableSizes(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """How large are the tables of the replicas here, and how fast do copies of them arrive?"""


class TableSizesAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``sizes``: about how many bytes each channel's table takes on this node's disk."""

    request_id: RequestId
    sizes: tuple[tuple[ChannelId, Count63], ...]
    copied_bytes: Count63
    """Of the newest copies of tables that arrived here, as far as they are remembered."""
    copied_ms: Count63
    """That they took."""
    second_bytes_max: Count63
    """That this node sends in a second, by its setting and what operators say."""


class CopyState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table that a node takes from another replica."""

    channel: ChannelId
    bytes: Count63


class CopyReport(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> leader of the metadata channel, while tables are copied to it: how far they are."""

    copies: tuple[CopyState, ...]


RebalanceRequest = (
    TagNode
    | StartRebalance
    | CancelRebalance
    | ThrottleCopies
    | SwitchLeaders
    | AskRebalance
    | AskTableSizes
)
RebalanceReply = RebalanceAnswer | TableSizesAnswer
