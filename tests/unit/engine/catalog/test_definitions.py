"""Every part of a table's definition is judged before anything is proposed."""

from __future__ import annotations

import pytest
from msgspec import structs

from raftstore.config import MIB, PARTITIONS_MAX, REPLICAS_MAX
from raftstore.engine.catalog.table_definition import BOUND_MAX, definition_problem, edit_problem
from raftstore.protocol.admin import CreateTable
from raftstore.protocol.table_settings import SETTING_LIMITS, TableSettings

GOOD = CreateTable(1, "t", ("a", "b"), 4, 3, "fsync", None, "", False, timeout_ms=1_000)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a/b"}, "letters"),
        ({"key_columns": ()}, "at least one column"),
        ({"key_columns": ("a", "b", "a")}, "('a', 'b', 'a') must name"),
        ({"partitions": 0}, f"partitions=0 is outside 1..{PARTITIONS_MAX}"),
        ({"partitions": PARTITIONS_MAX + 1}, "is outside 1.."),
        ({"replicas": 0}, "replicas=0 is outside"),
        ({"replicas": REPLICAS_MAX + 1}, f"is outside 1..{REPLICAS_MAX}"),
        ({"durability": "none"}, "'none' is not known; use one of fsync"),
        ({"max_lag": -1}, "max_lag=-1 is negative"),
        ({"schema_json": "{"}, "df.schema.json()"),
        ({"settings": TableSettings(retention_bytes=5)}, "retention_bytes=5 is outside"),
        ({"settings": TableSettings(retention_records=5)}, "retention_records=5 is outside"),
        ({"settings": TableSettings(retention_age_ms=1 << 60)}, "retention_age_ms="),
    ],
)
def test_definition_that_cannot_be_is_refused_with_its_value(
    changes: dict[str, object], told: str
) -> None:
    """Given a definition out of its limits, the refusal names the value: nobody could drop or read
    such a table properly.
    """
    problem = definition_problem(structs.replace(GOOD, **changes), is_new=True)
    assert problem is not None
    assert told in problem


def test_definition_at_its_limits_is_taken() -> None:
    """The least and the most of each number."""
    for changes in (
        {},
        {"partitions": 1, "replicas": 1, "max_lag": 0, "key_columns": ("a",)},
        {"partitions": PARTITIONS_MAX, "replicas": REPLICAS_MAX},
        {"settings": TableSettings(MIB, 1_000, 0)},
        {"settings": TableSettings(MIB**2, 2**31 - 1, 366 * 86_400_000)},
    ):
        assert definition_problem(structs.replace(GOOD, **changes), is_new=True) is None
    old = structs.replace(GOOD, name="a/b")
    assert definition_problem(old, is_new=False) is None, "a table keeps the name that it has"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "no property"),
        ({"partitions": 3}, "no property 'partitions'"),
        ({"add_columns": 5}, "add_columns=5 is no schema"),
        ({"standby_reads": 1}, "standby_reads=1 is neither true nor false"),
        ({"max_lag": -1}, "max_lag=-1 is no number"),
        ({"max_lag": True}, "max_lag=True is no number"),
        ({"max_lag": BOUND_MAX + 1}, "is no number"),
        ({"max_lag": None, "standby_reads": "no"}, "standby_reads='no'"),
        (
            {"retention_bytes": MIB - 1},
            f"retention_bytes={MIB - 1} is outside {MIB} to {MIB**2} bytes; give one of these",
        ),
        ({"retention_bytes": MIB**2 + 1}, f"retention_bytes={MIB**2 + 1} is outside"),
        ({"retention_records": 999}, "retention_records=999 is outside 1000 to 2147483647 records"),
        ({"retention_records": True}, "retention_records=True is outside"),
        ({"retention_age_ms": -1}, "retention_age_ms=-1 is outside 0 to 31622400000 milliseconds"),
        ({"retention_age_ms": "7d"}, "retention_age_ms='7d' is outside"),
    ],
)
def test_change_that_cannot_be_is_refused_with_its_value(
    changes: dict[str, object], told: str
) -> None:
    """Of the first property that is wrong; None takes one back and is never wrong."""
    problem = edit_problem(changes)
    assert problem is not None
    assert told in problem


def test_changes_at_their_limits_are_taken() -> None:
    """The least and the most, and what takes a property back."""
    assert edit_problem({"max_lag": 0, "standby_reads": False, "add_columns": "{}"}) is None
    assert edit_problem({"max_lag": BOUND_MAX}) is None
    assert edit_problem({"retention_bytes": MIB, "retention_age_ms": 0}) is None
    assert edit_problem(dict.fromkeys(SETTING_LIMITS)) is None
    assert edit_problem({"max_lag": None, "standby_reads": None}) is None


def test_durability_of_a_table_is_not_edited() -> None:
    """S0.6: replicas would go by it from different moments on; the text names a way."""
    problem = edit_problem({"durability": "memory"})
    assert problem is not None
    assert "durability is fixed when a table is created" in problem
    assert "durability='memory' and copy the rows" in problem
