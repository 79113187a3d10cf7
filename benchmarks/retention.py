"""Many times the live data is written: how much is left on the disks, and what a start costs.

Rows of ten kilobytes are updated again and again on three real nodes with the default settings.
Then: bytes of each node's directory as ``du`` counts them, while it is written and when it is over;
how long a node takes to be ready again, and all of them to take a write after kill -9 with cold
caches; and how much of the disk ``table rm`` gives back within a minute, while nobody writes. Last
a table is replaced as a whole again and again by overwriting batches, at the end by a single row.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.client_loop import run_client
from benchmarks.stored import disk_bytes
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.config import RetentionSettings
from raftstore.local_cluster import LocalCluster

NAMES: Final = ("n1", "n2", "n3")
PARTITIONS: Final = 8
ROWS: Final = 1_000
ROW_BYTES: Final = 10_000
UPDATES_BYTES: Final = 2_000 * 10**6
TINY_BYTES: Final = 40 * 10**6
IN_FLIGHT: Final = 8
ROWS_PER_CALL: Final = 50
SETTLED_S: Final = 20.0
"""A table that nobody writes to is quiet after five seconds."""
REMOVED_S: Final = 60.0
GIVEN_BACK_MB: Final = 10.0
"""A node that has no tables takes less."""
OVERWRITES: Final = 12
REPLACED: Final = 5_000
TINY_REPLACED: Final = 200
"""Rows of each overwriting batch."""
POLL_S: Final = 0.05
LOOK_S: Final = 0.5
LIVE_FACTOR: Final = 2.5
"""The goal: no more than so many times the live data, and the log that is configured."""
TINY: Final = {
    "RAFTSTORE_RETENTION_CHANNEL_BYTES": "2MiB",
    "RAFTSTORE_RETENTION_LOG_BYTES": "64MiB",
    "RAFTSTORE_STORAGE_SEGMENT_BYTES": "16MiB",
}
"""Settings with which so few bytes are trimmed, too."""


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001
    """Megabytes on each node's disk, and times of starts."""
    environment = dict.fromkeys(NAMES, TINY) if tiny else {}
    with (
        TemporaryDirectory(prefix="raftstore-retention-") as directory,
        LocalCluster(directory=directory, environment=environment, http=True) as cluster,
    ):
        places = {name: Path(directory) / name for name in NAMES}
        figures = run_client(_updates(cluster, places, TINY_BYTES if tiny else UPDATES_BYTES))
        figures |= _starts(cluster, places) | _removal(cluster, places)
        return figures | _overwrites(cluster, places, TINY_REPLACED if tiny else REPLACED)


def largest(places: dict[str, Path], part: str = "") -> float:
    """Megabytes of the node that takes most."""
    return round(max(disk_bytes(place / part) for place in places.values()) / 1e6, 1)


async def _updates(cluster: LocalCluster, places: dict[str, Path], wanted: int) -> dict[str, Any]:
    async with aio.connect(cluster.endpoints, timeout=60.0) as client:
        await client.create_table("points", key="id", partitions=PARTITIONS)
        return await _update(client, places, wanted)


