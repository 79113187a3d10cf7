"""Look-ups without a JVM: what is asked of the store, what comes back, what is refused and how."""

import datetime as dt
import json
import pickle
from contextlib import contextmanager

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from raftstore.errors import (
    ConfigError,
    NoReplicaAvailableError,
    SchemaError,
    UnknownTableError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.spark import lookup
from raftstore.spark.read import enrichment
from raftstore.spark.read.enrichment import plan_lookup

LONG = pa.int64()
TYPES = {
    "id": "long",
    "name": "string",
    "score": "integer",
    "since": "timestamp",
    "tags": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
}
ROWS = {
    (7,): {
        "id": 7,
        "name": "Ada",
        "score": 2**31 - 1,
        "since": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC),
        "tags": {"a": 1},
    },
    (8,): {"id": 8, "name": None, "score": None, "since": None, "tags": None},
}


def schema_json(types):
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in types.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def table(types=None, key=("id",), uuid=b"u" * 16):
    text = schema_json(TYPES if types is None else types) if types != {} else ""
    return TableInfo("people", uuid, key, 4, 3, "fsync", None, text, ())


class Rows:
    """A store of one table that remembers how it was asked."""

    def __init__(self, rows=None, info=None):
        self.rows = ROWS if rows is None else rows
        self.info = info or table()
        self.now = self.info
        self.asked = []
        self.failure = None

    @contextmanager
    def open(self, servers, timeout_ms):
        self.opened = (servers, timeout_ms)
        yield self

    def table_info(self, name):
        if name != self.info.name:
            raise UnknownTableError(f"there is no table {name!r}")
        return self.info

    def definition(self, _name):
        return self.now

    def get_many(self, _name, keys, reading):
        if self.failure is not None:
            raise self.failure
        self.asked.append((list(keys), reading))
        wanted = reading["columns"]
        found = [self.rows.get(key) for key in keys]
        return [row and {name: row.get(name) for name in wanted} for row in found]


def planned(source, columns=None, key=("who",), name="people", **options):
    return plan_lookup((name, "n1:4481"), key, columns, options, source.open)


def batch(keys, kind=LONG):
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, kind), pa.array(range(len(keys)), LONG)], names=["who", "n"]
    )


def test_lookup_adds_columns_in_one_multi_get_a_batch():
    """Each distinct key is asked for once; a missing row, a null key and a row of nulls are nulls;
    the order is the batch's."""
    source = Rows()
    look_up = planned(source, {"name": "called", "score": "score", "id": "found"})
    first, empty = look_up(iter([batch([8, 7, None, 99, 7]), batch([])]))
    assert first.to_pydict() == {
        "who": [8, 7, None, 99, 7],
        "n": [0, 1, 2, 3, 4],
        "called": [None, "Ada", None, None, "Ada"],
        "score": [None, 2**31 - 1, None, None, 2**31 - 1],
        "found": [8, 7, None, None, 7],
    }
    assert [keys for keys, _ in source.asked] == [[(8,), (7,), (99,)]]
    assert empty.num_rows == 0
    assert empty.schema == first.schema
    assert first.schema.field("score").type == pa.int32()
    assert source.opened == ("n1:4481", 30_000)


def test_lookup_asks_for_no_more_keys_at_once_than_a_multi_get_takes(monkeypatch):
    """A batch of any length is read in parts."""
    monkeypatch.setattr(enrichment, "KEYS_MAX", 2)
    source = Rows()
    (read,) = planned(source, ["name"])([batch([1, 2, 7, 4, 5])])
    assert [len(keys) for keys, _ in source.asked] == [2, 2, 1]
    assert read["name"].to_pylist() == [None, None, "Ada", None, None]


def test_lookup_takes_frames_of_pandas_and_keeps_whole_numbers_whole():
    """mapInPandas makes floats of integers when one is null: keys are still found, and the added
    column is a column of whole numbers."""
    source = Rows()
    frame = pd.DataFrame({"who": [7.0, None, 3.0], "n": ["x", "y", "z"]}, index=[5, 6, 7])
    (read,) = planned(source, ["score", "since", "tags"])([frame])
    assert [keys for keys, _ in source.asked] == [[(7,), (3,)]]
    assert list(read.columns) == ["who", "n", "score", "since", "tags"]
    assert read["score"].tolist() == [2**31 - 1, pd.NA, pd.NA]
    assert read["since"][5] == ROWS[(7,)]["since"]
    assert read["tags"][5] == {"a": 1}
    with pytest.raises(SchemaError, match=r"\[RAFTSTORE_KEY_MISMATCH\].*'who' is float64"):
        list(planned(source, ["name"])([pd.DataFrame({"who": [7.5]})]))


