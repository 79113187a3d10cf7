"""Rows of a table as Arrow columns: every type, every shape of what is stored."""

import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from raftstore.errors import CorruptRecordError, DecodeError, SchemaError
from raftstore.rows.keys import encode_key
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.rows.values import ValueCodec, Variant
from raftstore.spark.codec.arrow import ColumnReader
from raftstore.spark.codec.decode import RowDecoder

SIMPLE = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "decimal(38,10)": st.decimals(-(10**20), 10**20, places=10),
    "string": st.text(max_size=5),
    "binary": st.binary(max_size=5),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
    "interval day to second": st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6)),
    "time(6)": st.times().map(lambda time: time.replace(fold=0)),
    "variant": st.builds(Variant, st.binary(max_size=3), st.binary(max_size=3)),
}
KEYS = sorted(set(SIMPLE) - {"interval day to second", "time(6)", "variant"})


def nested(specs):
    """Arrays, maps and structs of types that are given with their values."""

    def array(one):
        spec = {"type": "array", "elementType": one[0], "containsNull": True}
        return spec, st.lists(st.none() | one[1], max_size=3)

    def mapping(one):
        spec = {
            "type": "map",
            "keyType": {"type": "array", "elementType": "string", "containsNull": False},
            "valueType": one[0],
            "valueContainsNull": True,
        }
        keys = st.lists(st.text(max_size=2), max_size=2).map(tuple)
        return spec, st.dictionaries(keys, st.none() | one[1], max_size=3)

    def struct(one):
        fields = [("a", one), ("b", ("long", SIMPLE["long"]))]
        spec = {"type": "struct", "fields": [field(name, kind[0]) for name, kind in fields]}
        return spec, st.fixed_dictionaries({name: st.none() | kind[1] for name, kind in fields})

    return st.one_of(specs.map(array), specs.map(mapping), specs.map(struct))


TYPES = st.recursive(st.sampled_from(sorted(SIMPLE)).map(lambda s: (s, SIMPLE[s])), nested)


def field(name, spec, *, nullable=True):
    return {"name": name, "type": spec, "nullable": nullable, "metadata": {}}


def schema_json(**columns):
    return json.dumps({"type": "struct", "fields": [field(n, s) for n, s in columns.items()]})


def stored(schema, rows):
    """The page with these rows, as stored."""
    pairs = [schema.row_to_key_value(row) for row in rows]
    return [(key, seal(key, value), 1) for key, value in pairs]


def same(one, other):
    """Equal, where NaN is itself and zeroes have a sign."""
    return plain(one) == plain(other)


def plain(value):
    """Text that distinguishes all values, whatever the order of a dict and the class of a zone."""
    if isinstance(value, list | tuple) and not isinstance(value, Variant):
        return f"{type(value).__name__}({', '.join(map(plain, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{plain(k)}: {plain(v)}' for k, v in value.items()))}}}"
    # ``fold`` is no part of a time: it says which of two hours a clock that is set back means.
    return value.isoformat() if isinstance(value, dt.datetime | dt.time) else repr(value)


@pytest.mark.slow
@given(st.data(), TYPES, st.sampled_from(KEYS))
def test_decoded_columns_are_what_was_written_whatever_the_type(data, kind, key):
    """Stored and read back, every value is the same, and Spark takes the columns as they are."""
    spec, values = kind
    text = schema_json(id=key, value=spec, number="long")
    schema = TableSchema(("id",), text)
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries(
                {"id": SIMPLE[key], "value": st.none() | values, "number": st.none() | st.just(1)}
            ),
            min_size=1,
            max_size=4,
        )
    )
    batch = RowDecoder(schema, text).decode(stored(schema, rows))
    read = ColumnReader(text).read(batch)
    assert same(read["value"], [row["value"] for row in rows])
    assert read["number"] == [row["number"] for row in rows]
    keys = [schema.decode_key(schema.encode_key((row["id"],)))[0] for row in rows]
    assert same(read["id"], keys)
    if not text.count("time(6)"):  # newer than the oldest Spark
        expected = to_arrow_schema(StructType.fromJson(json.loads(text)), timezone="UTC")
        assert batch.schema.equals(expected)


@given(st.data(), st.sampled_from(sorted(SIMPLE)), st.sampled_from(KEYS))
def test_decoded_columns_of_plain_tables_are_what_was_written(data, kind, key):
    """Where no column is nested, dates and times never become Python's objects: the same values."""
    text = schema_json(id=key, value=kind)
    schema = TableSchema(("id",), text)
    row = st.fixed_dictionaries({"id": SIMPLE[key], "value": st.none() | SIMPLE[kind]})
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    read = ColumnReader(text).read(RowDecoder(schema, text).decode(stored(schema, rows)))
    assert same(read["value"], [row["value"] for row in rows])
    keys = [schema.decode_key(schema.encode_key((row["id"],)))[0] for row in rows]
    assert same(read["id"], keys)


@pytest.mark.parametrize("kind", ["byte", "short", "integer", "long", "string", "binary"])
def test_keys_that_are_read_at_once_are_those_read_one_by_one(kind):
    """With escapes in texts; what is no key of the type is reported as ever."""
    edges = {"string": ["", "a\0", "\0\0", "é"], "binary": [b"", b"\0\1", b"\xff"]}
    values = edges.get(kind, [0, -1, 127, -128])
    text = schema_json(id=kind, x="long")
    schema = TableSchema(("id",), text)
    decoder = RowDecoder(schema, text)
    for some in (values, values[:1], [v for v in values if not isinstance(v, str | bytes) or v]):
        items = stored(schema, [{"id": value, "x": 1} for value in some])
        assert decoder.decode(items).column("id").to_pylist() == some
    for wrong in (encode_key((1, 2)), encode_key(("a", "b")), b"\x30a"):
        value = schema.encode_value({"id": values[0], "x": 1})
        with pytest.raises((SchemaError, DecodeError)):
            decoder.decode([(wrong, seal(wrong, value), 1)])


