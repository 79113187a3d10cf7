"""One replica whose disk takes 50 ms longer for every sync, for a minute, beside a calm minute.

Paced writes and linearizable reads on one client, which finds each partition's leader elsewhere:
leaders step down from the slow node before anything is measured. Goal: the p99 of writes within 1.5
times that of the calm minute, the p99 of reads within twice. Both minutes are of the same cluster
and take turns in pieces, so that a machine that is slow for a while is so for both.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from raftstore import aio, faults
from raftstore.aio import AsyncClient
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster
from raftstore.types import node_name

SLOW: Final = "n3"
SLOW_MS: Final = 50.0
PARTITIONS: Final = 8
EVERY_S: Final = 0.01
WRITES_FACTOR: Final = 1.5
READS_FACTOR: Final = 2.0
SETTLE_S: Final = 3.0
PIECES: Final = 4
"""Turns of each of the two."""
Call = Callable[[int], Awaitable[object]]
Times = dict[str, list[float]]


def run(minutes: float) -> dict[str, Any]:
    """Percentiles of writes and reads without and with the slow disk, and how they compare."""
    with tempfile.TemporaryDirectory(prefix="raftstore-slow-") as directory:
        control = Path(directory) / "faults.json"
        _order(control, 1, 0.0)
        environment = {SLOW: {faults.VARIABLE: str(control)}}
        with LocalCluster(nodes=3, environment=environment) as cluster:
            return asyncio.run(_measure(cluster, control, minutes * 60.0))


def _order(control: Path, number: int, sync_delay_ms: float) -> None:
    aside = control.with_suffix(".new")
    aside.write_text(json.dumps({"number": number, "sync_delay_ms": sync_delay_ms}))
    aside.rename(control)


async def _measure(cluster: LocalCluster, control: Path, seconds: float) -> dict[str, Any]:
    async with aio.connect(cluster.endpoints, timeout=30.0) as client:
        await client.create_table("points", key="id", partitions=PARTITIONS)
        await asyncio.sleep(SETTLE_S)
        await _lead_elsewhere(client)
        calm: Times = {"writes": [], "reads": []}
        slow: Times = {"writes": [], "reads": []}
        for number in range(PIECES):
            for times, delay_ms in ((calm, 0.0), (slow, SLOW_MS)):
                _order(control, 2 + 2 * number + (delay_ms > 0.0), delay_ms)
                await asyncio.sleep(SETTLE_S)
                await _piece(client, seconds / PIECES, times)
    calm, slow = _percentiles(calm), _percentiles(slow)
    factors = {kind: round(slow[kind][1] / calm[kind][1], 2) for kind in calm}
    return {
        "seconds of each": seconds,
        "a sync takes longer by, ms": SLOW_MS,
        **{f"calm {kind}, p50 / p99 ms": calm[kind] for kind in calm},
        **{f"one slow disk, {kind}, p50 / p99 ms": slow[kind] for kind in slow},
        f"p99 of writes, times (goal {WRITES_FACTOR})": factors["writes"],
        f"p99 of reads, times (goal {READS_FACTOR})": factors["reads"],
        "goals kept": factors["writes"] <= WRITES_FACTOR and factors["reads"] <= READS_FACTOR,
    }


async def _lead_elsewhere(client: AsyncClient) -> None:
    """Only followers are to be slow: a leader that is slow counts for what it leads."""
    for partition, channel in enumerate((await client.table_info("points")).channels):
        if channel.leader is not None and node_name(channel.leader) == SLOW:
            try:
                await client.step_down(f"points/{partition}", target="n1")
            except RaftstoreError:
                continue  # raised below
    await asyncio.sleep(SETTLE_S)
    info = await client.table_info("points")
    led = [at for at, c in enumerate(info.channels) if c.leader and node_name(c.leader) == SLOW]
    if led:
        raise RaftstoreError(f"{SLOW} still leads the partitions {led} of points; run it again")


async def _piece(client: AsyncClient, seconds: float, times: Times) -> None:
    table = client.table("points")
    text = "x" * 100

    async def put(number: int) -> object:
        return await table.put({"id": number % 10_000, "text": text})

    async def get(number: int) -> object:
        return await table.get(number % 10_000)

    await asyncio.gather(
        _paced(put, seconds, times["writes"]), _paced(get, seconds, times["reads"])
    )


async def _paced(call: Call, seconds: float, times: list[float]) -> None:
    """Milliseconds of calls that begin every ten milliseconds, whatever the others take."""

    async def timed(number: int) -> None:
        began = time.perf_counter()
        await call(number)
        times.append((time.perf_counter() - began) * 1000)

    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds / EVERY_S)):
            group.create_task(timed(number))
            await asyncio.sleep(max(0.0, begun + (number + 1) * EVERY_S - time.monotonic()))


def _percentiles(times: Times) -> Times:
    """p50 and p99 of each kind."""
    found: Times = {}
    for kind, unordered in times.items():
        ordered = sorted(unordered)
        at_99 = ordered[int(len(ordered) * 0.99)]
        found[kind] = [round(statistics.median(ordered), 2), round(at_99, 2)]
    return found
