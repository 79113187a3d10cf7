"""Fencing by term (S1.4): which messages of a peer reach the core of a channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftstore.ports.election import Elector
from raftstore.protocol.log_ends import AskLogEnd, LogEnd
from raftstore.protocol.payload_repair import RelayedAck, WriteRequest
from raftstore.protocol.publish import PayloadRelay
from raftstore.protocol.replication import (
    AskApplied,
    CommitNotice,
    FreshReply,
    MsgSync,
    ReadIndexRequest,
    RemovedNotice,
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
        RemovedNotice,
        AskApplied,
        PayloadRelay,
        WriteRequest,
        RelayedAck,
    }
)
"""Kinds only the leader of their term sends: they prove who leads it."""
LOG_ENDS: Final = frozenset({AskLogEnd, LogEnd})
"""Kinds that are answered, or are answers, whatever the term of who sent them."""


def admits(
    elector: Elector,
    sender: NodeId,
    message: ReplicationMessage,
    now_ms: int,
    tell_stale: Callable[[NodeId], None],
) -> bool:
    """S1.4: lower terms are refused, higher ones adopted before the message is looked at.

    M16, M17: the sender is a node of the cluster; whether the configuration here names it says
    nothing, for the log may lack the record that does. The core counts only whom it names.
    """
    if type(message) in FROM_LEADER:
        if not elector.on_leader(sender, message.term, now_ms):
            tell_stale(sender)
            return False
        return True
    if type(message) in LOG_ENDS:
        return _admits_log_end(elector, message)
    if message.term < elector.term:
        tell_stale(sender)
        return False
    if message.term > elector.term:
        elector.observe_term(message.term)
        return False  # it was meant for the leader of that term, which is not this replica
    return True


def _admits_log_end(elector: Elector, message: ReplicationMessage) -> bool:
    """S0.6: a question that is no fence takes over no term; all others do, and are looked at."""
    if type(message) is not AskLogEnd or message.is_fence:
        elector.observe_term(message.term)
    return True
