"""Between the replicas of a channel: where a log ends, for one that may have lost records (S0.6).

Nodes below the level that these came with are sent none of them.
"""

from __future__ import annotations

from raftstore.protocol.message import ChannelMessage
from raftstore.protocol.tags import tag_of
from raftstore.types import History, RequestId


class AskLogEnd(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Replica in doubt -> other voters: where does your log end, and do you lead?

    ``is_fence``: take over ``term`` first, if it is higher, so that nothing that a leader of a
    lower term has sent is accepted behind the answer. Without it nothing is changed anywhere.
    """

    request_id: RequestId
    """No two questions have the same one, also not of two lives of a node."""
    is_fence: bool


class LogEnd(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer: the accepted history (S1.2) of a replica that is in ``term``."""

    request_id: RequestId
    history: History
    leads: bool
    """It is the leader of ``term``."""


LogEndMessage = AskLogEnd | LogEnd
