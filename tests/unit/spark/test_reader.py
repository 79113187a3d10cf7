"""The reader without a JVM: what its slices read, together every row once, of one state."""

import pickle
from collections import Counter

import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from raftstore.rows.partitioner import partition_of
from raftstore.rows.payload import encode_rows
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from tests.spark.file_store import FileDataSource, FileStore

SCHEMA = StructType([StructField("id", LongType()), StructField("text", StringType())])
ROWS = 60
PARTITIONS = 3


@pytest.fixture
def store(tmp_path):
    """A table of sixty rows in three partitions."""
    store = FileStore(tmp_path)
    store.add_table("t", ("id",), PARTITIONS, SCHEMA.json())
    write(store, "old")
    return store


def write(store, text):
    """Write every row."""
    schema = TableSchema(("id",), SCHEMA.json())
    with store.writer("t", 1) as writer:
        for number in range(ROWS):
            key, value = schema.row_to_key_value({"id": number, "text": text})
            writer.add(partition_of(key, PARTITIONS), encode_rows([(key, seal(key, value))]), 1)


def reader(store, **more):
    """What Spark makes of ``load()``."""
    options = {"bootstrap.servers": str(store.directory), "table": "t", **more}
    return FileDataSource(options).reader(SCHEMA)


def rows(made, slices):
    """What tasks read of the slices, after both were sent to them."""
    made = pickle.loads(pickle.dumps(made))
    found = []
    for each in pickle.loads(pickle.dumps(slices)):
        for batch in made.read(each):
            found += batch.to_pylist()
    return found


@pytest.mark.parametrize("splits", [1, 4, 64])
def test_slices_read_every_row_once_of_one_state(store, splits):
    """However many there are, and whatever is written after they were made."""
    made = reader(store, splitsPerChannel=str(splits))
    slices = made.partitions()
    write(store, "new")
    assert len(slices) <= PARTITIONS * splits
    assert (len(slices) > PARTITIONS) == (splits > 1)
    found = rows(made, slices)
    assert Counter(row["id"] for row in found) == Counter(range(ROWS))
    assert {row["text"] for row in found} == {"old"}


@pytest.mark.parametrize("splits", ["1", "4"])
def test_filters_decide_what_the_slices_read(store, splits):
    """Keys, ranges, several ranges, and nothing; the filters that are left come back as given."""
    id_, text = ("id",), ("text",)
    left = datasource.EqualTo(text, "old")
    for taken, expected in (
        ([datasource.In(id_, (3, 5, 99))], {3, 5}),
        (
            [datasource.GreaterThan(id_, 50), datasource.LessThanOrEqual(id_, 55)],
            set(range(51, 56)),
        ),
        ([datasource.EqualTo(id_, 1), datasource.EqualTo(id_, 2)], set()),
    ):
        made = reader(store, filterPushdown="true", splitsPerChannel=splits)
        assert list(made.pushFilters([left, *taken])) == [left]
        slices = made.partitions() or [InputPartition(None)]  # as Spark has it
        assert Counter(row["id"] for row in rows(made, slices)) == Counter(expected)
    partitions = {
        partition_of(TableSchema(id_, SCHEMA.json()).encode_key((each,)), PARTITIONS)
        for each in (3, 5)
    }
    made = reader(store, filterPushdown="true")
    made.pushFilters([datasource.In(id_, (3, 5))])
    assert {each.partition for each in made.partitions()} == partitions


def test_reader_takes_no_filters_unless_it_is_asked_to(store):
    """Spark refuses one that does while its setting is off, which is its default."""
    base = datasource.DataSourceReader.pushFilters
    assert type(reader(store)).pushFilters is base
    assert type(reader(store, filterPushdown="false")).pushFilters is base
    assert type(reader(store, filterPushdown="true")).pushFilters is not base
