"""Three nodes under full write load: nobody may be taken for dead, and heartbeats keep their beat.

Bulk writes as fast as they go, from two client processes. Every word a node says of a peer's health
is in its log; the longest silences come from asking every node ten times a second how long ago it
heard each peer (so they are exact to a tenth of a second).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.reads import write_rows
from raftstore import aio
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

WRITERS: Final = 2
ASK_EVERY_S: Final = 0.1
SETTLE_S: Final = 3.0
"""Nodes that have just started do not know each other yet; then what counts begins."""


def run(minutes: float) -> dict[str, Any]:
    """Changes of health told by any node, and the longest silences seen."""
    with LocalCluster(nodes=3) as cluster:
        time.sleep(SETTLE_S)
        before = {name: len(list(_health(cluster, name))) for name in cluster.running()}
        context = multiprocessing.get_context("spawn")
        out = context.Queue()
        writers = [
            context.Process(target=_writer, args=(cluster.endpoints, minutes * 60.0, out))
            for _ in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        silences, asked = asyncio.run(_watch(cluster, minutes * 60.0))
        rates = [out.get(timeout=120.0) for _ in writers]
        for writer in writers:
            writer.join()
        told = {name: list(_health(cluster, name))[already:] for name, already in before.items()}
    ordered = sorted(silences)
    return {
        "minutes": minutes,
        "rows/s written meanwhile": round(sum(rates)),
        "changes of health (goal 0)": sum(map(len, told.values())),
        "what they were": {name: lines[:5] for name, lines in told.items() if lines},
        "times asked": asked,
        "silence of a peer, p50 / p99 / worst ms": [
            ordered[int((len(ordered) - 1) * share)] for share in (0.5, 0.99, 1.0)
        ],
    }


def _writer(endpoints: list[str], seconds: float, out: Any) -> None:
    out.put(asyncio.run(write_rows(endpoints, seconds, None)))


def _health(cluster: LocalCluster, name: str) -> Iterator[str]:
    with cluster.log_file(name).open(encoding="utf-8") as log:
        for line in log:
            if 'event="peer health' in line or 'event="peer_health' in line:
                yield line.strip()


async def _watch(cluster: LocalCluster, seconds: float) -> tuple[list[int], int]:
    """How long ago each node heard each peer, in ms, each time it was asked."""
    clients = [await aio.connect([at], timeout=5.0) for at in cluster.endpoints]
    silences: list[int] = []
    asked, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for client in clients:
            try:
                status = await client.cluster_status()
            except RaftstoreError:
                continue
            asked += 1
            for node in status.nodes:
                for peer in (node.status or {}).get("nodes", ()):
                    heard = peer["last_heard_ms"]
                    if peer["name"] != node.name and heard is not None:
                        silences.append(heard)
        await asyncio.sleep(ASK_EVERY_S)
    for client in clients:
        await client.close()
    return silences, asked
