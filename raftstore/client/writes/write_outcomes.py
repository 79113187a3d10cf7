"""The outcome of a write whose answer was lost: asked by its guid of the leader (N4)."""

from __future__ import annotations

import re
from typing import Final

from raftstore.client.context import Context
from raftstore.client.position import Position
from raftstore.client.requests.answers import expect
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.client.results import WriteFate
from raftstore.errors import SchemaError, UnknownTableError
from raftstore.protocol.publish import WriteFate as FateRequest
from raftstore.protocol.publish import WriteFateAnswer
from raftstore.types import (
    CHANNEL_ID_BYTES,
    GUID_BYTES,
    ChannelId,
    Guid,
    channel_partition,
    channel_table,
    node_name,
)

COMMITTED: Final = "committed"
_DIGITS: Final = 2 * (CHANNEL_ID_BYTES + GUID_BYTES)
_GUID: Final = rf"[0-9a-fA-F]{{{_DIGITS}}}"


def parse_guid(text: str) -> tuple[ChannelId, Guid]:
    """Read the name of a write; SchemaError when it is none."""
    if re.fullmatch(_GUID, str(text)) is None:
        raise SchemaError(
            f"{text!r:.80} is not the guid of a write, which has {_DIGITS} hexadecimal digits; "
            "give the one that an answer or an error of a write contained"
        )
    named = bytes.fromhex(text)
    return ChannelId(named[:CHANNEL_ID_BYTES]), Guid(named[CHANNEL_ID_BYTES:])


class WriteOutcomeQueries:
    """See the module."""

    def __init__(self, context: Context, leaders: LeaderRequests) -> None:
        self._context = context
        self._leaders = leaders

    async def fate(self, text: str, deadline_ms: int) -> WriteFate:
        """Ask for the fate of a write.

        "not_applied" is a promise: a copy of the write that comes later is refused.
        """
        channel, guid = parse_guid(text)
        topology = self._context.topology
        if not topology.replicas_of(channel):
            await self._context.discovery.refresh(deadline_ms)
        if not topology.replicas_of(channel):
            raise UnknownTableError(
                f"the table of the write {text} is not in the catalog; it was dropped, and its "
                "writes with it"
            )
        reported = await self._leaders.ask(
            channel,
            lambda request_id, left_ms: FateRequest(request_id, channel, guid, left_ms),
            deadline_ms,
            asked=Asked(f"fate of a write of {topology.name_of(channel)}", is_read=True),
        )
        answer = expect(WriteFateAnswer, reported)
        partition = channel_partition(channel)
        is_committed = answer.fate == COMMITTED
        position = Position.at(channel_table(channel), partition, answer.term, answer.seq)
        return WriteFate(
            fate=answer.fate,
            seq=answer.seq if is_committed else None,
            position=position if is_committed else None,
            condition=answer.condition,
            reason=answer.reason,
            partition=partition,
            node=node_name(answer.served.node),
        )
