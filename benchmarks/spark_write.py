"""Spark to store, end to end: raftstore beside Redis, etcd and a sink that only counts.

The same DataFrame every time, its rows in the order of their key within each task: a long, a text
of 90 characters that do not compress, a double, a timestamp and an integer. The session is warm:
every sink has written a few rows before its clock starts. Each sink has servers of its own that
begin empty and are gone before the next one's; all of them in turn, several rounds.

P15 compares with the same job into the counting sink, and the time in which the store takes the
same rows, already encoded, from one client (``spark_floor``). The last round's write is made with
clocks in its tasks (``spark_stages``), for the table of where the time goes. Needs Java, and
runs only when named.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks import spark_figures, spark_floor
from benchmarks.peers import NOT_INSTALLED, PeerMissingError
from benchmarks.peers.etcd import Etcd, EtcdClient
from benchmarks.peers.redis import ALWAYS, EVERY_SECOND, Redis
from benchmarks.processor_time import Used, main_thread_seconds
from benchmarks.spark_figures import NODES, SERVER, Nodes, Run
from benchmarks.spark_session import session
from benchmarks.stored import file_bytes
from raftstore.local_cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 5_000_000
TINY_ROWS: Final = 20_000
WARM_ROWS: Final = 20_000
ROUNDS: Final = 3
TASKS: Final = 8
TABLE: Final = "rows"
FLOOR_ROWS_MAX: Final = 2_000_000
"""Of P15; the floor keeps all of them in memory, three times."""
ALWAYS_SHARE: Final = 5
ETCD_SHARE: Final = 25
"""Slower peers get a fraction of the rows: their rate is what is compared."""
COLUMNS: Final = (
    "id",
    f"concat({', '.join(f'hex(xxhash64(id, {seed}))' for seed in range(6))}) AS text",
    "id / 7 AS share",
    "timestamp_micros(1700000000000000 + id * 1000000) AS at",
    "CAST(id % 1000 AS INT) AS number",
)


class Sink(NamedTuple):
    """One way to write: what it is called and how it is measured, given a number of rows."""

    name: str
    measure: Callable[[int], Run]
    share: int = 1


def run(tiny: bool, *, rows: int | None = None, rounds: int | None = None) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Rows a second of every sink, P15's ratio, and where the time of an append goes."""
    rows = rows or (TINY_ROWS if tiny else ROWS)
    rounds = rounds or (1 if tiny else ROUNDS)
    directory = Path(tempfile.mkdtemp(prefix="raftstore-spark-"))
    try:
        spark = session(directory)
        try:
            return _Measuring(spark, directory, rows).figures(rounds)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(directory)


