"""Connections and writers are awaited or entered, as the program likes."""

from __future__ import annotations

import asyncio

import pytest

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.errors import UnavailableError
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.play import QUICK, play


def test_connect_is_entered_with_and_without_await() -> None:
    """Leaving it closes the client, in both forms; in a task it is a coroutine like any other."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        del client
        async with aio.connect(cluster.endpoints, settings=QUICK) as one:
            await one.table("t").put({"id": 1})
        async with await aio.connect(cluster.endpoints, settings=QUICK) as other:
            assert await other.table("t").get(1) == {"id": 1}
        third = await asyncio.create_task(aio.connect(cluster.endpoints, settings=QUICK))
        await third.close()
        for closed in (one, other, third):
            with pytest.raises(UnavailableError, match="closed"):
                await closed.table("t").get(1)

    play(test)


def test_connect_that_fails_is_told_by_both_forms() -> None:
    """Nothing is left behind where nobody answers."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        del cluster, client
        with pytest.raises(UnavailableError):
            await aio.connect("127.0.0.1:9", timeout=0.05)
        with pytest.raises(UnavailableError):
            async with aio.connect("127.0.0.1:9", timeout=0.05):
                raise AssertionError

    play(test)


def test_writers_of_records_are_entered_without_await() -> None:
    """Like the client itself; see also the example of snapshots in docs/queries.md."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        del cluster
        async with client.table("t").bulk_writer() as writer:
            assert (await writer.flush()).rows == 0
        async with await client.table("t").bulk_writer() as writer:
            assert (await writer.flush()).rows == 0

    play(test)


def test_clients_and_tables_tell_what_they_are() -> None:
    """In a debugger, a notebook or a log."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        del cluster
        assert repr(client).startswith("<AsyncClient of 127.0.0.1:")
        assert repr(client).endswith(": cluster 63636363, 3 nodes, open>")
        assert repr(client.table("t")) == "<AsyncTable 't': key id, 1 partitions>"
        assert repr(client.table("other")) == "<AsyncTable 'other'>"
        await client.close()
        assert repr(client).endswith("closed>")

    play(test)
