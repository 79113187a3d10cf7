"""A table's schema that grows: columns are appended, and nothing else."""

import json

import pytest

from raftstore.errors import SchemaError
from raftstore.rows.schema import TableSchema
from raftstore.rows.schema_growth import grown_schema, is_grown_from

KEY = ("id",)


def schema(*, nullable: bool = True, **types: object) -> str:
    """Spark's JSON of a schema."""
    fields = [
        {"name": name, "type": kind, "nullable": nullable, "metadata": {}}
        for name, kind in types.items()
    ]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


BEFORE = schema(id="long", text="string")


def array_of(kind: str, *, nulls: bool) -> dict[str, object]:
    """An array's type."""
    return {"type": "array", "elementType": kind, "containsNull": nulls}


def test_columns_are_appended_nullable_and_old_rows_are_null_in_them() -> None:
    """Rows written by either schema are read by either: shorter ones are null, longer ones cut."""
    after = grown_schema(KEY, BEFORE, schema(n="long", text="string", nullable=False))
    old, new = TableSchema(KEY, BEFORE), TableSchema(KEY, after)
    assert new.columns == ("id", "text", "n")
    assert json.loads(after)["fields"][-1]["nullable"] is True
    row = {"id": 1, "text": "a"}
    assert new.key_value_to_row(*old.row_to_key_value(row)) == row | {"n": None}
    assert old.key_value_to_row(*new.row_to_key_value(row | {"n": 7})) == row


def test_columns_that_are_there_already_change_nothing() -> None:
    """Two who append the same column agree, also when one of them forbids nulls."""
    assert grown_schema(KEY, BEFORE, BEFORE) == BEFORE
    lists = schema(id="long", list=array_of("long", nulls=True))
    again = schema(list=array_of("long", nulls=False), nullable=False)
    assert grown_schema(KEY, lists, again) == lists
    once = grown_schema(KEY, BEFORE, schema(n="long"))
    twice = grown_schema(KEY, once, schema(n="long", m="date"))
    assert TableSchema(KEY, twice).columns == ("id", "text", "n", "m")


@pytest.mark.parametrize(
    ("added", "said"),
    [
        (schema(text="long"), "'text' is string and cannot become long: cast it"),
        (schema(id="string"), "'id' is long and cannot become string"),
        (schema(text=array_of("string", nulls=True)), "is string and cannot become array"),
        (schema(Text="string"), "'Text' differs from 'text' only in case.*rename it to 'text'"),
        (schema(a="long", A="long"), "'A' differs from 'a' only in case"),
        (schema(y="interval year to month"), "column 'y'"),
        (schema(), "there are no columns"),
        ("{}", "the schema is not the text"),
        ("", "there are no columns"),
    ],
)
def test_column_that_cannot_be_appended_is_refused(added: str, said: str) -> None:
    """By name and with what to do."""
    with pytest.raises(SchemaError, match=said):
        grown_schema(KEY, BEFORE, added)


@pytest.mark.parametrize("loose", ["", schema(id="long")])
def test_table_that_takes_any_columns_gets_none(loose: str) -> None:
    """Its values are maps: a declared column would change how they are read."""
    with pytest.raises(SchemaError, match="takes any columns beside its key"):
        grown_schema(KEY, loose, schema(n="long"))


def test_schema_is_known_by_the_one_that_it_has_grown_from() -> None:
    """Appended columns do not make it another one; anything else does, and nothing raises."""
    after = grown_schema(KEY, BEFORE, schema(n="long"))
    assert is_grown_from(after, BEFORE)
    assert is_grown_from("", "")
    for other in (schema(id="long"), schema(id="string", text="string"), "", "no json"):
        assert is_grown_from(after, other) is (other == schema(id="long"))
    assert not is_grown_from(BEFORE, after)
