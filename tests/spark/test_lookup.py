"""Look-ups in a real job by the real client, against nodes that follow a script."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from raftstore.spark import lookup
from tests.spark.test_sink import EVERY_TYPE

PANDAS_LACKS = ("anything", "none", "nothing", "odd_dict", "span")
"""Types that mapInPandas does not take, and NaN, which it takes for null."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]


def texts(frame, columns):
    """The comparable columns of each row by its key: neither VARIANT nor maps can be compared."""
    chosen = [f.col(name).cast("string").alias(name) for name in columns]
    return {row[0]: tuple(row)[1:] for row in frame.select(*chosen).collect()}


def test_look_up_gives_every_type_as_it_was_written_through_both_doors(spark, scripted):
    """Rows of the table for keys that it has, nulls for those it has not; a key column of another
    type is named in Spark's error."""
    servers = scripted.endpoints
    written = spark.sql(EVERY_TYPE).cache()
    sink = written.write.format("raftstore").option("bootstrap.servers", servers)
    sink.option("key", "id").mode("append").save("things")
    events = spark.createDataFrame([(n,) for n in (0, 1, 2, -1, None)], "thing LONG")
    events = events.coalesce(1)
    columns = [column for column in written.columns if column != "id"]
    nulls = (None,) * len(columns)

    things = lookup("things", key="thing", bootstrap_servers=servers, level="linearizable")
    found = events.mapInArrow(things, things.schema(events))
    assert texts(found, ["thing", *columns]) == texts(written, written.columns) | {
        "-1": nulls,
        None: nulls,
    }

    plain = [name for name in columns if name not in PANDAS_LACKS]
    things = lookup("things", key="thing", bootstrap_servers=servers, columns=plain)
    found = events.mapInPandas(things, things.schema(events))
    assert texts(found, ["thing", *plain]) == texts(written, ["id", *plain]) | {
        "-1": nulls[: len(plain)],
        None: nulls[: len(plain)],
    }

    as_text = events.select(f.col("thing").cast("string"))
    with pytest.raises(PySparkException) as failure:
        as_text.mapInArrow(things, "thing STRING").collect()
    assert "[RAFTSTORE_KEY_MISMATCH]" in str(failure.value)
