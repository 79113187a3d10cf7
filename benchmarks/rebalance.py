"""Replicas that move under 200 writes/s and 200 bounded reads/s: the report of FIP-27.

Four nodes; a table of three replicas on n1, n2 and n3 (n4 is tagged while it is made), and rows of
1 KiB in it. Then [0,1,2] -> [1,2,3] for every partition at once: one of the nodes is tagged
permanent_offline, a plan is made and carried out, and the same with the next node, until every one
was emptied once. Per rebalance: how long it took, what was copied and what the plan had said, the
longest silences of writes and reads, and the errors that clients saw. At the end every acknowledged
write is read back from the leaders.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any, Final

from benchmarks.failover import Gaps, read_at_rate, write_at_rate
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.local_cluster import LocalCluster

TABLE: Final = "bench"
PARTITIONS: Final = 4
ROWS: Final = 100_000
"""Of 1 KiB each: about 100 MB, and so much for each replica."""
VALUE: Final = "x" * 1_000
AT_ONCE: Final = 500
PATIENCE_S: Final = 300.0


async def _fill(client: AsyncClient, rows: int) -> None:
    table = client.table(TABLE)
    keys = iter(range(1_000_000, 1_000_000 + rows))
    while batch := list(itertools.islice(keys, AT_ONCE)):
        await asyncio.gather(*(table.put({"id": key, "n": key, "text": VALUE}) for key in batch))


async def _empty(client: AsyncClient, node: str, writes: Gaps, reads: Gaps) -> dict[str, Any]:
    """Move everything away from a node, and give it back its place."""
    failed = writes.failed, reads.failed
    await client.tag_node(node, "permanent_offline")
    plan = await client.plan_rebalance()
    begun = time.monotonic()
    await client.start_rebalance(plan, reason=f"{node} is emptied")
    states: dict[str, float] = {}
    while (found := await client.rebalance_status()).is_open:
        assert time.monotonic() - begun < PATIENCE_S, f"not done after {PATIENCE_S} s: {found}"
        states.setdefault(found.state, round(time.monotonic() - begun, 2))
        await asyncio.sleep(0.1)
    ended = time.monotonic()
    await client.tag_node(node, "none")
    return {
        "node": node,
        "state": found.state,
        "moves": len(found.moves),
        "took, s": round(ended - begun, 2),
        "planned, s": round(plan.seconds, 2),
        "bytes": plan.bytes,
        "states first seen after, s": states,
        "writes: longest gap, ms": round(writes.longest(begun, ended), 1),
        "bounded: longest gap, ms": round(reads.longest(begun, ended), 1),
        "errors": {"writes": writes.failed - failed[0], "bounded": reads.failed - failed[1]},
    }


async def _measure(cluster: LocalCluster, rows: int, nodes: list[str]) -> dict[str, Any]:
    client = await aio.connect(cluster.endpoints, timeout=30.0)
    for _ in range(100):  # the cluster has just been founded
        if all(member.state == "active" for member in await client.members()):
            break
        await asyncio.sleep(0.1)
    await client.tag_node("n4", "temporary_offline")
    await client.create_table(TABLE, key="id", partitions=PARTITIONS, replicas=3)
    await client.tag_node("n4", "none")
    await _fill(client, rows)
    writes, reads = Gaps(), Gaps()
    acknowledged: dict[int, int] = {}
    tasks = [
        asyncio.create_task(write_at_rate(client, TABLE, writes, acknowledged)),
        asyncio.create_task(read_at_rate(client, TABLE, reads, {"max_lag": 100_000})),
    ]
    await asyncio.sleep(2.0)
    begun = time.monotonic() - 2.0
    calm = {
        "writes: longest gap, ms": round(writes.longest(begun, begun + 2.0), 1),
        "bounded: longest gap, ms": round(reads.longest(begun, begun + 2.0), 1),
    }
    done = [await _empty(client, node, writes, reads) for node in nodes]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    written = set(acknowledged)
    stored = {row["id"] async for row in client.table(TABLE).scan(level="linearizable")}
    await client.close()
    return {
        "rows of 1 KiB": rows,
        "calm": calm,
        "rebalances": done,
        "acknowledged writes": len(written),
        "acknowledged writes lost": len(written - stored),
        "failed": {"writes": writes.failed, "bounded": reads.failed},
    }


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """The figures; every node is emptied once unless tiny."""
    with LocalCluster(nodes=4) as cluster:
        nodes = ["n1"] if tiny else ["n1", "n2", "n3", "n4"]
        return asyncio.run(_measure(cluster, 1_000 if tiny else ROWS, nodes))