def test_decoder_fills_columns_that_were_appended_later_and_leaves_newer_ones():
    """Rows of before are shorter, rows of a newer schema longer."""
    old = TableSchema(("id",), schema_json(id="long", a="long"))
    new = TableSchema(("id",), schema_json(id="long", a="long", b="string"))
    items = stored(old, [{"id": 1, "a": 10}]) + stored(new, [{"id": 2, "a": 20, "b": "x"}])
    batch = RowDecoder(new, new.schema_json).decode(items)
    assert batch.to_pydict() == {"id": [1, 2], "a": [10, 20], "b": [None, "x"]}
    batch = RowDecoder(old, old.schema_json).decode(items)
    assert batch.to_pydict() == {"id": [1, 2], "a": [10, 20]}


def test_decoder_reads_chosen_columns_of_composite_keys_in_any_order():
    """The schema to read with decides."""
    schema = TableSchema(("a", "b"), schema_json(a="string", x="long", b="decimal(5,2)"))
    items = stored(schema, [{"a": "k", "b": Decimal("1.5"), "x": 3}])
    batch = RowDecoder(schema, schema_json(x="long", b="decimal(5,2)")).decode(items)
    assert batch.to_pydict() == {"x": [3], "b": [Decimal("1.50")]}


def test_decoder_reads_tables_that_take_any_columns_by_the_schema_given():
    """A column that a row lacks is null; one of another type is refused by its name."""
    schema = TableSchema(("id",))
    items = stored(schema, [{"id": 1, "a": 1.5}, {"id": 2, "b": "text"}])
    batch = RowDecoder(schema, schema_json(id="long", a="double", c="date")).decode(items)
    assert batch.to_pydict() == {"id": [1, 2], "a": [1.5, None], "c": [None, None]}
    with pytest.raises(SchemaError, match="column 'b' has a value that is no double"):
        RowDecoder(schema, schema_json(b="double")).decode(items)


def test_decoder_refuses_nulls_where_the_schema_given_allows_none():
    """Spark would take them for other values."""
    schema = TableSchema(("id",), schema_json(id="long", a="long"))
    wanted = {"type": "struct", "fields": [field("a", "long", nullable=False)]}
    decoder = RowDecoder(schema, json.dumps(wanted))
    assert decoder.decode(stored(schema, [{"id": 1, "a": 1}])).num_rows == 1
    with pytest.raises(SchemaError, match="column 'a' has nulls"):
        decoder.decode(stored(schema, [{"id": 1, "a": None}]))


def test_decoder_refuses_damaged_rows_and_rows_of_another_shape():
    """Never other values."""
    schema = TableSchema(("id",), schema_json(id="long", a="long"))
    [(key, sealed, seq)] = stored(schema, [{"id": 1, "a": 1}])
    decoder = RowDecoder(schema, schema.schema_json)
    with pytest.raises(CorruptRecordError):
        decoder.decode([(key, sealed[:-1] + b"\x02", seq)])
    with pytest.raises(DecodeError, match="left values out"):
        decoder.decode([(key, None, seq)])
    [other] = stored(TableSchema(("id",)), [{"id": 1, "a": 1}])
    with pytest.raises(DecodeError, match="another shape"):
        decoder.decode([other])


def array_of(kind):
    """The type of an array of such values."""
    return {"type": "array", "elementType": kind, "containsNull": True}


def written_before(schema, rows):
    """Rows as versions wrote them that did not look into nested values: {id, a}."""
    encode = ValueCodec().encode
    keyed = [(schema.key_of(row["id"]), encode([row["a"]])) for row in rows]
    return [(key, seal(key, value), 1) for key, value in keyed]


def test_decoder_refuses_what_is_no_variant():
    """Older versions did not check what is inside other types; the row at fault is named."""
    schema = TableSchema(("id",), schema_json(id="long", a=array_of("variant")))
    items = written_before(schema, [{"id": 1, "a": []}, {"id": 7, "a": [5]}])
    with pytest.raises(SchemaError, match=r"column 'a' has a value that .* key id=7 .*5 of type "):
        RowDecoder(schema, schema.schema_json).decode(items)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (array_of("long"), [1, 2.5]),
        (array_of("binary"), ["text"]),
        ({"type": "struct", "fields": [field("x", "long")]}, {"x": 1, "y": 2}),
    ],
)
def test_exact_decoder_refuses_what_arrow_would_make_fit(kind, value):
    """An export has what the rows hold, or names the row that it cannot hold, and the remedy."""
    schema = TableSchema(("id",), schema_json(id="long", a=kind))
    items = written_before(schema, [{"id": 1, "a": None}, {"id": 7, "a": value}])
    RowDecoder(schema, schema.schema_json).decode(items)
    with pytest.raises(SchemaError, match=r"column 'a' .* in the row with the key id=7 .*: write"):
        RowDecoder(schema, schema.schema_json, is_exact=True).decode(items)


def test_decoder_keeps_nan_and_the_sign_of_zero():
    """Floating point is kept to the bit."""
    schema = TableSchema(("id",), schema_json(id="long", a="double"))
    rows = [{"id": 1, "a": math.nan}, {"id": 2, "a": -0.0}]
    column = RowDecoder(schema, schema.schema_json).decode(stored(schema, rows)).column("a")
    assert math.isnan(column[0].as_py())
    assert math.copysign(1, column[1].as_py()) == -1
    assert column.type == pa.float64()
