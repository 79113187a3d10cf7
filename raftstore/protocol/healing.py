"""Between nodes: the chain hash of a channel at one seq, to find out whose history is another.

Committed records are the same in every term, so that none of these messages has one. A node is only
sent one when it reported the level they came with.
"""

from __future__ import annotations

from raftstore.protocol.message import Message
from raftstore.protocol.tags import tag_of
from raftstore.types import ChannelId, RequestId, Seq


class AskChainHash(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> node: asks for the chain hash of the receiver's log at this seq."""

    channel: ChannelId
    request_id: RequestId
    seq: Seq


class ChainHashAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer. ``is_known``: all up to that seq is committed here and not in front of the base;
    then an empty ``chain_hash`` says that no record ends there."""

    channel: ChannelId
    request_id: RequestId
    seq: Seq
    is_known: bool
    chain_hash: bytes = b""


HealingMessage = AskChainHash | ChainHashAnswer
