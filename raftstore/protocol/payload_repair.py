"""Between the replicas of a channel: payloads that one of them misses, asked for one by one.

A publisher sends its payload to every replica; one copy may be lost. A follower that misses it asks
a replica that has it (``PayloadRequest``). A leader that misses it never sequenced the write: a
follower that holds it offers it, and the leader fetches the whole message (S5.6).

All of these need level 5.
"""

from __future__ import annotations

from typing import Final

import msgspec

from raftstore.protocol.machines import CommandAck
from raftstore.protocol.message import ChannelMessage, Message
from raftstore.protocol.publish import PubAck, PubMsg
from raftstore.protocol.shared_commands import CommandsAck
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    BaseSeq,
    ChannelId,
    Count63,
    Digest,
    Guid,
    RequestId,
    Seq,
    Small31,
)

PAYLOADS_MAX: Final = 64
"""Payloads of one request, and writes of one offer; a replica that lacks more catches up."""
GAPS_MAX: Final = 16
"""Gaps that a replica reports of one channel; further ones count with the last of them."""


class WantedPayload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A payload as its StoreRequest describes it (S5.2)."""

    seq: BaseSeq
    guid: Guid
    digest: Digest
    length: Small31


class FoundPayload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A payload that was asked for."""

    guid: Guid
    digest: Digest
    payload: bytes


class OfferedWrite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publisher's message that a follower holds, without its payload."""

    guid: Guid
    digest: Digest
    length: Small31
    attempt: Count63


class PayloadRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Follower -> any replica: give me these payloads, at most ``max_bytes`` of them (S5.4)."""

    request_id: RequestId
    wanted: tuple[WantedPayload, ...]
    max_bytes: Count63


class PayloadResponse(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer: those that the sender has, the first of them at least; none: it has none."""

    request_id: RequestId
    payloads: tuple[FoundPayload, ...]


class WriteOffer(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Follower -> leader: these writes are addressed to you, and no StoreRequest named them."""

    writes: tuple[OfferedWrite, ...]


class WriteRequest(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> follower: give me these writes; their publishers' messages did not arrive here."""

    writes: tuple[OfferedWrite, ...]


class RelayedWrite(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Follower -> leader: a publisher's message, as it came here."""

    write: PubMsg


class RelayedAck(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> the follower that relayed a write: its outcome, for the publisher."""

    ack: PubAck | CommandAck | CommandsAck


class ChannelGaps(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The seqs that a replica holds as whole records: from ``first_seq`` to ``end_seq`` without the
    gaps, each (first, last), in order, at most ``GAPS_MAX``."""

    channel: ChannelId
    first_seq: Seq
    end_seq: Seq
    gaps: tuple[tuple[Seq, Seq], ...]


class GapReport(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> node: channels of the sender in whose replicas something is missing; of those that
    are not named nothing is. ``counter`` as that of the LagReport."""

    counter: Count63
    channels: tuple[ChannelGaps, ...]


RepairMessage = (
    PayloadRequest | PayloadResponse | WriteOffer | WriteRequest | RelayedWrite | RelayedAck
)
