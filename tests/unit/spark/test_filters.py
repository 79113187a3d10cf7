"""Filters as ranges of keys: what is read, and what is left for Spark, never another answer."""

import datetime as dt
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource

from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.spark.read import filters
from raftstore.spark.read.filters import EVERYTHING, FilterPlan, plan_filters

UTC = dt.UTC
BASE = dt.datetime.fromisoformat("2024-01-01")
FLOATS = (-math.inf, -1.5, -0.0, 0.0, 0.1, 2.0, math.inf, math.nan)
TEXTS = ("", "a", "a\0", "a\0b", "ab", "abc", "b", "\x7f", "ä", "\U0001f600", "\uffff")
TYPES: dict[str, tuple[Any, ...]] = {
    "boolean": (False, True),
    "byte": (-128, -1, 0, 1, 127),
    "integer": (-(2**31), -1, 0, 1, 7, 2**31 - 1),
    "long": (-(2**63), -1, 0, 1, 2**31, 2**63 - 1),
    "float": (-math.inf, -1.5, 0.0, 0.10000000149011612, 0.5, math.nan),
    "double": FLOATS,
    "decimal(5,2)": tuple(map(Decimal, ("-999.99", "-0.01", "0", "1.5", "1.51", "999.99"))),
    "string": TEXTS,
    "binary": (b"", b"\0", b"\0\xff", b"a", b"\xff", b"\xff\xff"),
    "date": (dt.date.min, dt.date(1969, 12, 31), dt.date(2024, 1, 1), dt.date.max),
    "timestamp": tuple(BASE.replace(tzinfo=UTC, microsecond=n) for n in (0, 1, 999_999)),
    "timestamp_ntz": (dt.datetime.fromisoformat("0001-01-01"), BASE, BASE.replace(microsecond=1)),
}
"""Values of columns, with those at the edges."""
UNFIT: tuple[Any, ...] = (None, 2**31, 2**63, -(2**80), 1.5, 0.1, "a", b"a", True)
UNFIT += (Decimal("1.555"), Decimal("1E+6"), Decimal("NaN"), BASE, BASE.replace(tzinfo=UTC))
"""Literals of any type: where they do not fit the column, the filter is Spark's."""
COMPARISONS = ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan")
COMPARISONS += ("GreaterThanOrEqual",)


def table(key: dict[str, Any], **others: Any) -> TableInfo:
    """A table of four partitions."""
    columns = {**key, "x": "long", **others}
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    text = json.dumps({"type": "struct", "fields": fields})
    return TableInfo("t", b"u" * 16, tuple(key), 4, 3, "fsync", None, text, ())


def order(value: Any) -> Any:
    """The key by which Spark compares: numbers of any type; NaN is the largest, and equal to
    itself.
    """
    if isinstance(value, float) and math.isnan(value):
        return (1, 0.0)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return (0, value)
    if isinstance(value, str):
        return value.encode()
    return value


def holds(given: Any, row: dict[str, Any]) -> bool | None:
    """Spark's answer, None for null: what is no comparison of like with like is null here."""
    name = type(given).__name__
    if name == "Not":
        inner = holds(given.child, row)
        return None if inner is None else not inner
    value = row[given.attribute[0]]
    if name in ("IsNull", "IsNotNull"):
        return (value is None) == (name == "IsNull")
    if name == "In":
        found = [_compares(value, each, "EqualTo") for each in given.value]
        return True if True in found else (None if None in found else False)
    return _compares(value, given.value, name)


def _compares(value: Any, literal: Any, name: str) -> bool | None:
    if name == "EqualNullSafe" and (value is None or literal is None):
        return value is literal
    if value is None or literal is None:
        return None
    if name == "StringStartsWith":
        return value.startswith(literal)
    try:
        one, other = order(value), order(literal)
        return {
            "LessThan": lambda: one < other,
            "LessThanOrEqual": lambda: one <= other,
            "GreaterThan": lambda: one > other,
            "GreaterThanOrEqual": lambda: one >= other,
        }.get(name, lambda: one == other)()
    except (TypeError, ArithmeticError):
        return None


