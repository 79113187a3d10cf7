"""Rows and keys of one table in JSON and in text: what people type and HTTP paths hold.

A key of one column is its plain text where its type is declared; where it is not, a JSON scalar
(``1``, ``true``, ``"1"`` with quotes for text), a tagged object (``{"$date": "2024-02-29"}``), or
else the text itself. A key of several columns is a JSON list of their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from raftstore.errors import SchemaError
from raftstore.rows.columns import parse_column_type
from raftstore.rows.json_levels import is_too_deep
from raftstore.rows.json_values import from_json, to_json
from raftstore.rows.schema import TableSchema

JSON_ERRORS: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What reading text as JSON may raise."""


class JsonRows:
    """Translates the rows and keys of a table; build it once per definition."""

    def __init__(self, key_columns: Sequence[str], schema_json: str = "") -> None:
        self._schema: Final = TableSchema(key_columns, schema_json)
        self.key_columns: Final = self._schema.key_columns
        self._kinds: Final = _kinds(schema_json)

    # --- rows ------------------------------------------------------------------------------------

    def row_to_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what JSON holds for a row."""
        return {name: to_json(value, self._kinds.get(name)) for name, value in row.items()}

    def row_from_json(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row that JSON stands for; SchemaError names the column at fault."""
        return {name: self._value(name, value) for name, value in given.items()}

    def encoded_key(self, columns: Mapping[str, Any]) -> bytes:
        """Return what the values of all key columns are stored as; equal keys are equal bytes."""
        return self._schema.key_of(columns)

    # --- keys ------------------------------------------------------------------------------------

    def key_from_text(self, text: str) -> Any:
        """Return a key from text; SchemaError when it is no key of this table."""
        if len(self.key_columns) > 1:
            return self.key_from_json(_composite(text, self.key_columns))
        kind = self._kinds.get(self.key_columns[0])
        if kind is not None:
            return self._checked((self._value(self.key_columns[0], text),))
        return self._checked((_scalar(text),))

    def key_from_json(self, given: Any) -> Any:
        """Return a key from its JSON: a value, a list for several columns, or an object."""
        if isinstance(given, dict) and not _is_tagged(given):
            return self._checked_map(
                {name: self._value(name, value) for name, value in given.items()}
            )
        values = given if len(self.key_columns) > 1 else [given]
        if not isinstance(values, list) or len(values) != len(self.key_columns):
            raise SchemaError(
                f"the key has {len(self.key_columns)} columns ({', '.join(self.key_columns)}); "
                f"give a JSON list of {len(self.key_columns)} values, not {given!r:.60}"
            )
        return self._checked(self.columns_from_json(values))

    def columns_from_json(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return values of the first key columns, as bounds and prefixes of scans have them."""
        if len(values) > len(self.key_columns):
            raise SchemaError(
                f"{len(values)} values are more than the key has columns "
                f"({', '.join(self.key_columns)}); leave some out"
            )
        return tuple(
            self._value(name, value) for name, value in zip(self.key_columns, values, strict=False)
        )

    def bound_from_json(self, given: Any) -> tuple[Any, ...]:
        """Return a bound of a scan: a value of the first column, or a list of the first columns."""
        return self.columns_from_json(given if isinstance(given, list) else [given])

    def bound_from_text(self, text: str) -> tuple[Any, ...]:
        """Return a bound of a scan from text: a key of one column, or a JSON list of values."""
        if len(self.key_columns) > 1 or _is_list(text):
            return self.columns_from_json(_list(text, "a bound of a composite key"))
        key = self.key_from_text(text)
        return (key,)

    def _value(self, name: str, given: Any) -> Any:
        try:
            return from_json(given, self._kinds.get(name))
        except SchemaError as error:
            raise SchemaError(f"column {name!r}: {error}") from error

    def _checked(self, values: tuple[Any, ...]) -> Any:
        self._schema.encode_key(values)
        return values if len(values) > 1 else values[0]

    def _checked_map(self, key: dict[str, Any]) -> dict[str, Any]:
        self._schema.key_of(key)
        return key


def _kinds(schema_json: str) -> dict[str, str]:
    if not schema_json:
        return {}
    fields = msgspec.json.decode(schema_json.encode())["fields"]
    return {field["name"]: parse_column_type(field["type"]).name for field in fields}


def _scalar(text: str) -> Any:
    try:
        parsed = _parsed(text)
    except JSON_ERRORS:
        return text
    if isinstance(parsed, dict) and _is_tagged(parsed):
        return from_json(parsed)
    return text if isinstance(parsed, dict | list) or parsed is None else parsed


def _parsed(text: str) -> Any:
    encoded = text.encode()
    parsed = msgspec.json.decode(encoded)
    if is_too_deep(encoded):
        raise RecursionError("it is nested too deep")
    return parsed


def _is_tagged(given: dict[str, Any]) -> bool:
    return len(given) == 1 and next(iter(given)).startswith("$")


def _is_list(text: str) -> bool:
    return text.startswith("[") and text.endswith("]")


def _composite(text: str, names: Sequence[str]) -> list[Any]:
    values = _list(text, "a composite key")
    if len(values) != len(names):
        raise SchemaError(
            f"the key has {len(names)} columns ({', '.join(names)}); "
            f"give a JSON list of {len(names)} values, not {text!r:.60}"
        )
    return values


def _list(text: str, what: str) -> list[Any]:
    remedy = f'{what} is a JSON list, as in ["a", 1]'
    try:
        values = _parsed(text)
    except JSON_ERRORS as error:
        raise SchemaError(f"{text!r:.60} is not JSON ({error}); {remedy}") from error
    if not isinstance(values, list):
        raise SchemaError(f"{text!r:.60} is no list; {remedy}")
    return values
