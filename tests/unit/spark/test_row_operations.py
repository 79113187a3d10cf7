"""Rows that say themselves what is done with them, in one batch and in their order."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from raftstore.errors import ConfigError, SchemaError
from raftstore.protocol.payload import decode_rows
from raftstore.protocol.staged import INSERT, UPSERT
from raftstore.record_machine import Row
from raftstore.rows.sealing import SEAL_BYTES
from raftstore.spark.codec.encoding import Chunker, InsertRow
from raftstore.spark.identity import BATCH_PROPERTY, QUERY_PROPERTY
from raftstore.spark.options import CHANGE_COLUMN
from raftstore.spark.write.row_operations import stored_schema
from raftstore.spark.write.writer import TaskPlace
from raftstore.state_machines.batches.staging import rows_of
from tests.spark.file_store import FileDataSource, FileStore

STORED = StructType([StructField("id", LongType()), StructField("text", StringType())])
GIVEN = StructType(
    [STORED["id"], StructField(CHANGE_COLUMN, StringType()), StructField("text", StringType())]
)


@pytest.fixture
def store(tmp_path) -> FileStore:
    """A store that has the table t."""
    files = FileStore(tmp_path / "store")
    files.add_table("t", ("id",), 4, STORED.json())
    return files


def planned(store, schema=GIVEN, **options):
    """The writer of a job, as the driver makes it."""
    given = {"bootstrap.servers": str(store.directory), "table": "t", "operation": "column"}
    return FileDataSource(given | options).writer(schema, overwrite=False)._task


def changes(*rows):
    """Arrow's batch of (operation, id, text)."""
    operations, keys, texts = zip(*rows, strict=True)
    columns = {"id": pa.array(keys, pa.int64()), CHANGE_COLUMN: pa.array(operations, pa.string())}
    return pa.record_batch(columns | {"text": pa.array(texts, pa.string())})


def write(store, *batches, **options):
    """Write the batches as one task of one job."""
    task = pickle.loads(pickle.dumps(planned(store, **options)))
    task.commit([task.write(iter(batches), lambda: 0.0, TaskPlace())])


def table(store):
    return {row["id"]: row["text"] for row in store.rows("t")}


@pytest.mark.parametrize("isolation", ["batch", "row"])
def test_rows_are_upserted_and_deleted_in_the_order_of_the_batch(store, isolation):
    """The last row of a key wins, whatever it does; other columns of a delete do not matter."""
    write(store, changes(("upsert", 1, "a"), ("upsert", 2, "b"), ("upsert", 3, "c")))
    mixed = changes(
        ("delete", 1, None),
        ("upsert", 4, "d"),
        ("upsert", 1, "again"),
        ("upsert", 2, "late"),
        ("delete", 2, "x" * 5_000_000),
        ("expire", 9, None),
    )
    write(store, mixed, isolation=isolation)
    assert table(store) == {1: "again", 3: "c", 4: "d"}
    assert "_change_type" not in store.rows("t")[0]


def test_inserts_leave_what_was_there_before_the_batch(store):
    """A row that an earlier row of the batch deleted is not there any more."""
    write(store, changes(("insert", 1, "a"), ("insert", 2, "b")))
    write(
        store,
        changes(
            ("insert", 1, "no"),
            ("delete", 2, None),
            ("insert", 2, "anew"),
            ("insert", 3, "gone"),
            ("delete", 3, None),
            ("insert", 4, "first"),
            ("upsert", 4, "second"),
        ),
    )
    assert table(store) == {1: "a", 2: "anew", 4: "second"}


def test_rows_are_merged_when_nulls_are_ignored(store):
    """ignoreNullValues goes with upserts and deletes; what to insert cannot be known then."""
    write(store, changes(("upsert", 1, "kept"), ("upsert", 2, "b")))
    partial = changes(("upsert", 1, None), ("delete", 2, None), ("upsert", 3, "new"))
    write(store, partial, ignorenullvalues="true")
    assert table(store) == {1: "kept", 3: "new"}
    with pytest.raises(SchemaError, match=r"is 'insert' in row 0 of a batch: give upsert or del"):
        write(store, changes(("insert", 5, "e")), ignorenullvalues="true")
    assert table(store) == {1: "kept", 3: "new"}


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([("upsert", 1, "a"), ("uspert", 2, "b")], {}, "is 'uspert' in row 1 of a batch: give ups"),
        ([(None, 1, "a")], {}, "is null in row 0 of a batch: give upsert, insert or delete"),
        ([("insert", 1, "a")], {"isolation": "row"}, "is 'insert' in row 0 of a batch: give upse"),
    ],
)
def test_row_is_refused_when_it_does_not_say_what_to_do(store, rows, options, said):
    """The sentence names the row and what it may say; nothing of the batch is visible."""
    with pytest.raises(
        SchemaError, match=rf"\[RAFTSTORE_OPERATION_INVALID\] {CHANGE_COLUMN} {said}"
    ):
        write(store, changes(*rows), **options)
    assert table(store) == {}


