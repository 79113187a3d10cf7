"""The format with a real Spark: batch and streaming writes, retries, refusals."""

import datetime as dt
import json
from decimal import Decimal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from raftstore.rows.values import Variant
from raftstore.spark import upsert
from raftstore.spark.codec.column_rows import ROWS_MIN

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVERY_TYPE = """
    SELECT CAST(id AS INT) AS id, id % 2 = 0 AS yes, CAST(1 AS TINYINT) AS tiny,
        CAST(-300 AS SMALLINT) AS small, 9223372036854775807 AS big, CAST(0.1 AS FLOAT) AS single,
        DOUBLE('NaN') AS none, -1.5D AS real, 'gr\u00fc\u00df \u6f22' AS text, X'00FF' AS raw,
        CAST('1234567890123456789012345678.0000000100' AS DECIMAL(38, 10)) AS exact,
        DATE '1582-10-15' AS day, DATE '0001-01-01' AS first_day,
        TIMESTAMP '2024-11-03 01:30:00.123456 America/New_York' AS moment,
        TIMESTAMP_NTZ '2024-03-10 02:30:00.000001' AS local,
        INTERVAL '1 02:03:04.000005' DAY TO SECOND AS span,
        array(1, NULL, 3) AS list, map('a', 1, 'b', NULL) AS dict,
        map(array(1, 2), 'x') AS odd_dict,
        struct(1 AS x, array(struct(map(1, DATE '2020-02-29') AS m)) AS y) AS nested,
        parse_json('{"a": [1, null]}') AS anything, array() AS empty,
        CAST(NULL AS STRING) AS missing, NULL AS nothing
    FROM range(3)
"""


def options(store, **more):
    return {"bootstrap.servers": str(store.directory), "key": "id", "partitions": "4", **more}


@pytest.mark.parametrize("count", [3, ROWS_MIN])
def test_batch_write_keeps_every_type_exactly_when_read_back(files, store, count):
    """For every type Spark SQL can store, a client reads what Spark held; also where a task has so
    many rows that they are encoded by whole columns.
    """
    frame = files.sql(EVERY_TYPE.replace("range(3)", f"range(0, {count}, 1, 1)"))
    frame.write.format("raftstore").options(**options(store)).mode("append").save("everything")

    rows = store.rows("everything")

    assert [row["id"] for row in rows] == list(range(count))
    row = rows[1]
    assert row.pop("none") != row.pop("real") == -1.5
    anything = row.pop("anything")
    assert isinstance(anything, Variant)
    assert b"a" in anything.metadata
    assert row == {
        "id": 1,
        "yes": False,
        "tiny": 1,
        "small": -300,
        "big": 2**63 - 1,
        "single": 0.10000000149011612,
        "text": "gr\u00fc\u00df \u6f22",
        "raw": b"\x00\xff",
        "exact": Decimal("1234567890123456789012345678.0000000100"),
        "day": dt.date(1582, 10, 15),
        "first_day": dt.date(1, 1, 1),
        "moment": dt.datetime(2024, 11, 3, 5, 30, 0, 123456, tzinfo=dt.UTC),
        "local": dt.datetime.fromisoformat("2024-03-10T02:30:00.000001"),
        "span": dt.timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=5),
        "list": [1, None, 3],
        "dict": {"a": 1, "b": None},
        "odd_dict": {(1, 2): "x"},
        "nested": {"x": 1, "y": [{"m": {1: dt.date(2020, 2, 29)}}]},
        "empty": [],
        "missing": None,
        "nothing": None,
    }


def test_batch_write_is_an_upsert_when_keys_exist(files, store):
    """A second write of the same keys replaces their rows and adds the others."""
    for low, high, text in ((0, 100, "old"), (50, 150, "new")):
        frame = files.range(low, high).withColumn("text", f.lit(text))
        frame.write.format("raftstore").options(**options(store)).mode("append").save("t")

    rows = store.rows("t")

    assert [row["id"] for row in rows] == list(range(150))
    assert {row["text"] for row in rows[:50]} == {"old"}
    assert {row["text"] for row in rows[50:]} == {"new"}


def test_batch_write_removes_rows_when_the_operation_is_delete(files, store):
    """operation=delete removes the rows with the given keys; other columns do not matter."""
    frame = files.range(20).withColumn("n", f.col("id") * 2)
    frame.write.format("raftstore").options(**options(store)).mode("append").save("t")

    gone = files.range(0, 20, 2).withColumn("why", f.lit("even"))
    gone.write.format("raftstore").options(**options(store, operation="delete")).mode(
        "append"
    ).save("t")

    assert [row["id"] for row in store.rows("t")] == list(range(1, 20, 2))


