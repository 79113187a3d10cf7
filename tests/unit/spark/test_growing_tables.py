"""Columns that a DataFrame has and its table lacks, or the other way round."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from raftstore.errors import ConfigError, SchemaError, TableExistsError
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.spark.codec.decode import RowDecoder
from raftstore.spark.write.writer import TaskPlace
from tests.spark.file_store import FileDataSource, FileStore

OLD = StructType([StructField("id", LongType()), StructField("text", StringType())])
TWO = StructType([*OLD.fields, StructField("n", LongType(), nullable=False)])


@pytest.fixture
def store(tmp_path) -> FileStore:
    """A store that has the table t with one row."""
    files = FileStore(tmp_path / "store")
    files.add_table("t", ("id",), 4, OLD.json())
    write(planned(files, OLD), id=[1], text=["old"])
    return files


def planned(store, schema, **options):
    """The writer of a job, as the driver makes it."""
    given = {"bootstrap.servers": str(store.directory), "table": "t", **options}
    return FileDataSource(given).writer(schema, overwrite=False)._task


def write(task, **columns):
    """Write one batch as the only task of a job."""
    message = pickle.loads(pickle.dumps(task)).write(
        iter([pa.record_batch(columns)]), lambda: 0.0, TaskPlace()
    )
    task.commit([message])


def columns_of(store):
    info = store.table_info("t")
    return TableSchema(info.key_columns, info.schema_json).columns


def test_column_that_the_table_lacks_is_appended_before_any_task(store):
    """Old rows are null in it; writers and readers of the old schema go on."""
    with pytest.raises(
        SchemaError, match=r"does not have .*: drop it before writing, or write with"
    ):
        planned(store, TWO)
    assert columns_of(store) == ("id", "text")
    earlier = planned(store, OLD)
    task = planned(store, TWO, mergeschema="true")
    assert columns_of(store) == ("id", "text", "n")
    assert task.table.schema_json == store.table_info("t").schema_json
    write(task, id=[2], text=["new"], n=[7])
    write(earlier, id=[3], text=["of before"])
    assert store.rows("t") == [
        {"id": 1, "text": "old", "n": None},
        {"id": 2, "text": "new", "n": 7},
        {"id": 3, "text": "of before", "n": None},
    ]


def test_column_that_the_data_frame_lacks_is_null_only_by_the_users_word(store):
    """With mergeSchema it is written as null, with ignoreNullValues it stays as it is stored."""
    write(planned(store, TWO, mergeschema="true"), id=[1, 2], text=["a", "b"], n=[1, 2])
    with pytest.raises(SchemaError, match="lacks the column 'n' of table 't'"):
        planned(store, OLD)
    write(planned(store, OLD, mergeschema="true"), id=[1], text=["c"])
    write(planned(store, OLD, ignorenullvalues="true"), id=[2], text=["d"])
    assert [row["n"] for row in store.rows("t")] == [None, 2]
    assert [row["text"] for row in store.rows("t")] == ["c", "d"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("text", LongType()), "'text' is long, but in table 't' it is string: cast"),
        (StructField("Text", StringType()), "'Text' differs from 'text' only in case"),
        (StructField("n", NullType()), "'n', which .* is void: cast it to the type it is to have"),
    ],
)
def test_column_that_cannot_be_merged_is_refused_before_any_task(store, field, said):
    """Another type, another spelling, no type; the table stays as it is."""
    others = [each for each in OLD.fields if each.name != field.name]
    with pytest.raises(SchemaError, match=rf"\[RAFTSTORE_SCHEMA_MISMATCH\].*{said}"):
        planned(store, StructType([*others, field]), mergeschema="true")
    assert columns_of(store) == ("id", "text")


def test_key_column_is_never_missing_or_of_another_type(store):
    """mergeSchema is about the other columns."""
    with pytest.raises(SchemaError, match="lacks the key column 'id'"):
        planned(store, StructType([OLD["text"]]), mergeschema="true")
    other = StructType([StructField("id", DoubleType()), OLD["text"]])
    with pytest.raises(SchemaError, match="column 'id' is double, but in table 't' it is long"):
        planned(store, other, mergeschema="true")
    with pytest.raises(ConfigError, match="mergeSchema has no meaning for operation=delete"):
        planned(store, OLD, mergeschema="true", operation="delete")


def test_table_that_takes_any_columns_is_left_as_it_is(store):
    """There is nothing to merge."""
    for schema in ("", StructType([OLD["id"]]).json()):
        store.add_table("t", ("id",), 4, schema)
        write(planned(store, TWO, mergeschema="true"), id=[1], text=["a"], n=[5])
        assert store.table_info("t").schema_json == schema
        assert store.rows("t")[0]["n"] == 5


def test_table_that_another_job_has_just_created_is_one_like_any_other(store, monkeypatch):
    """Two jobs that start at once on a missing table: the second takes, or merges into, what is
    there, and is refused in the words of a table that was there before."""

    def lose(self, options, schema_json):
        self.add_table(options.table, options.key, options.partitions, OLD.json())
        raise TableExistsError("table 'new' exists already with another definition")

    monkeypatch.setattr(FileStore, "create_table", lose)
    with pytest.raises(SchemaError, match="the DataFrame has the column 'n', which table 'new'"):
        planned(store, TWO, table="new", key="id")
    (store.directory / "catalog" / "new").unlink()
    task = planned(store, TWO, table="new", key="id", mergeschema="true")
    write(task, id=[1], text=["a"], n=[3])
    assert store.rows("new") == [{"id": 1, "text": "a", "n": 3}]


def test_reader_shows_nulls_for_rows_of_before(store):
    """It ignores columns that were appended after its schema was read."""
    write(planned(store, TWO, mergeschema="true"), id=[2], text=["new"], n=[7])
    items = [(key, seal(key, value), 1) for key, value in store._state("t")]
    appended = StructType([*OLD.fields, StructField("n", LongType())])
    for schema in (appended, OLD):
        decoder = RowDecoder(TableSchema(("id",), schema.json()), schema.json())
        expected = [{name: row[name] for name in schema.names} for row in store.rows("t")]
        assert decoder.decode(items).to_pylist() == expected
    assert [row["n"] for row in store.rows("t")] == [None, 7]
