"""The outcome of a write whose answer was lost: asked by its guid of the leader (N4)."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from raftstore.client.context import Context
from raftstore.client.position import Position
from raftstore.client.requests.answers import expect
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.client.results import WriteFate
from raftstore.errors import SchemaError, UnknownTableError
from raftstore.policy.levels import SHARED_COMMANDS_LEVEL
from raftstore.protocol.publish import WriteFate as FateRequest
from raftstore.protocol.publish import WriteFateAnswer
from raftstore.protocol.shared_commands import CommandFate, guid_of_place
from raftstore.types import (
    CHANNEL_ID_BYTES,
    GUID_BYTES,
    ChannelId,
    Guid,
    RequestId,
    TimeoutMs,
    channel_partition,
    channel_table,
    node_name,
)

COMMITTED: Final = "committed"
NOT_APPLIED: Final = "not_applied"
_DIGITS: Final = 2 * (CHANNEL_ID_BYTES + GUID_BYTES)
_NAME: Final = re.compile(rf"([0-9a-fA-F]{{{_DIGITS}}})(?:\.([1-9][0-9]{{0,2}}))?")


def parse_name(text: str) -> tuple[ChannelId, Guid, int]:
    """Read the name of a write: its channel, the guid of its record, and the place of a command
    that shares it (0: none does). SchemaError when it is none."""
    found = _NAME.fullmatch(str(text))
    if found is None:
        raise SchemaError(
            f"{text!r:.80} is not the guid of a write, which has {_DIGITS} hexadecimal digits, and "
            "for a command that shared a record a point and its place behind them; give the one "
            "that an answer or an error of a write contained"
        )
    named = bytes.fromhex(found[1])
    return ChannelId(named[:CHANNEL_ID_BYTES]), Guid(named[CHANNEL_ID_BYTES:]), int(found[2] or 0)


def parse_guid(text: str) -> tuple[ChannelId, Guid]:
    """The channel and the guid of the record that has the write of this name."""
    channel, guid, _ = parse_name(text)
    return channel, guid


def command_guid(text: str) -> Guid:
    """The guid of the command of this name, as its machine is given it."""
    _, guid, place = parse_name(text)
    return guid_of_place(guid, place) if place else guid


def _question(
    channel: ChannelId, guid: Guid, place: int, request_id: RequestId, left_ms: TimeoutMs
) -> FateRequest:
    if place:
        return CommandFate(request_id, channel, guid, left_ms, place)
    return FateRequest(request_id, channel, guid, left_ms)


class WriteOutcomeQueries:
    """See the module."""

    def __init__(self, context: Context, leaders: LeaderRequests) -> None:
        self._context = context
        self._leaders = leaders

    async def fate(self, text: str, deadline_ms: int) -> WriteFate:
        """Ask for the fate of a write.

        "not_applied" is a promise: a copy of the write that comes later is refused.
        """
        channel, guid, place = parse_name(text)
        topology = self._context.topology
        if not topology.replicas_of(channel):
            await self._context.discovery.refresh(deadline_ms)
        if not topology.replicas_of(channel):
            raise UnknownTableError(
                f"the table of the write {text} is not in the catalog; it was dropped, and its "
                "writes with it"
            )
        answer = await self._ask(channel, guid, place, deadline_ms)
        if place and answer.fate == NOT_APPLIED:
            # It may have been given again since, which is under its own guid. That is fenced, too.
            answer = await self._ask(channel, guid_of_place(guid, place), 0, deadline_ms)
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

    async def _ask(
        self, channel: ChannelId, guid: Guid, place: int, deadline_ms: int
    ) -> WriteFateAnswer:
        """Ask the leader about a record with this guid, and the command at ``place`` in it."""
        reported = await self._leaders.ask(
            channel,
            partial(_question, channel, guid, place),
            deadline_ms,
            asked=Asked(
                f"fate of a write of {self._context.topology.name_of(channel)}",
                is_read=True,
                level=SHARED_COMMANDS_LEVEL if place else 0,
            ),
        )
        return expect(WriteFateAnswer, reported)
