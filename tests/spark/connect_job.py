"""Features that work over Spark Connect, and those that are refused: a program, for a session of
Connect and a classic one cannot live in one process.

``python -m tests.spark.connect_job SERVERS DIRECTORY`` prints one JSON object.
"""

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from raftstore.errors import RaftstoreError
from raftstore.spark import lookup, upsert
from raftstore.spark.java import prepare_environment


def main(servers, directory):
    prepare_environment()
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    told = {"session": type(spark).__module__}
    rows = spark.sql("SELECT id, id % 5 AS town FROM range(50)")
    sink = rows.write.format("raftstore").option("bootstrap.servers", servers)
    sink.option("key", "id").option("partitions", 4).mode("append").save("rows")
    rows.select("id", "town").write.json(f"{directory}/in")
    stream = spark.readStream.schema("id LONG, town LONG").json(f"{directory}/in")
    counts = stream.groupBy("town").count()

    def run(writer, name):
        writer = writer.option("checkpointLocation", f"{directory}/checkpoints/{name}")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    for name, frame, mode, key in (
        ("streamed", stream, "append", "id"),
        ("completed", counts, "complete", "town"),
    ):
        writer = frame.writeStream.format("raftstore").outputMode(mode)
        writer = writer.option("bootstrap.servers", servers).option("key", key)
        run(writer.option("table", name), name)
    place = {"bootstrap_servers": servers, "key": "town"}
    write = upsert("upserted", **place, writer_id="towns")
    run(counts.writeStream.outputMode("update").foreachBatch(write), "upserted")
    back = spark.read.format("raftstore").option("bootstrap.servers", servers).load("rows")
    told["read"] = back.count()
    found = lookup("completed", key="town", bootstrap_servers=servers, level="linearizable")
    told["found"] = back.mapInArrow(found, found.schema(back)).where("count = 10").count()

    def refused(name, call):
        try:
            call()
        except (PySparkException, RaftstoreError) as error:
            told[name] = str(error)

    refused("no_writer", lambda: upsert("other", **place))
    refused(
        "unknown",
        lambda: (
            back.write.format("raftstore")
            .option("bootstrap.servers", servers)
            .option("kee", "id")
            .mode("append")
            .save("rows")
        ),
    )
    refused(
        "mode",
        lambda: back.write.format("raftstore").option("bootstrap.servers", servers).save("rows"),
    )
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
