"""The outcome of a write whose answer was lost: asked by its guid of the leader (N4)."""

from __future__ import annotations

import re
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

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
PRINT_BYTES: Final = 8
"""Of the print of a command in its name: by mistake no other payload has it."""
_NAME: Final = re.compile(
    rf"([0-9a-fA-F]{{{_DIGITS}}})"
    rf"(?:\.([1-9][0-9]{{0,2}})(?:\.([0-9a-fA-F]{{{2 * PRINT_BYTES}}}))?)?"
)


class WriteName(NamedTuple):
    """The name of a write, read."""

    channel: ChannelId
    guid: Guid
    """Of its record."""
    place: int = 0
    """Of a command in a record that it shares, from 1; 0: it shares none."""
    print: bytes = b""
    """Of the payload of a command that shares a record; empty: a version without them named it."""

    def is_of(self, payload: bytes) -> bool:
        """Whether this payload may have the name: of a command with a record of its own, or
        without a print, the nodes know (S4.6) or nobody."""
        return not self.print or self.print == print_of(payload)


def print_of(payload: bytes) -> bytes:
    """The part of the name of a command that stands for its payload (S4.6): the log knows
    the digest of a record alone, so the name of a command carries its own."""
    return blake2b(payload, digest_size=PRINT_BYTES).digest()


def shared_name(record: str, place: int, payload: bytes) -> str:
    """The name of a command at a place, from 1, of the record with this name."""
    return f"{record}.{place}.{print_of(payload).hex()}"


def parse_name(text: str) -> WriteName:
    """Read the name of a write; SchemaError when it is none."""
    found = _NAME.fullmatch(str(text))
    if found is None:
        raise SchemaError(
            f"{text!r:.80} is not the guid of a write, which has {_DIGITS} hexadecimal digits, and "
            "for a command that shared a record its place and its print behind points; give the "
            "one that an answer or an error of a write contained"
        )
    named = bytes.fromhex(found[1])
    channel, guid = ChannelId(named[:CHANNEL_ID_BYTES]), Guid(named[CHANNEL_ID_BYTES:])
    return WriteName(channel, guid, int(found[2] or 0), bytes.fromhex(found[3] or ""))


def parse_guid(text: str) -> tuple[ChannelId, Guid]:
    """The channel and the guid of the record that has the write of this name."""
    name = parse_name(text)
    return name.channel, name.guid


def command_guid(text: str) -> Guid:
    """The guid of the command of this name, as its machine is given it."""
    name = parse_name(text)
    return guid_of_place(name.guid, name.place) if name.place else name.guid


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
        channel, guid, place, _ = parse_name(text)
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
