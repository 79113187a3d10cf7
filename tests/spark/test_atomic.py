"""Atomic writes by a real Spark into real nodes."""

import json

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as f

from raftstore.local_cluster import LocalCluster
from raftstore.spark import upsert

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def cluster(tmp_path):
    """Three nodes that serve."""
    with LocalCluster(nodes=3, directory=tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def client(cluster):
    with cluster.connect(timeout=30.0) as connected:
        yield connected


def table_of(client, name):
    return {row["id"]: row["text"] for row in client.table(name).scan(timeout=30)}


def test_replayed_batches_change_nothing_through_the_death_of_a_leader(
    spark, cluster, client, tmp_path
):
    """Spark forgets that it committed the last batch, replays it with other rows in another number
    of partitions, and a leader is killed: each batch is in the table once, as it was first."""
    options = {"bootstrap.servers": ",".join(cluster.endpoints), "key": "id", "partitions": "4"}
    (tmp_path / "in").mkdir()

    def run(partitions, text):
        stream = spark.readStream.schema("id LONG").json(str(tmp_path / "in"))
        query = (
            stream.withColumn("text", f.lit(text))
            .repartition(partitions)
            .writeStream.format("raftstore")
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start("t")
        )
        query.awaitTermination(120)
        return query

    expected = {}
    for batch in range(3):
        numbers = range(batch * 20, batch * 20 + 40)
        lines = "\n".join(json.dumps({"id": number}) for number in numbers)
        (tmp_path / "in" / f"{batch}.json").write_text(lines)
        query = run(3, f"first {batch}")
        expected |= dict.fromkeys(numbers, f"first {batch}")
        assert table_of(client, "t") == expected
        for name in (str(batch), f".{batch}.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
        if batch == 1:
            leader = client.table_info("t").channels[0].leader
            cluster.kill(leader.partition("@")[0])
        run(2, f"replay {batch}")
        assert table_of(client, "t") == expected
    told = client.table("t").writers()
    assert [(view.writer, view.last_batch) for view in told.writers] == [(str(query.id), 2)]
    assert told.next_commit == 4


def test_stream_whose_table_was_dropped_ends_and_does_not_begin_another(
    spark, cluster, client, tmp_path
):
    """The rows of batch 0 would be missing in it, without a word. In one that was made by hand it
    goes on as another writer, by its user's word."""
    options = {"bootstrap.servers": ",".join(cluster.endpoints), "key": "id", "partitions": "2"}
    (tmp_path / "in").mkdir()

    def run(number, **more):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"id": number}))
        stream = spark.readStream.schema("id LONG").json(str(tmp_path / "in"))
        writing = stream.withColumn("text", f.lit(f"{number}")).writeStream.format("raftstore")
        writing = writing.options(**options, **more)
        writing = writing.option("checkpointLocation", str(tmp_path / "ck"))
        assert writing.trigger(availableNow=True).start("t").awaitTermination(300)

    run(0)
    schema = client.table_info("t").schema_json
    client.drop_table("t")
    for _ in range(2):
        with pytest.raises(StreamingQueryException) as ended:
            run(1)
        assert "[RAFTSTORE_TABLE_NOT_FOUND]" in str(ended.value)
        assert "is at batch 1" in str(ended.value)
    assert "t" not in {info.name for info in client.tables()}
    client.create_table("t", key="id", partitions=2, schema=schema)
    with pytest.raises(StreamingQueryException, match="the table that had its earlier batches"):
        run(1)
    assert table_of(client, "t") == {}
    run(1, writerId="second")
    assert table_of(client, "t") == {1: "1"}


def test_upsert_of_a_stream_whose_table_was_dropped_ends_until_its_user_decides(
    spark, cluster, client, tmp_path
):
    """In foreachBatch a batch of any number may be a first one: a second sink, added later, and a
    new checkpoint begin as ever; the stream that had batches in the dropped table does not, however
    often it is started, until it has a new checkpoint or another writer's name."""
    servers = ",".join(cluster.endpoints)
    (tmp_path / "in").mkdir()

    def run(number, *tables, checkpoint="ck", **options):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"id": number}))
        stream = spark.readStream.schema("id LONG").json(str(tmp_path / "in"))
        sinks = [
            upsert(name, bootstrap_servers=servers, key="id", partitions=2, **options)
            for name in tables
        ]

        def write(batch, batch_id):
            for sink in sinks:
                sink(batch, batch_id)

        writing = stream.withColumn("text", f.lit(f"{number}")).writeStream.foreachBatch(write)
        writing = writing.option("checkpointLocation", str(tmp_path / checkpoint))
        assert writing.trigger(availableNow=True).start().awaitTermination(300)

    run(0, "t")
    run(1, "t", "second")  # begins at batch 1
    assert (table_of(client, "t"), table_of(client, "second")) == ({0: "0", 1: "1"}, {1: "1"})
    client.drop_table("t")
    for _ in range(2):
        with pytest.raises(StreamingQueryException) as ended:
            run(2, "t")
        said = str(ended.value)
        assert "[RAFTSTORE_TABLE_NOT_FOUND] batch 2 of writer" in said
        assert "begin with a new checkpoint" in said
    assert table_of(client, "t") == {}
    run(2, "second")
    assert table_of(client, "second") == {1: "1", 2: "2"}
    run(3, "t", writer_id="goes on")
    assert table_of(client, "t") == {3: "3"}
    client.drop_table("t")
    run(3, "t", checkpoint="new")
    assert table_of(client, "t") == {0: "3", 1: "3", 2: "3", 3: "3"}


