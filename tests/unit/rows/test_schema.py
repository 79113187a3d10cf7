"""Table shapes: rows become keys and values and back, and bad rows are distinguished by column."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as spark

from raftstore.config import KEY_BYTES_MAX, VALUE_BYTES_MAX
from raftstore.errors import DecodeError, PayloadTooLargeError, SchemaError
from raftstore.rows.keys import encode_key
from raftstore.rows.schema import TableSchema
from raftstore.rows.values import ValueCodec, Variant

NOW = datetime(2024, 2, 29, 12, tzinfo=UTC)
DAY = date(2024, 2, 29)
EVERY_TYPE: list[tuple[str, spark.DataType, Any]] = [
    ("id", spark.LongType(), 2**63 - 1),
    ("boolean", spark.BooleanType(), True),
    ("byte", spark.ByteType(), -128),
    ("short", spark.ShortType(), 32767),
    ("integer", spark.IntegerType(), -(2**31)),
    ("float", spark.FloatType(), 0.5),
    ("double", spark.DoubleType(), float("inf")),
    ("decimal", spark.DecimalType(38, 10), Decimal("1.5000000000")),
    ("string", spark.StringType(), "text"),
    ("char", spark.CharType(3), "abc"),
    ("varchar", spark.VarcharType(3), "ab"),
    ("binary", spark.BinaryType(), b"\0\xff"),
    ("date", spark.DateType(), date(2024, 2, 29)),
    ("timestamp", spark.TimestampType(), NOW),
    ("timestamp_ntz", spark.TimestampNTZType(), NOW.replace(tzinfo=None)),
    ("time", spark.TimeType(6), time(12, 30)),
    ("interval", spark.DayTimeIntervalType(), timedelta(days=1)),
    ("variant", spark.VariantType(), None),
    ("void", spark.NullType(), None),
    ("array", spark.ArrayType(spark.DateType()), [date(2024, 1, 1), None]),
    ("map", spark.MapType(spark.IntegerType(), spark.StringType()), {1: "a"}),
    ("struct", spark.StructType().add("x", "long"), {"x": 1}),
]


def spark_schema(*fields: tuple[str, spark.DataType]) -> str:
    """The text that df.schema.json() gives for these columns."""
    return spark.StructType([spark.StructField(*field) for field in fields]).json()


ORDERS = TableSchema(
    ("region", "id"),
    spark_schema(
        ("id", spark.LongType()),
        ("total", spark.DoubleType()),
        ("region", spark.StringType()),
        ("price", spark.DecimalType(5, 2)),
    ),
)
PLAIN = TableSchema(("id",))
WIDE = TableSchema(("id",), spark_schema(*((name, kind) for name, kind, _ in EVERY_TYPE)))


def test_row_of_every_spark_type_is_restored_when_the_table_has_a_schema() -> None:
    """A row of all of Spark's types comes back equal and in schema order."""
    row = {name: value for name, _, value in EVERY_TYPE}
    restored = WIDE.key_value_to_row(*WIDE.row_to_key_value(row))
    assert restored == row
    assert list(restored) == list(row) == list(WIDE.columns)


def test_row_is_restored_when_the_table_has_no_schema() -> None:
    """Any columns are kept by name; the key column comes first."""
    row = {"total": 9.5, "id": "k1", "tags": ["a"], "day": date(2024, 1, 1)}
    restored = PLAIN.key_value_to_row(*PLAIN.row_to_key_value(row))
    assert restored == row
    assert next(iter(restored)) == "id"


def test_value_holds_no_names_and_no_key_when_the_table_has_a_schema() -> None:
    """The value is an array of the other columns in schema order: what every reader expects."""
    key, value = ORDERS.row_to_key_value({"id": 7, "region": "eu", "price": Decimal("1.5")})
    assert key == encode_key(("eu", 7))
    assert ValueCodec.decode(value) == [None, Decimal("1.50")]
    assert ORDERS.value_columns == ("total", "price")


def test_row_has_nulls_when_columns_were_appended_after_it_was_written() -> None:
    """An old, shorter value reads as nulls; a newer, longer one loses only the unknown columns."""
    key = encode_key(("eu", 7))
    codec = ValueCodec()
    row = {"id": 7, "total": 1.5, "region": "eu", "price": None}
    assert ORDERS.key_value_to_row(key, codec.encode([1.5])) == row
    assert ORDERS.key_value_to_row(key, codec.encode([1.5, None, "new"])) == row


