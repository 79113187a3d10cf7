"""Pinned scans and counts on real processes: threads, LevelDB, kill -9 and SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from raftstore.client.asyncio_client import AsyncClient
from raftstore.errors import TransportError
from raftstore.local_cluster import LocalCluster
from raftstore.protocol.message import Failed, Request
from raftstore.protocol.reads import Count, CountAnswer, Scan, ScanAnswer
from raftstore.types import ChannelId, NodeId, Seq, node_name

pytestmark = pytest.mark.cluster
ROWS = 25_000
PATIENCE_S = 20.0


class Replica:
    """One replica of a table's only channel, asked directly."""

    def __init__(self, client: AsyncClient, node: NodeId, channel: ChannelId) -> None:
        self._client = client
        self._node = node
        self._channel = channel

    @property
    def name(self) -> str:
        return node_name(self._node)

    async def ask(self, build: Callable[[int], Request]) -> Any:
        """The node's answer; waits for a node that is starting."""
        link = self._client._context.links.of(self._node)
        assert link is not None
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await link.open()
                    answer = await link.request(build)
                except TransportError:
                    answer = None
                if answer is not None and getattr(answer, "code", "") not in (
                    "unknown_channel",
                    "unavailable",
                ):
                    return answer
                await asyncio.sleep(0.05)

    async def page(self, start: bytes = b"", limit: int = 4_000, **more: Any) -> Any:
        return await self.ask(
            lambda number: Scan(
                number, self._channel, start, b"", limit, "any", None, Seq(0), 10_000, **more
            )
        )

    async def rows(self, pin: int = 0) -> Any:
        return await self.ask(
            lambda number: Count(
                number, self._channel, b"", b"", "any", None, Seq(0), 10_000, pin=pin
            )
        )


async def filled(cluster: LocalCluster, client: AsyncClient) -> tuple[Any, Replica]:
    """A table with rows, and the replica on n2 once it holds all of them."""
    await client.create_table("t", key="id", partitions=1)
    table = client.table("t")
    written = await table.put_many([{"id": number, "v": 1} for number in range(ROWS)])
    assert written.rows == ROWS
    [channel] = (await client.table_info("t")).channels
    [node] = [node for node in channel.replicas if node_name(node) == "n2"]
    replica = Replica(client, node, channel.channel)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await replica.rows()).rows == ROWS:
                return table, replica
            await asyncio.sleep(0.05)


def test_pinned_scan_shows_one_state_and_ends_with_its_node(cluster: LocalCluster) -> None:
    """Writes between pages are not seen; after a kill -9 the pages end, they never go on."""

    async def scenario() -> None:
        async with await AsyncClient.connect(cluster.endpoints, timeout=15.0) as client:
            table, replica = await filled(cluster, client)
            first = answer = await replica.page(keep=True)
            assert isinstance(first, ScanAnswer)
            rows = list(first.rows)
            while answer.more:
                await table.put_many([{"id": number, "v": 2} for number in range(0, ROWS, 50)])
                await table.delete_many([{"id": len(rows) + 1_001}])
                answer = await replica.page(rows[-1][0] + b"\0", pin=first.pin)
                assert isinstance(answer, ScanAnswer)
                assert answer.served.applied_seq == first.served.applied_seq
                rows += answer.rows
            assert len(rows) == len({key for key, _, _ in rows}) == ROWS
            assert max(seq for _, _, seq in rows) <= first.served.applied_seq
            pinned = await replica.rows(first.pin)
            assert isinstance(pinned, CountAnswer)
            assert (pinned.rows, pinned.served.pinned) == (ROWS, True)
            assert (await replica.rows()).rows < ROWS
            cluster.kill(replica.name)
            cluster.start(replica.name)
            refused = await replica.page(rows[0][0] + b"\0", pin=first.pin)
            assert isinstance(refused, Failed)
            assert refused.code == "page_expired"
            assert isinstance(await replica.page(keep=True), ScanAnswer)

    asyncio.run(scenario())


def test_node_with_pins_and_long_reads_under_way_stops_cleanly(cluster: LocalCluster) -> None:
    """LevelDB is closed behind its snapshots: exit code 0, and the same rows at the next start."""

    async def scenario() -> None:
        async with await AsyncClient.connect(cluster.endpoints, timeout=15.0) as client:
            _, replica = await filled(cluster, client)
            for _ in range(5):
                assert (await replica.page(keep=True)).pin
            counting = [asyncio.ensure_future(replica.rows()) for _ in range(30)]
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, cluster.stop, replica.name) == 0
            for count in counting:
                count.cancel()
            await asyncio.gather(*counting, return_exceptions=True)
            cluster.start(replica.name)
            assert (await replica.rows()).rows == ROWS

    asyncio.run(scenario())
