"""JSON of rows and keys: what went out as JSON comes back as what it was."""

# ruff: noqa: DTZ001  (datetimes without a zone are values here)

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import SchemaError
from raftstore.nesting import LEVELS_MAX
from raftstore.rows.json_levels import JSON_LEVELS_MAX, is_too_deep
from raftstore.rows.json_values import from_json, to_json
from raftstore.rows.key_text import JsonRows
from raftstore.rows.values import ValueCodec, Variant

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
KEY_TEXTS = TEXTS | st.sampled_from(["$int", "$map", "$", "$decimal"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    KEY_TEXTS,
    st.binary(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(
        datetime(2, 1, 1),
        datetime(9998, 1, 1),
        timezones=st.integers(-840, 840).map(lambda m: timezone(timedelta(minutes=m))),
    ),
    st.times(),
    st.timedeltas(),
    st.builds(Variant, st.binary(), st.binary()),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(KEY_TEXTS, inner) | st.dictionaries(SCALARS, inner)
    ),
    max_leaves=12,
)
DECLARED = {
    "boolean": st.booleans(),
    "byte": st.integers(-128, 127),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": TEXTS,
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(20,4)": st.decimals(-(10**15), 10**15, places=4),
    "time(6)": st.times(),
    "interval day to second": st.timedeltas(),
}


def through_json(value: Any, kind: str | None = None) -> Any:
    """Out as JSON text, and back."""
    return from_json(msgspec.json.decode(msgspec.json.encode(to_json(value, kind))), kind)


def exact(value: Any) -> Any:
    """A form in which 1, 1.0, True, 0.0 and -0.0 differ, as do decimals of other scales."""
    if isinstance(value, list):
        return [exact(item) for item in value]
    if isinstance(value, dict):
        return [(exact(key), exact(item)) for key, item in value.items()]
    return type(value), repr(value)


@given(VALUES)
def test_value_that_was_stored_is_exact_when_read_from_json(value: object) -> None:
    """Given any value that a row without schema may hold, it survives JSON with its type."""
    stored = ValueCodec.decode(ValueCodec().encode(value))
    assert exact(through_json(stored)) == exact(stored)


@pytest.mark.parametrize("kind", DECLARED)
@given(data=st.data())
def test_declared_value_is_exact_when_read_from_json(kind: str, data: st.DataObject) -> None:
    """A declared column has its plain form in JSON, which is as exact."""
    value = ValueCodec.decode(ValueCodec().encode(data.draw(DECLARED[kind])))
    assert exact(through_json(value, kind)) == exact(value)
    # The tagged form is read for declared columns, too.
    assert exact(from_json(to_json(value), kind)) == exact(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["double", None])
def test_numbers_that_json_lacks_have_names(value: float, kind: str | None) -> None:
    """NaN would be null in JSON: it must not become one."""
    assert repr(through_json(value, kind)) == repr(value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("decimal(10,2)", Decimal("12.30"), "12.30"),
        ("binary", b"\x01\x02", "AQI="),
        ("date", date(2024, 2, 29), "2024-02-29"),
        ("timestamp", datetime(2024, 2, 29, 12, tzinfo=UTC), "2024-02-29T12:00:00Z"),
        ("timestamp_ntz", datetime(2024, 2, 29, 12), "2024-02-29T12:00:00"),
        ("double", math.nan, "NaN"),
        ("long", 2**63 - 1, 2**63 - 1),
        (None, Decimal("12.30"), {"$decimal": "12.30"}),
        (None, b"\x01\x02", {"$binary": "AQI="}),
        (None, time(12), {"$time": "12:00:00"}),
        (None, timedelta(seconds=1), {"$microseconds": 1_000_000}),
        (None, 2**70, {"$int": str(2**70)}),
        (None, {1: "a"}, {"$map": [[1, "a"]]}),
        (None, {"$int": 1}, {"$map": [["$int", 1]]}),
        (None, {"$int": 1, "b": 2}, {"$int": 1, "b": 2}),
    ],
)
def test_json_form_of_a_value_is_the_documented_one(
    kind: str | None, value: object, expected: object
) -> None:
    """The forms are an interface: other programs read and write them."""
    assert to_json(value, kind) == expected
    assert exact(through_json(value, kind)) == exact(value)


@pytest.mark.parametrize(
    ("kind", "given_json"),
    [
        ("decimal(10,2)", 1.5),
        ("decimal(10,2)", "a"),
        ("binary", "AQI"),
        ("binary", "ä"),
        ("date", "2024-02-30"),
        ("timestamp", "2024-02-29T12:00:00"),
        ("timestamp", "0001-01-01T00:00:00+14:00"),
        ("timestamp_ntz", "2024-02-29T12:00:00Z"),
        ("long", "1.5"),
        ("double", "nan"),
        ("time(6)", "25:00"),
        ("interval day", "x"),
        (None, 2**70),
        (None, {"$foo": 1}),
        (None, {"$int": 1}),
        (None, {"$decimal": 1}),
        (None, {"$variant": ["AQI="]}),
        (None, {"$map": {"a": 1}}),
        (None, {"$map": [[{"a": 1}, 1]]}),
        (None, {"$microseconds": 10**30}),
        (None, {"$double": True}),
        (None, {"$double": 10**400}),
        (None, {"$double": "1e400"}),
        (None, {"$date": [[[1]]]}),
        ("double", "-1e400"),
        ("timestamp", "2024-02-29T12:00:00.1234567Z"),
        ("timestamp", "2024-02-29T12:00:00,123456789Z"),
        ("timestamp", "2024-02-29T12:00:00+01:00:00.0000001"),
        ("timestamp_ntz", "2024-02-29T12:00:00.1234567"),
        ("time(6)", "12:00:00.0000001"),
        (None, {"$timestamp": "2024-02-29T12:00:00.1234567Z"}),
    ],
)
def test_json_that_means_nothing_is_refused(kind: str | None, given_json: object) -> None:
    """Never guessed: a sentence says what is wrong."""
    with pytest.raises(SchemaError):
        from_json(given_json, kind)


