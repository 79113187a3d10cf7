"""HTTP gets of one key: 64 connections over three nodes, and what a get costs their processors.

The client is a process of its own on the same machine: its share is stated, too, since it takes
cores from the nodes.
"""

from __future__ import annotations

import statistics
from typing import Any, Final

from benchmarks.idle import cpu_seconds
from benchmarks.readers import IN_FLIGHT, Reading, measure
from benchmarks.reads import load_points
from raftstore.local_cluster import LocalCluster

ROUNDS: Final = 5


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Return the median round with the range of all, and processor time of the nodes a get."""
    seconds, rounds = (1.0, 1) if tiny else (4.0, ROUNDS)
    figures: dict[str, Any] = {}
    with LocalCluster(nodes=3, http=True) as cluster:
        load_points(cluster)
        pids = [cluster.pid(name) for name in cluster.running()]
        for kind in ("http bounded", "http linearizable"):
            reading = Reading(kind, tuple(cluster.http_by_node().values()), seconds=seconds)
            found, costs = [], []
            for _ in range(rounds):
                before = sum(map(cpu_seconds, pids))
                rates = measure(reading)
                used = sum(map(cpu_seconds, pids)) - before
                found.append(rates)
                costs.append(1e6 * used / len(rates.times_ms))
            rate = [rates.per_second for rates in found]
            middle = sorted(found, key=lambda rates: rates.per_second)[rounds // 2]
            figures[f"{kind}, {IN_FLIGHT} connections"] = middle.shown()
            figures[f"{kind}, rounds"] = f"{min(rate):,.0f} to {max(rate):,.0f}/s"
            figures[f"{kind}, processor time of the nodes"] = (
                f"{statistics.median(costs):.0f} us a get"
            )
    return figures
