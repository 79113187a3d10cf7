"""Carry a workload's calls out through the real client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from jepsen_like.calls import Action, Answer, Call
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.position import Position
from raftstore.client.reads import ReadOptions
from raftstore.client.results import WriteAck
from raftstore.errors import ConflictError, RaftstoreError, RequestError
from raftstore.requests import TableInfo
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from raftstore.types import Level, Outcome, Seq, Term

WRITES = frozenset({Action.PUT, Action.PUT_IF, Action.PUT_MANY, Action.DELETE})


class Caller:
    """One client's calls; ``tables`` maps a workload's table to the one that stands for it."""

    def __init__(
        self, client: AsyncClient, tables: Mapping[str, TableInfo], timeout_s: float
    ) -> None:
        self._client = client
        self._tables = tables
        self._timeout_s = timeout_s

    async def call(self, call: Call) -> Answer:
        """Never raises for what the store refused, doubted or lost."""
        try:
            return await self._call(call)
        except ConflictError:
            return Answer(Outcome.OK, conflict=True)
        except RequestError as error:
            return Answer(error.outcome, error=error.code)
        except (RaftstoreError, OSError, TimeoutError) as error:
            return self.unanswered(call, type(error).__name__)

    def unanswered(self, call: Call, error: str = "killed") -> Answer:
        """What is known of a call that got no answer: a write is in doubt."""
        outcome = Outcome.UNKNOWN if call.action in WRITES else Outcome.NOT_APPLIED
        return Answer(outcome, error=error)

    async def _call(self, call: Call) -> Answer:
        table = self._client.table(self._tables[call.table].name)
        timeout = self._timeout_s
        match call.action:
            case Action.PUT:
                return _written(await table.put({"k": call.key, "v": call.value}, timeout=timeout))
            case Action.PUT_IF:
                row = {"k": call.key, "v": call.value}
                if call.expected_seq == 0:
                    return _written(await table.put(row, if_absent=True, timeout=timeout))
                position = self._version(call)
                return _written(await table.put(row, if_position=position, timeout=timeout))
            case Action.PUT_MANY:
                rows = [{"k": key, "v": value} for key, value in call.rows]
                summary = await table.put_many(rows, timeout=timeout)
                return _written(*summary.acks)
            case Action.DELETE:
                return _written(await table.delete(call.key, timeout=timeout))
            case Action.GET:
                return await self._get(call)
            case Action.GET_MANY:
                found = await table.get_many(call.keys, **self._options(call))
                return Answer(Outcome.OK, [_value(row) for row in found])
            case Action.SCAN:
                rows_of = {row["k"]: row["v"] async for row in table.scan(**self._options(call))}
                return Answer(Outcome.OK, rows_of)
            case _:
                assert_never(call.action)

    async def _get(self, call: Call) -> Answer:
        found = await self._client.table(self._tables[call.table].name).get_result(
            call.key, **self._options(call)
        )
        return Answer(
            Outcome.OK,
            _value(found.value),
            seqs=(found.seq,),
            positions=((found.partition, found.applied_seq),),
            served_by=found.node,
            lag=found.lag,
            staleness_ms=found.staleness_ms,
        )

    def _options(self, call: Call) -> ReadOptions:
        options: ReadOptions = {"level": call.level, "timeout": self._timeout_s}
        if call.max_lag is not None and call.level is Level.BOUNDED:
            options["max_lag"] = call.max_lag
        if call.max_staleness_ms is not None:
            options["max_staleness"] = call.max_staleness_ms / 1_000
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
    )


def _value(row: dict[str, Any] | None) -> Any:
    return None if row is None else row["v"]