@given(
    st.lists(
        st.tuples(
            st.text(max_size=5),
            st.integers(-(2**63), 2**63 - 1),
            st.none() | st.floats(allow_nan=False),
            st.sampled_from([None, Decimal("-9.99"), Decimal("0.10")]),
        ),
        max_size=5,
    )
)
def test_encode_columns_gives_what_rows_give_one_by_one(rows: list[tuple]) -> None:
    """The bulk way of Spark and the single way of a client store the same bytes."""
    names = ("region", "id", "total", "price")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    keys, values = ORDERS.encode_columns(columns)
    singles = [ORDERS.row_to_key_value(dict(zip(names, row, strict=True))) for row in rows]
    assert list(zip(keys, values, strict=True)) == singles


def test_encode_columns_fills_absent_columns_with_null() -> None:
    """Columns left out are null, also when nothing but the key is given."""
    keys, values = ORDERS.encode_columns({"id": [1, 2], "region": ["eu", "us"]})
    assert keys == [encode_key(("eu", 1)), encode_key(("us", 2))]
    assert [ValueCodec.decode(value) for value in values] == [[None, None]] * 2


def test_schema_of_the_key_alone_fixes_its_type_and_leaves_the_other_columns_free() -> None:
    """A schema of the key alone, as `raftstore table create orders --key order_id:long` makes it,
    checks the key's type and leaves the other columns free.
    """
    orders = TableSchema(("order_id",), spark_schema(("order_id", spark.LongType())))
    row = {"order_id": 1, "total": 9.5, "tags": ["new"]}
    assert orders.key_value_to_row(*orders.row_to_key_value(row)) == row
    assert orders.key_value_to_row(*orders.row_to_key_value({"order_id": 2})) == {"order_id": 2}
    with pytest.raises(SchemaError, match="'order_id' is long, but 'x' of type str"):
        orders.row_to_key_value({"order_id": "x", "total": 9.5})


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"id": [1]}, "key column 'region' is missing"),
        ({"id": [1], "region": ["eu"], "extra": [1]}, "column 'extra' is unknown"),
        ({"id": [1], "region": [None]}, "column 'region' is string, but null was given"),
        ({"id": ["x"], "region": ["eu"]}, "column 'id' is long, but 'x' of type str"),
        ({"id": [1], "region": ["eu"], "total": [{1}]}, "column 'total': "),
    ],
)
def test_encode_columns_names_the_column_at_fault(columns: dict[str, list], text: str) -> None:
    """The bulk way finds the same faults as the single way."""
    with pytest.raises(SchemaError) as error:
        ORDERS.encode_columns(columns)
    assert text in str(error.value)


def test_row_takes_whole_numbers_and_variants_of_other_libraries() -> None:
    """numpy scalars fit integer columns, and a variant comes back as its two parts."""
    row = {"id": np.int64(7), "short": np.int8(1), "variant": spark.VariantVal(b"v", b"m")}
    restored = WIDE.key_value_to_row(*WIDE.row_to_key_value(row))
    assert (restored["id"], restored["short"], type(restored["short"])) == (7, 1, int)
    assert restored["variant"] == Variant(b"v", b"m")


def test_float_column_holds_what_spark_reads_of_it() -> None:
    """Spark's 0.1f is one key for every writer, and a number that it cannot hold is refused."""
    table = TableSchema(("id",), spark_schema(("id", spark.FloatType()), ("v", spark.FloatType())))
    single = float(np.float32(0.1))
    key, value = table.row_to_key_value({"id": 0.1, "v": 0.1})
    assert table.key_value_to_row(key, value) == {"id": single, "v": single}
    assert table.key_of(single) == table.key_of(0.1) == key
    assert table.encode_columns({"id": [single], "v": [single]}) == ([key], [value])
    for exact in (1, -0.0, float("inf"), float(np.finfo(np.float32).max)):
        assert table.decode_key(table.key_of(exact)) == (exact,)
    for beyond, text in ((1e39, "beyond single precision"), (2**24 + 1, "not exact in single")):
        with pytest.raises(SchemaError, match=f"column 'id' is float, but .*{text}"):
            table.key_of(beyond)