def read(plan: FilterPlan, info: TableInfo, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that a plan reads, by their encoded keys."""
    schema = TableSchema(info.key_columns, info.schema_json)
    found = []
    for row in rows:
        key = schema.encode_key([row[name] for name in info.key_columns])
        if plan.keys is not None:
            within = [key] if key in plan.keys else []
        else:
            within = [r for r in plan.ranges if r.start <= key and (not r.stop or key < r.stop)]
        assert len(within) <= 1, "read twice"
        found += [row] * len(within)
    return found


@dataclass
class Case:
    """A table, its rows and the filters of a query."""

    info: TableInfo
    rows: list[dict[str, Any]]
    given: list[Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Keys of one to three columns, filters on them and on others, of fitting and other types."""
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3))
    key = {f"k{number}": kind for number, kind in enumerate(kinds)}
    values = {name: st.sampled_from(TYPES[kind]) for name, kind in key.items()}
    x = st.none() | st.integers(0, 3)
    rows = draw(st.lists(st.fixed_dictionaries({**values, "x": x}), max_size=12))
    given = [draw(filters_of(draw(st.sampled_from([*values, "x"])), key, values)) for _ in range(4)]
    return Case(table(key), rows, given[: draw(st.integers(0, 4))])


def filters_of(name: str, key: dict[str, str], values: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Any filter of a column."""
    literal = values.get(name, st.integers(0, 3))
    literal = st.one_of(literal, literal, literal, st.sampled_from(UNFIT))
    path = st.just((name,))
    kinds = [st.builds(getattr(datasource, kind), path, literal) for kind in COMPARISONS]
    kinds.append(st.builds(datasource.In, path, st.lists(literal, max_size=4).map(tuple)))
    kinds.append(st.builds(datasource.IsNotNull, path))
    kinds.append(st.builds(datasource.IsNull, path))
    if key.get(name) == "string":
        kinds.append(st.builds(datasource.StringStartsWith, path, st.sampled_from(TEXTS)))
    one = st.one_of(kinds)
    return st.one_of(one, one, one, st.builds(datasource.Not, one))


@pytest.mark.slow
@given(cases())
def test_rows_read_and_filtered_by_what_is_left_are_the_rows_of_the_query(case: Case) -> None:
    """For any filters, literals and keys, the rows read and filtered by the remaining filters are
    those of the query, each once.
    """
    plan, left = plan_filters(case.given, case.info)
    found = read(plan, case.info, case.rows)
    expected = [row for row in case.rows if all(holds(each, row) for each in case.given)]
    assert [row for row in found if all(holds(each, row) for each in left)] == expected
    assert [id(each) for each in left] == [id(e) for e in case.given if any(e is x for x in left)]


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_comparisons_with_values_of_the_column_are_taken_whatever_its_type(kind: str) -> None:
    """Nothing is left to Spark, and no row too many is read."""
    info = table({"id": kind})
    rows = [{"id": value, "x": 1} for value in TYPES[kind]]
    for name in (*COMPARISONS, "In"):
        for value in TYPES[kind]:
            wanted = getattr(datasource, name)(("id",), (value, None) if name == "In" else value)
            plan, left = plan_filters([datasource.IsNotNull(("id",)), wanted], info)
            assert left == []
            assert read(plan, info, rows) == [row for row in rows if holds(wanted, row)]
            assert (plan.keys is not None) == name.startswith(("Eq", "In"))


def test_literals_that_the_column_cannot_hold_are_left() -> None:
    """Given a literal that the column cannot hold, its filter is left to Spark; the others are
    pushed down.
    """
    info = table({"id": "integer"})
    fits = datasource.LessThan(("id",), 5)
    for value in (2**31, 1.5, Decimal(1), "1", None, True, dt.date(2024, 1, 1)):
        odd = datasource.GreaterThan(("id",), value)
        assert plan_filters([odd, fits], info)[1] == [odd]
    many = datasource.In(("id",), (1, 2**40))
    assert plan_filters([many], info) == (EVERYTHING, [many])
    for value in (0.1, 1e39):  # rounded to the column's precision it would be another bound
        odd = datasource.GreaterThan(("id",), value)
        assert plan_filters([odd], table({"id": "float"})) == (EVERYTHING, [odd])


def test_equality_on_the_first_columns_and_a_range_on_the_next_are_one_range_each() -> None:
    """Equality on the first key columns and a range on the next make one range each; filters on
    later columns are left to Spark.
    """
    info = table({"a": "string", "b": "long", "c": "date"})
    schema = TableSchema(info.key_columns, info.schema_json)
    first = datasource.In(("a",), ("y", "x"))
    second = datasource.GreaterThanOrEqual(("b",), 3)
    third = datasource.EqualTo(("c",), dt.date(2024, 1, 1))
    plan, left = plan_filters([third, second, first], info)
    assert left == [third]
    assert [r.start for r in plan.ranges] == [schema.key_prefix((a, 3))[0] for a in ("x", "y")]
    assert [r.stop for r in plan.ranges] == [schema.key_prefix((a,))[1] for a in ("x", "y")]
    plan, left = plan_filters([third, datasource.EqualTo(("b",), 3), first], info)
    assert left == []
    assert plan.keys == tuple(schema.encode_key((a, 3, third.value)) for a in ("x", "y"))
    by_partition = plan.keys_of(4)
    assert sorted(key for keys in by_partition.values() for key in keys) == sorted(plan.keys)


def test_filters_that_contradict_each_other_read_nothing() -> None:
    """No row can satisfy them."""
    info = table({"a": "long", "b": "long"})
    one, other = datasource.EqualTo(("a",), 1), datasource.EqualTo(("a",), 2)
    assert plan_filters([one, other], info)[0].is_of_nothing
    low, high = datasource.LessThan(("a",), 1), datasource.GreaterThan(("a",), 1)
    assert plan_filters([low, high], info)[0].is_of_nothing
    assert plan_filters([one, low], info)[0].is_of_nothing
    assert not EVERYTHING.is_of_nothing


def test_lists_that_are_too_long_are_read_as_the_range_they_are_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark filters what is between them."""
    monkeypatch.setattr(filters, "KEYS_MAX", 2)
    info = table({"id": "long"})
    wanted = datasource.In(("id",), (1, 5, 9))
    plan, left = plan_filters([wanted], info)
    assert left == [wanted]
    rows = [{"id": number, "x": None} for number in range(12)]
    assert [row["id"] for row in read(plan, info, rows)] == list(range(1, 10))


def test_columns_whose_bytes_do_not_tell_equality_are_left() -> None:
    """No declared type, padded and collated texts, columns within columns, and no key at all."""
    free = TableInfo("t", b"u" * 16, ("id",), 4, 3, "fsync", None, "", ())
    for info in (free, table({"id": "char(3)"}), table({"id": "string collate UNICODE_CI"})):
        wanted = datasource.EqualTo(("id",), "a")
        assert plan_filters([wanted], info) == (EVERYTHING, [wanted])
    text = table({"id": "string"})
    marked = text.schema_json.replace("{}", '{"__COLLATIONS": {"id": "icu.UNICODE"}}')
    collated = TableInfo("t", b"u" * 16, ("id",), 4, 3, "fsync", None, marked, ())
    wanted = datasource.EqualTo(("id",), "a")
    assert plan_filters([wanted], collated) == (EVERYTHING, [wanted])
    for path in (("id", "a"), ("x",), ("other",)):
        wanted = datasource.EqualTo(path, "a")
        assert plan_filters([wanted], text) == (EVERYTHING, [wanted])
    huge = datasource.EqualTo(("id",), "a" * 100_000)
    assert plan_filters([huge], text) == (EVERYTHING, [huge])
