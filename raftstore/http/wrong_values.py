"""Faults of parameters and bodies: the name, the value, what is allowed instead.

The words come from the declared types, which also make the OpenAPI document, so that nobody has to
know what checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect

from raftstore.http.errors import HttpError, bad_request
from raftstore.rows.key_text import JSON_ERRORS

COUNT_MAX: Final = 2**63 - 1
"""The most that the wire has room for; it is named where more was given."""
_AT: Final = re.compile(r" - at `\$\.(?P<name>\w+)(?P<inner>[^`]*)`")
_STEP: Final = re.compile(r"\.(\w+)|\[")
"""Into a field of an object, or into what a list or map holds."""
_MISSING: Final = re.compile(r"missing required field `(?P<name>\w+)`")
_UNKNOWN: Final = re.compile(
    r"contains unknown field `(?P<name>.*?)`(?: - at `\$\.[^`]*`)?$", re.DOTALL
)
_WORDS: Final[dict[type[inspect.Type], str]] = {
    inspect.BoolType: "true or false",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
    inspect.NoneType: "null",
}


def wrong_value(what: str, name: str, value: Any, declared: Any) -> HttpError:
    """Refuse a value that its declared type does not allow; ``what`` is parameter or field."""
    most = f" to {COUNT_MAX}" if _is_over(value) else ""
    return bad_request(f"the {what} {name!r} is {_shown(value)}; give {allowed(declared)}{most}")


def unknown_name(what: str, name: str, known: Iterable[str], place: str = "") -> HttpError:
    """Refuse a name that means nothing here; ``place``: inside which field, if inside one."""
    return bad_request(
        f"the {what} {name!r:.60}{place} is unknown (there are: {', '.join(known) or 'none'})"
    )


def wrong_body(path: str, kind: Any, body: bytes, error: Exception) -> HttpError:
    """Refuse a body; the field at fault is named where it is one of the body's own."""
    try:
        if not isinstance(error, msgspec.ValidationError):
            raise error
        given = msgspec.json.decode(body)
    except JSON_ERRORS as reason:  # also what follows the value that was found wrong first
        return bad_request(f"the body is not JSON ({reason}); {path} takes a JSON object")
    fields = {field.encode_name: field for field in _fields(kind)}
    text = str(error)
    at, missing, unknown = _AT.search(text), _MISSING.search(text), _UNKNOWN.search(text)
    if not isinstance(given, dict):
        return bad_request(f"the body is {_shown(given)}; {path} takes a JSON object")
    where, inner = "", None
    if at is not None and at["name"] in fields:
        where = at["name"] + at["inner"]
        inner = _inner(inspect.type_info(fields[at["name"]].type), at["inner"])
    place = f" at {where!r:.120}" if where else ""
    if missing is not None:
        return bad_request(f"the field {missing['name']!r}{place} is missing; {path} needs it")
    if unknown is not None:
        known = [field.encode_name for field in _inner_fields(inner)] if where else list(fields)
        return unknown_name("field", unknown["name"], known, place)
    if at is not None and at["inner"] and inner is not None:
        return bad_request(f"a value{place} is wrong; give {_allowed(inner)}")
    if at is not None and where:
        return wrong_value("field", at["name"], given.get(at["name"]), fields[at["name"]].type)
    return bad_request(f"the body is not what {path} takes: {text}")


def allowed(declared: Any) -> str:
    """The values that a type allows, in words."""
    return _allowed(inspect.type_info(declared))


def _allowed(found: inspect.Type) -> str:
    options = [_words(each) for each in _alternatives(found)]
    return " or ".join(dict.fromkeys(options))


def _inner(found: inspect.Type, path: str) -> inspect.Type | None:
    """The type at a path inside a field; None where the types do not say."""
    for step in _STEP.finditer(path):
        found = _alternatives(found)[0]
        if isinstance(found, inspect.StructType) and step[1]:
            inner = [field.type for field in found.fields if field.encode_name == step[1]]
        elif isinstance(found, inspect.DictType):
            inner = [found.value_type]
        elif isinstance(found, inspect.ListType):
            inner = [found.item_type]
        else:
            inner = []
        if not inner:
            return None
        found = inner[0]
    return found


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return msgspec.structs.fields(kind) if is_struct else ()


def _inner_fields(found: inspect.Type | None) -> tuple[inspect.Field, ...]:
    of = [] if found is None else _alternatives(found)
    return tuple(
        each for kind in of if isinstance(kind, inspect.StructType) for each in kind.fields
    )


def _alternatives(found: inspect.Type) -> list[inspect.Type]:
    """The types of a union, null left out: leaving the name out says the same."""
    while isinstance(found, inspect.Metadata):
        found = found.type
    if not isinstance(found, inspect.UnionType):
        return [found]
    inner = [each for option in found.types for each in _alternatives(option)]
    return [each for each in inner if not isinstance(each, inspect.NoneType)]


def _words(found: inspect.Type) -> str:
    if isinstance(found, inspect.LiteralType):
        return "one of " + ", ".join(map(str, found.values))
    if isinstance(found, inspect.IntType):
        least = "" if found.ge is None else f" from {found.ge}"
        most = "" if found.le in (None, COUNT_MAX) else f" to {found.le}"
        return f"a whole number{least}{most}"
    if isinstance(found, inspect.FloatType):
        return "a number"
    if isinstance(found, inspect.StrType):
        # Durations are the only texts that have a pattern.
        return "text" if found.pattern is None else "a duration with a unit, as in 500ms or 2s"
    if isinstance(found, inspect.ListType):
        most = "" if found.max_length is None else f" of at most {found.max_length}"
        return f"a list{most}"
    return _WORDS.get(type(found), "another value")


def _is_over(value: Any) -> bool:
    """Whether it is a whole number above the most that the wire has room for."""
    if isinstance(value, str):
        digits = value.lstrip("0")
        is_long = len(digits) > len(str(COUNT_MAX))
        return digits.isdecimal() and digits.isascii() and (is_long or int(digits) > COUNT_MAX)
    return isinstance(value, int | float) and value > COUNT_MAX


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"