@pytest.mark.parametrize("given", [7, "text", {"value": b"v", "metadata": b"m"}])
def test_variant_column_holds_variants_alone(given: Any) -> None:
    """Spark could not read anything else back."""
    with pytest.raises(SchemaError, match=r"column 'variant' is variant, but .*: use Variant"):
        WIDE.row_to_key_value({"id": 1, "variant": given})


def test_encode_columns_names_the_fault_when_the_key_is_one_column() -> None:
    """One-column keys are encoded by a shorter way, with the same checks."""
    table = TableSchema(("id",), spark_schema(("id", spark.StringType()), ("v", spark.LongType())))
    with pytest.raises(SchemaError, match="column 'id' is string, but 7 of type int"):
        table.encode_columns({"id": ["a", 7]})
    with pytest.raises(PayloadTooLargeError):
        table.encode_columns({"id": ["a", "b" * KEY_BYTES_MAX]})
    with pytest.raises(PayloadTooLargeError, match="column 'v'"):
        TableSchema(
            ("id",), spark_schema(("id", spark.LongType()), ("v", spark.BinaryType()))
        ).encode_columns({"id": [1], "v": [bytes(VALUE_BYTES_MAX)]})


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"id": 1}, "key column 'region' is missing (given: id); every row needs all key columns"),
        ({}, "key column 'region' is missing (given: nothing)"),
        (
            {"region": None, "id": 1},
            "column 'region' is string, but null was given: a key is never",
        ),
        (
            {"region": "eu", "id": "1"},
            "column 'id' is long, but '1' of type str was given: use int",
        ),
        ({"region": "eu", "id": True}, "True of type bool was given: use int"),
        ({"region": "eu", "id": 2**63}, "the column holds -9223372036854775808 to"),
        ({"region": b"eu", "id": 1}, "b'eu' of type bytes was given: use str"),
        ({"region": "eu", "id": 1, "total": "9"}, "column 'total' is double, but '9' of type str"),
        ({"region": "eu", "id": 1, "total": 2**53 + 1}, "not exact as a double"),
        ({"region": "eu", "id": 1, "price": 1.5}, "column 'price' is decimal(5,2), but 1.5"),
        ({"region": "eu", "id": 1, "price": Decimal("1.234")}, "holds 2 digits after the point"),
        ({"region": "eu", "id": 1, "price": 1000}, "the column holds 3 digits before the point"),
        ({"region": "eu", "id": 1, "price": Decimal("nan")}, "digits before the point"),
        ({"region": "eu", "id": 1, "totl": 9.5}, "column 'totl' is unknown; the table has id, tot"),
    ],
)
def test_row_is_refused_with_column_value_and_remedy(row: dict[str, Any], text: str) -> None:
    """A bad row is a SchemaError that says which column, what was given, and what to do."""
    with pytest.raises(SchemaError) as error:
        ORDERS.row_to_key_value(row)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("boolean", 1),
        ("byte", 128),
        ("binary", "text"),
        ("date", NOW),
        ("timestamp", NOW.replace(tzinfo=None)),
        ("timestamp_ntz", NOW),
        ("time", 5),
        ("interval", 5),
        ("void", 1),
        ("array", "text"),
        ("map", [1]),
        ("struct", (1,)),
        ("float", False),
        ("integer", 1.0),
    ],
)
def test_row_is_refused_when_a_value_does_not_fit_its_declared_type(
    column: str, value: object
) -> None:
    """Each declared type refuses what would come back as something else."""
    with pytest.raises(SchemaError, match=f"column '{column}' is "):
        WIDE.row_to_key_value({"id": 1, column: value})


def test_row_takes_what_fits_a_declared_type_without_loss() -> None:
    """Ints fit doubles and decimals, Rows fit structs, and columns in Row form are rows."""
    row = {"id": 1, "double": 3, "decimal": 2, "struct": Row(x=1), "array": (DAY,)}
    restored = WIDE.key_value_to_row(*WIDE.row_to_key_value(row))
    assert restored["double"] == 3.0
    assert type(restored["double"]) is float
    assert str(restored["decimal"]) == "2.0000000000"
    assert (restored["struct"], restored["array"]) == ({"x": 1}, [DAY])


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"id": None}, "column 'id' is any, but null was given: a key is never null"),
        ({"id": [1]}, "column 'id' is any, but [1] of type list"),
        ({"id": 1, 2: 3}, "column name 2 is no text"),
        ({"id": 1, "bad": {1}}, "column 'bad': a value cannot be stored: {1} of type set"),
        ({"total": 1}, "key column 'id' is missing (given: total)"),
    ],
)
def test_row_is_refused_when_it_has_no_meaning_without_schema(row: dict, text: str) -> None:
    """A table without schema still refuses keys and values that cannot be stored."""
    with pytest.raises(SchemaError) as error:
        PLAIN.row_to_key_value(row)
    assert text in str(error.value)


