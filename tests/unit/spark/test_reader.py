"""The reader without a JVM: what its slices read, together every row once, of one state."""

import pickle
from collections import Counter
from types import SimpleNamespace

import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from raftstore.errors import ConfigError, SchemaError, UnknownTableError
from raftstore.protocol.payload import encode_rows
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.spark.options import parse_source_options
from raftstore.spark.store import ClientStore
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
    """The reader that Spark gets from ``load()``."""
    options = {"bootstrap.servers": str(store.directory), "table": "t", **more}
    return FileDataSource(options).reader(SCHEMA)


def rows(made, slices):
    """The rows that tasks read of the slices, after both were pickled."""
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


def test_state_of_a_table_made_anew_while_the_job_is_planned_is_refused(store, monkeypatch):
    """S0.8: its rows are no rows of the table that was asked for."""
    opened = FileStore.open_snapshot

    def late(self, name, options):
        self.add_table(name, ("id",), PARTITIONS, SCHEMA.json())
        return opened(self, name, options)

    made = reader(store)
    monkeypatch.setattr(FileStore, "open_snapshot", late)
    with pytest.raises(UnknownTableError, match=r"^\[RAFTSTORE_TABLE_NOT_FOUND\].*created again"):
        made.partitions()


def test_reader_takes_no_filters_unless_it_is_asked_to(store):
    """Spark refuses one that does while its setting is off, which is its default."""
    base = datasource.DataSourceReader.pushFilters
    assert type(reader(store)).pushFilters is base
    assert type(reader(store, filterPushdown="false")).pushFilters is base
    assert type(reader(store, filterPushdown="true")).pushFilters is not base


KEY = StructType([StructField("id", LongType(), nullable=False)])


def put(store, table, rows):
    """Rows of a table that declares its key alone."""
    schema = TableSchema(("id",), KEY.json())
    with store.writer(table, 1) as writer:
        for row in rows:
            key, value = schema.row_to_key_value(row)
            writer.add(partition_of(key, PARTITIONS), encode_rows([(key, seal(key, value))]), 1)


@pytest.mark.parametrize("more", [{}, {"readChangeFeed": "true"}])
def test_table_of_keys_is_read_as_what_it_is(store, more):
    """Nothing but keys was ever declared or written, so there is nothing to name."""
    store.add_table("keys", ("id",), PARTITIONS, KEY.json())
    source = FileDataSource({"bootstrap.servers": str(store.directory), "table": "keys", **more})
    assert source.schema().fieldNames()[:1] == ["id"]
    put(store, "keys", [{"id": number} for number in range(5)])
    schema = source.schema()
    assert schema["id"].dataType == LongType()
    if more:
        assert schema.fieldNames()[1] == "_change_type"
        return
    assert schema.fieldNames() == ["id"]
    made = source.reader(schema)
    assert sorted(row["id"] for row in rows(made, made.partitions())) == list(range(5))


@pytest.mark.parametrize("declared", ["", KEY.json()])
def test_table_of_any_columns_is_read_with_those_that_are_named(store, declared):
    """A row that has more than its key is never read as if it had not."""
    store.add_table("free", ("id",), PARTITIONS, declared)
    put(store, "free", [{"id": 1, "text": "a"}])
    source = FileDataSource({"bootstrap.servers": str(store.directory), "table": "free"})
    with pytest.raises(SchemaError, match=r"\[RAFTSTORE_SCHEMA_MISSING\]"):
        source.schema()
    made = source.reader(SCHEMA)
    assert rows(made, made.partitions()) == [{"id": 1, "text": "a"}]


class Snapshots:
    """A client whose nodes keep a state for so long."""

    def __init__(self, life_ms):
        self.life_ms = life_ms
        self.closed = 0

    def table(self, name):
        return self

    def snapshot(self, **options):
        return SimpleNamespace(token=SimpleNamespace(life_ms=self.life_ms), close=self.close)

    def close(self):
        self.closed += 1


def opened(life_ms, **more):
    """Open a snapshot on nodes with such a limit; (the token, how many were closed)."""
    given = {"bootstrap.servers": "n1:1", "table": "t", **more}
    client = Snapshots(life_ms)
    try:
        ClientStore(client).open_snapshot("t", parse_source_options(given))
    finally:
        closed = client.closed
    return closed


def test_pin_life_beyond_what_the_nodes_keep_is_refused_when_the_job_is_planned():
    """Given a pinLife above the nodes' own, planning is refused, not a task minutes later. The
    default is never refused, and old nodes do not report theirs.
    """
    client = Snapshots(300_000)
    options = {"bootstrap.servers": "n1:1", "table": "t", "pinLife": "301s"}
    with pytest.raises(ConfigError) as refused:
        ClientStore(client).open_snapshot("t", parse_source_options(options))
    for part in ("[RAFTSTORE_OPTION_INVALID]", "'301s'", "at most 300s", "read.scan_pin_life_ms"):
        assert part in str(refused.value)
    assert client.closed == 1
    assert opened(300_000, pinLife="5m") == 0
    assert opened(60_000) == 0
    assert opened(0, pinLife="1h") == 0
