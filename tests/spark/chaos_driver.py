"""The Spark driver of ``tests.spark.chaos``: it runs until it ends or is killed.

``python -m tests.spark.chaos_driver MASTER SERVERS INPUT CHECKPOINT NUMBER PARTITIONS``: writes the
files of INPUT, one in each micro-batch, whose rows have the driver's number, in PARTITIONS tasks.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import functions as f

ROOT = Path(__file__).parents[2]
DAWDLE_S = 0.4
DAWDLES = 0.1
"""Share of first attempts of tasks that dawdle, so that Spark runs them a second time elsewhere."""
ROWS = pa.schema([(name, pa.int64()) for name in ("id", "batch", "driver")])


def one_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand the rows on; some tasks take their time over it.

    After a driver died Spark may put two files into one micro-batch. Of two rows with one key only
    that of the later file goes on: which of them stays would be undefined.
    """
    rows: dict[int, dict[str, int]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            known = rows.get(row["id"])
            if known is None or known["batch"] < row["batch"]:
                rows[row["id"]] = row
    task = TaskContext.get()
    if task is not None and task.attemptNumber() == 0 and random.random() < DAWDLES:
        time.sleep(DAWDLE_S)
    if rows:
        yield pa.RecordBatch.from_pylist(list(rows.values()), ROWS)


def main() -> None:
    """See the module."""
    from pyspark.sql import SparkSession

    from raftstore.spark.java import prepare_environment

    master, servers, source, checkpoint, driver, partitions = sys.argv[1:]
    # Executors of a local cluster are processes that Spark starts from its home.
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("SPARK_SCALA_VERSION", "2.13")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    prepare_environment()
    builder = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.executor.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.executorEnv.PYTHONPATH", str(ROOT))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.3")
        .config("spark.speculation.multiplier", "1.2")
        .config("spark.local.dir", str(Path(checkpoint).parent / "work"))
        .config("spark.sql.warehouse.dir", str(Path(checkpoint).parent / "warehouse"))
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    stream = session.readStream.schema("id LONG, batch LONG").option("maxFilesPerTrigger", 1)
    query = (
        stream.json(source)
        .withColumn("driver", f.lit(int(driver)).cast("long"))
        .repartition(int(partitions), "id")
        .mapInArrow(one_task, "id LONG, batch LONG, driver LONG")
        .writeStream.format("raftstore")
        .options(**{"bootstrap.servers": servers, "key": "id", "partitions": "4"})
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start("chaos")
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main()
