"""Reading tables as DataFrames by a real Spark: every type, one state for all tasks."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from raftstore.local_cluster import LocalCluster
from raftstore.rows.schema import TableSchema
from tests.spark.test_sink import EVERY_TYPE, options

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def source(session, store, **more):
    """Reads from a store of files."""
    given = {"bootstrap.servers": str(store.directory), **more}
    return session.read.format("raftstore").options(**given)


def test_every_type_is_read_as_it_was_written(files, store):
    """Schema and values, with nothing named but the table."""
    written = files.sql(EVERY_TYPE)
    written.write.format("raftstore").options(**options(store)).mode("append").save("t")
    read = source(files, store).load("t")
    types = [(column.name, column.dataType.simpleString()) for column in written.schema]
    assert [(column.name, column.dataType.simpleString()) for column in read.schema] == types
    assert [column.name for column in read.schema if not column.nullable] == ["id"]
    # VARIANT and maps cannot be compared, so their text is.
    texts = [
        f.to_json(f.struct(f.col(column.name))).alias(column.name)
        for column in written.schema
        if column.name not in ("odd_dict", "nothing", "raw", "span")
    ]
    others = [f.col("odd_dict").cast("string"), "nothing", "raw", "span"]
    expected = written.select(*texts, *others).orderBy("id").collect()
    assert read.select(*texts, *others).orderBy("id").collect() == expected
    assert len(expected) == 3


def test_job_reads_one_state_however_often_its_tasks_are_repeated(files, store):
    """A task that fails half-way is repeated in the same state, and so is the whole job, though
    rows were written meanwhile; a new read sees them."""
    files.range(40).selectExpr("id", "'first' AS text").write.format("raftstore").options(
        **options(store)
    ).mode("append").save("t")
    frame = source(files, store).load("t")
    assert frame.rdd.getNumPartitions() == 4
    store.refuse_next("a node was lost")
    assert sorted(row["id"] for row in frame.collect()) == list(range(40))
    files.range(100).selectExpr("id", "'second' AS text").write.format("raftstore").options(
        **options(store)
    ).mode("append").save("t")
    assert {row["text"] for row in frame.collect()} == {"first"}
    assert source(files, store).load("t").where("text = 'second'").count() == 100
    assert len(list((store.directory / "snapshots").iterdir())) == 2


def test_read_names_the_class_of_what_is_wrong_and_the_remedy(files, store):
    """Unknown table, options and columns; a table without columns; a state that is gone."""
    store.add_table("free", ("id",), 2, "")
    store.add_table("t", ("id",), 2, files.range(1).selectExpr("id", "1.5D AS x").schema.json())

    def fails(text, call):
        with pytest.raises(PySparkException) as failure:
            call()
        assert text in str(failure.value)

    def load(table="t", **more):
        return source(files, store, **more).load(table)

    fails("[RAFTSTORE_TABLE_NOT_FOUND]", lambda: load("missing"))
    fails("did you mean 'pinLife'?", lambda: load(pinLive="1m"))
    fails("there is no option 'writerid'", lambda: load(writerId="w"))
    fails("level is 'newest': give linearizable, bounded or any", lambda: load(level="newest"))
    fails("[RAFTSTORE_SCHEMA_MISSING]", lambda: load("free"))
    fails("has no column 'y'", lambda: source(files, store).schema("y LONG").load("t").collect())
    fails(
        "column 'x' of table 't' is double and not long",
        lambda: source(files, store).schema("x LONG").load("t").collect(),
    )
    rows = source(files, store).schema("id LONG, any STRING").load("free")
    assert rows.collect() == []
    frame = load()
    frame.collect()
    for state in (store.directory / "snapshots").iterdir():
        state.unlink()
    fails("[RAFTSTORE_SNAPSHOT_EXPIRED]", frame.collect)
    fails("read.scan_pin_life_ms", frame.collect)


def test_filters_on_the_key_decide_what_is_read_and_never_what_is_answered(files, store):
    """Points of the partitions that have them, ranges, prefixes; literals come as Spark sends
    them. Without the option all is read; with it, Spark's setting must be on."""
    rows = files.range(40).selectExpr(
        "id",
        "concat('k', id % 4) AS text",
        "date_add(DATE'1970-01-01', CAST(id AS INT) - 20) AS day",
        "timestamp_micros(id * 1000000 - 20000000) AS at",
        "id % 3 AS x",
    )
    for table, key in (("by_id", "id"), ("by_day", "text,day"), ("by_time", "at")):
        sink = rows.write.format("raftstore").options(**options(store, key=key)).mode("append")
        sink.save(table)
    queries = [  # of these rows so many are read, in at most so many partitions
        ("by_id", "id IN (3, 17, 99) AND x = 2", 2, 2),
        ("by_id", "id > 35 AND id <= 50", 4, 4),
        ("by_day", "text = 'k2' AND day > DATE'1969-12-30' AND id > 30", 5, 4),
        ("by_day", "text LIKE 'k1%'", 10, 4),
        ("by_time", "at < TIMESTAMP'1969-12-31 19:00:00'", 20, 4),
        ("by_time", "at = TIMESTAMP'1969-12-31 19:00:05'", 1, 1),
    ]
    setting = "spark.sql.python.filterPushdown.enabled"
    assert files.conf.get(setting) == "false"
    with pytest.raises(PySparkException, match=setting):
        source(files, store, filterPushdown="true").load("by_id").where("id = 3").collect()
    files.conf.set(setting, "true")
    try:
        for table, query, count, partitions in queries:
            expected = sorted(rows.where(query).collect())
            store.take_reads()
            found = source(files, store, filterPushdown="true").load(table).where(query)
            assert sorted(found.select(rows.columns).collect()) == expected
            reads = store.take_reads()
            assert sum(number for _, number in reads) == count
            assert len(reads) <= partitions
        store.take_reads()
        assert source(files, store).load("by_id").where("id = 3").count() == 1
        assert sum(number for _, number in store.take_reads()) == 40
        pushing = source(files, store, filterPushdown="true").load("by_id")
        assert pushing.where("id < 5 AND id > 9").collect() == []
        assert store.take_reads() == []
    finally:
        files.conf.unset(setting)


