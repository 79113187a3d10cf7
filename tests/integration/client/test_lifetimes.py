"""``ttl=`` of writes, and that of a table: which records leave the client, and what is refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from raftstore.aio import AsyncClient
from raftstore.errors import ArgumentError, ConflictError
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.table_settings import TableSettings
from raftstore.types import RecordKind
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.play import only_channel, play


def test_ttl_of_every_kind_of_write_travels_with_its_rows() -> None:
    """In seconds or as a timedelta; a write without one is the record that it always was."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table, channel = client.table("t"), only_channel(cluster)
        await table.put({"id": 1, "v": 1}, ttl=1.5)
        await table.put({"id": 2, "v": 1}, if_absent=True, ttl=timedelta(minutes=1))
        with pytest.raises(ConflictError):
            await table.put({"id": 2, "v": 1}, if_absent=True, ttl=1)
        await table.put_many([{"id": 3, "v": 1}, {"id": 4, "v": 1}], ttl=2)
        await table.publish_rows(0, [(b"k", None)], ttl=3)
        async with await table.bulk_writer(ttl=4) as bulk:
            await bulk.add(0, encode_rows([(b"k", None)]), 1)
        await table.write_batch([{"id": 5, "v": 1}], writer="w", batch_id=1, ttl=5)
        await table.put({"id": 6, "v": 1})
        await table.delete({"id": 6})
        assert channel.ttls_ms == [1_500, 60_000, 1_000, 2_000, 3_000, 4_000, 5_000, 0, 0]
        kinds = [each.kind for each in channel.applied]
        assert kinds[:4] == [
            RecordKind.ROWS_WITH_TTL,
            RecordKind.CONDITIONAL_WITH_TTL,
            RecordKind.CONDITIONAL_WITH_TTL,
            RecordKind.ROWS_WITH_TTL,
        ]
        assert kinds[-3:] == [RecordKind.STAGED, RecordKind.ROWS, RecordKind.ROWS]
        assert await table.get(1) == {"id": 1, "v": 1}

    play(test)


def test_table_has_a_ttl_for_what_is_written_without_one() -> None:
    """A write's own counts more, and 0 says for ever; altering it counts from then on."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        made = await client.create_table("s", key="id", partitions=1, ttl=timedelta(hours=1))
        assert made.settings == TableSettings(ttl_ms=3_600_000)
        table, channel = client.table("s"), only_channel(cluster, "s")
        await table.put({"id": 1})
        await table.put({"id": 1}, ttl=2)
        await table.put({"id": 1}, ttl=0)
        await table.put_many([{"id": 2}])
        assert (await client.alter_table("s", ttl=9)).settings.ttl_ms == 9_000
        await table.put({"id": 1})
        assert (await client.alter_table("s", ttl=None)).settings.ttl_ms is None
        await table.put({"id": 1})
        assert channel.ttls_ms == [3_600_000, 2_000, 0, 3_600_000, 9_000, 0]

    play(test)


def test_rows_share_a_record_only_with_rows_of_their_lifetime() -> None:
    """It is the record's; each row's caller learns of its own."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table, channel = client.table("t"), only_channel(cluster)
        await table.put({"id": 100})
        ttls = [0, 5, 0, 5, 7, 0, 5, 7]
        rows = [table.put({"id": number}, ttl=ttl) for number, ttl in enumerate(ttls)]
        await asyncio.gather(*rows)
        told = [
            ttl_ms
            for each, ttl_ms in zip(channel.applied, channel.ttls_ms, strict=True)
            for _ in range(each.rows)
        ]
        assert sorted(told) == sorted(1_000 * ttl for ttl in [0, *ttls])
        assert len(channel.applied) < len(ttls)

    play(test)


@pytest.mark.parametrize(
    ("ttl", "told"),
    [
        (-1, "ttl=-1 is out of range"),
        (1e-9, "ttl=1e-09 is out of range"),
        (float("nan"), "ttl=nan is out of range"),
        (1e12, "a row lives for 0.001 to 3162240000 seconds, or with 0 for ever"),
        ("1h", "ttl='1h' is no time; give seconds or a timedelta"),
        (True, "ttl=True is no time"),
        (timedelta(days=-1), "is out of range"),
    ],
)
def test_lifetime_that_cannot_be_is_refused_and_nothing_is_sent(ttl: Any, told: str) -> None:
    """ArgumentError names the value, in every call that takes one."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        for call in (
            lambda: table.put({"id": 1}, ttl=ttl),
            lambda: table.put_many([{"id": 1}], ttl=ttl),
            lambda: table.publish_rows(0, [(b"k", None)], ttl=ttl),
            lambda: table.bulk_writer(ttl=ttl),
            lambda: table.write_batch([{"id": 1}], writer="w", batch_id=1, ttl=ttl),
            lambda: client.create_table("no", key="id", ttl=ttl),
            lambda: client.alter_table("t", ttl=ttl),
        ):
            with pytest.raises(ArgumentError, match=told):
                await call()
        assert only_channel(cluster).applied == []
        assert list(cluster.tables) == ["t"]

    play(test)
