"""The format with the real client, over real sockets, against nodes that follow a script."""

import pytest
from pyspark.sql import functions as f

import raftstore
from raftstore.protocol.payload import decode_mark
from raftstore.spark import upsert
from raftstore.types import RecordKind
from tests.integration.client.fake_cluster import apply_and, apply_and_lose, refuse

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def cluster(scripted):
    """Three scripted nodes."""
    return scripted


def options(cluster, **more):
    return {"bootstrap.servers": cluster.endpoints, "key": "id", "partitions": "4", **more}


def test_rows_are_read_back_as_written_when_spark_used_the_format(spark, cluster):
    """The table is created from the DataFrame's schema and holds exactly its rows."""
    frame = spark.range(500).withColumn("half", f.col("id") / 2)
    frame.write.format("raftstore").options(**options(cluster)).mode("append").save("halves")

    with raftstore.connect(cluster.endpoints) as client:
        rows = list(client.table("halves").scan())
        info = client.table_info("halves")

    assert rows == [{"id": n, "half": n / 2} for n in range(500)]
    assert (info.partitions, info.key_columns) == (4, ("id",))
    assert info.schema_json == frame.schema.json()


def test_rows_are_applied_once_a_record_when_answers_are_lost(spark, cluster):
    """Lost connections, refusals and quorum timeouts are retried with the same guid."""
    cluster.nodes["n1"].publish_scripts += [
        refuse("overloaded"),
        apply_and("quorum_timeout"),
        apply_and_lose,
    ]

    frame = spark.range(0, 300, 1, 1)
    frame.write.format("raftstore").options(**options(cluster)).mode("append").save("t")

    channels = [cluster.channels[c.channel] for c in cluster.tables["t"].channels]
    assert sum(len(channel.rows) for channel in channels) == 300
    staged = [message for channel in channels for message in channel.applied]
    assert {message.kind for message in staged} == {RecordKind.STAGED}
    assert sum(message.rows for message in staged) == 300
    (made,) = channels[0].batches.decisions
    assert made.writer.startswith("job-")


def test_aggregate_is_upserted_when_its_query_runs_in_update_mode(spark, cluster, tmp_path):
    """foreachBatch reaches the same table through the same client."""
    spark.range(90).selectExpr("id % 7 AS town").write.json(str(tmp_path / "in"))
    stream = spark.readStream.schema("town LONG").json(str(tmp_path / "in"))
    query = (
        stream.groupBy("town")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(upsert("towns", bootstrap_servers=cluster.endpoints, key="town"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)

    with raftstore.connect(cluster.endpoints) as client:
        rows = list(client.table("towns").scan())

    assert rows == [{"town": n, "count": 13 if n < 6 else 12} for n in range(7)]
    (made,) = cluster.channels[cluster.tables["towns"].channels[0].channel].batches.decisions
    assert (made.writer, made.batch_id) == (str(query.id), 0)


def marks(cluster, table):
    """Per channel, the marks in their order."""
    channels = [cluster.channels[c.channel] for c in cluster.tables[table].channels]
    return [
        [decode_mark(bytes(m.payload)) for m in channel.applied if m.kind is RecordKind.BATCH_MARK]
        for channel in channels
    ]


@pytest.mark.parametrize("door", ["format", "foreach"])
def test_blog_32_each_micro_batch_is_marked_once_a_partition(spark, cluster, tmp_path, door):
    """The writer is the query, in both doors; a batch job marks nothing."""
    rows = spark.range(0, 200, 1, 1)
    by_row = options(cluster, isolation="row")
    rows.write.format("raftstore").options(**by_row).mode("append").save("ids")
    assert marks(cluster, "ids") == [[]] * 4
    rows.repartition(3).write.json(str(tmp_path / "in"))
    stream = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1)
    writing = stream.json(str(tmp_path / "in")).writeStream.trigger(availableNow=True)
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
    if door == "format":
        query = writing.format("raftstore").options(**by_row).start("ids")
    else:
        query = writing.foreachBatch(
            upsert("ids", bootstrap_servers=cluster.endpoints, key="id", isolation="row")
        ).start()
    query.awaitTermination(60)

    named = [
        [(writer.partition("#")[0], batch) for writer, batch in each]
        for each in marks(cluster, "ids")
    ]
    assert named == [[(str(query.id), batch) for batch in range(3)]] * 4