def test_oversized_value_names_the_largest_column_with_sizes() -> None:
    """PayloadTooLargeError carries size and limit and points at the column that takes most."""
    row = {"id": 1, "small": "x", "big": bytes(VALUE_BYTES_MAX)}
    with pytest.raises(PayloadTooLargeError, match="column 'big' \\(bytes\\) takes") as error:
        PLAIN.row_to_key_value(row)
    assert error.value.size > error.value.limit == VALUE_BYTES_MAX
    PLAIN.row_to_key_value(row | {"big": bytes(VALUE_BYTES_MAX - 100)})


def test_oversized_key_is_refused_with_sizes() -> None:
    """PayloadTooLargeError names the key columns, the size and the remedy."""
    with pytest.raises(PayloadTooLargeError, match=r"the key \(id\) takes .* digest") as error:
        PLAIN.key_of("x" * KEY_BYTES_MAX)
    assert (error.value.size, error.value.limit) == (KEY_BYTES_MAX + 3, KEY_BYTES_MAX)


def test_key_of_takes_value_tuple_or_map() -> None:
    """Callers name a key as a value, a tuple, or by column names."""
    expected = encode_key(("eu", 7))
    assert ORDERS.key_of(("eu", 7)) == expected
    assert ORDERS.key_of({"id": 7, "region": "eu"}) == expected
    assert PLAIN.key_of(7) == PLAIN.key_of((7,)) == encode_key((7,))
    assert ORDERS.decode_key(expected) == ("eu", 7)


@pytest.mark.parametrize(
    ("given_key", "text"),
    [
        (7, r"the key has 2 columns \(region, id\), but 1 values were given"),
        (("eu", 7, 1), "but 3 values were given; give one for each"),
        ({"id": 7}, "key column 'region' is missing"),
        ({"id": 7, "region": "eu", "total": 1}, "'total' is not a column of the key"),
        (("eu", None), "column 'id' is long, but null was given"),
    ],
)
def test_key_of_is_refused_when_it_does_not_name_one_row(given_key: object, text: str) -> None:
    """A key with missing or unknown columns is a SchemaError."""
    with pytest.raises(SchemaError, match=text):
        ORDERS.key_of(given_key)


def test_key_prefix_spans_the_rows_that_begin_with_the_columns() -> None:
    """Prefix scans of a composite key work on bytes and check types."""
    start, stop = ORDERS.key_prefix(("eu",))
    assert start <= ORDERS.key_of(("eu", -5)) < stop
    assert not start <= ORDERS.key_of(("eu\0", 1)) < stop
    assert ORDERS.key_prefix(()) == (b"", b"")
    with pytest.raises(SchemaError, match="column 'region'"):
        ORDERS.key_prefix((7,))
    with pytest.raises(SchemaError, match="a prefix of 3 columns is longer than the key"):
        ORDERS.key_prefix(("eu", 7, 1))


def test_text_prefix_spans_the_rows_whose_column_begins_with_the_text() -> None:
    """A text prefix applies to the first column after the given ones."""
    start, stop = ORDERS.text_prefix((), "e")
    assert start <= ORDERS.key_of(("eu", 7)) < stop
    assert not start <= ORDERS.key_of(("f", 7)) < stop
    with pytest.raises(SchemaError, match="column 'id' is long"):
        ORDERS.text_prefix(("eu",), "7")


def test_key_of_a_declared_decimal_is_restored_with_its_scale() -> None:
    """decimal(5,2) reads back as 1.50, although equal decimals share one key."""
    table = TableSchema(("price",), spark_schema(("price", spark.DecimalType(5, 2))))
    key = table.key_of(Decimal("1.5"))
    assert key == table.key_of(Decimal("1.50"))
    assert str(table.decode_key(key)[0]) == "1.50"


