"""What is wrong with a parameter or a body: its name, its value, what is allowed instead.

The words come from the declared types, which also make the OpenAPI document, so that nobody has to
know what checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect

from raftstore.rows.key_text import JSON_ERRORS
from raftstore.serving.errors import HttpError, bad_request

COUNT_MAX: Final = 2**63 - 1
"""The most that the wire has room for; who gives more does not want to read it."""
_AT: Final = re.compile(r" - at `\$\.(?P<name>\w+)")
_MISSING: Final = re.compile(r"missing required field `(?P<name>\w+)`")
_UNKNOWN: Final = re.compile(r"contains unknown field `(?P<name>.*)`", re.DOTALL)
_WORDS: Final[dict[type[inspect.Type], str]] = {
    inspect.BoolType: "true or false",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
    inspect.NoneType: "null",
}


def wrong_value(what: str, name: str, value: Any, declared: Any) -> HttpError:
    """Refuse a value that its declared type does not allow; ``what`` is parameter or field."""
    return bad_request(f"the {what} {name!r} is {_shown(value)}; give {allowed(declared)}")


def unknown_name(what: str, name: str, known: Iterable[str]) -> HttpError:
    """Refuse a name that means nothing here."""
    return bad_request(
        f"the {what} {name!r:.60} is unknown (there are: {', '.join(known) or 'none'})"
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
    if at is not None and at["name"] in fields:
        return wrong_value("field", at["name"], given.get(at["name"]), fields[at["name"]].type)
    if missing is not None:
        return bad_request(f"the field {missing['name']!r} is missing; {path} needs it")
    if unknown is not None:
        return unknown_name("field", unknown["name"], fields)
    return bad_request(f"the body is not what {path} takes: {text}")


def allowed(declared: Any) -> str:
    """What a type allows, in words."""
    options = [_words(each) for each in _alternatives(inspect.type_info(declared))]
    return " or ".join(dict.fromkeys(options))


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return msgspec.structs.fields(kind) if is_struct else ()


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


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"
