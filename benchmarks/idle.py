"""The cost of 200 idle channels on three nodes: processor time of the node processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from raftstore.local_cluster import LocalCluster

PARTITIONS = 8


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Percent of one core, all three nodes together."""
    tables, seconds = (2, 3.0) if tiny else (25, 20.0)
    with LocalCluster(nodes=3) as cluster:
        with cluster.connect(timeout=30.0) as client:
            for number in range(tables):
                client.create_table(f"t{number}", key="id", partitions=PARTITIONS)
        pids = [cluster.pid(name) for name in cluster.running()]
        time.sleep(3.0)
        before = [cpu_seconds(pid) for pid in pids]
        started = time.monotonic()
        time.sleep(seconds)
        wall = time.monotonic() - started
        used = sum(cpu_seconds(pid) for pid in pids) - sum(before)
        memory = [round(memory_mb(pid)) for pid in pids]
    return {
        "channels": tables * PARTITIONS,
        "percent of one core, 3 nodes": round(100 * used / wall, 1),
        "memory per node, MB": memory,
    }
