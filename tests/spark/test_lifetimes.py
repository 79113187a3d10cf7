"""Rows with a lifetime and tables with settings of their own, written and read by Spark."""

import time

import pytest
from pyspark.sql import functions as f

from raftstore.local_cluster import LocalCluster
from raftstore.protocol.table_settings import TableSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]
PATIENCE_S = 30.0


def ids_until(frame, wanted):
    """The ids that a query finds, once they are these."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = sorted(row["id"] for row in frame().select("id").collect())
        if found == wanted or time.monotonic() > deadline:
            return found


def test_rows_written_with_a_lifetime_expire_for_spark_and_its_change_feed(spark, tmp_path):
    """A table is created with a ttl and its own retention; what is written with another ttl, as a
    batch and row by row, goes by that one, and the change feed has it as ``expire``."""
    with (
        LocalCluster(nodes=3, directory=tmp_path / "cluster") as cluster,
        cluster.connect(timeout=60.0) as client,
    ):
        given = {"bootstrap.servers": ",".join(cluster.endpoints)}
        settings = {
            "ttl": "1h", "retentionBytes": "8388608", "retentionRecords": "50000",
            "retentionAge": "2d",
        }  # fmt: skip

        def write(first, end, **more):
            rows = spark.range(first, end).withColumn("text", f.concat(f.lit("row "), "id"))
            sink = rows.write.format("raftstore").options(**given, key="id", partitions="2")
            sink.options(**more).mode("append").save("t")

        def table():
            return spark.read.format("raftstore").options(**given).load("t")

        write(0, 100, **settings)
        info = client.table_info("t")
        assert info.settings == TableSettings(8_388_608, 50_000, 172_800_000, 3_600_000)
        write(100, 150, ttl="1s")
        write(150, 160, ttl="1s", isolation="row")
        assert ids_until(table, list(range(100))) == list(range(100))
        assert client.table("t").get(100) is None
        changes = (
            spark.readStream.format("raftstore")
            .options(**given, readChangeFeed="true", startingOffsets="earliest")
            .load("t")
        )
        query = (
            changes.writeStream.format("memory").queryName("lifetimes")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        told = (
            spark.table("lifetimes").groupBy("_change_type").agg(f.sort_array(f.collect_list("id")))
        )
        assert dict(map(tuple, told.collect())) == {
            "upsert": list(range(160)),
            "expire": list(range(100, 160)),
        }
