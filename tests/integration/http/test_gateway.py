"""The door between HTTP and the cluster, while the node finds its way into it."""

from __future__ import annotations

import asyncio

import pytest

from raftstore.config import NodeSettings
from raftstore.errors import UnavailableError
from raftstore.http.gateway import NodeGateway
from raftstore.node.http_port import LiveFacts, StartPhase
from tests.integration.client.fake_cluster import CLUSTER_ID, FakeCluster


def gateway_of(facts: LiveFacts) -> NodeGateway:
    """The door of a node about which this is known."""
    return NodeGateway(NodeSettings(name="n1", data_dir="d"), facts)


def test_client_of_a_node_that_has_just_started_waits_until_it_found_its_cluster() -> None:
    """KLIP-01: a request that comes between the first answer of a restarted node and its first
    word of the cluster is answered within its time, not refused."""

    async def play() -> None:
        async with FakeCluster() as cluster:
            node = cluster.nodes["n1"]
            await node.kill()
            door = gateway_of(
                LiveFacts(endpoint=node.endpoint, node=node.id, cluster_id=CLUSTER_ID)
            )
            door.start()
            try:
                waiting = asyncio.create_task(door.client(10.0))
                done, _ = await asyncio.wait({waiting}, timeout=0.3)
                assert not done
                await node.start()
                found = await waiting
                assert await found.tables() == ()
            finally:
                await door.close()

    asyncio.run(play())


def test_its_time_bounds_the_wait() -> None:
    """The sentence says for how long and what to do."""

    async def play() -> None:
        door = gateway_of(LiveFacts(endpoint="127.0.0.1:1", node="n1-1", cluster_id=CLUSTER_ID))
        door.start()
        try:
            with pytest.raises(UnavailableError, match=r"within 0\.2 s; ask another node"):
                await door.client(0.2)
        finally:
            await door.close()

    asyncio.run(play())


def test_node_without_a_cluster_refuses_at_once() -> None:
    """Its cluster may never be founded: that is reported, not waited for."""

    async def play() -> None:
        phase = StartPhase("founding", "the node waits for its cluster to be founded")
        door = gateway_of(LiveFacts(start=phase))
        door.start()
        try:
            with pytest.raises(UnavailableError, match="waits for its cluster to be founded"):
                async with asyncio.timeout(1.0):
                    await door.client(60.0)
        finally:
            await door.close()

    asyncio.run(play())
