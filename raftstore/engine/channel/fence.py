"""Fencing by term (S1.4): which messages of a peer reach the core of a channel."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from raftstore.ports.election import Elector
from raftstore.protocol.payload_repair import RelayedAck, WriteRequest
from raftstore.protocol.publish import PayloadRelay
from raftstore.protocol.replication import (
    CommitNotice,
    FreshReply,
    MsgSync,
    ReadIndexRequest,
    ReplicationMessage,
    StoreRequest,
)
from raftstore.types import NodeId

FROM_LEADER: Final = frozenset(
    {
        StoreRequest,
        CommitNotice,
        MsgSync,
        ReadIndexRequest,
        FreshReply,
        PayloadRelay,
        WriteRequest,
        RelayedAck,
    }
)
"""Kinds only the leader of their term sends: they prove who leads it."""


def admits(
    elector: Elector,
    members: Collection[NodeId],
    sender: NodeId,
    message: ReplicationMessage,
    now_ms: int,
    tell_stale: Callable[[NodeId], None],
) -> bool:
    """S1.4: lower terms are refused, higher ones adopted before the message is looked at."""
    if sender not in members:
        return False
    if type(message) in FROM_LEADER:
        if not elector.on_leader(sender, message.term, now_ms):
            tell_stale(sender)
            return False
        return True
    if message.term < elector.term:
        tell_stale(sender)
        return False
    if message.term > elector.term:
        elector.observe_term(message.term)
        return False  # it was meant for the leader of that term, which is not this replica
    return True
