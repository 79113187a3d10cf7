"""A transformWithState job whose state can be asked for while it runs.

    python examples/served_state.py
    python examples/served_state.py --script GREEK --bootstrap-servers 127.0.0.1:4481

Spark keeps the state of such a job in its checkpoint, where no program can ask for it. Here the
processor emits what changed, and ``upsert`` makes it visible after every micro-batch, all of it at
once and once only: the table is the state, in about a millisecond and from every program.

The rows are the named characters of Unicode from the Python interpreter, in the order of their
code points. The state is, for each script, the longest run of neighbours so far: no aggregate of
SQL, as it has to remember where the current run began.

Without --bootstrap-servers it starts a cluster of its own, for as long as it runs. pyspark needs
the package protobuf for this, which raftstore[spark] installs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

import raftstore
from raftstore.demo.sources import unicode_characters
from raftstore.spark import upsert
from raftstore.spark.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 4
EVERYTHING = 1_000_000
STATE = "characters LONG, start LONG, last LONG, longest LONG, longest_start LONG"
RESULT = f"script STRING, {STATE}"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

State = tuple[int, int, int, int, int]


def following(state: State | None, code_points: Iterable[int]) -> State:
    """Return the state after more code points, in ascending order."""
    characters, start, last, longest, longest_start = state or (0, -1, -2, 0, -1)
    for code in code_points:
        start = start if code == last + 1 else code
        last = code
        characters += 1
        if last - start + 1 > longest:
            longest, longest_start = last - start + 1, start
    return characters, start, last, longest, longest_start


def processor() -> Any:
    """Return the processor; made in a function, as pyspark is imported when Java is found."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class LongestRun(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._state = handle.getValueState("run", STATE)

        def handleInputRows(  # noqa: N802 - Spark's name
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: N803, ARG002 - Spark's name
        ) -> Iterator[Row]:
            before = self._state.get() if self._state.exists() else None
            state = following(before and tuple(before), sorted(row["code_point"] for row in rows))
            self._state.update(state)
            yield Row(script=key[0], **dict(zip(_names(STATE), state, strict=True)))

        def close(self) -> None:
            """Nothing is held."""

    return LongestRun()


def _names(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


def write_files(rows: int, directory: Path) -> pa.Table:
    """Write the characters as files with times one second apart: one micro-batch each."""
    table = unicode_characters(EVERYTHING).columns.select(["code_point", "script"])[:rows]
    directory.mkdir(parents=True)
    size = -(-len(table) // FILES)
    for number in range(FILES):
        path = directory / f"{number}.parquet"
        parquet.write_table(table[number * size : (number + 1) * size], path)
        os.utime(path, (1_000_000_000 + number,) * 2)
    return table


def stream(spark: SparkSession, servers: str, directory: Path) -> None:
    """Take all files; each micro-batch shows in the table at once."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    rows = spark.readStream.schema("code_point LONG, script STRING")
    rows = rows.option("maxFilesPerTrigger", 1).parquet(str(directory / "characters"))
    states = rows.groupBy("script").transformWithState(
        statefulProcessor=processor(),
        outputStructType=RESULT,
        outputMode="Update",
        timeMode="None",
    )
    query = (
        states.writeStream.outputMode("update")
        .foreachBatch(upsert("longest_runs", bootstrap_servers=servers, key="script"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run(spark: SparkSession, servers: str, directory: Path, rows: int, script: str) -> None:
    """Stream, then ask the served state; prints what it finds."""
    table = write_files(rows, directory / "characters")
    print(f"{len(table):,} characters")
    stream(spark, servers, directory)
    with raftstore.connect(servers, timeout=30.0) as client:
        runs = client.table("longest_runs")
        state = runs.get(script)
        if state is None:
            print(f"no character of {script} was among them")
        else:
            print(
                f"{script}: {state['characters']} characters, the longest run has "
                f"{state['longest']}, from U+{state['longest_start']:04X}"
            )
        for row in sorted(runs.scan(), key=lambda row: -row["longest"])[:5]:
            print(f"  {row['script']}: {row['longest']} from U+{row['longest_start']:04X}")


def main(arguments: list[str] | None = None) -> int:
    """Run it with a session, and a cluster if none is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap-servers", default="", help="a running cluster's addresses")
    parser.add_argument("--script", default="LATIN", help="the one to show (LATIN)")
    parser.add_argument("--rows", type=int, default=EVERYTHING, help="characters to take (all)")
    options = parser.parse_args(arguments)
    prepare_environment()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("served state").master("local[2]").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    servers = options.bootstrap_servers
    with (
        tempfile.TemporaryDirectory() as directory,
        nullcontext() if servers else raftstore.LocalCluster(nodes=3) as cluster,
    ):
        servers = servers or ",".join(cluster.endpoints)
        run(spark, servers, Path(directory), options.rows, options.script)
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
