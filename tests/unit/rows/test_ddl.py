"""Schemas in the words of Spark SQL and as dicts become Spark's JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import SchemaError
from raftstore.rows.ddl import schema_of_ddl, schema_of_mapping
from raftstore.rows.schema import TableSchema


def fields_of(text: str) -> list[tuple[str, Any, bool]]:
    schema = json.loads(text)
    assert schema["type"] == "struct"
    return [(field["name"], field["type"], field["nullable"]) for field in schema["fields"]]


def test_ddl_names_columns_and_types() -> None:
    """Names of Spark SQL and of its JSON, with or without a colon, in back quotes, with extras."""
    text = (
        "id BIGINT NOT NULL, `a, ``b` string comment 'x, y', total: decimal(10, 2) , n int, "
        "at timestamp_ntz, d NUMERIC(5,1), e dec"
    )
    assert fields_of(schema_of_ddl(text)) == [
        ("id", "long", False),
        ("a, `b", "string", True),
        ("total", "decimal(10,2)", True),
        ("n", "integer", True),
        ("at", "timestamp_ntz", True),
        ("d", "decimal(5,1)", True),
        ("e", "decimal(10,0)", True),
    ]


def test_ddl_nests_types() -> None:
    """Arrays, maps and structs, within each other."""
    text = "id long, a array<map<string, struct<x: int, y: decimal(3,1)>>>"
    nested = fields_of(schema_of_ddl(text))[1][1]
    value = nested["elementType"]["valueType"]
    assert (nested["type"], nested["elementType"]["keyType"]) == ("array", "string")
    assert [field["type"] for field in value["fields"]] == ["integer", "decimal(3,1)"]
    assert TableSchema(["id"], schema_of_ddl(text)).columns == ("id", "a")


def test_mapping_names_columns_and_types() -> None:
    """In the order in which they are given; Spark's own JSON as a dict is taken as it is."""
    text = schema_of_mapping({"id": "bigint", "total": "double"})
    assert [name for name, _, _ in fields_of(text)] == ["id", "total"]
    assert schema_of_mapping(json.loads(text)) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("id", "'id' is no column with its type"),
        ("id long,", "'' is no column with its type"),
        ("id long, a array<int, int>", "has 2 types in it"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "nested more than 32 deep"),
    ],
)
def test_ddl_that_is_none_is_told_with_an_example(text: str, told: str) -> None:
    """The part that is wrong, and what a right one looks like."""
    with pytest.raises(SchemaError, match=told):
        schema_of_ddl(text)


@pytest.mark.parametrize("columns", [{}, {"id": 5}, {5: "long"}])
def test_mapping_that_is_no_schema_is_told(columns: dict[Any, Any]) -> None:
    """Names and types are texts, and there is one column at least."""
    with pytest.raises(SchemaError, match=r"give one as in \{'id': 'long'"):
        schema_of_mapping(columns)


@given(st.text(alphabet="ab <>(),:`' 1", max_size=30))
def test_ddl_is_a_schema_or_an_error_of_ours(text: str) -> None:
    """Given any text, the result is a schema or a SchemaError."""
    try:
        made = schema_of_ddl(text)
        TableSchema([json.loads(made)["fields"][0]["name"]], made)
    except SchemaError:
        return
