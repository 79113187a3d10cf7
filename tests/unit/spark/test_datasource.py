"""The format's objects without a JVM, and how Spark finds them."""

import json
import logging
import subprocess
import sys
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import pyspark_raftstore
import raftstore
from raftstore.errors import ConfigError, QuorumTimeoutError, StoreTooOldError, UnavailableError
from raftstore.spark.datasource import RaftStoreDataSource
from raftstore.spark.options import SinkOptions
from raftstore.spark.store import ClientStore
from raftstore.spark.write import row_writer
from raftstore.spark.write.row_writer import WrittenMessage
from raftstore.spark.write.tasks import Written

SCHEMA = StructType([StructField("id", LongType()), StructField("text", StringType())])
OPTIONS = {"bootstrap.servers": "127.0.0.1:1", "table": "t", "key": "id", "isolation": "row"}


class RecordingStore:
    """Opens itself, remembers records, and fails when asked to."""

    def __init__(self):
        self.tables = {}
        self.records = []
        self.marks = []
        self.failure = None

    def __call__(self, options):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return None

    def table_info(self, name):
        return self.tables[name]

    def writer(self, _name, _max_in_flight):
        return self

    def add(self, partition, payload, rows):
        self.records.append((partition, payload, rows))

    def mark_batch(self, name, writer, batch_id, partitions):
        if self.failure is not None:
            raise self.failure
        self.marks.append((name, writer, batch_id, partitions))

    def flush(self):
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def store():
    """A store that has the table t."""
    recording = RecordingStore()
    recording.tables["t"] = raftstore.TableInfo(
        name="t",
        uuid=bytes(16),
        key_columns=("id",),
        partitions=2,
        replicas=3,
        durability="fsync",
        max_lag=None,
        schema_json=SCHEMA.json(),
        channels=(),
    )
    return recording


@pytest.fixture
def source(store):
    """The format with that store behind it."""

    class RecordingSource(RaftStoreDataSource):
        connect = store

    return RecordingSource(OPTIONS)


def batches():
    return iter([pa.record_batch({"id": [1, 2, 3], "text": ["a", "b", None]})])


def test_writers_send_rows_and_report_them_when_a_task_runs(source, store):
    """Both writers give Spark a message with the counts of the task."""
    for writer in (source.writer(SCHEMA, False), source.streamWriter(SCHEMA, False)):
        message = writer.write(batches())

        assert message.written.rows == 3
    assert sum(rows for _, _, rows in store.records) == 6


def test_write_raises_bracketed_text_when_the_outcome_is_unknown(source, store):
    """The exception keeps its class; its text names class, table and outcome."""
    store.failure = QuorumTimeoutError("no quorum within 2000 ms")

    with pytest.raises(QuorumTimeoutError, match=r"^\[RAFTSTORE_QUORUM_TIMEOUT\] no quorum"):
        source.writer(SCHEMA, False).write(batches())


def test_overwrite_is_refused_when_the_mode_or_output_mode_asks_for_it(source):
    """Replacing a table row by row would show a mixture, so it is not done."""
    for make in (source.writer, source.streamWriter):
        with pytest.raises(ConfigError, match=r"\[RAFTSTORE_OVERWRITE_UNSUPPORTED\] table 't'"):
            make(SCHEMA, True)


def test_commit_logs_one_line_when_a_batch_is_done(source, caplog):
    """The line sums up the tasks; lost messages of failed tasks do not matter."""
    messages = [
        WrittenMessage(Written(3, 2, 100, 0.5), "7"),
        WrittenMessage(Written(4, 1, 50, 0.25), "7"),
        None,
    ]
    with caplog.at_level(logging.INFO, "raftstore.spark"):
        source.writer(SCHEMA, False).commit(messages)
        source.streamWriter(SCHEMA, False).commit(messages[:1], 8)
        source.writer(SCHEMA, False).commit([])

    assert [record.getMessage() for record in caplog.records] == [
        "table=t batch=7 rows=7 records=3 bytes=150 tasks=2 slowest_task_s=0.500",
        "table=t batch=8 rows=3 records=2 bytes=100 tasks=1 slowest_task_s=0.500",
        "table=t batch=- rows=0 records=0 bytes=0 tasks=0 slowest_task_s=0.000",
    ]