def test_null_key_is_named_by_its_row_among_all_operations(store):
    """Not by its place among the deletes or the others."""
    batch = changes(
        ("upsert", 1, "a"), ("delete", 2, None), ("upsert", 3, "b"), ("delete", None, "")
    )
    with pytest.raises(SchemaError, match=r"\[RAFTSTORE_KEY_NULL\] the key column 'id' .* row 3 "):
        write(store, batch)
    batch = changes(("delete", 1, "a"), ("upsert", None, "x"))
    with pytest.raises(SchemaError, match=r"\[RAFTSTORE_KEY_NULL\] the key column 'id' .* row 1 "):
        write(store, batch)


def test_column_is_checked_before_any_task(store):
    """Missing, no text, in the key, or one that the table has itself."""
    with pytest.raises(SchemaError, match=r"needs the column '_change_type', .*: add it, with ups"):
        planned(store, schema=STORED)
    number = StructType([*STORED.fields, StructField(CHANGE_COLUMN, IntegerType())])
    with pytest.raises(SchemaError, match="'_change_type' is integer: cast it to string before"):
        planned(store, schema=number)
    with pytest.raises(SchemaError, match="with operation=column it is not stored: leave it out"):
        planned(store, table="new", key=f"id,{CHANGE_COLUMN}")
    store.add_table("own", ("id",), 4, GIVEN.json())
    with pytest.raises(SchemaError, match=r"has a column '_change_type' of its own.*name one oper"):
        planned(store, table="own")
    with pytest.raises(SchemaError, match="drop it before writing, or write with operation=column"):
        planned(store, operation="upsert")
    source = FileDataSource({"bootstrap.servers": "x", "table": "t", "operation": "column"})
    with pytest.raises(ConfigError, match="RAFTSTORE_OVERWRITE_UNSUPPORTED"):
        source.writer(GIVEN, overwrite=True)


def test_table_that_is_created_does_not_have_the_column(store):
    """It says what is done with a row, which is no part of it."""
    task = planned(store, table="new", key="id")
    assert "new" in [path.name for path in (store.directory / "catalog").iterdir()]
    assert store.table_info("new").schema_json == STORED.json()
    assert stored_schema(task.options, GIVEN.json()) == STORED.json()


def test_stream_writes_operations_under_its_number(store):
    """The streaming writer is the same."""
    options = {"bootstrap.servers": str(store.directory), "table": "t", "operation": "column"}
    make = FileDataSource(options).streamWriter
    place = TaskPlace(0, 0, {BATCH_PROPERTY: "0", QUERY_PROPERTY: "q"}.get)
    task = make(GIVEN, overwrite=False)._task
    message = task.write(
        iter([changes(("upsert", 1, "a"), ("delete", 2, None))]), lambda: 0.0, place
    )
    make(GIVEN, overwrite=False)._task.commit([message], 0)
    assert table(store) == {1: "a"}


operation = st.sampled_from(("upsert", "insert", "delete"))
steps = st.lists(st.tuples(operation, st.integers(0, 5)), max_size=40)


def folded(start, operations):
    """The rows' effect on a table one after the other: the rule in the words of the documents."""
    rows, own = dict(start), set()
    for number, (what, key) in enumerate(operations):
        if what == "insert" and key in rows and key not in own:
            continue
        own.add(key)
        if what == "delete":
            rows.pop(key, None)
        else:
            rows[key] = b"%d" % number
    return rows


@given(st.sets(st.integers(0, 5)), steps, st.integers(1, 9), st.integers(60, 200))
def test_order_of_operations_holds_however_chunks_are_cut(start, operations, rows_max, bytes_max):
    """Chunks, applied in their order by the rules of a replica, leave what the rows say in theirs;
    a batch that is applied a second time from its middle ends the same."""
    chunker = Chunker(2, rows_max=rows_max, bytes_max=bytes_max, mode=UPSERT)
    rows = []
    for number, (what, key) in enumerate(operations):
        sealed = None if what == "delete" else bytes(SEAL_BYTES) + b"%d" % number
        name = b"k%d" % key
        rows.append(InsertRow(name, sealed) if what == "insert" else (name, sealed))
    chunks = [*chunker.add(rows[: len(rows) // 2]), *chunker.add(rows[len(rows) // 2 :])]
    chunks += chunker.rest()

    present = {b"k%d" % key: Row(b"k%d" % key, b"old", 1) for key in start}
    for _ in range(2):
        for chunk in chunks:
            for key, sealed in rows_of(chunk.mode, decode_rows(chunk.payload), present.get, 2):
                present.pop(key, None)
                if sealed is not None:
                    present[key] = Row(key, sealed[SEAL_BYTES:], 2)

    expected = folded(dict.fromkeys(start, b"old"), operations)
    assert {int(key[1:]): row.value for key, row in present.items()} == expected
    assert all(chunk.mode in (INSERT, UPSERT) for chunk in chunks)
