"""Bad input, as users give it: one line with a bracketed class and a remedy at its end, before any
task runs where that can be, and nothing of it in the table afterwards."""

import json
import re
import socket
import time

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from raftstore.errors import (
    OperationInDoubtError,
    PayloadTooLargeError,
    RaftstoreError,
    SchemaError,
    StoreTooOldError,
    UnavailableError,
    UnknownTableError,
    WriterFencedError,
)
from raftstore.spark.datasource import RaftStoreDataSource
from raftstore.spark.identity import BATCH_PROPERTY, QUERY_PROPERTY
from raftstore.spark.write.writer import TaskPlace
from tests.spark.file_store import FileDataSource, FileStore

SCHEMA = StructType([StructField("id", LongType()), StructField("text", StringType())])
ROW = {"id": 1, "text": "there before"}


@pytest.fixture
def store(tmp_path) -> FileStore:
    """A store that has the table t, with one row."""
    files = FileStore(tmp_path / "store")
    files.add_table("t", ("id",), 2, SCHEMA.json())
    task = job(files)
    task.commit([write(task, [1], ["there before"])])
    return files


@pytest.fixture(params=["job", "stream"])
def plan(request, store):
    """How a job, or a stream, is planned on the driver."""
    makes = {"job": job, "stream": stream}

    def planned(schema=SCHEMA, **options):
        return makes[request.param](store, schema, **options)

    return planned


def source(store, **options):
    given = {"bootstrap.servers": str(store.directory), "table": "t", **options}
    return FileDataSource(given)


def job(store, schema=SCHEMA, **options):
    return source(store, **options).writer(schema, overwrite=False)._task


def stream(store, schema=SCHEMA, **options):
    return source(store, **options).streamWriter(schema, overwrite=False)._task


def place(batch_id, task=0):
    """Where a task of a stream runs."""
    return TaskPlace(task, task, {BATCH_PROPERTY: str(batch_id), QUERY_PROPERTY: "q"}.get)


def write(task, ids, texts, where=None):
    """One task with one batch of Arrow."""
    batch = pa.record_batch({"id": pa.array(ids, pa.int64()), "text": texts})
    return task.write(iter([batch]), time.monotonic, where or TaskPlace())


def told(kind, name, remedy, call):
    """See that the call is refused in the form that is promised."""
    with pytest.raises(kind) as failure:
        call()
    text = str(failure.value)
    assert text.startswith(f"[RAFTSTORE_{name}] "), text
    assert "\n" not in text
    assert re.search(remedy + "$", text), text
    assert isinstance(failure.value, RaftstoreError)


def unchanged(store):
    """Nothing of what was refused is visible, and no table was made for it."""
    assert store.rows("t") == [ROW]
    assert [path.name for path in (store.directory / "catalog").iterdir()] == ["t"]


def test_missing_key_column_is_refused_on_the_driver(plan, store):
    """Of a table that is there, of one that is to be made, and with no key named at all."""
    other = StructType([StructField("Id", LongType()), SCHEMA["text"]])
    told(SchemaError, "SCHEMA_MISMATCH", "rename 'Id' before writing", lambda: plan(other))
    told(
        SchemaError, "KEY_MISSING", r'\.option\("key", "column1,column2"\)', lambda: plan(table="x")
    )
    told(
        SchemaError,
        "SCHEMA_MISMATCH",
        "name one of its columns.*",
        lambda: plan(table="x", key="order"),
    )
    told(SchemaError, "KEY_MISMATCH", "leave the option key out", lambda: plan(key="text"))
    unchanged(store)


def test_null_key_is_refused_by_its_row_and_column(store):
    """Only a task can see it; what other tasks staged is not visible either."""
    task = stream(store)
    good = write(task, [5, 6], ["a", "b"], place(0))
    told(
        SchemaError,
        "KEY_NULL",
        r"'id' is null in row 2 of a batch: .*; filter such rows out before writing",
        lambda: write(task, [7, 8, None], ["c", "d", "e"], place(0, task=1)),
    )
    stream(store).abort([good, None], 0)
    unchanged(store)


