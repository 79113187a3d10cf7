"""A table's schema that grows: columns are appended, and nothing else ever changes.

Values are lists of columns in the order of the schema (``rows.schema``), so a row that was written
before a column was appended is a shorter list, and reads as null there. For the same reason no
column is ever moved, renamed, removed or given another type.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from raftstore.errors import SchemaError
from raftstore.rows.schema import TableSchema, check_columns

_OF_NO_MATTER: Final = ("nullable", "containsNull", "valueContainsNull", "metadata")
"""Parts of a type that do not change how its values are stored."""


def grown_schema(key_columns: tuple[str, ...], schema_json: str, added_json: str) -> str:
    """Return the schema with the columns of another one appended, nullable.

    Columns that are there with the same type stay as they are, so two who append the same column
    agree. Raises SchemaError for one that is there with another type or in another spelling, and
    for a table whose rows may have any columns.
    """
    if not TableSchema(key_columns, schema_json).value_columns:
        raise SchemaError(
            "the table takes any columns beside its key, so none are appended: write them as they "
            "are"
        )
    schema = msgspec.json.decode(schema_json)
    known = {field["name"]: field for field in schema["fields"]}
    spellings = {name.lower(): name for name in known}
    appended = []
    for field in _fields(added_json):
        name = field["name"]
        if name in known:
            _refuse_other_type(field, known[name])
            continue
        if (other := spellings.get(name.lower())) is not None:
            raise SchemaError(
                f"the column {name!r} differs from {other!r} only in case, which Spark does not "
                f"tell apart: rename it to {other!r}"
            )
        spellings[name.lower()] = name
        appended.append({"metadata": {}, **field, "nullable": True})
    if not appended:
        return schema_json
    schema["fields"] += appended
    grown = msgspec.json.encode(schema).decode()
    TableSchema(key_columns, grown)  # refuses what cannot be stored
    return grown


def is_grown_from(schema_json: str, earlier_json: str) -> bool:
    """Whether the first schema is the other one, perhaps with columns appended since.

    Never raises: replicas ask it of what the catalog holds.
    """
    if schema_json == earlier_json:
        return True
    try:
        fields, earlier = _fields(schema_json), _fields(earlier_json)
    except SchemaError:
        return False
    return fields[: len(earlier)] == earlier


def _fields(schema_json: str) -> list[dict[str, Any]]:
    if not check_columns(schema_json):
        raise SchemaError("there are no columns: give a schema as df.schema.json() writes it")
    fields: list[dict[str, Any]] = msgspec.json.decode(schema_json)["fields"]
    return fields


def _refuse_other_type(given: dict[str, Any], known: dict[str, Any]) -> None:
    if _plain(given["type"]) != _plain(known["type"]):
        raise SchemaError(
            f"column {known['name']!r} is {_name(known['type'])} and cannot become "
            f"{_name(given['type'])}: cast it, or write it under another name"
        )


def _plain(kind: Any) -> Any:
    if isinstance(kind, dict):
        return {name: _plain(part) for name, part in kind.items() if name not in _OF_NO_MATTER}
    if isinstance(kind, list):
        return [_plain(part) for part in kind]
    return kind


def _name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
