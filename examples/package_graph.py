"""The dependencies of Debian's packages as a stream, served while it runs.

    python examples/package_graph.py
    python examples/package_graph.py --package python3 --bootstrap-servers 127.0.0.1:4481

The edges come from this machine's package index, or from the installed Python distributions where
there is none; nothing is downloaded. They arrive as the files of a stream, which keeps two tables:

* ``dependencies``: each edge, straight from the stream, every micro-batch at once;
* ``requirements``: what each package needs, an aggregate that Spark keeps in update mode.

Then everything that a package needs, over all steps, is asked of raftstore: one multi-get a step.
At the end Spark reads the edges back as one state, and looks up what the most wanted need
themselves.

Without --bootstrap-servers it starts a cluster of its own, for as long as it runs.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from contextlib import nullcontext
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

import raftstore
from raftstore.demo.sources import package_dependencies
from raftstore.spark import lookup, upsert
from raftstore.spark.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = 4
SCHEMA = "package STRING, relation STRING, target STRING"
STRONG = ("depends", "pre-depends", "requires")


def find_edges(rows: int) -> tuple[str, pa.Table]:
    """Return what the edges are of, and about ``rows`` of them."""
    found = package_dependencies(rows)
    if found is not None:
        return found.description, found.columns.select(["package", "relation", "target"])
    edges = {
        (_name(each.metadata["Name"]), "requires", _name(text))
        for each in distributions()
        for text in each.requires or ()
    }
    names = ("package", "relation", "target")
    columns = map(list, zip(*sorted(edges)[:rows], strict=True))
    return "the installed Python distributions", pa.table(dict(zip(names, columns, strict=True)))


def _name(text: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0].lower()


def write_files(edges: pa.Table, directory: Path) -> None:
    """Deal the edges out to files with times one second apart: one micro-batch each."""
    directory.mkdir(parents=True)
    for number in range(FILES):
        path = directory / f"{number}.parquet"
        parquet.write_table(edges.take(pa.array(range(number, len(edges), FILES))), path)
        os.utime(path, (1_000_000_000 + number,) * 2)


def stream(spark: SparkSession, servers: str, directory: Path) -> None:
    """Take all files into both tables; a second start would find nothing left to do."""
    from pyspark.sql import functions as f

    edges = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    rows = edges.parquet(str(directory / "edges"))
    straight = rows.writeStream.format("raftstore").option("bootstrap.servers", servers)
    straight = straight.option("key", "package,relation,target")
    needs = (
        rows.where(f.col("relation").isin(*STRONG))
        .groupBy("package")
        .agg(f.array_sort(f.collect_set("target")).alias("needs"))
    )
    counted = needs.writeStream.outputMode("update").foreachBatch(
        upsert("requirements", bootstrap_servers=servers, key="package")
    )
    queries = []
    for name, writer in (("dependencies", straight), ("requirements", counted)):
        writer = writer.option("checkpointLocation", str(directory / "checkpoints" / name))
        writer = writer.trigger(availableNow=True)
        queries.append(writer.start(name) if writer is straight else writer.start())
    for query in queries:
        query.awaitTermination()


def everything_needed(table: Any, package: str) -> list[set[str]]:
    """Return what a package needs, by the number of steps to it: one multi-get each."""
    steps = [{package}]
    known = {package}
    while steps[-1]:
        rows = table.get_many(sorted(steps[-1]), columns=["needs"])
        found = {name for row in rows if row is not None for name in row["needs"]}
        steps.append(found - known)
        known |= found
    return steps[1:-1]


def most_wanted(spark: SparkSession, servers: str) -> DataFrame:
    """Read all edges as one state; for the five most wanted add what they need themselves."""
    from pyspark.sql import functions as f

    # The table's columns are all of its key, and beside its key a table may have any.
    reading = spark.read.format("raftstore").schema(SCHEMA)
    edges = reading.option("bootstrap.servers", servers).load("dependencies")
    wanted = edges.groupBy("target").agg(f.count_distinct("package").alias("dependents"))
    top = wanted.orderBy(f.desc("dependents"), "target").limit(5)
    own = lookup("requirements", key="target", columns=["needs"], bootstrap_servers=servers)
    return top.mapInArrow(own, own.schema(top))


def run(spark: SparkSession, servers: str, directory: Path, rows: int, package: str) -> None:
    """Stream, ask, read back; prints what it finds."""
    what, edges = find_edges(rows)
    print(f"{len(edges):,} edges: {what}")
    write_files(edges, directory / "edges")
    stream(spark, servers, directory)
    with raftstore.connect(servers, timeout=30.0) as client:
        table = client.table("requirements")
        package = package or max(table.scan(), key=lambda row: len(row["needs"]))["package"]
        for number, names in enumerate(everything_needed(table, package), 1):
            shown = ", ".join(sorted(names)[:6])
            print(f"{package} needs {len(names)} in {number} steps: {shown}")
    print("wanted by most:")
    for row in most_wanted(spark, servers).collect():
        needs = ", ".join((row["needs"] or ["nothing known"])[:4])
        print(f"  {row['target']}: {row['dependents']} packages; needs {needs}")


def main(arguments: list[str] | None = None) -> int:
    """Run it with a session, and a cluster if none is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap-servers", default="", help="a running cluster's addresses")
    parser.add_argument("--package", default="", help="the one to follow; default: who needs most")
    parser.add_argument("--rows", type=int, default=50_000, help="edges to take (50000)")
    options = parser.parse_args(arguments)
    prepare_environment()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("package graph").master("local[2]").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    servers = options.bootstrap_servers
    with (
        tempfile.TemporaryDirectory() as directory,
        nullcontext() if servers else raftstore.LocalCluster(nodes=3) as cluster,
    ):
        servers = servers or ",".join(cluster.endpoints)
        run(spark, servers, Path(directory), options.rows, options.package)
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
