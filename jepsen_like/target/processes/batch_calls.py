"""Carry micro-batches and snapshots out through the real client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jepsen_like.calls import Action, Answer, Batch, Call
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.batches.batch_writes import BatchResult, BatchTicket
from raftstore.client.batches.stager import StagedParts
from raftstore.client.scans.snapshot_opening import SnapshotOptions
from raftstore.client.table import AsyncTable
from raftstore.client.writes.chunks import split
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.payload import encode_rows
from raftstore.rows.keys import encode_key
from raftstore.rows.sealing import seal
from raftstore.rows.values import ValueCodec
from raftstore.types import Outcome

CODEC: Final = ValueCodec()

_Rows = Sequence[tuple[str | int, Any]]


class BatchCaller:
    """The batches and snapshots of one client; raises as the client does."""

    def __init__(
        self, client: AsyncClient, tables: Mapping[str, TableInfo], timeout_s: float
    ) -> None:
        self._client = client
        self._tables = tables
        self._timeout_s = timeout_s
        self._staged: dict[str, tuple[BatchTicket, list[StagedParts]]] = {}

    async def call(self, call: Call) -> Answer:
        """A batch in one go or in two steps, or a snapshot."""
        table = self._client.table(self._tables[call.table].name)
        timeout = call.patience_ms / 1_000 or self._timeout_s
        if call.action is Action.SNAPSHOT:
            return await self._snapshot(table, call)
        if call.action is Action.COMMIT:
            found = self._staged.pop(call.token, None)
            if found is None:
                return Answer(Outcome.NOT_APPLIED, error="no_ticket")
            return _answer_of(await table.commit_batch(*found, timeout=timeout))
        batch = call.batch
        assert batch is not None
        if call.action is Action.BATCH and batch.tasks == 1 and not batch.lost:
            rows = [{"k": key, "v": value} for key, value in call.rows]
            return _answer_of(
                await table.write_batch(
                    rows, writer=batch.writer, batch_id=batch.number, timeout=timeout
                )
            )
        ticket = await table.begin_batch(batch.writer, batch.number, timeout=self._timeout_s)
        staged: list[StagedParts] = []
        if not ticket.is_already_written:
            staged = await self._stage(table, call, batch, ticket)
        if call.action is Action.BATCH or ticket.is_already_written:
            return _answer_of(await table.commit_batch(ticket, staged, timeout=timeout))
        token = str(ticket.attempt)
        self._staged[token] = (ticket, staged)
        return Answer(Outcome.OK, {"attempt": ticket.attempt}, token=token)

    async def _stage(
        self, table: AsyncTable, call: Call, batch: Batch, ticket: BatchTicket
    ) -> list[StagedParts]:
        if batch.lost:
            await self._stage_task(table, call, ticket, (0, 1), batch.lost)
        return [
            await self._stage_task(table, call, ticket, (task, 0), call.rows[task :: batch.tasks])
            for task in range(batch.tasks)
        ]

    async def _stage_task(
        self, table: AsyncTable, call: Call, ticket: BatchTicket, task: tuple[int, int], rows: _Rows
    ) -> StagedParts:
        pairs = []
        for key, value in rows:
            encoded = encode_key((key,))
            pairs.append((encoded, seal(encoded, CODEC.encode({"v": value}))))
        async with await table.stager(ticket, *task, timeout=self._timeout_s) as stager:
            for chunk in split(pairs, self._tables[call.table].partitions):
                payload = encode_rows(chunk.pairs)
                await stager.add(chunk.partition, payload, len(chunk.pairs))
            return await stager.flush()

    async def _snapshot(self, table: AsyncTable, call: Call) -> Answer:
        options: SnapshotOptions = {"level": call.level, "timeout": self._timeout_s}
        wanted = call.wanted
        commit = None
        if wanted is not None:
            uuid = self._tables[call.table].uuid
            commit = BatchResult(wanted.n, wanted.vector, 0, already=False, table_uuid=uuid)
        is_exact = wanted is not None and wanted.is_exact
        if is_exact:
            del options["level"]
        opened = await table.snapshot(
            at_batch=commit if is_exact else None,
            at_least=None if is_exact else commit,
            **options,
        )
        async with opened as snapshot:
            rows = {row["k"]: row["v"] async for row in snapshot.scan(timeout=self._timeout_s)}
            value = {"n": snapshot.n, "vector": list(snapshot.vector), "rows": rows}
            positions = tuple((at, int(seq)) for at, seq in enumerate(snapshot.token.seqs))
            return Answer(Outcome.OK, value, positions=positions)


def _answer_of(result: BatchResult) -> Answer:
    value = {"n": result.n, "vector": list(result.vector), "already": result.already}
    return Answer(Outcome.OK, value)
