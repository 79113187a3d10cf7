"""Arrow batches to records: exact values, the shared partitioner, bounded sorted chunks."""

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import PayloadTooLargeError, SchemaError
from raftstore.protocol.payload import decode_rows
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal, unseal
from raftstore.spark.codec import encoding
from raftstore.spark.codec.arrow import ColumnReader
from raftstore.spark.codec.encoding import Chunker, RowEncoder


def schema_json(**types) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def decoded(table: TableSchema, rows) -> list[dict]:
    return [table.key_value_to_row(key, unseal(key, sealed)) for key, sealed in rows]


def test_encoder_keeps_values_exactly_when_they_come_from_arrow():
    """A decoded row holds the same Python values as the Arrow column."""
    moment = dt.datetime(2024, 6, 1, 12, 0, 0, 7, tzinfo=dt.UTC)
    types = schema_json(k="long", d="decimal(10,3)", t="timestamp", b="binary", n="double")
    batch = pa.record_batch(
        {
            "k": [2, 1],
            "d": pa.array([Decimal("1.500"), None], pa.decimal128(10, 3)),
            "t": pa.array([moment, None], pa.timestamp("us", "Asia/Tokyo")),
            "b": [b"\x00", b""],
            "n": [float("inf"), None],
        }
    )
    table = TableSchema(("k",), types)

    rows = RowEncoder(table, types, delete=False).encode(batch)

    assert decoded(table, rows) == [
        {"k": 2, "d": Decimal("1.500"), "t": moment, "b": b"\x00", "n": float("inf")},
        {"k": 1, "d": None, "t": None, "b": b"", "n": None},
    ]


def test_encoder_writes_columns_by_name_when_the_table_has_no_schema():
    """A table without schema takes the DataFrame's columns as a map."""
    types = schema_json(k="string", n="long")
    table = TableSchema(("k",))

    rows = RowEncoder(table, types, delete=False).encode(
        pa.record_batch({"k": ["a", "b"], "n": [1, None]})
    )

    assert decoded(table, rows) == [{"k": "a", "n": 1}, {"k": "b", "n": None}]


def test_encoder_gives_no_rows_when_a_batch_is_empty():
    """Spark may hand over empty batches."""
    types = schema_json(k="long")
    empty = pa.record_batch({"k": pa.array([], pa.int64())})
    for table in (TableSchema(("k",), types), TableSchema(("k",))):
        assert RowEncoder(table, types, delete=False).encode(empty) == []


def test_encoder_reads_only_the_key_when_rows_are_deleted():
    """A delete is a key without value; a column that cannot be stored is not even read."""
    types = schema_json(k="long", when="date")
    batch = pa.record_batch({"k": [5], "when": pa.array([2**31 - 1], pa.date32())})

    rows = RowEncoder(TableSchema(("k",), types), types, delete=True).encode(batch)

    assert rows == [(TableSchema(("k",), types).encode_key([5]), None)]


def test_encoder_refuses_a_null_key_when_any_row_has_one():
    """The sentence names the column and the row."""
    types = schema_json(a="long", b="long")
    encoder = RowEncoder(TableSchema(("a", "b"), types), types, delete=False)

    with pytest.raises(SchemaError, match="key column 'b' is null in row 1"):
        encoder.encode(pa.record_batch({"a": [1, 2], "b": [1, None]}))


def test_encoder_refuses_a_value_when_it_is_over_the_limit():
    """A row that no node would take is refused before anything is sent."""
    types = schema_json(k="long", v="binary")
    encoder = RowEncoder(TableSchema(("k",), types), types, delete=False)

    with pytest.raises(PayloadTooLargeError, match="column 'v'"):
        encoder.encode(pa.record_batch({"k": [1], "v": [bytes(2 << 20)]}))


def test_reader_refuses_a_date_when_python_has_no_such_year():
    """Spark knows years beyond 9999, rows do not."""
    days = pa.array([10_000_000], pa.date32())

    with pytest.raises(SchemaError, match=r"column 'd' has a date32.* years 1 to 9999 only"):
        ColumnReader(schema_json(d="date")).read(pa.record_batch({"d": days}))


def test_reader_refuses_a_text_that_is_none():
    """Spark's strings are bytes, which other sources fill with anything."""
    text = pa.array([b"\xff"]).view(pa.string())

    with pytest.raises(SchemaError, match=r"column 's' has a text that is no UTF-8.* to binary"):
        ColumnReader(schema_json(s="string")).read(pa.record_batch({"s": text}))


