"""Reading a table back into Spark, against Spark reading the same rows from Parquet through Python.

Rows of a long, a text of 90 characters, a double, a timestamp and an integer are written to a table
of 8 partitions and to Parquet files, and both are read in turn with nothing done to the rows: the
table through ``spark.read.format("raftstore")``, the files through ``mapInArrow``, so that in both
cases every row comes through a Python worker. Where cores are shared by everybody the processor
time says more than the clock: that of Spark with its Python workers, and that of the three nodes.
Needs Java, and runs only when named. The goal is half the speed of the files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.idle import cpu_seconds
from raftstore.local_cluster import LocalCluster

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 8
ROUNDS: Final = 3
TABLE: Final = "rows"
COLUMNS: Final = (
    "id",
    "concat('text of row ', repeat(CAST(id % 10 AS STRING), 78)) AS text",
    "id / 7 AS share",
    "timestamp_micros(1700000000000000 + id * 1000000) AS at",
    "CAST(id % 1000 AS INT) AS number",
)


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Rows per second, and per second of processor time."""
    rows = 20_000 if tiny else 1_000_000
    directory = Path(tempfile.mkdtemp(prefix="raftstore-spark-"))
    try:
        with LocalCluster(nodes=3) as cluster:
            spark = _session(directory)
            try:
                return _measured(spark, cluster, directory, rows)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(directory)


def _session(directory: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    from raftstore.spark.java import prepare_environment

    prepare_environment()
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )


def _measured(
    spark: SparkSession, cluster: LocalCluster, directory: Path, rows: int
) -> dict[str, Any]:
    given = {"bootstrap.servers": ",".join(cluster.endpoints), "pinLife": "10m"}
    files = str(directory / "parquet")
    written = spark.range(0, rows, numPartitions=PARTITIONS).selectExpr(*COLUMNS)
    written.write.parquet(files)
    sink = written.write.format("raftstore").mode("append")
    servers = given["bootstrap.servers"]
    sink.options(**{"bootstrap.servers": servers, "key": "id", "partitions": PARTITIONS}).save(
        TABLE
    )
    source = spark.read.format("raftstore").options(**given)
    assert source.load(TABLE).count() == rows

    def parquet() -> DataFrame:
        found = spark.read.parquet(files)
        return found.mapInArrow(_untouched, found.schema)

    nodes = [cluster.pid(name) for name in cluster.running()]
    clocks = (lambda: _spark_seconds(nodes), lambda: sum(map(cpu_seconds, nodes)))
    runs: dict[str, list[tuple[float, ...]]] = {"parquet": [], "table": []}
    for _ in range(ROUNDS):
        runs["parquet"].append(_timed(parquet, clocks))
        runs["table"].append(_timed(lambda: source.load(TABLE), clocks))
    pushing = source.option("filterPushdown", "true")
    points = ", ".join(str(number * (rows // 1_000)) for number in range(1_000))
    point_s, *_ = _timed(lambda: pushing.load(TABLE).where(f"id IN ({points})"), clocks)
    return _figures(rows, runs) | {"1,000 keys of it, s": round(point_s, 2)}


def _figures(rows: int, runs: dict[str, list[tuple[float, ...]]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"rows": rows}
    speeds = {}
    for name, timed in runs.items():
        clock_s, spark_s, nodes_s = (median(column) for column in zip(*timed, strict=True))
        speeds[name] = rows / clock_s
        figures[f"{name}, rows/s"] = round(speeds[name])
        figures[f"{name}, us of Spark's processor time a row"] = round(spark_s / rows * 1e6, 2)
        figures[f"{name}, us of the nodes' processor time a row"] = round(nodes_s / rows * 1e6, 2)
        figures[f"{name}, rows per second of one core"] = round(rows / (spark_s + nodes_s))
    figures["table : parquet (goal 0.5)"] = round(speeds["table"] / speeds["parquet"], 2)
    return figures


def _timed(
    frame: Callable[[], DataFrame], clocks: tuple[Callable[[], float], ...]
) -> tuple[float, ...]:
    """Seconds by the wall and by each of the clocks, of reading all rows and dropping them."""
    before = [time.perf_counter(), *(clock() for clock in clocks)]
    frame().write.format("noop").mode("overwrite").save()
    after = [time.perf_counter(), *(clock() for clock in clocks)]
    return tuple(late - early for early, late in zip(before, after, strict=True))


def _untouched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _spark_seconds(nodes: Sequence[int]) -> float:
    """Processor time of this process and all that it began but the nodes, ended or not."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        stats[int(path.parent.name)] = fields
    family, found = {os.getpid()}, 0
    while found != len(family):
        found = len(family)
        family |= {child for child, fields in stats.items() if int(fields[1]) in family}
        family -= set(nodes)
    ticks = sum(int(stats[each][at]) for each in family & stats.keys() for at in (11, 12, 13, 14))
    return ticks / os.sysconf("SC_CLK_TCK")
