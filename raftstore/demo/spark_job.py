"""The Spark side of the demo, a process: ``python -m raftstore.demo.spark_job --config JSON``.

Two streams read the same files, one file a micro-batch: the rows go straight to their table, the
aggregate goes to its own through ``foreachBatch``, because it is in update mode. Afterwards Spark
computes both once more as plain batch queries over the same files, for comparison.

Stdout carries one JSON object a line (``event`` is spark, started, batch, expected, done or failed)
and nothing else. SIGTERM ends the process and Spark with it; the exit code is 0 after ``done``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftstore.demo.data import DemoData
from raftstore.errors import RaftstoreError
from raftstore.spark.java import prepare_environment
from raftstore.spark.write.upsert import upsert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL_S: Final = 0.1
"""How often finished micro-batches are looked for."""

Emit = Callable[[dict[str, Any]], None]


class JobConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of the job, as one JSON object."""

    bootstrap_servers: str
    data: DemoData
    work_dir: str
    """For checkpoints, Spark's scratch files and the expected results; must be empty."""
    trigger_s: float = 1.5
    """A micro-batch starts this often (or at once after a longer one): room for a kill between."""
    partitions: int = 8
    replicas: int = 3
    request_timeout_ms: int = 60_000
    """Longer than any failover, so that a kill delays a micro-batch and never fails it."""
    cores: int = 2
    shuffle_partitions: int = 2
    driver_memory: str = "1g"

    def sink_options(self) -> dict[str, Any]:
        """Options of both writes."""
        return {
            "partitions": self.partitions,
            "replicas": self.replicas,
            "request_timeout_ms": self.request_timeout_ms,
        }


def expected_path(config: JobConfig, table: str) -> Path:
    """Return where Spark's own result for a table lies afterwards (a directory of Parquet)."""
    return Path(config.work_dir) / "expected" / table


def start_spark(config: JobConfig) -> SparkSession:
    """Start Spark in this process with what a small machine needs."""
    prepare_environment()
    from pyspark.sql import SparkSession

    work = Path(config.work_dir)
    builder = (
        SparkSession.builder.appName("raftstore demo")
        # Four attempts a task, as on a cluster; a local master gives one by default.
        .master(f"local[{config.cores},4]")
        .config("spark.driver.memory", config.driver_memory)
        # Short jobs, few cores: the full compiler and a parallel collector cost more than they
        # give.
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(work / "scratch"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(config.shuffle_partitions))
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def run_job(spark: SparkSession, config: JobConfig, emit: Emit) -> None:
    """Run both streams over all files, then write Spark's own results.

    Raises when a stream fails; the other one goes on until Spark ends.
    """
    data = config.data
    schema = spark.read.parquet(str(Path(data.directory) / data.files[0])).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(data.directory)
    queries = {
        data.table: _start_rows(config, source),
        data.aggregate.table: _start_aggregate(config, source),
    }
    _follow(queries, data.rows, emit)
    for query in queries.values():
        query.stop()
    _write_expected(spark, config, emit)


def _start_rows(config: JobConfig, source: DataFrame) -> StreamingQuery:
    """The raw rows, append mode, straight into the format."""
    writer = source.writeStream.format("raftstore").outputMode("append")
    writer = writer.option("bootstrap.servers", config.bootstrap_servers)
    writer = writer.option("key", ",".join(config.data.key))
    for name, value in config.sink_options().items():
        writer = writer.option(name, value)
    return _paced(config, writer, config.data.table).start(config.data.table)


def _start_aggregate(config: JobConfig, source: DataFrame) -> StreamingQuery:
    """The aggregate, update mode, by way of foreachBatch."""
    aggregate = config.data.aggregate
    write = upsert(
        aggregate.table,
        bootstrap_servers=config.bootstrap_servers,
        key=aggregate.group_by,
        **config.sink_options(),
    )
    writer = aggregated(config, source).writeStream.outputMode("update").foreachBatch(write)
    return _paced(config, writer, aggregate.table).start()


def _paced(config: JobConfig, writer: DataStreamWriter, name: str) -> DataStreamWriter:
    checkpoint = Path(config.work_dir) / "checkpoints" / name
    return (
        writer.queryName(name)
        .trigger(processingTime=f"{round(config.trigger_s * 1000)} milliseconds")
        .option("checkpointLocation", str(checkpoint))
    )


def aggregated(config: JobConfig, rows: DataFrame) -> DataFrame:
    """Return the aggregate over rows, the same for a stream and for a batch."""
    from pyspark.sql import functions

    aggregate = config.data.aggregate
    measures = [
        getattr(functions, measure.function)(measure.column).alias(measure.name)
        for measure in aggregate.measures
    ]
    return rows.groupBy(aggregate.group_by).agg(*measures)


def _follow(queries: dict[str, StreamingQuery], rows: int, emit: Emit) -> None:
    """Report micro-batches until each query has taken all rows; raise when one fails."""
    emit({"event": "started", "queries": list(queries)})
    seen = dict.fromkeys(queries, 0)
    taken = dict.fromkeys(queries, 0)
    while any(count < rows for count in taken.values()):
        time.sleep(POLL_S)
        for name, query in queries.items():
            progress = query.recentProgress
            for update in progress[seen[name] :]:
                if update.numInputRows:
                    taken[name] += update.numInputRows
                    emit(_batch_event(name, update, taken[name]))
            seen[name] = len(progress)
            if taken[name] < rows and not query.isActive:
                query.awaitTermination()
                raise RaftstoreError(f"the stream {name} ended after {taken[name]} of {rows} rows")


def _batch_event(name: str, update: Any, total: int) -> dict[str, Any]:
    return {
        "event": "batch",
        "query": name,
        "batch_id": update.batchId,
        "rows": update.numInputRows,
        "total_rows": total,
        "duration_ms": update.durationMs.get("triggerExecution", 0),
        "finished_at": time.time(),
    }


def _write_expected(spark: SparkSession, config: JobConfig, emit: Emit) -> None:
    rows = spark.read.parquet(config.data.directory)
    results = {config.data.table: rows, config.data.aggregate.table: aggregated(config, rows)}
    for table, result in results.items():
        path = expected_path(config, table)
        result.write.parquet(str(path))
        emit({"event": "expected", "table": table, "path": str(path)})


# --- the process ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the job that ``--config`` (JSON, or @FILE) describes."""
    parser = argparse.ArgumentParser(prog="python -m raftstore.demo.spark_job")
    parser.add_argument("--config", required=True, help="JSON of the job, or @FILE with it")
    text = parser.parse_args(arguments).config
    if text.startswith("@"):
        text = Path(text[1:]).read_text()
    with _stopped_by_sigterm():
        try:
            config = msgspec.json.decode(text, type=JobConfig)
            _run(config)
        except (RaftstoreError, msgspec.MsgspecError) as error:
            _print_event({"event": "failed", "message": str(error)})
            return 1
    return 0


def _run(config: JobConfig) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    started = time.monotonic()
    try:
        spark = start_spark(config)
        seconds = time.monotonic() - started
        _print_event({"event": "spark", "version": spark.version, "seconds": seconds})
        run_job(spark, config, _print_event)
        # Not on a failure or a signal: it would wait for tasks that wait for the cluster. The JVM
        # and its workers end at once when this process does.
        spark.stop()
    except (PySparkException, Py4JError) as error:
        raise RaftstoreError(f"spark failed: {error}") from error
    _print_event({"event": "done", "seconds": time.monotonic() - started})


def _print_event(event: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit: open files are closed, and the JVM sees its parent end."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


if __name__ == "__main__":
    sys.exit(main())
