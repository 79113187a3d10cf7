"""Single-row writes at each durability, in one run, in turn: what less than ``fsync`` gains (S0.6).

Three nodes, tables of 8 partitions that differ in ``durability`` alone, 64 puts in flight and one
at a time; first with the machine's own disk, then with one whose syncs take 5 ms longer at every
node, as a disk without a cache of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.client_loop import run_client
from benchmarks.puts import IN_FLIGHT, VALUE, Round, Store, measured, spread
from raftstore import aio, faults
from raftstore.aio import AsyncClient
from raftstore.errors import StoreTooOldError
from raftstore.local_cluster import LocalCluster
from raftstore.types import DurabilityName

NAMES: Final = ("n1", "n2", "n3")
PARTITIONS: Final = 8
LEVELS: Final[tuple[DurabilityName, ...]] = ("fsync", "buffered", "memory")
DISKS: Final = {"own disk": 0.0, "syncs 5 ms longer": 5.0}
ROUNDS: Final = 3
SECONDS: Final = 5.0
POLL_S: Final = 0.1


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Rates with 64 puts in flight and p50 of one at a time, and both as ratios to ``fsync``."""
    seconds, rounds = (0.5, 1) if tiny else (SECONDS, ROUNDS)
    with TemporaryDirectory(prefix="raftstore-durability-") as directory:
        control = Path(directory) / "disk.json"
        _set_disk(control, 0, 0.0)
        slow = {name: {faults.VARIABLE: str(control)} for name in NAMES}
        with LocalCluster(environment=slow) as cluster:
            found = run_client(_measure(cluster, control, seconds, rounds))
    return _shown(found)


def _set_disk(control: Path, number: int, delay_ms: float) -> None:
    """Nodes read the file again and again; a higher number is a newer order."""
    control.write_text(json.dumps({"number": number, "sync_delay_ms": delay_ms}))


async def _measure(
    cluster: LocalCluster, control: Path, seconds: float, rounds: int
) -> dict[tuple[str, int, str], list[Round]]:
    """(disk, in flight, durability) -> its rounds."""
    found: dict[tuple[str, int, str], list[Round]] = {}
    rng = random.Random(0)
    async with aio.connect(cluster.endpoints, timeout=60.0) as client:
        stores = [await _store(client, level, cluster) for level in LEVELS]
        for number, (disk, delay_ms) in enumerate(DISKS.items(), start=1):
            _set_disk(control, number, delay_ms)
            async for lanes, store, seen in measured(stores, seconds, rounds, rng):
                found.setdefault((disk, lanes, store.name), []).append(seen)
    return found


async def _store(client: AsyncClient, level: DurabilityName, cluster: LocalCluster) -> Store:
    while True:
        with suppress(StoreTooOldError):  # a node may not have said yet what it understands
            await client.create_table(level, key="k", partitions=PARTITIONS, durability=level)
            break
        await asyncio.sleep(POLL_S)
    table = client.table(level)
    pids = tuple(cluster.pid(name) for name in cluster.running())
    return Store(level, lambda key: table.put({"k": key, "v": VALUE}), pids)


def _shown(found: dict[tuple[str, int, str], list[Round]]) -> dict[str, Any]:
    rows = []
    for disk in DISKS:
        for level in LEVELS:
            many, single = found[disk, IN_FLIGHT, level], found[disk, 1, level]
            synced = found[disk, IN_FLIGHT, LEVELS[0]], found[disk, 1, LEVELS[0]]
            pairs = zip(many, synced[0], strict=True), zip(single, synced[1], strict=True)
            rows.append(
                {
                    "puts": f"{level}, {disk}",
                    "a second": spread([each.per_second for each in many], 0),
                    "/ fsync": spread([a.per_second / b.per_second for a, b in pairs[0]]),
                    "p50 ms, one at a time": spread([each.p50_ms for each in single]),
                    "p50 / fsync": spread([a.p50_ms / b.p50_ms for a, b in pairs[1]]),
                    "p99 ms": spread([each.p99_ms for each in single]),
                }
            )
    return {"puts, 64 in flight, and one at a time": rows}
