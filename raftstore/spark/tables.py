"""Whether a DataFrame fits a table, decided on the driver before any task starts; and whether the
table is still the one that was planned with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from raftstore.errors import SchemaError, UnknownTableError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.spark.options import CHANGE_COLUMN, SinkOptions

_WIDER: Final = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
"""Types that fit a column of another type with the same bytes for the same value."""


def check_fits(table: TableInfo, options: SinkOptions, schema_json: str) -> None:
    """Raise SchemaError unless every row of the DataFrame is a row of the table.

    ``schema_json`` is the DataFrame's. All columns must be there: an upsert replaces the whole row,
    so a forgotten column would erase what is stored. A delete needs the key columns only; with
    ignoreNullValues a column that is missing erases nothing, and with mergeSchema it is the user's
    word that columns differ.
    """
    given = columns_of(schema_json)
    if options.key and options.key != table.key_columns:
        raise SchemaError(
            f"[RAFTSTORE_KEY_MISMATCH] key is {_list(options.key)}, but the key of table "
            f"{table.name!r} is {_list(table.key_columns)}: leave the option key out"
        )
    for name in table.key_columns:
        if name not in given:
            raise _missing(table, name, given, "key column")
    declared = columns_of(table.schema_json) if table.schema_json else {}
    if options.operation == "column" and CHANGE_COLUMN in declared:
        raise SchemaError(
            f"[RAFTSTORE_SCHEMA_MISMATCH] table {table.name!r} has a column {CHANGE_COLUMN!r} of "
            "its own, so operation=column cannot be read from its values: name one operation"
        )
    if options.operation == "delete":
        declared = {name: declared[name] for name in table.key_columns if declared}
        given = {name: given[name] for name in table.key_columns}
    else:
        # Refuses types that cannot be stored or cannot be keys, naming the column.
        TableSchema(table.key_columns, schema_json)
    if declared:
        _check_columns(table, options, given, declared)


def refuse_other_table(uuid: bytes, planned: TableInfo) -> None:
    """S0.8: raise unless the table that has the name now, by its uuid, is the planned one.

    Another one may have other rows and another number of partitions: rows split for the planned
    one do not belong there, and what is read there is not what was asked for.
    """
    if uuid != planned.uuid:
        raise UnknownTableError(
            f"table {planned.name!r} was dropped and created again since this job planned with it: "
            "start the job again"
        )


def columns_to_append(table: TableInfo, schema_json: str) -> str:
    """Return the DataFrame's columns that the table lacks, as a schema; "" if there are none.

    Raises SchemaError for a column without a type: it could never have one afterwards.
    """
    declared = columns_of(table.schema_json) if table.schema_json else {}
    if not declared.keys() - frozenset(table.key_columns):
        return ""  # such a table takes any
    schema = msgspec.json.decode(schema_json)
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in declared]
    for field in schema["fields"]:
        if field["type"] == "void":
            raise SchemaError(
                f"[RAFTSTORE_SCHEMA_MISMATCH] column {field['name']!r}, which table "
                f"{table.name!r} does not have yet, is void: cast it to the type it is to have"
            )
    return msgspec.json.encode(schema).decode() if schema["fields"] else ""


def _check_columns(
    table: TableInfo, options: SinkOptions, given: Mapping[str, Any], declared: Mapping[str, Any]
) -> None:
    for name in declared:
        if name not in given and not (options.merge_schema or options.ignore_null_values):
            raise _missing(table, name, given, "column")
    takes_any = declared.keys() == frozenset(table.key_columns)
    for name, kind in given.items():
        if name not in declared:
            if takes_any or options.merge_schema:
                continue
            way = "operation=column" if name == CHANGE_COLUMN else "mergeSchema=true"
            remedy = f"drop it before writing, or write with {way}"
            raise SchemaError(
                f"[RAFTSTORE_SCHEMA_MISMATCH] the DataFrame has the column {name!r}, which table "
                f"{table.name!r} does not have ({_list(declared)}): {remedy}"
            )
        if not _fits(kind, declared[name]):
            raise SchemaError(
                f"[RAFTSTORE_SCHEMA_MISMATCH] column {name!r} is {_name(kind)}, but in table "
                f"{table.name!r} it is {_name(declared[name])}: cast it before writing"
            )


def columns_of(schema_json: str) -> dict[str, Any]:
    """Return the types of the columns by name, as Spark's schema JSON writes them."""
    return {field["name"]: field["type"] for field in msgspec.json.decode(schema_json)["fields"]}


def _missing(table: TableInfo, name: str, given: Iterable[str], what: str) -> SchemaError:
    close = difflib.get_close_matches(name, given, n=1, cutoff=0.5)
    remedy = f"rename {close[0]!r}" if close else "add it"
    return SchemaError(
        f"[RAFTSTORE_SCHEMA_MISMATCH] the DataFrame lacks the {what} {name!r} of table "
        f"{table.name!r} (it has {_list(given)}): {remedy} before writing"
    )


def _fits(given: Any, declared: Any) -> bool:
    """Return whether values of one type are values of the other; nullability does not matter."""
    if isinstance(given, str) or isinstance(declared, str):
        return given == declared or _fits_simple(given, declared)
    if given["type"] != declared["type"]:
        return False
    if given["type"] == "array":
        return _fits(given["elementType"], declared["elementType"])
    if given["type"] == "map":
        return _fits(given["keyType"], declared["keyType"]) and _fits(
            given["valueType"], declared["valueType"]
        )
    if given["type"] == "struct":
        names = [field["name"] for field in given["fields"]]
        return names == [field["name"] for field in declared["fields"]] and all(
            _fits(one["type"], other["type"])
            for one, other in zip(given["fields"], declared["fields"], strict=True)
        )
    return bool(given["sqlType"] == declared["sqlType"])


def _fits_simple(given: Any, declared: Any) -> bool:
    if not isinstance(given, str) or not isinstance(declared, str):
        return False
    return declared in _WIDER.get(given, ()) or given == "void" or _is_text(given, declared)


def _is_text(given: str, declared: str) -> bool:
    text = ("string", "varchar", "char")
    return given.startswith(text) and declared.startswith("string")


def _name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _list(names: Iterable[str] | Mapping[str, Any]) -> str:
    return ", ".join(names)