def test_reader_converts_inside_nested_types_when_maps_and_variants_are_in_them():
    """Maps become dicts and nulls stay nulls, at any depth."""
    inner = {"type": "map", "keyType": "string", "valueType": "long"}
    struct = {
        "type": "struct",
        "fields": [
            {"name": "m", "type": inner},
            {"name": "x", "type": "long"},
        ],
    }
    spec = {"type": "array", "elementType": struct, "containsNull": True}
    kind = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64())), ("x", pa.int64())]))
    column = pa.array([[{"m": [("a", 1)], "x": 2}, None, {"m": None, "x": None}], None], kind)

    read = ColumnReader(schema_json(c=spec)).read(pa.record_batch({"c": column}))

    assert read == {"c": [[{"m": {"a": 1}, "x": 2}, None, {"m": None, "x": None}], None]}


INSTANTS = pa.timestamp("us", "Europe/Berlin")
STRUCT = {"type": "struct", "fields": [{"name": "t", "type": "timestamp"}]}
ARRAY = {"type": "array", "elementType": "timestamp", "containsNull": False}


@pytest.mark.parametrize(
    ("spec", "kind", "given_as", "stored_as"),
    [
        ("timestamp", INSTANTS, lambda key: key, lambda key: key),
        (ARRAY, pa.list_(INSTANTS), lambda key: [key], lambda key: (key,)),
        (STRUCT, pa.struct([("t", INSTANTS)]), lambda key: {"t": key}, lambda key: (("t", key),)),
    ],
    ids=["timestamp", "array", "struct"],
)
def test_map_keeps_both_keys_of_an_hour_that_is_there_twice(spec, kind, given_as, stored_as):
    """In the session's zone they differ in nothing but which of the two hours they are in."""
    first, second = (dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.UTC) for hour in (0, 1))
    pairs = [(given_as(first), 1), (given_as(second), 2)]
    types = schema_json(m={"type": "map", "keyType": spec, "valueType": "long"})
    batch = pa.record_batch({"m": pa.array([pairs], pa.map_(kind, pa.int64()))})

    [stored] = ColumnReader(types).read(batch)["m"]

    assert stored == {stored_as(first): 1, stored_as(second): 2}


rows_strategy = st.lists(
    st.tuples(st.binary(min_size=1, max_size=6), st.one_of(st.none(), st.binary(max_size=60))),
    max_size=80,
)


@given(st.lists(rows_strategy, max_size=4), st.integers(1, 5), st.integers(1, 9))
def test_chunks_hold_every_row_once_sorted_and_bounded_when_cut(batches, partitions, rows_max):
    """For any rows, the chunks have each of them once, in its partition, in key order and within
    the limits.
    """
    chunker = Chunker(partitions, rows_max=rows_max, bytes_max=120)
    sealed = [[(k, None if v is None else seal(k, v)) for k, v in batch] for batch in batches]
    chunks = [chunk for batch in sealed for chunk in chunker.add(batch)]
    chunks += chunker.rest()

    seen = []
    for chunk in chunks:
        flat = decode_rows(chunk.payload)
        keys = flat[::2]
        assert len(keys) == chunk.rows <= rows_max
        assert len(chunk.payload) <= 120 or chunk.rows == 1
        assert keys == sorted(keys)
        assert {partition_of(key, partitions) for key in keys} == {chunk.partition}
        seen += zip(keys, flat[1::2], strict=True)
    order = lambda row: (row[0], row[1] or b"")  # noqa: E731
    assert sorted(seen, key=order) == sorted((r for b in sealed for r in b), key=order)


def test_chunk_is_cut_before_it_grows_over_its_bytes():
    """Few large rows make a record each, long before the limit of rows."""
    chunker = Chunker(1, rows_max=10, bytes_max=120)
    rows = [(b"%d" % n, seal(b"%d" % n, b"v" * 50)) for n in range(3)]

    chunks = [*chunker.add(rows), *chunker.rest()]

    assert [chunk.rows for chunk in chunks] == [1, 1, 1]


def test_chunk_keeps_the_later_row_last_when_a_key_comes_twice():
    """Inside a record the last row of a key wins, so it must stay behind the earlier one."""
    chunker = Chunker(1, rows_max=10, bytes_max=1000)

    assert list(chunker.add([(b"k", b"1234new"), (b"a", None), (b"k", b"1234newer")])) == []
    (chunk,) = chunker.rest()

    assert decode_rows(chunk.payload) == [b"a", None, b"k", b"1234new", b"k", b"1234newer"]


def test_largest_partition_is_sent_early_when_much_is_gathered(monkeypatch):
    """A table with many partitions does not make a task hold back more than the limit."""
    monkeypatch.setattr(encoding, "GATHERED_BYTES_MAX", 300)
    chunker = Chunker(64, rows_max=1000, bytes_max=100_000)
    rows = [(number.to_bytes(2, "big"), bytes(40)) for number in range(20)]

    early = list(chunker.add(rows))

    assert sum(chunk.rows for chunk in early) >= 10
    assert sum(chunk.rows for chunk in [*early, *chunker.rest()]) == 20