class _Measuring:
    def __init__(self, spark: SparkSession, directory: Path, rows: int) -> None:
        from benchmarks.spark_sinks import CountingSource
        from benchmarks.spark_stages import StagesSource

        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(CountingSource)
        spark.dataSource.register(StagesSource)
        self._spark = spark
        self._directory = directory
        self._rows = rows
        self._verified: list[str] = []

    def figures(self, rounds: int) -> dict[str, Any]:
        """Everything in turn."""
        runs: dict[str, list[Run]] = {}
        reported: dict[str, Any] = {"rows": self._rows, **_disk(self._directory)}
        file = spark_floor.encoded(self._frame(self._floor_rows), self._directory)
        floors, alone = [], []
        for _ in range(rounds):
            for sink in self._sinks():
                if sink.name in reported:
                    continue
                try:
                    timed = sink.measure(max(self._rows // sink.share, 1))
                except PeerMissingError as error:
                    reported[sink.name] = f"{NOT_INSTALLED}: {error}"
                    continue
                runs.setdefault(sink.name, []).append(timed)
                _progress(sink.name, timed.per_s)
            floors.append(spark_floor.floor(file, self._floor_rows))
            alone.append(spark_floor.store_alone(file, self._floor_rows))
            _progress("floor", floors[-1].rows_per_s)
            _progress("store alone", alone[-1])
        stages = self._stages(self._rows)
        reported |= spark_figures.rates(runs, self._rows)
        reported |= spark_figures.ratios(runs, floors, alone, self._floor_rows)
        reported["rows read back after the first round"] = ", ".join(self._verified)
        return reported | spark_figures.breakdown(stages, runs, floors)

    @property
    def _floor_rows(self) -> int:
        return min(self._rows, FLOOR_ROWS_MAX)

    def _sinks(self) -> Iterator[Sink]:
        from benchmarks.spark_sinks import count_rows

        yield Sink(spark_figures.COUNTING, self._counted)
        yield Sink(spark_figures.BATCH, partial(self._stored, spark_figures.BATCH, "batch"))
        yield Sink(spark_figures.ROW, partial(self._stored, spark_figures.ROW, "row"))
        yield Sink("foreachPartition, counting", partial(self._each, count_rows, {}))
        yield Sink("foreachPartition, Redis everysec", partial(self._redis, EVERY_SECOND))
        yield Sink("foreachPartition, Redis always", partial(self._redis, ALWAYS), ALWAYS_SHARE)
        yield Sink("foreachPartition, etcd", self._etcd, ETCD_SHARE)

    # --- the sinks --------------------------------------------------------------------------------

    def _frame(self, rows: int) -> DataFrame:
        made = self._spark.range(0, rows, numPartitions=TASKS).selectExpr(*COLUMNS)
        return made.sortWithinPartitions("id")

    def _counted(self, rows: int) -> Run:
        def count(rows: int) -> None:
            written = self._frame(rows).write.format("counting").mode("append")
            written.option("rows", rows).save()

        return self._timed(count, rows, {})

    def _each(
        self, function: Callable[..., None], servers: Mapping[str, Collection[int]], rows: int
    ) -> Run:
        return self._timed(lambda rows: self._frame(rows).foreachPartition(function), rows, servers)

    def _redis(self, sync: str, rows: int) -> Run:
        from benchmarks.spark_sinks import RedisPartition

        with Redis(sync) as redis:
            redis.wait()
            timed = self._each(RedisPartition(redis.port), {SERVER: redis.pids}, rows)
            assert redis.count() == rows
            return timed

    def _etcd(self, rows: int) -> Run:
        from benchmarks.spark_sinks import EtcdPartition

        with Etcd() as etcd:
            asyncio.run(_until_ready(etcd))
            return self._each(EtcdPartition(tuple(etcd.ports)), {SERVER: etcd.pids}, rows)

    def _stored(self, name: str, isolation: str, rows: int) -> Run:
        with LocalCluster(nodes=3) as cluster:
            nodes = {NODES: [cluster.pid(node) for node in cluster.running()]}
            timed = self._timed(partial(self._append, cluster, isolation), rows, nodes)
            if name not in self._verified:
                source = self._spark.read.format("raftstore")
                source = source.option("bootstrap.servers", ",".join(cluster.endpoints))
                assert source.load(_table(rows)).count() == rows
                self._verified.append(name)
            return timed

    def _append(self, cluster: LocalCluster, isolation: str, rows: int, **more: str) -> None:
        sink = self._frame(rows).write.mode("append")
        sink = sink.format("raftstore_stages" if more else "raftstore").options(**more)
        sink = sink.option("bootstrap.servers", ",".join(cluster.endpoints))
        sink.option("key", "id").option("isolation", isolation).save(_table(rows))

    def _stages(self, rows: int) -> spark_figures.Staged:
        """One append with clocks in its tasks."""
        from benchmarks.spark_stages import DIRECTORY, stages_in

        files = self._directory / "stages"
        files.mkdir()
        with LocalCluster(nodes=3, http=True) as cluster:
            pids = [cluster.pid(node) for node in cluster.running()]
            append = partial(self._append, cluster, "batch", **{DIRECTORY: str(files)})
            append(_warming(rows))
            loops, syncs = sum(map(main_thread_seconds, pids)), _syncs(cluster)
            with Used({NODES: pids}) as used:
                append(rows)
            loops = sum(map(main_thread_seconds, pids)) - loops
            syncs = tuple(b - a for a, b in zip(syncs, _syncs(cluster), strict=True))
            stored = file_bytes(cluster.directory)
        wall, cpu, commit_s = stages_in(files)
        nodes = Nodes(loop_s=loops, syncs=int(syncs[0]), sync_s=syncs[1], disk_bytes=stored)
        return spark_figures.Staged(Run(rows, used.wall_s, used.cpu_s), wall, cpu, commit_s, nodes)

    def _timed(
        self, write: Callable[[int], None], rows: int, servers: Mapping[str, Collection[int]]
    ) -> Run:
        write(_warming(rows))
        with Used(servers) as used:
            write(rows)
        return Run(rows, used.wall_s, used.cpu_s)


def _progress(name: str, per_s: float) -> None:
    """All of it takes minutes: say what has been measured."""
    print(f"    {time.strftime('%H:%M:%S')} {name}: {per_s:,.0f} rows/s", flush=True)


def _warming(rows: int) -> int:
    return min(rows // 2, WARM_ROWS)


def _table(rows: int) -> str:
    """Warming writes have a table of their own."""
    return f"{TABLE}_{rows}"


async def _until_ready(etcd: Etcd) -> None:
    client = EtcdClient(etcd.ports)
    await client.connect()
    await client.close()


def _syncs(cluster: LocalCluster) -> tuple[float, float]:
    """Group commits of all nodes' logs so far, and the seconds that they took."""
    count = seconds = 0.0
    for endpoint in cluster.http_by_node().values():
        with urllib.request.urlopen(f"http://{endpoint}/metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("raftstore_fsync_duration_seconds_count"):
                    count += float(line.split()[-1])
                if line.startswith("raftstore_fsync_duration_seconds_sum"):
                    seconds += float(line.split()[-1])
    return count, seconds


def _disk(directory: Path) -> dict[str, float]:
    """How long an fdatasync takes where the servers keep their files: nothing is one in memory."""
    times = []
    with (directory / "probe").open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(300))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return {"fdatasync of 300 bytes, median ms": round(sorted(times)[50] * 1e3, 3)}
