"""Single-row writes and point reads: one at a time, and 64 in flight."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from raftstore import aio
from raftstore.local_cluster import LocalCluster

IN_FLIGHT = 64


async def _timed(call: Callable[[int], Awaitable[object]], count: int, lanes: int) -> str:
    numbers = iter(range(count))
    times: list[float] = []

    async def lane() -> None:
        for number in numbers:
            started = time.perf_counter()
            await call(number)
            times.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(lanes)))
    wall = time.perf_counter() - started
    times.sort()
    p50, p99 = statistics.median(times) * 1000, times[int(len(times) * 0.99)] * 1000
    return f"{count / wall:,.0f}/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms"


async def _measure(cluster: LocalCluster, scale: int) -> dict[str, Any]:
    client = await aio.connect(cluster.endpoints, timeout=30.0)
    await client.create_table("points", key="id", partitions=8)
    table = client.table("points")
    await client.create_table("points_in_one", key="id", partitions=1)
    one = client.table("points_in_one")
    text = "x" * 100

    async def put(number: int) -> object:
        return await table.put({"id": number, "text": text})

    async def put_one(number: int) -> object:
        return await one.put({"id": number, "text": text})

    async def bounded(number: int) -> object:
        return await table.get(number, max_lag=100_000, prefer="any_in_bound")

    async def linearizable(number: int) -> object:
        return await table.get(number)

    figures = {
        "put, one at a time": await _timed(put, 20 * scale, 1),
        f"put, {IN_FLIGHT} in flight": await _timed(put, 100 * scale, IN_FLIGHT),
        "put, one at a time, 1 partition": await _timed(put_one, 20 * scale, 1),
        f"put, {IN_FLIGHT} in flight, 1 partition": await _timed(put_one, 100 * scale, IN_FLIGHT),
        "bounded get, one at a time": await _timed(bounded, 40 * scale, 1),
        f"bounded get, {IN_FLIGHT} in flight": await _timed(bounded, 200 * scale, IN_FLIGHT),
        "linearizable get, one at a time": await _timed(linearizable, 20 * scale, 1),
        f"linearizable get, {IN_FLIGHT} in flight": await _timed(
            linearizable, 100 * scale, IN_FLIGHT
        ),
    }
    await client.close()
    return figures


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Rates and latencies through the asyncio client in one process."""
    with LocalCluster(nodes=3) as cluster:
        return asyncio.run(_measure(cluster, 2 if tiny else 100))
