"""The cost of the rows of ``spark_write`` without Spark: LevelDB alone, and the store alone.

The rows are encoded once, by the connector's own encoder and cut as it cuts them, and kept in a
file of payloads. The floor writes them into three plain LevelDBs (``write.floor``); the store takes
them from one client, which has nothing to do but to send them. That is P3's work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks import write
from raftstore import aio
from raftstore.local_cluster import LocalCluster
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.payload import decode_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE: Final = "alone"
KEY: Final = "id"
_FRAME: Final = Struct(">III")
"""Partition, rows and bytes of one payload."""


class Floor(NamedTuple):
    """Rows per second, and microseconds of processor time a row for three databases."""

    rows_per_s: float
    cpu_us: float


def encoded(frame: DataFrame, directory: Path) -> Path:
    """Encode the frame's rows task by task; return the file of their payloads."""
    from pyarrow import parquet

    from raftstore.spark.options import SinkOptions
    from raftstore.spark.write.tasks import chunks_of

    schema = frame.schema.json()
    frame.write.parquet(str(directory / "floor"))
    options = SinkOptions(bootstrap_servers="", table=TABLE, key=(KEY,))
    table = TableInfo(
        TABLE, b"", options.key, options.partitions, options.replicas, "", None, schema, ()
    )
    with (found := directory / "payloads").open("wb") as file:
        for part in sorted((directory / "floor").glob("part-*")):
            batches = parquet.ParquetFile(part).iter_batches(batch_size=10_000)
            for chunk in chunks_of(options, table, schema, batches):
                file.write(_FRAME.pack(chunk.partition, chunk.rows, len(chunk.payload)))
                file.write(chunk.payload)
    return found


def payloads(file: Path) -> Iterator[tuple[int, int, bytes]]:
    """(partition, rows, payload) of each chunk."""
    with file.open("rb") as found:
        while head := found.read(_FRAME.size):
            partition, rows, length = _FRAME.unpack(head)
            yield partition, rows, found.read(length)


def pairs(file: Path) -> Iterator[list[tuple[bytes, bytes]]]:
    """The same as LevelDB takes them."""
    for _, _, payload in payloads(file):
        flat: list[Any] = decode_rows(payload)
        yield list(zip(flat[::2], flat[1::2], strict=True))


def floor(file: Path, rows: int) -> Floor:
    """Three LevelDBs at once, one synced write batch a chunk."""
    wall_s, cpu_s = write.floor(partial(pairs, file))
    return Floor(rows / wall_s, cpu_s / rows * 1e6)


def store_alone(file: Path, rows: int) -> float:
    """Rows per second of raftstore taking the payloads one by one, durable on a quorum."""
    with LocalCluster(nodes=3) as cluster:
        return rows / asyncio.run(_sent(cluster, list(payloads(file))))


async def _sent(cluster: LocalCluster, prepared: list[tuple[int, int, bytes]]) -> float:
    client = await aio.connect(cluster.endpoints, timeout=60.0)
    await client.create_table(TABLE, key="k", partitions=write.PARTITIONS)
    async with await client.table(TABLE).bulk_writer(max_in_flight=write.IN_FLIGHT) as writer:
        started = time.perf_counter()
        for partition, rows, payload in prepared:
            await writer.add(partition, payload, rows)
        await writer.flush()
        seconds = time.perf_counter() - started
    await client.close()
    return seconds