MARKED = [
    WrittenMessage(Written(3, partitions=frozenset({0})), "7", "query"),
    WrittenMessage(Written(), "7", "query"),
    WrittenMessage(Written(1, partitions=frozenset({0, 1})), "7", "query"),
]


def test_blog_32_micro_batch_is_marked_in_the_partitions_it_touched(source, store):
    """Once, from the messages of all its tasks, in a stream and in foreachBatch."""
    source.streamWriter(SCHEMA, False).commit(MARKED, 8)
    source.writer(SCHEMA, False).commit(MARKED)

    touched = frozenset({0, 1})
    named = [(table, writer.partition("#")[0], *rest) for table, writer, *rest in store.marks]
    assert named == [("t", "query", 8, touched), ("t", "query", 7, touched)]


def test_each_write_of_foreach_batch_is_marked_as_another_writers(source, store):
    """S7.3: the second write of a batch is no replay of the first, and must count."""
    for _ in range(2):
        source.streamWriter(SCHEMA, False).commit(MARKED, 7)
        source.writer(SCHEMA, False).commit(MARKED)

    sink, first, again, second = [writer for _, writer, *_ in store.marks]
    assert sink == again == "query"
    assert first != second
    assert first.startswith("query#")


def test_nothing_is_marked_when_it_is_a_batch_job_or_wrote_nothing(source, store):
    """Only micro-batches are counted."""
    message = source.writer(SCHEMA, False).write(batches())
    assert message.written.partitions
    source.writer(SCHEMA, False).commit([message])
    source.streamWriter(SCHEMA, False).commit(MARKED[1:2], 8)
    source.streamWriter(SCHEMA, False).commit([], 9)

    assert store.marks == []


def test_batch_fails_when_its_end_cannot_be_marked(source, store):
    """Spark repeats it: unmarked, it would look as if readers were not behind."""
    store.failure = QuorumTimeoutError("no quorum")
    with pytest.raises(QuorumTimeoutError, match=r"\[RAFTSTORE_QUORUM_TIMEOUT\]"):
        source.streamWriter(SCHEMA, False).commit(MARKED, 8)


def test_batch_goes_on_without_its_mark_while_a_node_could_not_read_it(source, store, caplog):
    """Marks are only counted: an upgrade that is under way fails no query, and is reported once."""
    store.failure = StoreTooOldError("n2 is at level 0; upgrade these nodes")
    row_writer._warned_unmarked.clear()
    for batch in (7, 8):
        source.streamWriter(SCHEMA, False).commit(MARKED, batch)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith("table=t batch=7 is written but not marked")
    assert "n2 is at level 0; upgrade these nodes" in line


def test_abort_says_what_stays_when_a_batch_is_given_up(source, caplog):
    """Rows of the tasks that finished stay until the replay writes them again."""
    messages = [WrittenMessage(Written(3, 2, 100, 0.5), "7"), None]

    source.writer(SCHEMA, False).abort(messages)
    source.streamWriter(SCHEMA, False).abort(messages, 9)

    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("table=t batch=- was given up: 1 of 2 tasks had written 3 rows")
    assert said[1].startswith("table=t batch=9 was given up")


def test_write_is_refused_with_every_address_when_no_node_answers():
    """The real client's words reach the user behind the bracketed class."""
    source = RaftStoreDataSource(OPTIONS | {"requesttimeoutms": "200"})

    with pytest.raises(UnavailableError, match=r"\[RAFTSTORE_UNAVAILABLE\].*127\.0\.0\.1:1"):
        source.writer(SCHEMA, False)