def test_records_are_cut_and_sorted_when_a_task_has_many_rows(files, store):
    """No record exceeds maxBatchRows, and inside each the keys ascend."""
    frame = files.range(0, 1000, 1, 1).withColumn("x", f.rand(seed=1)).orderBy("x")
    frame.write.format("raftstore").options(**options(store, maxBatchRows=100)).mode("append").save(
        "t"
    )

    records = store.records("t")

    assert max(rows for _, _, rows in records) == 100
    assert sum(rows for _, _, rows in records) == 1000
    assert [row["id"] for row in store.rows("t")] == list(range(1000))


def test_task_is_repeated_when_its_outcome_is_unknown(files, store):
    """An UNKNOWN outcome fails the task; Spark repeats it and the table is right."""
    store.refuse_next("no quorum within 2000 ms")

    files.range(10).write.format("raftstore").options(**options(store)).mode("append").save("t")

    assert [row["id"] for row in store.rows("t")] == list(range(10))


def test_job_fails_with_class_and_outcome_when_every_attempt_is_in_doubt(files, store):
    """The text Spark shows names the error class, the table and what may have happened."""
    for _ in range(8):
        store.refuse_next("no quorum within 2000 ms")

    with pytest.raises(PySparkException) as failure:
        files.range(4).write.format("raftstore").options(**options(store)).mode("append").save("t")

    assert "[RAFTSTORE_QUORUM_TIMEOUT] no quorum within 2000 ms (table 't'" in str(failure.value)
    assert "outcome UNKNOWN" in str(failure.value)


def test_stream_appends_each_micro_batch_when_started_with_a_table(files, store, tmp_path):
    """A stream in append mode writes through the format, also over a restart."""
    (tmp_path / "in").mkdir()
    schema = "id LONG, text STRING"
    for number in range(2):
        lines = [json.dumps({"id": n, "text": f"{number}"}) for n in range(number * 5, 20)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))

        stream = files.readStream.schema(schema).json(str(tmp_path / "in"))
        query = (
            stream.writeStream.format("raftstore")
            .options(**options(store))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start("t")
        )
        query.awaitTermination(60)

    rows = store.rows("t")
    assert [row["text"] for row in rows] == ["0"] * 5 + ["1"] * 15
    assert query.lastProgress.sink.numOutputRows == 15


