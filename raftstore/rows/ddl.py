"""Schemas as people write them: ``{"id": "long"}`` or ``id long, total decimal(10, 2)``.

Both become Spark's schema JSON, which is what a table keeps. Types have their names in Spark SQL or
in Spark's JSON; ``array<...>``, ``map<..., ...>`` and ``struct<name: type, ...>`` may be nested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from raftstore.errors import SchemaError

_NAMES: Final = {
    "bigint": "long",
    "int": "integer",
    "smallint": "short",
    "tinyint": "byte",
    "real": "float",
    "bool": "boolean",
    "dec": "decimal(10,0)",
    "decimal": "decimal(10,0)",
    "numeric": "decimal(10,0)",
    "timestamp_ltz": "timestamp",
}
"""Names of Spark SQL that its JSON has other names for."""
_COLUMN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`<>(),]+))\s*:?\s*(.*?)\s*", re.DOTALL)
_EXTRAS: Final = re.compile(
    r"""(?:\s+(?:not\s+null|comment\s+(?:'[^']*'|"[^"]*")))+$""", re.IGNORECASE
)
_NESTED: Final = re.compile(r"(array|map|struct)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_NESTING_MAX: Final = 32
"""Types within types."""
EXAMPLE: Final = "{'id': 'long', 'total': 'double'}, or 'id long, total double'"


def schema_of_mapping(columns: Mapping[Any, Any]) -> str:
    """Return Spark's JSON of column -> type; raise SchemaError for what is none."""
    if columns.get("type") == "struct" and isinstance(columns.get("fields"), list):
        return msgspec.json.encode(columns).decode()  # Spark's JSON already, as an object
    fields = []
    for name, kind in columns.items():
        if not isinstance(name, str) or not isinstance(kind, str):
            raise SchemaError(
                f"the schema has {name!r:.80}: {kind!r:.80}, which is no name with the name of a "
                f"type; give one as in {EXAMPLE}"
            )
        fields.append(_field(name, kind, 0))
    return _struct(fields)


def schema_of_ddl(text: str) -> str:
    """Return Spark's JSON of a list of columns in the words of Spark SQL."""
    return _struct([_column(part, 0) for part in _parts(text)])


def _struct(fields: list[dict[str, Any]]) -> str:
    if not fields:
        raise SchemaError(f"the schema has no columns; give one as in {EXAMPLE}")
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _column(text: str, depth: int) -> dict[str, Any]:
    found = _COLUMN.fullmatch(text)
    if found is None or not found[3]:
        raise SchemaError(
            f"{text.strip()!r:.80} is no column with its type; give the schema as in {EXAMPLE}"
        )
    quoted, plain, kind = found.groups()
    return _field(quoted.replace("``", "`") if quoted else plain, kind, depth)


def _field(name: str, kind: str, depth: int) -> dict[str, Any]:
    bare = _EXTRAS.sub("", kind)
    is_nullable = re.search(r"\snot\s+null", kind[len(bare) :], re.IGNORECASE) is None
    return {
        "name": name,
        "type": _type(bare, depth),
        "nullable": is_nullable,
        "metadata": {},
    }


def _type(text: str, depth: int) -> Any:
    """Return a type as Spark's JSON has it; an unknown one is refused where the JSON is read."""
    if depth > _NESTING_MAX:
        raise SchemaError(f"a type of the schema is nested more than {_NESTING_MAX} deep")
    nested = _NESTED.fullmatch(text.strip())
    if nested is None:
        plain = re.sub(r"\s+", "", text).lower()
        plain = re.sub(r"^(dec|numeric)(?=\()", "decimal", plain)
        return _NAMES.get(plain, plain)
    kind, inner = nested[1].lower(), _parts(nested[2])
    if kind == "struct":
        return {"type": kind, "fields": [_column(part, depth + 1) for part in inner]}
    wanted = 1 if kind == "array" else 2
    if len(inner) != wanted:
        raise SchemaError(
            f"{text.strip()!r:.80} has {len(inner)} types in it, {kind} takes {wanted}; "
            f"give the schema as in {EXAMPLE}"
        )
    types = [_type(part, depth + 1) for part in inner]
    if kind == "array":
        return {"type": kind, "elementType": types[0], "containsNull": True}
    return {"type": kind, "keyType": types[0], "valueType": types[1], "valueContainsNull": True}


def _parts(text: str) -> list[str]:
    """Split at the commas that are in no brackets, back quotes or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'\"":
            quote = sign
        elif sign in "<(":
            depth += 1
        elif sign in ">)":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