TEXT, INTERVAL = spark.StringType(), spark.CalendarIntervalType()
MONTHS = spark.YearMonthIntervalType()


def column_text(spec: str) -> str:
    """A schema of the one column ``id`` whose type is written so."""
    return '{"fields":[{"name":"id","type":' + spec + "}]}"


@pytest.mark.parametrize(
    ("key_columns", "schema_json", "text"),
    [
        ((), "", "name one or more different columns"),
        (("id", "id"), "", r"\('id', 'id'\) are not usable"),
        (("",), "", "are not usable"),
        (("id",), "{", "is not the text that df.schema.json"),
        (("id",), '{"type":"struct"}', "is not the text"),
        (("id",), "[1]", "is not the text"),
        (("id",), spark_schema(("other", spark.LongType())), "'id' is not in the schema .other."),
        (("id",), spark_schema(("id", spark.ArrayType(spark.LongType()))), "'id' is array, which"),
        (("id",), spark_schema(("id", spark.VariantType())), "'id' is variant, which cannot be"),
        (("id",), spark_schema(*[("id", spark.LongType())] * 2), "has the column 'id' twice"),
        (("id",), spark_schema(("id", spark.CalendarIntervalType())), "column 'id': the column"),
        (
            ("id",),
            json.dumps({"fields": [{"name": "id", "type": {"type": "x"}}]}),
            "'x' is unknown",
        ),
        (("id",), json.dumps({"fields": [{"name": "id", "type": 7}]}), "type 7 is not one of"),
        (("id",), spark_schema(("id", spark.ArrayType(INTERVAL))), "type 'interval' is unknown"),
        (("id",), spark_schema(("id", spark.MapType(INTERVAL, TEXT))), "type 'interval' is unkn"),
        (("id",), spark_schema(("id", spark.MapType(TEXT, MONTHS))), "'interval year to month'"),
        (("id",), spark_schema(("id", spark.StructType().add("x", INTERVAL))), "type 'interval'"),
        (("id",), column_text('{"type":"array"}'), "lacks a part .KeyError"),
        (("id",), column_text('{"type":"struct","fields":[1]}'), "lacks a part .TypeError"),
        (("id",), column_text('"decimal(39,2)"'), "'id': the column type 'decimal.39,2.'"),
        (("id",), column_text('"decimal(5,6)"'), "'id': the column type 'decimal.5,6.'"),
        (("id",), column_text(f'"decimal(1{"0" * 20},2)"'), "'id': the column type 'decimal"),
        (("id",), column_text(f'"decimal(1{"0" * 5_000},2)"'), "'id': the column type 'decimal"),
        (("id",), column_text('{"type":"array","elementType":' * 3_000), "is not the text that"),
        (
            ("id",),
            column_text('{"type":"udt","sqlType":' * 600 + '"long"' + "}" * 600),
            "nested too deeply",
        ),
    ],
)
def test_definition_is_refused_when_no_table_can_have_it(
    key_columns: tuple[str, ...], schema_json: str, text: str
) -> None:
    """A table that could not store its rows is refused when it is created."""
    with pytest.raises(SchemaError, match=text):
        TableSchema(key_columns, schema_json)


def test_user_defined_type_is_stored_as_its_sql_type() -> None:
    """A column of a UDT is what Spark stores for it."""
    field = {"name": "v", "type": {"type": "udt", "class": "x", "sqlType": "double"}}
    table = TableSchema(("id",), json.dumps({"fields": [{"name": "id", "type": "long"}, field]}))
    assert table.key_value_to_row(*table.row_to_key_value({"id": 1, "v": 2})) == {"id": 1, "v": 2.0}


@pytest.mark.parametrize(
    ("table", "key", "value", "text"),
    [
        (PLAIN, encode_key((1, 2)), b"\x80", "has 2 columns, the table's key has 1"),
        (PLAIN, encode_key((1,)), b"\x90", "is no map of columns"),
        (ORDERS, encode_key(("eu", 1)), b"\x80", "is no list of columns"),
    ],
)
def test_stored_row_is_refused_when_it_is_of_another_shape(
    table: TableSchema, key: bytes, value: bytes, text: str
) -> None:
    """Rows of another definition are reported as damage, not misread."""
    with pytest.raises(DecodeError, match=text):
        table.key_value_to_row(key, value)