@pytest.mark.cluster
def test_spark_reads_back_what_it_wrote_into_real_nodes(spark, tmp_path):
    """Atomic writes, then a read at any replica: the whole of the newest batch, all types."""
    with LocalCluster(nodes=3, directory=tmp_path / "cluster") as cluster:
        given = {"bootstrap.servers": ",".join(cluster.endpoints)}
        written = spark.range(25_000).withColumn("text", f.concat(f.lit("row "), "id"))
        for mode in ("append", "overwrite"):
            sink = written.write.format("raftstore").options(**given, key="id", partitions="3")
            sink.mode(mode).save("t")
        read = spark.read.format("raftstore").options(**given, preferReplica="any_in_bound")
        frame = read.load("t")
        assert frame.exceptAll(written).count() == 0
        assert frame.agg(f.count("*"), f.sum("id")).collect()[0][:] == (25_000, 24_999 * 12_500)
        bounded = spark.read.format("raftstore").options(**given, maxLagSeq="0", maxLagMs="5000")
        assert bounded.load("t").count() == 25_000
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        given["filterPushdown"] = "true"
        pushing = spark.read.format("raftstore").options(**given)
        chosen = pushing.load("t").where("id IN (7, 24999, 25000)")
        assert sorted(row["text"] for row in chosen.collect()) == ["row 24999", "row 7"]
        chosen = pushing.load("t").where("id >= 24990")
        assert sorted(row["id"] for row in chosen.collect()) == list(range(24_990, 25_000))
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        with cluster.connect(timeout=30.0) as client:
            client.create_table("free", key=("a", "b"), partitions=2)
            client.table("free").put_many({"a": n, "b": f"{n}", "x": n / 2} for n in range(10))
            rows = read.schema("b STRING, x DOUBLE").load("free").orderBy("x").collect()
            assert [tuple(row) for row in rows] == [(f"{n}", n / 2) for n in range(10)]
            assert TableSchema(("a", "b")).columns == ()
