"""Nine node processes on one machine: a tenth joins, and one of the others leaves.

How long a start, a table of 60 partitions, the join with the rebalance after it, and the drain with
the removal take, and how many replicas and leaders each node has then. The table is empty, so these
are the times of the steps and not of copies; 200 writes and 200 bounded reads a second go on
meanwhile, and what they noticed is said.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any, Final

from benchmarks.failover import Gaps, read_at_rate, write_at_rate
from benchmarks.idle import cpu_seconds
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

NODES: Final = 9
PARTITIONS: Final = 60
TABLE: Final = "t"
LOOK_S: Final = 0.1
PATIENCE_S: Final = 120.0


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """The figures; four nodes and twelve partitions if tiny."""
    nodes, partitions = (4, 12) if tiny else (NODES, PARTITIONS)
    begun = time.monotonic()
    with LocalCluster(nodes=nodes) as cluster:
        ready_s = round(time.monotonic() - begun, 1)
        return {"nodes and partitions": f"{nodes} and {partitions}", "ready after, s": ready_s} | (
            asyncio.run(_Growing(cluster, partitions).measure())
        )


class _Growing:
    """One cluster, one client."""

    def __init__(self, cluster: LocalCluster, partitions: int) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._leaves = cluster.running()[-1]
        self._writes, self._reads = Gaps(), Gaps()
        self._client: AsyncClient

    async def measure(self) -> dict[str, Any]:
        """Everything, one after the other."""
        async with aio.connect(self._cluster.endpoints, timeout=30.0) as self._client:
            steps = [await self._step("create", self._create)]
            acknowledged: dict[int, int] = {}
            tasks = [
                asyncio.create_task(write_at_rate(self._client, TABLE, self._writes, acknowledged)),
                asyncio.create_task(
                    read_at_rate(self._client, TABLE, self._reads, {"max_lag": 100_000})
                ),
            ]
            steps += [
                await self._step("a node joins", self._join),
                await self._step("rebalance", self._rebalance),
                await self._step("a node drains", self._drain),
            ]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            written = set(acknowledged)  # what was on its way is acknowledged beside the scan
            rows = self._client.table(TABLE).scan(level="linearizable")
            stored = {row["id"] async for row in rows}
            return {
                "steps": steps,
                "replicas per node": dict(sorted((await self._replicas()).items())),
                "acknowledged writes": len(written),
                "acknowledged writes lost": len(written - stored),
                "failed": {"writes": self._writes.failed, "bounded": self._reads.failed},
            }

    async def _step(self, what: str, do: Callable[[], Awaitable[str]]) -> dict[str, Any]:
        """Do it, and wait until leaders are even."""
        before = self._cpu_seconds()
        begun = time.monotonic()
        done = await do()
        took_s = time.monotonic() - begun
        most = max((await self._leaders()).values())
        goal = await self._goal()
        await self._until(self._is_even)
        ended = time.monotonic()
        used = [
            used_s - before[pid] for pid, used_s in self._cpu_seconds().items() if pid in before
        ]
        return {
            "step": what,
            "done": done,
            "after, s": round(took_s, 2),
            "most leaders then": most,
            "even after, s": round(ended - begun, 1),
            "most leaders": f"{max((await self._leaders()).values())} (goal {goal})",
            "processor of a node, %": round(100 * sum(used) / len(used) / (ended - begun), 1),
            "write gap, ms": self._longest(self._writes, begun, ended),
            "bounded gap, ms": self._longest(self._reads, begun, ended),
        }

    def _longest(self, gaps: Gaps, begun: float, ended: float) -> int | str:
        return round(gaps.longest(begun, ended)) if gaps.times else "-"

    # --- steps ------------------------------------------------------------------------------------

    async def _create(self) -> str:
        await self._client.create_table(TABLE, key="id", partitions=self._partitions)
        return f"{self._partitions} partitions"

    async def _join(self) -> str:
        name = f"n{len(self._cluster.running()) + 1}"
        self._cluster.join(name, await self._client.join_token())

        async def has_joined() -> bool:
            return any(member.name == name for member in await self._client.members())

        await self._until(has_joined)
        return name

    async def _rebalance(self) -> str:
        async def has_begun() -> bool:
            plan = await self._client.plan_rebalance()
            if plan.moves:  # the new node may be entered and not seen up yet
                await self._client.start_rebalance(plan, reason="a node joined")
            return bool(plan.moves)

        await self._until(has_begun)

        async def has_ended() -> bool:
            return not (await self._client.rebalance_status()).is_open

        await self._until(has_ended)
        states = Counter(move.state for move in (await self._client.rebalance_status()).moves)
        return ", ".join(f"{count} {state}" for state, count in states.items())

    async def _drain(self) -> str:
        leaves = self._leaves
        held = (await self._replicas())[leaves]
        await self._client.drain_node(leaves)

        async def is_empty() -> bool:
            return not (await self._replicas())[leaves]

        await self._until(is_empty)

        async def has_left() -> bool:
            await self._client.remove_node(leaves)
            return True

        await self._until(has_left)
        self._cluster.forget(leaves)
        return f"{leaves}: {held} replicas, removed"

    # --- what is seen -----------------------------------------------------------------------------

    async def _until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        begun = time.monotonic()
        while True:
            refused = ""
            try:
                if await is_so():
                    return
            except RaftstoreError as error:
                refused = str(error)
            waited_s = time.monotonic() - begun
            assert waited_s < PATIENCE_S, f"not so after {PATIENCE_S} s: {is_so} {refused}"
            await asyncio.sleep(LOOK_S)

    def _cpu_seconds(self) -> dict[int, float]:
        pids = [self._cluster.pid(name) for name in self._cluster.running()]
        return {pid: cpu_seconds(pid) for pid in pids}

    async def _leaders(self) -> Counter[str]:
        info = await self._client.table_info(TABLE)
        return Counter(str(each.leader) for each in info.channels)

    async def _replicas(self) -> Counter[str]:
        placed = await self._client.replicas()
        return Counter(
            name for each in placed if each.channel.startswith(f"{TABLE}/") for name in each.voters
        )

    async def _goal(self) -> int:
        return ceil(self._partitions / len(await self._replicas())) + 1

    async def _is_even(self) -> bool:
        leaders = await self._leaders()
        return "None" not in leaders and max(leaders.values()) <= await self._goal()
