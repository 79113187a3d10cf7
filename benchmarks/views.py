"""A cluster with 1,000 channels: creation, ``/clusterStatus``, idle cost, end of a node (P12, P14).

How long each of 125 tables of 8 partitions takes to create and how late the nodes' main loops were
meanwhile; how long each of 200 answers takes; what the idle nodes cost; and how long it takes until
each channel that a killed node led has acknowledged a write again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.idle import cpu_seconds, memory_mb
from benchmarks.readers import http_connected, http_get
from raftstore import aio
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from raftstore.types import NodeId, node_name

PARTITIONS: Final = 8
PAUSE_S: Final = 0.15
"""Longer than a node keeps what it collected, so that each answer is collected anew."""
READY_S: Final = 60.0
WRITABLE_S: Final = 60.0
_LATE: Final = re.compile(r'event="stalled" late_ms=(\d+)')


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """One request at a time, and eight at once."""
    tables, requests, idle_s = (5, 20, 3.0) if tiny else (125, 200, 20.0)
    with LocalCluster(nodes=3, http=True) as cluster:
        pids = [cluster.pid(name) for name in cluster.running()]
        created = _create(cluster, tables)
        used_s = sum(map(cpu_seconds, pids))
        late_ms = _lateness(cluster)
        addresses = tuple(cluster.http_by_node().values())
        asyncio.run(_until_ready(addresses))
        alone, size = asyncio.run(_ask(addresses, requests, 1))
        together, _ = asyncio.run(_ask(addresses, requests, 8))
        idle = _idle(pids, idle_s)
        memory = [round(memory_mb(pid)) for pid in pids]
        writable = asyncio.run(_killed(cluster, tables))
    return {
        "channels": tables * PARTITIONS,
        "creating a table of 8 partitions": _shown(created),
        "main loops late meanwhile, worst ms (0: never)": max(late_ms, default=0),
        "processor seconds of starting and creating": round(used_s, 1),
        "bytes of an answer": size,
        "one at a time (goal 50 ms)": _shown(alone),
        "eight at once": _shown(together),
        "idle, percent of one core, 3 nodes": idle,
        "memory per node, MB": memory,
        "writable again after kill -9 (goal 1000 ms)": writable,
    }


def _create(cluster: LocalCluster, tables: int) -> list[float]:
    """How long each table took, in ms; an error ends the benchmark: clients must get answers."""
    times: list[float] = []
    with cluster.connect(timeout=60.0) as client:
        for number in range(tables):
            began = time.perf_counter()
            client.create_table(f"t{number}", key="id", partitions=PARTITIONS)
            times.append((time.perf_counter() - began) * 1000)
    return times


def _lateness(cluster: LocalCluster) -> list[int]:
    logs = (Path(cluster.log_file(name)).read_text("utf-8") for name in cluster.running())
    return [int(late) for log in logs for late in _LATE.findall(log)]


def _idle(pids: Sequence[int], seconds: float) -> float:
    used, began = sum(map(cpu_seconds, pids)), time.monotonic()
    time.sleep(seconds)
    return round(100 * (sum(map(cpu_seconds, pids)) - used) / (time.monotonic() - began), 1)


def _shown(times: list[float]) -> str:
    ordered = sorted(times)
    p50, p99, worst = (ordered[int((len(ordered) - 1) * share)] for share in (0.5, 0.99, 1.0))
    return f"p50 {p50:.1f}, p99 {p99:.1f}, worst {worst:.1f} ms"


async def _until_ready(addresses: Sequence[str]) -> None:
    """Every node finds a replica within the bound for reads of every partition."""
    for address in addresses:
        reader, writer = await http_connected(address)
        end = time.monotonic() + READY_S
        while not (await http_get(reader, writer, "/readyz")).startswith(b"HTTP/1.1 200"):
            assert time.monotonic() < end, f"{address} is not ready"
            await asyncio.sleep(PAUSE_S)
        writer.close()


async def _ask(addresses: Sequence[str], requests: int, lanes: int) -> tuple[list[float], int]:
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


async def _killed(cluster: LocalCluster, tables: int) -> str:
    """P12: one write to every channel, from the kill of the node that leads most of them on."""
    client = await aio.connect(cluster.endpoints, timeout=WRITABLE_S)
    led: dict[str, int] = {}
    infos = [await client.table_info(f"t{number}") for number in range(tables)]
    for info in infos:
        for channel in info.channels:
            led[channel.leader or ""] = led.get(channel.leader or "", 0) + 1
    victim = max(sorted(led), key=lambda node: led[node])
    keys = _keys()
    writes = [
        (client.table(info.name), keys[partition])
        for info in infos
        for partition, channel in enumerate(info.channels)
        if channel.leader == victim
    ]
    began = time.perf_counter()
    cluster.kill(node_name(NodeId(victim)))
    times: list[float] = []

    async def written(table: Any, key: int) -> None:
        try:
            await table.put({"id": key, "value": 1}, timeout=WRITABLE_S)
        except RaftstoreError as error:
            print(f"not written: {error}", flush=True)
            return
        times.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(written(table, key) for table, key in writes))
    await client.close()
    if len(times) < len(writes):
        return f"only {len(times)} of {len(writes)} channels within {WRITABLE_S:.0f} s"
    return f"{len(writes)} channels: {_shown(times)}"


def _keys() -> dict[int, int]:
    """A key of each partition."""
    found: dict[int, int] = {}
    for key in range(100 * PARTITIONS):
        found.setdefault(partition_of(encode_key((key,)), PARTITIONS), key)
    assert len(found) == PARTITIONS
    return found
