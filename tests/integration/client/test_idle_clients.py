"""A node may take the place of a client that is idle: the client comes back when it has to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.cluster.links import NodeLink
from raftstore.protocol.message import Message
from tests.integration.client.fake_cluster import FakeCluster, FakeNode
from tests.integration.client.play import QUICK, play


def links_of(client: AsyncClient) -> list[NodeLink]:
    """Its connections for queries and for writes."""
    links = client._context.links
    return [*links._queries.values(), *links._links.values()]


async def dismiss_all(cluster: FakeCluster, client: AsyncClient) -> None:
    """All nodes take the places of the client's connections, and it learns of it."""
    for node in cluster.nodes.values():
        node.dismiss_idle()
    while any(link.is_open for link in links_of(client)):  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


def test_client_whose_place_was_taken_reads_and_writes_as_before() -> None:
    """Nothing was under way, so nothing is in doubt; each write is sent once."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put({"id": 1})
        for number in range(2, 5):
            await dismiss_all(cluster, client)
            ack = await table.put({"id": number})
            assert ack.position is not None
            await dismiss_all(cluster, client)
            assert await table.get(number) == {"id": number}
            assert await table.get(number, level="any") == {"id": number}
        leader = cluster.nodes["n1"]
        assert [message.attempt for message in leader.published] == [0] * 4

    play(test)


def test_write_that_meets_its_dismissal_is_not_unknown() -> None:
    """The node took nothing after its Goodbye: the same write, sent again, is applied once."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        def dismiss(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            del message, reply
            node.dismiss_idle()

        table = client.table("t")
        await table.put({"id": 1})
        leader = cluster.nodes["n1"]
        leader.publish_scripts.append(dismiss)
        await table.put({"id": 2})
        assert [message.attempt for message in leader.published] == [0, 0, 1]
        assert await table.get(2) == {"id": 2}

    play(test)


def test_client_whose_place_was_taken_does_not_come_back_by_itself() -> None:
    """It would take the place of the next idle one, and that one its own, without end."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        await dismiss_all(cluster, client)
        assert [link._task for link in links_of(client)] == [None] * 6
        assert client._discovery._round is None

    patient = replace(QUICK, refresh_interval_ms=60_000)
    play(test, settings=patient)


@pytest.mark.parametrize("known", [("operator", "client", "query"), ("client", "query")])
def test_operator_asks_on_places_of_its_own_where_the_node_has_them(
    known: tuple[str, ...],
) -> None:
    """A node of an older version is asked like any other."""

    async def run() -> None:
        async with FakeCluster() as cluster:
            cluster.add_table("t", 1)
            for node in cluster.nodes.values():
                node.purposes = known
            settings = replace(QUICK, is_operator=True)
            async with await AsyncClient.connect(cluster.endpoints, settings=settings) as client:
                assert len(await client.tables()) == 1
                await client.table("t").put({"id": 1})
                assert await client.table("t").get(1) == {"id": 1}
            greeted = cluster.nodes["n1"].greeted
            assert "operator" in greeted
            assert ("query" in greeted) is ("operator" not in known)

    asyncio.run(run())
