"""kill -9 of the node that leads most channels, again and again, under reads and writes.

200 writes/s and 200 bounded reads/s (and linearizable ones) run all the time. Per kill: the longest
silence of each kind in the window from the kill to the recovery. At the end every acknowledged
write is read back from every replica.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import Any

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.demo.verify import wait_until_settled
from raftstore.errors import RequestError
from raftstore.local_cluster import LocalCluster
from raftstore.types import Outcome

PARTITIONS = 8
INTERVAL_S = 0.005
AFTER_KILL_S = 3.0


class Gaps:
    """Times of successes of one kind of operation."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.failed = 0

    def longest(self, start: float, end: float) -> float:
        """Longest silence in ms inside [start, end], borders included."""
        inside = [start, *(t for t in self.times if start < t < end), end]
        return max(b - a for a, b in itertools.pairwise(inside)) * 1000


async def _pace(started: float, number: int) -> None:
    await asyncio.sleep(max(0.0, started + number * INTERVAL_S - time.monotonic()))


async def write_at_rate(
    client: AsyncClient, name: str, gaps: Gaps, acknowledged: dict[int, int]
) -> None:
    """Put a row every ``INTERVAL_S``, whether or not those before were answered."""
    table = client.table(name)
    started, number, open_puts = time.monotonic(), 0, set[asyncio.Task[None]]()

    async def put(key: int) -> None:
        try:
            await table.put({"id": key, "n": key}, timeout=10.0)
        except RequestError as error:
            gaps.failed += error.outcome is Outcome.NOT_APPLIED
            return
        gaps.times.append(time.monotonic())
        acknowledged[key] = key

    while True:
        number += 1
        task = asyncio.create_task(put(number))
        open_puts.add(task)
        task.add_done_callback(open_puts.discard)
        await _pace(started, number)


async def read_at_rate(client: AsyncClient, name: str, gaps: Gaps, options: dict[str, Any]) -> None:
    """Get a row every ``INTERVAL_S``, whether or not those before were answered."""
    table = client.table(name)
    started, number, open_gets = time.monotonic(), 0, set[asyncio.Task[None]]()

    async def get(key: int) -> None:
        try:
            await table.get(key, timeout=10.0, **options)
        except RequestError:
            gaps.failed += 1
            return
        gaps.times.append(time.monotonic())

    while True:
        number += 1
        task = asyncio.create_task(get(number % 997))
        open_gets.add(task)
        task.add_done_callback(open_gets.discard)
        await _pace(started, number)


async def _busiest(client: AsyncClient) -> str:
    status = await client.cluster_status()
    counts = {
        node.name: sum(c["role"] == "leader" for c in node.status["channels"])
        for node in status.nodes
        if node.status is not None
    }
    return max(sorted(counts), key=counts.__getitem__)


async def _until_caught_up(client: AsyncClient, nodes: int) -> None:
    while True:
        status = await client.cluster_status()
        channels = [
            c for node in status.nodes if node.status is not None for c in node.status["channels"]
        ]
        steady = [c for c in channels if c["lag"] is not None and c["mode"] == "steady"]
        if len(steady) == nodes * PARTITIONS:
            return
        await asyncio.sleep(0.2)


async def _measure(cluster: LocalCluster, kills: int) -> dict[str, Any]:
    client = await aio.connect(cluster.endpoints, timeout=10.0)
    await client.create_table("bench", key="id", partitions=PARTITIONS)
    writes, bounded, linearizable = Gaps(), Gaps(), Gaps()
    acknowledged: dict[int, int] = {}
    tasks = [
        asyncio.create_task(write_at_rate(client, "bench", writes, acknowledged)),
        asyncio.create_task(read_at_rate(client, "bench", bounded, {"max_lag": 100_000})),
        asyncio.create_task(read_at_rate(client, "bench", linearizable, {})),
    ]
    await asyncio.sleep(2.0)
    rows: dict[str, list[float]] = {"writes": [], "bounded": [], "linearizable": []}
    for _ in range(kills):
        victim = await _busiest(client)
        killed = time.monotonic()
        cluster.kill(victim)
        await asyncio.sleep(AFTER_KILL_S)
        end = time.monotonic()
        rows["writes"].append(writes.longest(killed, end))
        rows["bounded"].append(bounded.longest(killed, end))
        rows["linearizable"].append(linearizable.longest(killed, end))
        cluster.start(victim)
        await _until_caught_up(client, len(cluster.endpoints))
        await asyncio.sleep(1.0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # Levels read below show what each replica has applied: let the followers receive the last
    # commit.
    assert await wait_until_settled(client, ["bench"], sorted(cluster.endpoints_by_node()))
    lost = 0
    for replica in cluster.endpoints_by_node():
        stored = {
            row["id"] async for row in client.table("bench").scan(level="any", replica=replica)
        }
        lost += sum(key not in stored for key in acknowledged)
    await client.close()
    figures: dict[str, Any] = {"kills": kills, "acknowledged writes": len(acknowledged)}
    figures["acknowledged writes lost"] = lost
    for name, gaps in rows.items():
        figures[f"{name}: longest gap, median ms"] = round(statistics.median(gaps))
        figures[f"{name}: longest gap, worst ms"] = round(max(gaps))
        figures[f"{name}: all ms"] = [round(gap) for gap in gaps]
    figures["failed"] = {
        "writes": writes.failed,
        "bounded": bounded.failed,
        "linearizable": linearizable.failed,
    }
    return figures


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """The figures; ten kills unless tiny."""
    with LocalCluster(nodes=3) as cluster:
        return asyncio.run(_measure(cluster, 1 if tiny else 10))