def test_both_doors_write_and_replace_whole_batches(spark, cluster, client, tmp_path):
    """A batch, a replacement, an update-mode aggregate, and a second job under one number."""
    servers = ",".join(cluster.endpoints)
    options = {"bootstrap.servers": servers, "key": "id", "partitions": "4"}
    for low, mode in ((0, "append"), (50, "append"), (90, "overwrite")):
        frame = spark.range(low, low + 100).withColumn("text", f.lit(f"{low}"))
        frame.write.format("raftstore").options(**options).mode(mode).save("t")
    assert table_of(client, "t") == dict.fromkeys(range(90, 190), "90")
    named = options | {"writerId": "nightly", "batchId": "7"}
    for text in ("first", "again"):
        frame = spark.range(1).withColumn("text", f.lit(text))
        frame.write.format("raftstore").options(**named).mode("append").save("t")
    assert table_of(client, "t")[0] == "first"
    lower = options | {"writerId": "nightly", "batchId": "6"}
    with pytest.raises(PySparkException) as failure:
        frame.write.format("raftstore").options(**lower).mode("append").save("t")
    assert "[RAFTSTORE_BATCH_REGRESSION]" in str(failure.value)

    spark.range(90).selectExpr("id % 7 AS id").write.json(str(tmp_path / "in"))
    stream = spark.readStream.schema("id LONG").json(str(tmp_path / "in"))
    query = (
        stream.groupBy("id")
        .agg(f.count("*").cast("string").alias("text"))
        .writeStream.outputMode("update")
        .foreachBatch(upsert("towns", bootstrap_servers=servers, key="id"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert table_of(client, "towns") == {n: "13" if n < 6 else "12" for n in range(7)}
    (view,) = client.table("towns").writers().writers
    assert (view.writer, view.lineage, view.last_batch) == (str(query.id), str(query.id), 0)


def test_rows_with_operations_grow_a_table_as_a_batch_a_stream_and_in_foreach_batch(
    spark, cluster, client, tmp_path
):
    """One column says what is done with each row, another one is new to the table; all three ways
    of writing take both, and what a task cannot read is refused with nothing of it visible."""
    given = {"bootstrap.servers": ",".join(cluster.endpoints), "key": "id", "partitions": "2"}
    spark.range(6).selectExpr("id", "'old' AS text").write.format("raftstore").options(
        **given
    ).mode("append").save("t")
    mixed = given | {"operation": "column", "mergeSchema": "true"}
    changes = spark.sql(
        "SELECT * FROM VALUES (0L, 'no', 'insert', 1), (1L, NULL, 'delete', 1), "
        "(6L, 'new', 'upsert', 1) AS t(id, text, _change_type, n)"
    ).coalesce(1)
    changes.write.format("raftstore").options(**mixed).mode("append").save("t")

    (tmp_path / "in").mkdir()
    line = {"id": 2, "text": "streamed", "_change_type": "upsert", "n": 2}
    (tmp_path / "in" / "0.json").write_text(json.dumps(line))
    schema = "id LONG, text STRING, _change_type STRING, n INT"
    stream = spark.readStream.schema(schema).json(str(tmp_path / "in"))
    direct = stream.writeStream.format("raftstore").options(**mixed)
    each = stream.withColumn("_change_type", f.lit("delete")).withColumn(
        "id", f.lit(3).cast("long")
    )
    by_batch = each.writeStream.outputMode("update").foreachBatch(
        upsert(
            "t",
            bootstrap_servers=cluster.endpoints,
            operation="column",
            merge_schema=True,
        )
    )
    for number, writing in enumerate((direct.option("path", "t"), by_batch)):
        query = (
            writing.option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)

    expected = [
        {"id": 0, "text": "old", "n": None},
        {"id": 2, "text": "streamed", "n": 2},
        {"id": 4, "text": "old", "n": None},
        {"id": 5, "text": "old", "n": None},
        {"id": 6, "text": "new", "n": 1},
    ]
    assert list(client.table("t").scan(timeout=30)) == expected
    wrong = changes.withColumn("_change_type", f.lit("remove"))
    with pytest.raises(PySparkException, match=r"\[RAFTSTORE_OPERATION_INVALID\] _change_type is"):
        wrong.write.format("raftstore").options(**mixed).mode("append").save("t")
    assert list(client.table("t").scan(timeout=30)) == expected
