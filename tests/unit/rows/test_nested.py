"""Values with parts: each part is of its declared type when a row is written, or the row is not."""

from __future__ import annotations

import json
from collections import namedtuple
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import types as spark

from raftstore.errors import SchemaError
from raftstore.rows.key_text import JsonRows
from raftstore.rows.schema import TableSchema

NOW = datetime(2024, 2, 29, 12, tzinfo=UTC)
POINT = spark.StructType().add("x", "long").add("at", spark.DateType())
LONGS = spark.ArrayType(spark.LongType())
POINTS = spark.MapType(spark.StringType(), spark.ArrayType(POINT))
BY_POINT = spark.MapType(POINT, spark.DoubleType())
BY_LONGS = spark.MapType(LONGS, spark.DoubleType())


def table_of(kind: spark.DataType) -> TableSchema:
    """A table with one column of this type beside its key."""
    return TableSchema(("id",), spark.StructType().add("id", "long").add("v", kind).json())


def written(kind: spark.DataType, value: Any) -> Any:
    """A value as it is read back."""
    table = table_of(kind)
    return table.key_value_to_row(*table.row_to_key_value({"id": 1, "v": value}))["v"]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (LONGS, ["x"], "at [0], 'x' of type str is no long: use int"),
        (LONGS, [1, None, 2.5], "at [2], 2.5 of type float is no long: use int"),
        (LONGS, [2**63], "is no long: the column holds -9223372036854775808 to"),
        (LONGS, [True], "at [0], True of type bool is no long: use int"),
        (LONGS, {1: 2}, "column 'v' is array, but {1: 2} of type dict was given: use list"),
        (spark.ArrayType(LONGS), [[1], [2, "x"]], "at [1][1], 'x' of type str is no long"),
        (spark.ArrayType(LONGS), [1], "at [0], 1 of type int is no array: use list"),
        (
            spark.ArrayType(spark.DecimalType(5, 2)),
            [Decimal("1.234")],
            "is no decimal(5,2): the column holds 2 digits after the point",
        ),
        (spark.ArrayType(spark.DecimalType(5, 2)), [1.5], '(in JSON {"$decimal": …})'),
        (spark.ArrayType(spark.DayTimeIntervalType()), [5], '(in JSON {"$microseconds": …})'),
        (spark.ArrayType(spark.DateType()), [NOW], "of type datetime is no date: use date"),
        (spark.ArrayType(spark.TimestampType()), [NOW.replace(tzinfo=None)], "with a time zone"),
        (spark.ArrayType(spark.BinaryType()), ["x"], '(in JSON {"$binary": …})'),
        (spark.ArrayType(spark.StringType()), [b"x"], "is no string: use str"),
        (spark.ArrayType(spark.NullType()), [1], "the column can only be null"),
        (POINT, {"x": 1, "y": 2}, "the field 'y' is unknown; there are x, at"),
        (POINT, {"x": "1"}, "at .x, '1' of type str is no long: use int"),
        (POINT, (1, None), "use dict"),
        (POINTS, {"a": [{"x": 1}, {"x": []}]}, "at ['a'][1].x, [] of type list is no long"),
        (POINTS, {1: []}, "at key 1, 1 of type int is no string: use str"),
        (POINTS, {None: []}, "at key None, null is no string: use str"),
        (spark.MapType(spark.FloatType(), LONGS), {0.1: [], 0.1 + 1e-12: []}, "one and the same"),
        (BY_LONGS, {(1, "x"): 1.0}, "at key (1, 'x')[1], 'x' of type str is no long"),
        (BY_POINT, {(("x", "1"),): 1.0}, "'1' of type str is no long"),
        (BY_POINT, {(("y", 1),): 1.0}, "the field 'y' is unknown"),
        (spark.MapType(POINTS, LONGS), {(): []}, "a map cannot be a key of a map"),
    ],
)
def test_row_is_refused_when_a_part_does_not_fit_its_declared_type(
    kind: spark.DataType, value: Any, text: str
) -> None:
    """The error names the column, where in the value the part is, the part, and what it may be."""
    with pytest.raises(SchemaError, match="column 'v' is ") as error:
        written(kind, value)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (LONGS, (1, None), [1, None]),
        (LONGS, None, None),
        (spark.ArrayType(spark.DoubleType()), [1], [1.0]),
        (spark.ArrayType(spark.FloatType()), [0.1], [0.10000000149011612]),
        (spark.ArrayType(spark.BinaryType()), [bytearray(b"x")], [b"x"]),
        (spark.ArrayType(POINT), [Row(x=1, at=None)], [{"x": 1, "at": None}]),
        (POINT, {"at": date(2024, 2, 29)}, {"at": date(2024, 2, 29)}),
        (POINTS, {"a": [{"x": 1}, None], "b": None}, {"a": [{"x": 1}, None], "b": None}),
        (BY_LONGS, {(1, None): 1}, {(1, None): 1.0}),
        (BY_POINT, {Row(x=1, at=None): 1}, {(("x", 1), ("at", None)): 1.0}),
    ],
)
def test_parts_are_stored_as_their_types_hold_them(
    kind: spark.DataType, value: Any, stored: Any
) -> None:
    """Ints become floats, Rows become maps; nulls are parts of any type; fields may be absent.

    What was read back can be written again, and holds the same.
    """
    found = written(kind, value)
    assert found == stored
    assert repr(found) == repr(stored)
    assert repr(written(kind, found)) == repr(stored)


def test_named_tuple_is_a_struct_and_decimals_have_their_scale() -> None:
    """Inside as outside."""
    assert written(POINT, namedtuple("P", "x at")(3, None)) == {"x": 3, "at": None}  # noqa: PYI024
    [price] = written(spark.ArrayType(spark.DecimalType(5, 2)), [2])
    assert str(price) == "2.00"


def test_json_says_what_its_parts_are() -> None:
    """The form that the error names for JSON is the one that is taken."""
    table = table_of(spark.ArrayType(spark.DateType()))
    rows = JsonRows(("id",), table.schema_json)
    with pytest.raises(SchemaError, match=r"\(in JSON {\"\$date\": …}\)"):
        table.row_to_key_value(rows.row_from_json({"id": 1, "v": ["2024-02-29"]}))
    given = json.loads('{"id": 1, "v": [{"$date": "2024-02-29"}]}')
    row = table.key_value_to_row(*table.row_to_key_value(rows.row_from_json(given)))
    assert row == {"id": 1, "v": [date(2024, 2, 29)]}
    assert rows.row_to_json(row) == given