def test_zeros_behind_microseconds_are_no_loss() -> None:
    """Given nanoseconds that are zeros behind microseconds, the time is read exactly."""
    read = from_json("2024-02-29T12:00:00.120000000Z", "timestamp")
    assert read == datetime(2024, 2, 29, 12, 0, 0, 120_000, tzinfo=UTC)
    assert from_json("12:00:00.000001000", "time(6)") == time(12, 0, 0, 1)


WRAPS: list[tuple[Any, Any]] = [
    (lambda inner: [inner], lambda inner: [inner]),
    (lambda inner: {"a": inner}, lambda inner: {"a": inner}),
    (lambda inner: {1: inner}, lambda inner: {"$map": [[1, inner]]}),
]


@pytest.mark.parametrize(("wrap", "wrap_json"), WRAPS)
def test_depth_of_a_value_has_one_limit_in_both_directions(wrap: Any, wrap_json: Any) -> None:
    """Given a value up to the limit of depth, it can be written and read; beyond it both are
    refused with the limit.
    """
    value, shown = 1, 1
    for _ in range(LEVELS_MAX):
        value, shown = wrap(value), wrap_json(shown)
    assert to_json(value) == shown
    assert from_json(json.loads(json.dumps(shown))) == value
    assert not is_too_deep(json.dumps({"keys": [shown]}).encode())
    for level in (LEVELS_MAX + 1, 300):
        for _ in range(level - LEVELS_MAX):
            value, shown = wrap(value), wrap_json(shown)
        for fails in (lambda value=value: to_json(value), lambda shown=shown: from_json(shown)):
            with pytest.raises(SchemaError, match="128 lists and objects within each other"):
                fails()


def test_brackets_of_texts_and_side_by_side_are_not_deep() -> None:
    """Depth is what counts, not how many lists there are or what texts hold."""
    assert not is_too_deep(json.dumps(["[{" * 1_000, '\\"' + "[" * 1_000, "\\"] * 9).encode())
    assert not is_too_deep(json.dumps([[{}]] * 1_000).encode())
    assert is_too_deep(b'["\\\\",' + b"[" * JSON_LEVELS_MAX + b"]" * JSON_LEVELS_MAX + b"]")


def typed(*columns: tuple[str, str]) -> str:
    """Spark's schema JSON of these columns."""
    fields = [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in columns]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (None, "1", 1),
        (None, '"1"', "1"),
        (None, "abc", "abc"),
        (None, "", ""),
        (None, "null", "null"),
        (None, "[1]", "[1]"),
        (None, '{"$date": "2024-02-29"}', date(2024, 2, 29)),
        (None, '{"a": 1}', '{"a": 1}'),
        ("string", "1", "1"),
        ("string", '"1"', '"1"'),
        ("long", "1", 1),
        ("double", "1.5", 1.5),
        ("boolean", "true", True),
        ("decimal(10,2)", "1.50", Decimal("1.50")),
        ("binary", "AQI=", b"\x01\x02"),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("timestamp", "2024-02-29T13:00:00+01:00", datetime(2024, 2, 29, 12, tzinfo=UTC)),
    ],
)
def test_key_text_of_one_column(kind: str | None, text: str, expected: object) -> None:
    """Typed where the table says so; else a JSON scalar, or the text itself."""
    rows = JsonRows(["id"], "" if kind is None else typed(("id", kind)))
    assert exact(rows.key_from_text(text)) == exact(expected)


def test_key_text_of_several_columns_is_a_json_list() -> None:
    """One value per column; each as its column asks for."""
    rows = JsonRows(["a", "b"], typed(("a", "string"), ("b", "date")))
    assert rows.key_from_text('["x", "2024-02-29"]') == ("x", date(2024, 2, 29))
    assert rows.key_from_json(["x", "2024-02-29"]) == ("x", date(2024, 2, 29))
    assert rows.key_from_json({"a": "x", "b": "2024-02-29"}) == {"a": "x", "b": date(2024, 2, 29)}
    assert rows.bound_from_text('["x"]') == ("x",)
    assert rows.bound_from_json("x") == ("x",)


@pytest.mark.parametrize("text", ["x", "{}", '["x"]', '["x", "no date"]', '["x", "y", "z"]', "["])
def test_key_text_that_is_no_key_is_refused(text: str) -> None:
    """A key of two columns has exactly two values that fit."""
    rows = JsonRows(["a", "b"], typed(("a", "string"), ("b", "date")))
    with pytest.raises(SchemaError):
        rows.key_from_text(text)


def test_row_of_a_typed_table_has_plain_forms() -> None:
    """Row to JSON and back, with nested parts tagged."""
    schema = typed(("id", "long"), ("price", "decimal(10,2)"), ("at", "timestamp"))
    rows = JsonRows(["id"], schema)
    row = {"id": 1, "price": Decimal("9.50"), "at": datetime(2024, 2, 29, tzinfo=UTC)}
    shown = rows.row_to_json(row)
    assert shown == {"id": 1, "price": "9.50", "at": "2024-02-29T00:00:00Z"}
    assert rows.row_from_json(shown) == row
    with pytest.raises(SchemaError, match="'price'"):
        rows.row_from_json({"price": "x"})
