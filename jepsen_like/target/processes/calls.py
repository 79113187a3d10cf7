"""Carry a workload's calls out through the real client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jepsen_like.calls import Action, Answer, Call
from jepsen_like.target.processes.batch_calls import BatchCaller
from jepsen_like.target.processes.channelset_calls import ChannelSetCaller
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.position import Position
from raftstore.client.reads.read_spec import ReadOptions
from raftstore.client.results import WriteAck
from raftstore.errors import ConflictError, PartialWriteError, RaftstoreError, RequestError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from raftstore.types import Level, Outcome, Seq, Term

WRITES = frozenset({
    Action.PUT, Action.PUT_IF, Action.PUT_MANY, Action.DELETE, Action.MARK, Action.BATCH,
    Action.COMMIT, Action.COMMAND,
})  # fmt: skip


class Caller:
    """One client's calls; ``tables`` maps a workload's table to the one that stands for it."""

    def __init__(
        self, client: AsyncClient, tables: Mapping[str, TableInfo], timeout_s: float
    ) -> None:
        self._client = client
        self._tables = tables
        self._timeout_s = timeout_s
        self._batches = BatchCaller(client, tables, timeout_s)
        self._channelsets = ChannelSetCaller(client, tables, timeout_s)

    async def call(self, call: Call) -> Answer:
        """Never raises for what the store refused, doubted or lost."""
        try:
            return await self._call(call)
        except ConflictError as error:
            return Answer(Outcome.OK, conflict=True, guids=_names(error))
        except RequestError as error:
            return Answer(error.outcome, error=error.code, guids=_names(error))
        except (RaftstoreError, OSError, TimeoutError) as error:
            return self.unanswered(call, type(error).__name__)

    def unanswered(self, call: Call, error: str = "killed") -> Answer:
        """The answer to record for a call that got none: a write is in doubt."""
        outcome = Outcome.UNKNOWN if call.action in WRITES else Outcome.NOT_APPLIED
        return Answer(outcome, error=error)

    async def _call(self, call: Call) -> Answer:
        if call.action in (Action.COMMAND, Action.QUERY):
            return await self._channelsets.call(call, self._options(call))
        table = self._client.table(self._tables[call.table].name)
        timeout, ttl = self._timeout_s, call.ttl_ms / 1_000 if call.ttl_ms else None
        row = {"k": call.key, "v": call.value}
        match call.action:
            case Action.PUT:
                return _written(await table.put(row, ttl=ttl, timeout=timeout))
            case Action.PUT_IF:
                if call.expected_seq == 0:
                    ack = await table.put(row, if_absent=True, ttl=ttl, timeout=timeout)
                    return _written(ack)
                position = self._version(call)
                return _written(await table.put(row, if_position=position, timeout=timeout))
            case Action.PUT_MANY:
                rows = [{"k": key, "v": value} for key, value in call.rows]
                summary = await table.put_many(rows, timeout=timeout)
                return _written(*summary.acks)
            case Action.DELETE:
                return _written(await table.delete(call.key, timeout=timeout))
            case Action.MARK:
                await table.mark_batch("jepsen", int(call.value), timeout=timeout)
                return Answer(Outcome.OK)
            case Action.FATE:
                return await self._fate(call)
            case Action.BATCH | Action.STAGE | Action.COMMIT | Action.SNAPSHOT:
                return await self._batches.call(call)
            case _:
                return await self._read(call)

    async def _read(self, call: Call) -> Answer:
        table = self._client.table(self._tables[call.table].name)
        match call.action:
            case Action.GET:
                return await self._get(call)
            case Action.GET_MANY:
                found = await table.get_many(call.keys, **self._options(call))
                return Answer(Outcome.OK, [_value(row) for row in found])
            case Action.SCAN:
                rows_of = {row["k"]: row["v"] async for row in table.scan(**self._options(call))}
                return Answer(Outcome.OK, rows_of)
            case Action.PAGE:
                return await self._page(call)
            case _:
                raise AssertionError(f"{call.action} is no read")

    async def _get(self, call: Call) -> Answer:
        found = await self._client.table(self._tables[call.table].name).get_result(
            call.key, **self._options(call)
        )
        return Answer(
            Outcome.OK,
            _value(found.value),
            seqs=(found.seq,),
            positions=((found.partition, found.applied_seq),),
            term=found.term,
            served_by=found.node,
            lag=found.lag,
            leader_info_age_ms=found.leader_info_age_ms,
            staleness_ms=found.staleness_ms,
            batches_behind=found.batches_behind,
        )

    async def _page(self, call: Call) -> Answer:
        info = self._tables[call.table]
        page = await self._client.table(info.name).page(
            limit=call.limit, token=call.token or None, **self._options(call)
        )
        places = (
            (partition, page.position.seq_of(info.uuid, partition))
            for partition in range(info.partitions)
        )
        return Answer(
            Outcome.OK,
            {row["k"]: row["v"] for row in page.rows},
            positions=tuple((partition, seq) for partition, seq in places if seq is not None),
            served_by=next((part.node for part in page.served), None),
            token=page.next_token or "",
        )

    async def _fate(self, call: Call) -> Answer:
        found = await self._client.fate(call.guid, timeout=self._timeout_s)
        reported = {
            "fate": found.fate, "seq": found.seq, "condition": found.condition,
            "reason": found.reason,
        }  # fmt: skip
        return Answer(Outcome.OK, reported, served_by=found.node)

    def _options(self, call: Call) -> ReadOptions:
        options: ReadOptions = {"level": call.level, "timeout": self._timeout_s}
        if call.max_lag is not None and call.level is Level.BOUNDED:
            options["max_lag"] = call.max_lag
        if call.max_staleness_ms is not None:
            options["max_staleness"] = call.max_staleness_ms / 1_000
        if call.max_batches_behind is not None:
            options["max_batches_behind"] = call.max_batches_behind
        if call.level in (Level.BOUNDED, Level.ANY):
            options["prefer"] = "any_in_bound"  # all replicas shall show what they serve
        if call.at_least:
            uuid = self._tables[call.table].uuid
            options["at_least"] = Position(
                {(uuid, partition): (Term(0), Seq(seq)) for partition, seq in call.at_least}
            )
        if call.node is not None:
            options["replica"] = call.node
        return options

    def _version(self, call: Call) -> Position:
        table = self._tables[call.table]
        assert call.key is not None
        partition = partition_of(encode_key((call.key,)), table.partitions)
        return Position.at(table.uuid, partition, Term(0), Seq(call.expected_seq))


def _written(*acks: WriteAck) -> Answer:
    return Answer(
        Outcome.OK,
        positions=tuple(sorted((ack.partition, ack.seq) for ack in acks)),
        seqs=tuple(ack.seq for ack in acks),
        term=max((ack.term for ack in acks), default=None),
        guids=tuple(ack.guid for ack in acks),
    )


def _names(error: RequestError) -> tuple[str, ...]:
    """Names of the records that an error speaks of."""
    if isinstance(error, PartialWriteError):
        return error.guids
    return (error.guid,) if error.guid else ()


def _value(row: dict[str, Any] | None) -> Any:
    return None if row is None else row["v"]