@pytest.mark.parametrize(("isolation", "written"), [("batch", 9), ("row", 18)])
def test_replayed_micro_batch_changes_nothing_when_its_commit_was_lost(
    files, store, tmp_path, isolation, written
):
    """A micro-batch that was written but not recorded by Spark is found written, or, row by row,
    written again, harmlessly."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text("\n".join(json.dumps({"id": n}) for n in range(9)))

    for _ in range(2):
        stream = files.readStream.schema("id LONG").json(str(tmp_path / "in"))
        query = (
            stream.writeStream.format("raftstore")
            .options(**options(store, isolation=isolation))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start("t")
        )
        query.awaitTermination(60)
        for name in ("0", ".0.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    assert sum(rows for _, _, rows in store.records("t")) == written
    assert [row["id"] for row in store.rows("t")] == list(range(9))


def test_table_is_replaced_by_a_batch_and_by_a_stream_in_complete_mode(files, store, tmp_path):
    """Given rows in a table, an overwriting batch replaces them at once, and each micro-batch of a
    stream in complete mode replaces all.
    """
    files.range(50).write.format("raftstore").options(**options(store)).mode("append").save("t")
    files.range(40, 60).write.format("raftstore").options(**options(store)).mode("overwrite").save(
        "t"
    )
    assert [row["id"] for row in store.rows("t")] == list(range(40, 60))

    (tmp_path / "in").mkdir()
    for number in range(2):
        lines = [json.dumps({"page": f"p{n % (number + 2)}"}) for n in range(12)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))
    pages = files.readStream.schema("page STRING").option("maxFilesPerTrigger", 1)
    query = (
        pages.json(str(tmp_path / "in"))
        .groupBy("page")
        .count()
        .writeStream.outputMode("complete")
        .format("raftstore")
        .options(**options(store, key="page"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start("pages")
    )
    query.awaitTermination(60)

    counts = {row["page"]: row["count"] for row in store.rows("pages")}
    assert counts == {"p0": 10, "p1": 10, "p2": 4}
    with store.batches("pages") as truth:
        made = [(each.writer, each.batch_id, each.is_overwrite) for each in truth.decisions]
    assert made == [(str(query.id), 0, True), (str(query.id), 1, True)]


def test_query_is_refused_when_its_checkpoint_was_set_back_or_made_anew(files, store, tmp_path):
    """Batches that are past would undo later ones; a new checkpoint numbers others.

    GAP-09 (N10).
    """
    (tmp_path / "in").mkdir()

    def run(number, checkpoint):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"id": number}))
        stream = files.readStream.schema("id LONG").json(str(tmp_path / "in"))
        query = (
            stream.writeStream.format("raftstore")
            .options(**options(store, writerId="ids"))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start("t")
        )
        query.awaitTermination(60)

    for number in range(3):
        run(number, "checkpoint")
    for kind in ("commits", "offsets"):
        for name in ("1", ".1.crc", "2", ".2.crc"):
            (tmp_path / "checkpoint" / kind / name).unlink(missing_ok=True)
    with pytest.raises(PySparkException) as failure:
        run(3, "checkpoint")
    assert "[RAFTSTORE_BATCH_REGRESSION] batch 1 of writer 'ids' is refused" in str(failure.value)
    with pytest.raises(PySparkException) as failure:
        run(4, "another")
    assert "the writer is of another checkpoint" in str(failure.value)
    assert [row["id"] for row in store.rows("t")] == [0, 1, 2]


def test_upsert_writes_an_aggregate_when_the_query_is_in_update_mode(files, store, tmp_path):
    """Counts by group end as Spark's own batch result, through foreachBatch."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        lines = [json.dumps({"page": f"p{n % (number + 2)}"}) for n in range(30)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))
    pages = files.readStream.schema("page STRING").option("maxFilesPerTrigger", 1)

    query = (
        pages.json(str(tmp_path / "in"))
        .groupBy("page")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(upsert("counts", bootstrap_servers=str(store.directory), key="page"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)

    expected = files.read.json(str(tmp_path / "in")).groupBy("page").count().collect()
    assert store.rows("counts") == sorted((r.asDict() for r in expected), key=lambda r: r["page"])


@pytest.mark.parametrize(
    ("changes", "mode", "said"),
    [
        (
            {"isolation": "row"},
            "overwrite",
            "[RAFTSTORE_OVERWRITE_UNSUPPORTED] table 't' cannot be replaced",
        ),
        ({"maxBatchRow": "5"}, "append", "there is no option 'maxbatchrow': did you mean"),
        ({"key": "identity"}, "append", "[RAFTSTORE_SCHEMA_MISMATCH]"),
        ({"createTable": "false"}, "append", "[RAFTSTORE_TABLE_NOT_FOUND] there is no table 't'"),
        ({"key": ""}, "append", "[RAFTSTORE_KEY_MISSING]"),
    ],
)
def test_write_is_refused_before_any_task_when_it_cannot_work(files, store, changes, mode, said):
    """Bad options and impossible tables are refused on the driver, and nothing is written."""
    given = options(store, **changes)

    with pytest.raises(PySparkException) as failure:
        files.range(3).write.format("raftstore").options(**given).mode(mode).save("t")

    assert said in str(failure.value)
    assert store.records("t") == []


def test_write_is_refused_before_any_task_when_a_column_has_another_type(files, store):
    """The DataFrame's schema is compared with the catalog's before tasks start."""
    store.add_table("t", ("id",), 4, files.sql("SELECT 1L AS id, 1 AS n").schema.json())

    with pytest.raises(PySparkException) as failure:
        files.sql("SELECT 1L AS id, 'one' AS n").write.format("raftstore").options(
            **options(store)
        ).mode("append").save("t")

    assert (
        "[RAFTSTORE_SCHEMA_MISMATCH] column 'n' is string, but in table 't' it is integer"
        in str(failure.value)
    )


def test_row_is_refused_when_its_key_is_null(files, store):
    """A null key fails the task with a sentence that names the column."""
    frame = files.sql("SELECT IF(id = 2, NULL, id) AS id FROM range(5)")

    with pytest.raises(PySparkException) as failure:
        frame.write.format("raftstore").options(**options(store)).mode("append").save("t")

    assert "the key column 'id' is null" in str(failure.value)


def test_format_is_found_when_nothing_was_registered(spark):
    """Spark finds the format by the package pyspark_raftstore alone."""
    with pytest.raises(PySparkException) as failure:
        spark.range(3).write.format("raftstore").mode("append").save("t")

    assert "[RAFTSTORE_OPTION_MISSING] bootstrap.servers is not set" in str(failure.value)