@pytest.mark.parametrize("key", [2**53, -(2**53), 1234567890123456789])
def test_lookup_refuses_keys_that_pandas_rounded(key):
    """Beside a null pandas holds whole numbers as floats, and another row would be found."""
    source = Rows()
    with pytest.raises(SchemaError, match=r"'who' has nulls and .* use mapInArrow"):
        list(planned(source, ["name"])([pd.DataFrame({"who": [7.0, None, float(key)]})]))
    assert source.asked == []
    list(planned(source, ["name"])([pd.DataFrame({"who": [key, 7]})]))
    list(planned(source, ["name"])([pd.DataFrame({"who": [2.0**53 - 1, None]})]))
    assert [keys for keys, _ in source.asked] == [[(key,), (7,)], [(2**53 - 1,)]]


def test_lookup_takes_all_columns_but_the_key_when_none_are_named():
    """In the table's order; key columns may be named."""
    assert planned(Rows()).columns == tuple((n, n) for n in ("name", "score", "since", "tags"))
    assert planned(Rows(), "name, id").columns == (("name", "name"), ("id", "id"))


def test_lookup_tells_the_schema_of_its_result():
    """The DataFrame's columns, then the added ones with the table's types, all nullable."""
    before = StructType([StructField("who", LongType(), False), StructField("n", StringType())])
    after = planned(Rows(), {"tags": "labels", "name": "name"}).schema(before)
    assert after.simpleString() == (
        "struct<who:bigint,n:string,labels:map<string,bigint>,name:string>"
    )
    assert not after["who"].nullable
    assert after["labels"].dataType.valueContainsNull  # nodes do not enforce what a writer declared
    with pytest.raises(SchemaError, match=r"is long, but the DataFrame's column 'who' is string"):
        planned(Rows()).schema(StructType([StructField("who", StringType())]))
    with pytest.raises(SchemaError, match=r"\[RAFTSTORE_KEY_MISSING\].*'who'.*\(it has id\)"):
        planned(Rows()).schema(StructType([StructField("id", LongType())]))


def test_lookup_reads_a_table_that_declares_its_key_alone_with_types_of_the_callers():
    """The types come from a StructType; without it the columns have none."""
    info = table({"id": "long"})
    columns = StructType([StructField("name", StringType())])
    (read,) = planned(Rows(info=info), columns)([batch([7, 8])])
    assert read["name"].to_pylist() == ["Ada", None]
    for columns in (None, ["name"]):
        with pytest.raises(SchemaError, match=r"\[RAFTSTORE_SCHEMA_MISSING\]"):
            planned(Rows(info=info), columns)
    with pytest.raises(SchemaError, match="column 'name' of table 'people' is string and not long"):
        planned(Rows(), StructType([StructField("name", LongType())]))


def test_lookup_finds_keys_of_several_columns_and_of_any_type():
    """Keys that the table does not declare are taken as they are; a null in any part is no key."""
    when = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    source = Rows({("eu", when): {"v": 1}}, table({}, key=("zone", "at")))
    given = pa.RecordBatch.from_arrays(
        [
            pa.array(["eu", "eu", None]),
            pa.array([when, None, when], pa.timestamp("us", "America/New_York")),
        ],
        names=["z", "t"],
    )
    columns = StructType([StructField("v", LongType())])
    (read,) = planned(source, columns, key=("z", "t"))([given])
    assert read["v"].to_pylist() == [1, None, None]
    assert [keys for keys, _ in source.asked] == [[("eu", when)]]


@pytest.mark.parametrize(
    ("given", "kind", "found"),
    [([7], pa.int8(), "Ada"), ([7], pa.uint64(), "Ada"), (["7"], pa.string(), None)],
)
def test_lookup_widens_keys_and_never_takes_text_for_numbers(given, kind, found):
    """Integers of any width are the same numbers; "7" is not 7."""
    look_up = planned(Rows(), ["name"])
    if found is None:
        with pytest.raises(SchemaError, match=r"\[RAFTSTORE_KEY_MISMATCH\].*cast it before"):
            list(look_up([batch(given, kind)]))
    else:
        assert next(look_up([batch(given, kind)]))["name"].to_pylist() == [found]


