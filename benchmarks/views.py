"""``/clusterStatus`` of a cluster with 1,000 channels: how long each of 200 answers takes."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from benchmarks.readers import http_connected, http_get
from raftstore.local_cluster import LocalCluster

PARTITIONS: Final = 8
PAUSE_S: Final = 0.15
"""Longer than a node keeps what it collected, so that each answer is collected anew."""


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """One request at a time, and eight at once."""
    tables, requests = (5, 20) if tiny else (125, 200)
    with LocalCluster(nodes=3, http=True) as cluster:
        with cluster.connect(timeout=60.0) as client:
            for number in range(tables):
                client.create_table(f"t{number}", key="id", partitions=PARTITIONS)
        time.sleep(3.0)
        addresses = tuple(cluster.http_by_node().values())
        alone, size = asyncio.run(_ask(addresses, requests, 1))
        together, _ = asyncio.run(_ask(addresses, requests, 8))
    return {
        "channels": tables * PARTITIONS,
        "bytes of an answer": size,
        "one at a time (goal 50 ms)": _shown(alone),
        "eight at once": _shown(together),
    }


def _shown(times: list[float]) -> str:
    ordered = sorted(times)
    p50, p99, worst = (ordered[int((len(ordered) - 1) * share)] for share in (0.5, 0.99, 1.0))
    return f"p50 {p50:.1f}, p99 {p99:.1f}, worst {worst:.1f} ms"


async def _ask(addresses: tuple[str, ...], requests: int, lanes: int) -> tuple[list[float], int]:
    times: list[float] = []
    size = 0
    numbers = iter(range(requests))

    async def lane(number: int) -> None:
        nonlocal size
        reader, writer = await http_connected(addresses[number % len(addresses)])
        for _ in numbers:
            began = time.perf_counter()
            head = await http_get(reader, writer, "/clusterStatus")
            times.append((time.perf_counter() - began) * 1000)
            assert head.startswith(b"HTTP/1.1 200"), head
            size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await asyncio.sleep(PAUSE_S)
        writer.close()

    await asyncio.gather(*(lane(number) for number in range(lanes)))
    return times, size
