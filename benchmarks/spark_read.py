"""Reading a table back into Spark, against Spark reading the same rows from Parquet through Python.

Rows of a long, a text of 90 characters, a double, a timestamp and an integer are written to a table
of 8 partitions and to Parquet files, and both are read in turn with nothing done to the rows: the
table through ``spark.read.format("raftstore")``, the files through ``mapInArrow``, so that in both
cases every row comes through a Python worker. Where cores are shared by everybody the processor
time says more than the clock: that of Spark with its Python workers, and that of the three nodes.
Needs Java, and runs only when named. The goal is half the speed of the files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.processor_time import Used
from benchmarks.spark_session import session
from raftstore.local_cluster import LocalCluster

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 8
ROUNDS: Final = 3
TABLE: Final = "rows"
NODES: Final = "nodes"
ROWS: Final = 1_000_000
TINY_ROWS: Final = 20_000
COLUMNS: Final = (
    "id",
    "concat('text of row ', repeat(CAST(id % 10 AS STRING), 78)) AS text",
    "id / 7 AS share",
    "timestamp_micros(1700000000000000 + id * 1000000) AS at",
    "CAST(id % 1000 AS INT) AS number",
)


def run(tiny: bool, *, rows: int | None = None, rounds: int | None = None) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Rows per second, and per second of processor time."""
    rows = rows or (TINY_ROWS if tiny else ROWS)
    rounds = rounds or ROUNDS
    directory = Path(tempfile.mkdtemp(prefix="raftstore-spark-"))
    try:
        with LocalCluster(nodes=3) as cluster:
            spark = session(directory)
            try:
                return _measured(spark, cluster, directory, rows, rounds)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(directory)


def _measured(
    spark: SparkSession, cluster: LocalCluster, directory: Path, rows: int, rounds: int
) -> dict[str, Any]:
    given = {"bootstrap.servers": ",".join(cluster.endpoints), "pinLife": "5m"}
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
    runs: dict[str, list[tuple[float, ...]]] = {"parquet": [], "table": []}
    for _ in range(rounds):
        runs["parquet"].append(_timed(parquet, nodes))
        runs["table"].append(_timed(lambda: source.load(TABLE), nodes))
    pushing = source.option("filterPushdown", "true")
    points = ", ".join(str(number * (rows // 1_000)) for number in range(1_000))
    point_s, *_ = _timed(lambda: pushing.load(TABLE).where(f"id IN ({points})"), nodes)
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


def _timed(frame: Callable[[], DataFrame], nodes: Sequence[int]) -> tuple[float, float, float]:
    """Read all rows and drop them: seconds by the wall, of Spark's processors, of the nodes'."""
    with Used({NODES: nodes}) as used:
        frame().write.format("noop").mode("overwrite").save()
    nodes_s = used.cpu_s.pop(NODES)
    return used.wall_s, sum(used.cpu_s.values()), nodes_s


def _untouched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
