"""Tokens, batches and snapshots of a dropped table are never taken for those of a new table of its
name (S0.8), and never refused because the client's catalog is the older one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from raftstore import aio
from raftstore.aio import AsyncClient, AsyncTable
from raftstore.client.batches.batch_writes import BatchResult, BatchTicket
from raftstore.client.position import Position
from raftstore.client.scans.snapshots import AsyncSnapshot
from raftstore.errors import DataLossError, UnknownTableError
from tests.integration.client.fake_cluster import FakeCluster, fail
from tests.integration.client.play import PATIENT, play

ROWS = [{"id": 1, "v": 1}]


@dataclass(frozen=True)
class Told:
    """Everything that a table says of itself."""

    position: Position
    batch: BatchResult
    ticket: BatchTicket
    snapshot: AsyncSnapshot


async def reported_by(client: AsyncClient, batch_id: int = 0) -> Told:
    """Write to the table, and remember the answers."""
    table = client.table("t")
    batch = await table.write_batch(ROWS, writer="w", batch_id=batch_id)
    snapshot = await table.snapshot()
    position = (await table.put({"id": 1, "v": 2})).position
    return Told(position, batch, await table.begin_batch("w", batch_id + 1), snapshot)


def make_anew(cluster: FakeCluster) -> None:
    """Another table takes the name."""
    cluster.drop_table("t")
    cluster.add_table("t", 2)


def test_batch_or_snapshot_of_a_dropped_table_is_refused() -> None:
    """The commits of a table made anew have the numbers of the old one's: they are others."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        old = await reported_by(client)
        make_anew(cluster)
        await client.tables()
        new = await reported_by(client, 7)
        assert (new.batch.n, new.batch.vector) == (old.batch.n, old.batch.vector)
        table = client.table("t")
        for options in ({"at_batch": old.batch}, {"at_least": old.batch}):
            with pytest.raises(UnknownTableError, match="the batch is of another table than"):
                await table.snapshot(**options)
        with pytest.raises(UnknownTableError, match="the snapshot is of another table than"):
            await table.snapshot(at_least=old.snapshot)
        with pytest.raises(UnknownTableError, match="the snapshot is of another table than"):
            await table.read_snapshot(old.snapshot.token)
        short = BatchResult(9, (9,), 1, already=False, table_uuid=new.batch.table_uuid)
        with pytest.raises(UnknownTableError, match="another table"):
            await table.snapshot(at_least=short)
        async with await table.snapshot(at_batch=new.batch) as snapshot:
            assert snapshot.vector == new.batch.vector

    play(test, PATIENT, partitions=2)


async def changes_since(table: AsyncTable, told: Told) -> None:
    """The nodes of these tests know no changes: that they are asked is enough."""
    with pytest.raises(DataLossError, match="by script"):
        await anext(table.changes(told.position))


@pytest.mark.parametrize(
    "use",
    [
        lambda table, told: table.put({"id": 1}, if_position=told.position),
        lambda table, told: table.delete(1, if_position=str(told.position)),
        lambda table, told: table.read_snapshot(told.snapshot.token),
        lambda table, told: table.snapshot(at_least=told.snapshot),
        lambda table, told: table.snapshot(at_batch=told.batch),
        lambda table, told: table.snapshot(at_least=told.position),
        lambda table, told: table.stager(told.ticket, 0, 0),
        lambda table, told: table.commit_batch(told.ticket, []),
        lambda table, told: table.abort_batch(told.ticket),
        changes_since,
    ],
)
def test_what_is_newer_than_the_catalog_known_here_is_looked_up(
    use: Callable[[AsyncTable, Told], Awaitable[object]],
) -> None:
    """Another process saw that the table was made anew, and this one did not yet."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        assert await table.get(1) is None
        make_anew(cluster)
        async with await aio.connect(cluster.endpoints, settings=PATIENT) as other:
            told = await reported_by(other)
        if use is changes_since:
            for node in cluster.nodes.values():
                node.request_scripts.extend([fail("data_loss")] * 5)
        async with asyncio.timeout(60):
            await use(table, told)

    play(test, PATIENT, partitions=2)