def test_lookup_refuses_timestamps_of_pandas_as_keys_of_instants():
    """pandas has them in the session's zone without saying which that is."""
    look_up = planned(Rows(info=table({"id": "timestamp", "name": "string"})), ["name"])
    frame = pd.DataFrame({"who": pd.to_datetime(["2024-01-01"])})
    with pytest.raises(SchemaError, match="use mapInArrow"):
        list(look_up([frame]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_lga": 5}, "[RAFTSTORE_OPTION_UNKNOWN] there is no option 'max_lga': did you mean"),
        ({"level": "newest"}, "[RAFTSTORE_OPTION_INVALID]"),
        ({"level": "any", "max_lag": 5}, "max_lag=5 has no meaning at level any"),
        ({"maxLag": -1}, "max_lag=-1 is no number of rows"),
        ({"prefer_replica": "best"}, "prefer='best' is unknown"),
        ({"request_timeout_ms": 0}, "request_timeout_ms is 0: give a whole number"),
        ({"request_timeout_ms": "5s"}, "request_timeout_ms is '5s'"),
        ({"columns": ["name", "nme"]}, "has no column 'nme'; there are id, name"),
        ({"columns": {"name": "x", "score": "x"}}, "give each a name of its own"),
        ({"columns": []}, "name at least one column"),
        ({"key": ("a", "b")}, "[RAFTSTORE_KEY_MISMATCH] key is a, b, but the key of table"),
        ({"key": ()}, "key is empty"),
        ({"name": "peple"}, "[RAFTSTORE_TABLE_NOT_FOUND] there is no table 'peple'"),
    ],
)
def test_lookup_refuses_on_the_driver_what_cannot_work(given, said):
    """Each text begins with its class and names value and remedy."""
    with pytest.raises((ConfigError, SchemaError, UnknownTableError)) as failure:
        planned(Rows(), **given)
    assert str(failure.value).startswith("[RAFTSTORE_")
    assert said in str(failure.value)


def test_lookup_refuses_a_column_that_the_dataframe_has_and_shows_how_to_rename():
    """Nothing of the DataFrame's is replaced silently."""
    with pytest.raises(SchemaError, match=r'columns=\{"name": "people_name"\}'):
        list(planned(Rows(), {"name": "n"})([batch([7])]))
    assert planned(Rows(), ["name"]).columns


def test_lookup_reads_at_the_level_and_bound_that_were_asked_for():
    """Given a level and a bound, each multi-get has them; by default a lookup is bounded, at any
    replica in the bound.
    """
    source = Rows()
    list(planned(source, ["name"])([batch([7])]))
    list(
        planned(
            source, ["name"], maxStaleness=0.5, prefer_replica="nearest", request_timeout_ms=2_000
        )([batch([7])])
    )
    default, chosen = (reading for _, reading in source.asked)
    assert (default["level"], default["prefer"], default["timeout"]) == (
        "bounded",
        "any_in_bound",
        30.0,
    )
    assert default["columns"] == ("name",)
    assert (chosen["max_staleness"], chosen["prefer"], chosen["timeout"]) == (0.5, "nearest", 2.0)
    assert source.opened == ("n1:4481", 2_000)


def test_lookup_says_what_would_answer_when_no_replica_is_within_the_bound():
    """The class of the client's error, and the remedy; a table made anew is another table."""
    source = Rows()
    look_up = planned(source, ["name"])
    source.failure = NoReplicaAvailableError("all nodes are behind")
    with pytest.raises(NoReplicaAvailableError) as failure:
        list(look_up([batch([7])]))
    assert str(failure.value).startswith("[RAFTSTORE_NO_REPLICA_AVAILABLE] all nodes are behind")
    assert str(failure.value).endswith("level=any, or give a larger bound or request_timeout_ms")
    source.now = table(uuid=b"v" * 16)
    with pytest.raises(UnknownTableError, match="dropped and created again"):
        list(look_up([batch([7])]))


def test_lookup_can_be_pickled_and_is_what_the_package_exports():
    """Spark sends it to its tasks; importing its module does not hide the function."""
    look_up = plan_lookup(("people", "n1:4481"), ("who",), None, {}, Rows().open)
    copy = enrichment.Lookup(*(getattr(look_up, f) for f in look_up.__dataclass_fields__))
    copy = pickle.loads(pickle.dumps(enrichment.Lookup(**vars(copy) | {"open": str})))
    assert copy.columns == look_up.columns
    assert copy.table == look_up.table
    assert callable(lookup)
    assert lookup.__module__ == "raftstore.spark.read.lookup"
