"""Carry commands and queries of users' state machines out through the real client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jepsen_like.calls import Action, Answer, Call
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.machines.channel_set import AsyncChannelSet
from raftstore.client.machines.code import codecs_by_name
from raftstore.client.machines.json_values import to_json
from raftstore.client.reads.read_spec import ReadOptions
from raftstore.errors import DecodeError, RejectedError, SchemaError
from raftstore.machine import BYTES, Codec
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.machines import decode_command
from raftstore.types import Outcome


class ChannelSetCaller:
    """One client's calls of channel sets, in bytes: the judge decodes them once more."""

    def __init__(
        self, client: AsyncClient, tables: Mapping[str, TableInfo], timeout_s: float
    ) -> None:
        self._client = client
        self._tables = tables
        self._timeout_s = timeout_s

    async def call(self, call: Call, options: ReadOptions) -> Answer:
        """Raises what the client raises, but for rejections, which are answers."""
        info = self._tables[call.table]
        channelset = self._client.channelset(info.name, codec=BYTES)
        try:
            if call.action is Action.COMMAND:
                return await self._command(channelset, call, info)
            return await self._query(channelset, call, info, options)
        except RejectedError as error:
            # The client says in front which partition rejected it; the judge knows.
            reason = str(error).partition(": ")[2]
            guids = (error.guid,) if error.guid else ()
            return Answer(Outcome.OK, reason, is_rejected=True, guids=guids)

    async def _command(self, channelset: AsyncChannelSet, call: Call, info: TableInfo) -> Answer:
        key, command = decode_command(call.sent)
        done = await channelset.command_result(
            key, command, guid=call.guid or None, timeout=self._timeout_s
        )
        return Answer(
            Outcome.OK,
            _shown(codecs_by_name(info.machine).results, done.result),
            positions=((done.partition, done.seq),),
            term=done.term,
            guids=(done.guid,),
            received=done.result,
        )

    async def _query(
        self, channelset: AsyncChannelSet, call: Call, info: TableInfo, options: ReadOptions
    ) -> Answer:
        key, request = decode_command(call.sent)
        found = await channelset.query_result(key, request, **options)
        return Answer(
            Outcome.OK,
            _shown(codecs_by_name(info.machine).answers, found.answer),
            positions=((found.partition, found.applied_seq),),
            term=found.term,
            served_by=found.node,
            lag=found.lag,
            leader_info_age_ms=found.leader_info_age_ms,
            staleness_ms=found.staleness_ms,
            received=found.answer,
        )


def _shown(codec: Codec[Any], data: bytes) -> Any:
    """A value for people who read the history; what is none of its codec is shown as it came."""
    try:
        return to_json(codec.decode(data))
    except (DecodeError, SchemaError):
        return to_json(data)