class Client:
    """Remembers what the sink asks of the client."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return call


def test_client_is_asked_with_the_options_when_the_sink_uses_it():
    """Table definition and window come from the options."""
    client = Client()
    store = ClientStore(client)
    options = SinkOptions("a:1", "t", key=("x", "y"), partitions=5, replicas=1)

    store.create_table(options, SCHEMA.json())
    store.table_info("t")
    store.definition("t")
    store.writer("t", 3)
    store.mark_batch("t", "query", 7, frozenset({1}))

    definition = {
        "key": ("x", "y"),
        "partitions": 5,
        "replicas": 1,
        "durability": "fsync",
        "schema": SCHEMA.json(),
        "if_not_exists": True,
        "retention_bytes": None,
        "retention_records": None,
        "retention_age": None,
        "ttl": None,
    }
    assert client.calls == [
        ("create_table", ("t",), definition),
        ("table_info", ("t",), {}),
        ("table", ("t",), {}),
        ("definition", (), {}),
        ("table", ("t",), {}),
        ("bulk_writer", (), {"max_in_flight": 3, "ttl": None}),
        ("table", ("t",), {}),
        ("mark_batch", ("query", 7), {"partitions": frozenset({1})}),
    ]


def test_lifetime_of_rows_goes_to_whatever_writes_them():
    """To the table that is created, to records, and to staged chunks."""
    client = Client()
    store = ClientStore(client, 90_000)
    options = SinkOptions("a:1", "t", key=("x",), ttl="90s")
    store.create_table(options, SCHEMA.json())
    store.writer("t", 3)
    store.stager("t", "ticket", 1, 2, 3)
    told = {name: kwargs["ttl"] for name, _, kwargs in client.calls if "ttl" in kwargs}
    assert told == {"create_table": 90.0, "bulk_writer": 90.0, "stager": 90.0}
    assert options.ttl_ms == 90_000


def test_format_is_offered_to_spark_when_the_package_is_looked_at():
    """Spark takes DefaultSource of every package named pyspark_…; other names are errors."""
    assert pyspark_raftstore.DefaultSource is RaftStoreDataSource
    assert raftstore.spark.RaftStoreDataSource is RaftStoreDataSource
    assert RaftStoreDataSource.name() == "raftstore"
    for module in (pyspark_raftstore, raftstore.spark):
        with pytest.raises(AttributeError, match="has no attribute 'Other'"):
            _ = module.Other


def test_package_is_harmless_when_pyspark_is_too_old(monkeypatch):
    """A failing import would break every Python source of the session: it warns instead."""
    monkeypatch.setitem(sys.modules, "raftstore.spark.datasource", None)

    with pytest.warns(RuntimeWarning, match=r"pip install \"raftstore\[spark\]\""):
        assert not hasattr(pyspark_raftstore, "DefaultSource")


class Failing(ModuleType):
    """A module whose names cannot be looked up, as one of compiled code that fits no other."""

    def __getattr__(self, name):
        raise ValueError("numpy.dtype size changed, may indicate binary incompatibility")


def test_package_is_harmless_whatever_an_import_raises(monkeypatch):
    """Spark passes over an AttributeError alone: another one would end every Python source."""
    broken = Failing("raftstore.spark.datasource")
    monkeypatch.setitem(sys.modules, "raftstore.spark.datasource", broken)

    with pytest.warns(RuntimeWarning, match="numpy.dtype size changed"):
        assert not hasattr(pyspark_raftstore, "DefaultSource")


@pytest.mark.slow
def test_library_imports_no_spark_when_it_is_imported():
    """import raftstore works without Spark, and importing the finder costs nothing."""
    code = (
        "import sys, json, raftstore, pyspark_raftstore; "
        "print(json.dumps([m for m in ('pyspark', 'pyarrow', 'raftstore.spark') "
        "if m in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert json.loads(answer.stdout) == []
