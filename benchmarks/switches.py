"""Planned switches of a leader under 200 writes/s and 200 bounded reads/s (FIP: a switch must not
be noticed).

One table of one partition at a time gets all the load. Its leader hands over to each of the others
in turn, as often as one client may ask for it, then the next table is made. Per switch: the longest
silence of writes and of reads from the request to half a second behind its answer. At the end every
acknowledged write is read back from the leader.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from benchmarks.failover import Gaps, read_at_rate, write_at_rate
from raftstore import aio
from raftstore.engine.catalog.step_down_limit import CLIENT_BURST
from raftstore.local_cluster import LocalCluster
from raftstore.types import node_name

TABLES: Final = 34
BEHIND_S: Final = 0.5
BETWEEN_S: Final = 0.3
GOAL_MS: Final = 50


def _quantile(ordered: list[float], part: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 1)


async def _switch_some(cluster: LocalCluster, name: str, rows: dict[str, list[float]]) -> int:
    """All switches of one table; returns how many of its acknowledged writes are missing."""
    client = await aio.connect(cluster.endpoints, timeout=10.0)
    await client.create_table(name, key="id", partitions=1)
    writes, reads = Gaps(), Gaps()
    acknowledged: dict[int, int] = {}
    tasks = [
        asyncio.create_task(write_at_rate(client, name, writes, acknowledged)),
        asyncio.create_task(read_at_rate(client, name, reads, {"max_lag": 100_000})),
    ]
    await asyncio.sleep(1.0)
    nodes = sorted(cluster.endpoints_by_node())
    for _ in range(CLIENT_BURST):
        info = await client.table_info(name)
        leader = info.channels[0].leader
        assert leader is not None
        target = nodes[(nodes.index(node_name(leader)) + 1) % len(nodes)]
        begun = time.monotonic()
        await client.step_down(f"{name}/0", target=target)
        rows["took"].append((time.monotonic() - begun) * 1000)
        await asyncio.sleep(BEHIND_S)
        end = time.monotonic()
        rows["writes"].append(writes.longest(begun, end))
        rows["bounded"].append(reads.longest(begun, end))
        rows["calm writes"].append(writes.longest(begun - BETWEEN_S, begun))
        await asyncio.sleep(BETWEEN_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    rows["failed writes"].append(writes.failed)
    rows["failed reads"].append(reads.failed)
    rows["acknowledged"].append(len(acknowledged))
    written = set(acknowledged)  # puts that are open still may be acknowledged during the scan
    stored = {row["id"] async for row in client.table(name).scan(level="linearizable")}
    await client.drop_table(name)
    await client.close()
    return len(written - stored)


async def _measure(cluster: LocalCluster, tables: int) -> dict[str, Any]:
    names = ("took", "writes", "bounded", "calm writes")
    counts = ("failed writes", "failed reads", "acknowledged")
    rows: dict[str, list[float]] = {name: [] for name in (*names, *counts)}
    lost = 0
    for number in range(tables):
        lost += await _switch_some(cluster, f"bench{number}", rows)
    figures: dict[str, Any] = {"switches": len(rows["took"]), "goal, p99 of writes, ms": GOAL_MS}
    figures["acknowledged writes"] = int(sum(rows["acknowledged"]))
    figures["acknowledged writes lost"] = lost
    for name in names:
        what = "the command, ms" if name == "took" else f"{name}: longest gap, ms"
        ordered = sorted(rows[name])
        figures[what] = {
            "p50": _quantile(ordered, 0.5),
            "p99": _quantile(ordered, 0.99),
            "worst": round(ordered[-1], 1),
        }
    figures["failed"] = {"writes": sum(rows[counts[0]]), "bounded": sum(rows[counts[1]])}
    return figures


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """The figures; 102 switches unless tiny."""
    with LocalCluster(nodes=3) as cluster:
        return asyncio.run(_measure(cluster, 1 if tiny else TABLES))
