"""Writes of many rows and of encoded records: outcome per channel, bounds in flight."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from raftstore.aio import AsyncClient
from raftstore.errors import (
    PartialWriteError,
    PayloadTooLargeError,
    RequestTimeoutError,
    SchemaError,
)
from raftstore.protocol.payload import encode_rows
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.types import Outcome
from tests.integration.client.fake_cluster import (
    FakeCluster,
    refuse,
    silence,
)
from tests.integration.client.play import QUICK, play


def test_put_many_writes_every_row_once_with_its_last_value() -> None:
    """Rows are split by channel into records of at most 1000 rows."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        rows = [{"id": n % 2500, "v": n} for n in range(3000)]
        summary = await client.table("t").put_many(rows)
        assert summary.rows == 2500
        assert set(summary.by_partition()) == {0, 1, 2}
        assert all(ack.rows <= 1000 for ack in summary.acks)
        found = [row async for row in client.table("t").scan()]
        assert found == [{"id": n, "v": n + 2500 if n < 500 else n} for n in range(2500)]
        removed = await client.table("t").delete_many(range(2499))
        assert removed.rows == 2499
        assert [row async for row in client.table("t").scan()] == [{"id": 2499, "v": 2499}]
        assert (await client.table("t").put_many([])).rows == 0

    play(test, partitions=3)


@pytest.mark.slow
def test_put_many_tells_rows_of_a_failed_channel_apart() -> None:
    """One channel without a leader: its rows are not applied, the others are."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        channels = cluster.add_table("p", 2)
        channels[1].leader = None
        schema = TableSchema(("id",))
        where = [partition_of(schema.key_of(n), 2) for n in range(20)]
        with pytest.raises(PartialWriteError) as caught:
            await client.table("p").put_many([{"id": n} for n in range(20)], timeout=0.5)
        error = caught.value
        assert error.applied == [n for n in range(20) if where[n] == 0]
        assert error.not_applied == [n for n in range(20) if where[n] == 1]
        assert error.unknown == []
        assert error.outcome is Outcome.NOT_APPLIED

    play(test)


def test_put_many_writes_nothing_more_to_a_partition_that_failed() -> None:
    """Rows after a refused record are not applied, so that a partition has no gap behind it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        node = cluster.nodes["n1"]
        node.publish_scripts.append(refuse("schema"))
        with pytest.raises(SchemaError):
            await client.table("t").put_many([{"id": n} for n in range(2500)], max_in_flight=1)
        assert len(node.published) == 1
        assert [row async for row in client.table("t").scan()] == []

    play(test)


def test_bulk_writer_writes_encoded_records() -> None:
    """The Spark sink's door: encoded rows in, counts out, readable as rows."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        schema = TableSchema(("id",))
        table = client.table("t")
        async with await table.bulk_writer(max_in_flight=2) as writer:
            for n in range(10):
                key, value = schema.row_to_key_value({"id": n, "v": n})
                payload = encode_rows([(key, seal(key, value))])
                await writer.add(partition_of(key, 2), payload, 1)
            result = await writer.flush()
        assert (result.rows, result.chunks) == (10, 10)
        assert await table.get(7, at_least=result.position) == {"id": 7, "v": 7}
        key, value = schema.row_to_key_value({"id": 7, "v": "again"})
        ack = await table.publish_rows(partition_of(key, 2), [(key, seal(key, value))])
        assert await table.get(7, at_least=ack.position) == {"id": 7, "v": "again"}
        with pytest.raises(SchemaError, match="partition 2 of table 't' does not exist"):
            await table.publish_rows(2, [(key, None)])
        with pytest.raises(PayloadTooLargeError, match="over the limit of 8388608"):
            async with await table.bulk_writer() as writer:
                await writer.add(0, b"x" * (8 * 1024 * 1024 + 1), 1)

    play(test, partitions=2)


@pytest.mark.slow
def test_writes_beyond_the_bytes_in_flight_wait() -> None:
    """Back-pressure: a channel's unanswered bytes are bounded, and the deadline still holds."""
    settings = replace(QUICK, channel_bytes_max=1_000)

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table, node = client.table("t"), cluster.nodes["n1"]
        node.publish_scripts.extend([silence] * 100)
        first = asyncio.ensure_future(table.put({"id": 1, "v": b"x" * 900}))
        await cluster.until(lambda: node.published)
        with pytest.raises(RequestTimeoutError, match="the limit is 1000") as caught:
            await table.put({"id": 2, "v": b"x" * 900}, timeout=0.5)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert len({message.guid for message in node.published}) == 1
        node.publish_scripts.clear()
        await first

    play(test, settings)