async def _update(client: AsyncClient, places: dict[str, Path], wanted: int) -> dict[str, Any]:
    table, text = client.table("points"), os.urandom(ROW_BYTES // 2).hex()
    calls = iter(range(wanted // (ROW_BYTES * ROWS_PER_CALL)))
    peak, reads = 0.0, list[float]()

    async def write() -> None:
        for number in calls:
            first = number * ROWS_PER_CALL
            await table.put_many(
                [{"id": (first + at) % ROWS, "text": text} for at in range(ROWS_PER_CALL)]
            )

    async def read() -> None:
        while True:
            began = time.perf_counter()
            await table.get(len(reads) % ROWS, level="any")
            reads.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.01)

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, await asyncio.to_thread(largest, places))
            await asyncio.sleep(LOOK_S)

    others = [asyncio.create_task(each()) for each in (read, watch)]
    began = time.monotonic()
    await asyncio.gather(*[write() for _ in range(IN_FLIGHT)])
    took_s = time.monotonic() - began
    for task in others:
        task.cancel()
    await asyncio.sleep(SETTLED_S)
    reads.sort()
    live_mb = ROWS * ROW_BYTES / 1e6
    now_mb = largest(places)
    bound_mb = LIVE_FACTOR * live_mb + RetentionSettings().log_bytes / 1e6
    return {
        "written, MB": round(wanted / 1e6),
        "live, MB": live_mb,
        "MB/s": round(wanted / 1e6 / took_s, 1),
        "gets meanwhile, p50 / p99 ms": (
            round(reads[len(reads) // 2], 1),
            round(reads[len(reads) * 99 // 100], 1),
        ),
        "disk of a node, most while written, MB": peak,
        "disk of a node then, MB": now_mb,
        "of it tables, MB": largest(places, "tables"),
        "of it log, MB": largest(places, "log"),
        f"at most (goal {LIVE_FACTOR} x live + log), MB": round(bound_mb, 1),
        "goal kept": now_mb <= bound_mb,
    }


def _starts(cluster: LocalCluster, places: dict[str, Path]) -> dict[str, Any]:
    cluster.stop(NAMES[-1])
    began = time.monotonic()
    cluster.start(NAMES[-1])
    while not _is_ready(cluster.http_by_node()[NAMES[-1]]):
        time.sleep(POLL_S)
    ready_s = time.monotonic() - began
    cluster.kill_all(NAMES)
    for place in places.values():
        _forget_cached(place)
    began = time.monotonic()
    for name in NAMES:
        cluster.start(name)
    with cluster.connect(timeout=60.0) as client:
        client.table("points").put({"id": 1, "text": "the first one"})
    return {
        "ready after a restart, warm, s (goal 2)": round(ready_s, 2),
        "first write after kill -9 of all, cold, s (goal 5)": round(time.monotonic() - began, 2),
    }


def _removal(cluster: LocalCluster, places: dict[str, Path]) -> dict[str, Any]:
    with cluster.connect(timeout=60.0) as client:
        client.drop_table("points")
    began = time.monotonic()
    while largest(places) > GIVEN_BACK_MB and time.monotonic() - began < REMOVED_S:
        time.sleep(LOOK_S)
    return {
        "table rm: left of a node, MB": largest(places),
        "table rm: after, s (goal 60)": round(time.monotonic() - began, 1),
    }


def _overwrites(cluster: LocalCluster, places: dict[str, Path], rows_count: int) -> dict[str, Any]:
    took, most = 0.0, 0.0
    with cluster.connect(timeout=60.0) as client:
        client.create_table("replaced", key="id", partitions=PARTITIONS)
        table = client.table("replaced")
        for number in range(OVERWRITES):
            text = os.urandom(ROW_BYTES // 2).hex()
            rows = [{"id": at, "text": text} for at in range(rows_count)]
            began = time.monotonic()
            table.write_batch(rows, writer="w", batch_id=number, mode="overwrite")
            took = max(took, time.monotonic() - began)
            most = max(most, largest(places, "tables"))
        last = [{"id": 1, "text": "the only one"}]
        table.write_batch(last, writer="w", batch_id=OVERWRITES, mode="overwrite")
    began = time.monotonic()
    while largest(places, "tables") > GIVEN_BACK_MB and time.monotonic() - began < REMOVED_S:
        time.sleep(LOOK_S)
    return {
        f"overwrite, {OVERWRITES} times: rows of each, MB": rows_count * ROW_BYTES / 1e6,
        "overwrite: slowest batch, s": round(took, 1),
        "overwrite: tables of a node, most, MB": most,
        "overwritten by one row: left of tables, MB": largest(places, "tables"),
        "overwritten by one row: after, s (goal 60)": round(time.monotonic() - began, 1),
        "overwritten by one row: log, MB": largest(places, "log"),
    }


def _is_ready(http: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http}/readyz", timeout=1.0) as answer:
            return bool(answer.status == 200 and json.load(answer))
    except (urllib.error.URLError, OSError):
        return False


def _forget_cached(directory: Path) -> None:
    """Have the kernel forget what it read of the files, which are not written any more."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
