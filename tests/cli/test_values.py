"""Values from and to the shell: keys as the table types them, tables that keep every character."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftstore.cli.common import Context, parse_columns, rows_of
from raftstore.errors import ConfigError, SchemaError
from raftstore.protocol.admin import TableInfo


def table(*names: str, types: tuple[str, ...] = ()) -> TableInfo:
    """A table with these key columns, typed if types are given."""
    fields = [
        {"name": name, "type": kind, "nullable": False, "metadata": {}}
        for name, kind in zip(names, types, strict=False)
    ]
    schema = json.dumps({"type": "struct", "fields": fields}) if types else ""
    return TableInfo("t", bytes(16), names, 1, 1, "fsync", None, schema, ())


def parse_key(text: str, info: TableInfo) -> Any:
    """A key as the shell has it."""
    return rows_of(info).key_from_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ('"1"', "1"), ("abc", "abc"), ("1.5", 1.5), ("true", True), ("null", "null")],
)
def test_key_of_an_untyped_table_is_a_json_scalar_or_else_text(text: str, expected: Any) -> None:
    """A number is typed as a number, a word as text, and quotes force text."""
    key = parse_key(text, table("id"))
    assert key == expected
    assert type(key) is type(expected)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [("long", "1", 1), ("string", "1", "1"), ("string", "abc", "abc"), ("double", "1.5", 1.5)],
)
def test_key_of_a_typed_table_has_the_type_of_the_table(
    kind: str, text: str, expected: Any
) -> None:
    """``raftstore get orders 1`` finds the row whether the key is a number or a text."""
    key = parse_key(text, table("id", types=(kind,)))
    assert key == expected
    assert type(key) is type(expected)


def test_key_of_the_wrong_type_is_refused_by_column() -> None:
    """The sentence names the column and what it expects."""
    with pytest.raises(SchemaError, match="id"):
        parse_key("abc", table("id", types=("long",)))


def test_composite_key_is_a_json_list() -> None:
    """One value per key column, in their order."""
    assert parse_key('["a", 1]', table("tenant", "id")) == ("a", 1)
    with pytest.raises(SchemaError, match="has 2 columns"):
        parse_key('["a"]', table("tenant", "id"))
    with pytest.raises(SchemaError, match="is not JSON"):
        parse_key("a", table("tenant", "id"))


def test_key_columns_carry_their_types_if_wanted() -> None:
    """``--key tenant,id:long`` is what ``table create`` takes."""
    assert parse_columns("tenant, id:long") == [("tenant", ""), ("id", "long")]
    with pytest.raises(ConfigError, match="names an empty column"):
        parse_columns("id,,x")


def test_table_shows_values_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets and colons in data are no markup, and long values are not cut in a pipe."""
    long_value = "x" * 5_000
    Context().show(None, [{"a": "[red]:smile:", "b": long_value, "c": None}])
    shown = capsys.readouterr().out
    assert "[red]:smile:" in shown
    assert long_value in shown
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2
