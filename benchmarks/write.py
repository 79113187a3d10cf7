"""Bulk writes with fsync at a quorum, against plain LevelDB in three processes, in one run.

P1's work: chunks of 1000 rows, 16-byte random keys, 100-byte values. The floor writes the same
chunks with ``WriteBatch(sync=True)`` into three databases at once, one process each; its figure is
the slowest process's. raftstore stores every row in the log and in the table of three replicas.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import plyvel

from raftstore import aio
from raftstore.local_cluster import LocalCluster
from raftstore.protocol.payload import encode_rows
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from raftstore.rows.sealing import seal

CHUNK_ROWS = 1_000
VALUE_BYTES = 100
PARTITIONS = 8
IN_FLIGHT = 16
ROUNDS = 3

Chunk = Sequence[tuple[bytes, bytes]]
Prepare = Callable[[], Iterable[Chunk]]


def chunks(rows: int, seed: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows, the same for everybody; values differ, so nothing compresses away."""
    rng = random.Random(seed)
    for _ in range(rows // CHUNK_ROWS):
        yield [(rng.randbytes(16), rng.randbytes(VALUE_BYTES)) for _ in range(CHUNK_ROWS)]


def _floor_process(directory: str, prepare: Prepare, barrier: Any, out: Any) -> None:
    prepared = list(prepare())
    database = plyvel.DB(directory, create_if_missing=True)
    barrier.wait()
    started, cpu_s = time.perf_counter(), time.process_time()
    for chunk in prepared:
        with database.write_batch(sync=True) as batch:
            for key, value in chunk:
                batch.put(key, value)
    out.put((time.perf_counter() - started, time.process_time() - cpu_s))
    database.close()


def floor(prepare: Prepare) -> tuple[float, float]:
    """Write the same chunks into three LevelDBs, a process each.

    Returns the seconds of the slowest, and of processor time of all three. ``prepare`` is called in
    each process before the clock starts.
    """
    context = multiprocessing.get_context("spawn")
    directory = tempfile.mkdtemp(prefix="raftstore-floor-")
    barrier, out = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=_floor_process, args=(f"{directory}/{n}", prepare, barrier, out))
        for n in range(3)
    ]
    for process in processes:
        process.start()
    reported = [out.get() for _ in processes]
    for process in processes:
        process.join()
    shutil.rmtree(directory)
    return max(wall_s for wall_s, _ in reported), sum(cpu_s for _, cpu_s in reported)


async def _store(cluster: LocalCluster, name: str, rows: int, seed: int) -> float:
    client = await aio.connect(cluster.endpoints, timeout=60.0)
    await client.create_table(name, key="k", partitions=PARTITIONS)
    prepared: list[tuple[int, bytes, int]] = []
    parts: dict[int, list[tuple[bytes, bytes]]] = {n: [] for n in range(PARTITIONS)}
    for chunk in chunks(rows, seed):
        for raw, value in chunk:
            key = encode_key((raw,))
            part = parts[partition_of(key, PARTITIONS)]
            part.append((key, seal(key, value)))
            if len(part) == CHUNK_ROWS:
                prepared.append((partition_of(key, PARTITIONS), encode_rows(part), len(part)))
                part.clear()
    for number, part in parts.items():
        if part:
            prepared.append((number, encode_rows(part), len(part)))
    async with await client.table(name).bulk_writer(max_in_flight=IN_FLIGHT) as writer:
        started = time.perf_counter()
        for partition, payload, count in prepared:
            await writer.add(partition, payload, count)
        await writer.flush()
        seconds = time.perf_counter() - started
    await client.drop_table(name)
    await client.close()
    return rows / seconds


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Floor and raftstore in turn, three rounds; the median ratio counts."""
    rows = 20_000 if tiny else 500_000
    floors, ours = [], []
    with LocalCluster(nodes=3) as cluster:
        for seed in range(1 if tiny else ROUNDS):
            floors.append(rows / floor(partial(chunks, rows, seed))[0])
            ours.append(asyncio.run(_store(cluster, f"bulk{seed}", rows, seed)))
            os.sync()
        log_bytes = sum(f.stat().st_size for f in Path(cluster.directory).glob("n1/log/*"))
    ratios = sorted(b / a for a, b in zip(floors, ours, strict=True))
    return {
        "rows": rows,
        "floor x3, rows/s": [round(value) for value in floors],
        "raftstore, rows/s": [round(value) for value in ours],
        "ratio to the floor": [round(ratio, 2) for ratio in ratios],
        "median ratio": round(ratios[len(ratios) // 2], 2),
        "log bytes on n1": log_bytes,
    }
