"""Ends of micro-batches, announced by a client (BLOG-32)."""

from __future__ import annotations

import pytest

from raftstore.aio import AsyncClient
from raftstore.errors import SchemaError
from raftstore.protocol.payload import decode_mark
from raftstore.types import RecordKind
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.play import play


def test_blog_32_batch_is_marked_once_in_each_partition() -> None:
    """One record per channel that the batch touched, all partitions by default."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        position = await table.mark_batch("orders", 7)
        applied = [m for channel in cluster.channels.values() for m in channel.applied]
        assert [message.kind for message in applied] == [RecordKind.BATCH_MARK] * 2
        assert {decode_mark(bytes(message.payload)) for message in applied} == {("orders", 7)}
        assert await table.get(1, at_least=position) is None
        await table.mark_batch("orders", 8, partitions=[1, 1])
        assert sum(len(channel.applied) for channel in cluster.channels.values()) == 3

    play(test, partitions=2)


def test_mark_that_names_no_batch_is_refused_before_anything_is_sent() -> None:
    """NOT_APPLIED in every partition."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        with pytest.raises(SchemaError, match="must not be negative"):
            await client.table("t").mark_batch("orders", -1)
        with pytest.raises(SchemaError, match="partition 9 of table"):
            await client.table("t").mark_batch("orders", 1, partitions=[9])
        assert not [m for channel in cluster.channels.values() for m in channel.applied]

    play(test, partitions=2)