def test_other_type_of_the_key_is_refused_on_the_driver(plan, store):
    """Keys of two types would be two rows."""
    other = StructType([StructField("id", StringType()), SCHEMA["text"]])
    remedy = "cast it before writing"
    told(SchemaError, "SCHEMA_MISMATCH", remedy, lambda: plan(other))
    told(SchemaError, "SCHEMA_MISMATCH", remedy, lambda: plan(other, mergeschema="true"))
    told(SchemaError, "SCHEMA_MISMATCH", remedy, lambda: plan(other, isolation="row"))
    unchanged(store)


def test_missing_table_is_refused_on_the_driver_when_it_must_not_be_made(plan, store):
    """It is not made."""
    options = {"table": "x", "key": "id", "createtable": "false"}
    told(
        UnknownTableError, "TABLE_NOT_FOUND", "or set createTable to true", lambda: plan(**options)
    )
    unchanged(store)


def test_servers_that_cannot_be_reached_are_told_within_the_request_timeout():
    """One that refuses, and one that takes connections and says nothing."""
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        closed.bind(("127.0.0.1", 0))
        servers = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (silent, closed))
        given = {"bootstrap.servers": servers, "table": "t", "requesttimeoutms": "300"}
        began = time.monotonic()
        told(
            UnavailableError,
            "UNAVAILABLE",
            "check bootstrap.servers, and that the nodes run",
            lambda: RaftStoreDataSource(given).writer(SCHEMA, overwrite=False),
        )
    assert time.monotonic() - began < 30  # and not for ever: the machine may be slow


def test_store_that_is_one_version_older_is_refused_on_the_driver(plan, store):
    """The nodes are named; row by row they take what they know."""
    (store.directory / "too_old").write_text("n2 is at level 0; upgrade these nodes, or write from")
    told(StoreTooOldError, "STORE_TOO_OLD", r"upgrade these nodes.*", plan)
    told(
        StoreTooOldError,
        "STORE_TOO_OLD",
        r"upgrade these nodes.*",
        lambda: plan(table="x", key="id"),
    )
    unchanged(store)
    assert plan(isolation="row")


def test_value_over_the_limit_is_refused_by_the_key_of_its_row(store):
    """Before anything of it is sent; the rest of the batch is not visible either."""
    task = stream(store)
    told(
        PayloadTooLargeError,
        "VALUE_TOO_LARGE",
        "the row with the key id=22: .*; split it or store a reference",
        lambda: write(task, [2, 22], ["small", "x" * 5_000_000], place(0)),
    )
    stream(store).abort([None], 0)
    unchanged(store)


def test_two_writers_with_one_identity_are_told_apart(store):
    """One of the two commits, the other one is asked to stop; nobody's rows are mixed."""
    first, second = stream(store), stream(store)
    old = write(first, [2], ["first"], place(0))
    new = write(second, [3], ["second"], place(0, task=1))
    remedy = "stop the other driver, then start this one again"
    told(WriterFencedError, "WRITER_FENCED", remedy, lambda: stream(store).commit([old], 0))
    mixed = r"'q', too, .*; stop the other driver, or give more stagingTtl \(nothing .*\)"
    told(
        OperationInDoubtError, "ATTEMPTS_MIXED", mixed, lambda: stream(store).commit([old, new], 0)
    )
    unchanged(store)
    stream(store).commit([new], 0)
    assert [row["text"] for row in store.rows("t")] == ["there before", "second"]


def test_what_nodes_say_in_several_lines_is_one_line(store):
    """Spark shows a stack below it: the first line has to say all."""
    (store.directory / "too_old").write_text(json.dumps({"why": "x"}, indent=1))
    told(
        StoreTooOldError,
        "STORE_TOO_OLD",
        r"nothing of this attempt is visible\)",
        lambda: job(store),
    )
