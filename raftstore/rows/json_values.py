"""Values as JSON, exactly: what a row holds comes back as what it was (HTTP, and keys in text).

A declared column is written as its type asks for; inside arrays, maps and structs, and in columns
that are not declared, the value says itself what it is, and a declared part has to be what it is
declared to be. Of a whole declared column both forms are read.

==============  ==============================  ================================================
type            declared column                 anywhere else
==============  ==============================  ================================================
null            null                            null
boolean         true, false                     true, false
whole numbers   number (text is read, too)      number; beyond 64 bits ``{"$int": "…"}``
float, double   number, or "NaN", "Infinity",   number with a point or exponent; the others as
                "-Infinity"                     ``{"$double": "NaN"}``
decimal         text: "12.30"                   ``{"$decimal": "12.30"}``
string          text                            text
binary          base64 text                     ``{"$binary": "AQI="}``
date            "2024-02-29"                    ``{"$date": "2024-02-29"}``
timestamp       "2024-02-29T12:00:00Z"          ``{"$timestamp": "2024-02-29T12:00:00Z"}``
timestamp_ntz   "2024-02-29T12:00:00"           ``{"$timestamp_ntz": "2024-02-29T12:00:00"}``
time            "12:00:00"                      ``{"$time": "12:00:00"}``
intervals       microseconds as a number        ``{"$microseconds": 1000000}``
variant         as anywhere else                ``{"$variant": ["value", "metadata"]}`` (base64)
map             as anywhere else                an object; with keys that are no text, or a single
                                                key that begins with "$": ``{"$map": [[k, v]]}``
==============  ==============================  ================================================
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from raftstore.errors import SchemaError
from raftstore.nesting import LEVELS_MAX
from raftstore.rows.values import Variant

_I64_MIN, _I64_MAX = -(1 << 63), (1 << 63) - 1
_MICROSECOND: Final = timedelta(microseconds=1)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,1000}", re.ASCII)
_REAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DECIMAL_DIGITS_MAX: Final = 10_000
_FRACTION: Final = re.compile(r"[.,][0-9]{6}([0-9]+)", re.ASCII)
_TOO_DEEP: Final = (
    f"a value of more than {LEVELS_MAX} lists and objects within each other has no form in JSON"
)


# --- to JSON -------------------------------------------------------------------------------------


def to_json(value: Any, kind: str | None = None) -> Any:
    """Return what JSON holds for a value; ``kind``: the declared type of its column, if any."""
    if kind is not None and value is not None:
        write = _WRITERS.get(kind.partition("(")[0])
        if write is not None:
            return write(value)
        if kind.startswith("interval") and isinstance(value, timedelta):
            return value // _MICROSECOND
    return _tagged(value, 0)


def _tagged(value: Any, level: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if _I64_MIN <= value <= _I64_MAX else {"$int": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$double": _float(value)}
    if isinstance(value, Variant):
        return {"$variant": [_base64(value.value), _base64(value.metadata)]}
    if level == LEVELS_MAX and isinstance(value, list | tuple | Mapping):
        raise SchemaError(f"{_TOO_DEEP}; read it with the client library")
    if isinstance(value, list | tuple):
        return [_tagged(item, level + 1) for item in value]
    if isinstance(value, Mapping):
        return _map(value, level + 1)
    for base, tag, write in _TAGS:
        if isinstance(value, base):
            return {tag(value): write(value)}
    raise SchemaError(f"{value!r:.60} of type {type(value).__name__} has no form in JSON")


def _map(value: Mapping[Any, Any], level: int) -> Any:
    is_plain = all(isinstance(name, str) for name in value)
    if is_plain and not (len(value) == 1 and next(iter(value)).startswith("$")):
        return {name: _tagged(item, level) for name, item in value.items()}
    pairs = [[_tagged(name, level), _tagged(item, level)] for name, item in value.items()]
    return {"$map": pairs}


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode()


def _moment(value: datetime) -> str:
    if value.utcoffset() is None:
        return value.replace(tzinfo=None).isoformat()
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


_WRITERS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": _float,
    "double": _float,
    "decimal": str,
    "binary": _base64,
    "date": date.isoformat,
    "timestamp": _moment,
    "timestamp_ntz": _moment,
    "time": time.isoformat,
}
_TAGS: Final[tuple[tuple[type, Callable[[Any], str], Callable[[Any], Any]], ...]] = (
    (bytes, lambda _: "$binary", _base64),
    (Decimal, lambda _: "$decimal", str),
    (
        datetime,  # before date: a datetime is one
        lambda value: "$timestamp_ntz" if value.utcoffset() is None else "$timestamp",
        _moment,
    ),
    (date, lambda _: "$date", date.isoformat),
    (time, lambda _: "$time", time.isoformat),
    (timedelta, lambda _: "$microseconds", lambda value: value // _MICROSECOND),
)


# --- from JSON -----------------------------------------------------------------------------------


def from_json(given: Any, kind: str | None = None) -> Any:
    """Return the value that JSON stands for; SchemaError says what is wrong with it.

    What fits the declared type is not decided here but by the table's schema.
    """
    if kind is not None and isinstance(given, str | int | float):
        read = _READERS.get(kind.partition("(")[0])
        if kind.startswith("interval"):
            read = _microseconds
        if read is not None:
            return read(given)
    return _untagged(given, 0)


def _untagged(given: Any, level: int) -> Any:
    if level == LEVELS_MAX and isinstance(given, list | dict):
        raise SchemaError(f"{_TOO_DEEP}; keep it as one text or binary value")
    if isinstance(given, list):
        return [_untagged(item, level + 1) for item in given]
    if isinstance(given, dict):
        return _from_object(given, level + 1)
    if isinstance(given, int) and not _I64_MIN <= given <= _I64_MAX:
        raise SchemaError(
            f"a number of {given.bit_length()} bits does not fit 64; "
            'write {"$int": "…"} if it is meant'
        )
    return given


def _from_object(given: dict[str, Any], level: int) -> Any:
    if len(given) == 1:
        ((tag, content),) = given.items()
        if tag.startswith("$"):
            if tag == "$map":
                return _pairs(content, level)
            read = _UNTAG.get(tag)
            if read is None:
                known = ", ".join((*_UNTAG, "$map"))
                raise SchemaError(
                    f"the tag {tag!r:.40} is unknown; there are {known} (a column of that name "
                    'is written {"$map": [["name", value]]})'
                )
            if isinstance(content, list | dict) and tag != "$variant":
                raise SchemaError(f"{tag} holds a list or an object; give one value")
            return read(content)
    return {name: _untagged(item, level) for name, item in given.items()}


def _text(given: Any, what: str) -> str:
    if isinstance(given, str):
        return given
    raise SchemaError(f"{given!r:.60} is no {what}; write it as text")


def _int(given: Any) -> Any:
    if isinstance(given, str):
        if not _WHOLE.fullmatch(given):
            raise SchemaError(f"{given!r:.60} is no whole number")
        return int(given)
    return given


def _big_int(given: Any) -> int:
    number = _int(_text(given, "whole number"))
    assert isinstance(number, int)
    return number


def _double(given: Any) -> Any:
    if isinstance(given, str):
        if given in _NOT_FINITE:
            return _NOT_FINITE[given]
        if not _REAL.fullmatch(given):
            raise SchemaError(f"{given!r:.60} is no number, NaN, Infinity or -Infinity")
        number = float(given)
        if math.isinf(number):
            raise SchemaError(f"{given!r:.60} is beyond what a double holds")
        return number
    return given


def _exact_double(given: Any) -> float:
    number = _double(given)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise SchemaError(f"{given!r:.60} is no number")
    try:
        return float(number)
    except OverflowError:
        raise SchemaError("the number is beyond what a double holds") from None


def _decimal(given: Any) -> Any:
    if isinstance(given, float):
        raise SchemaError(f'{given!r} is no exact decimal; write it as text, as in "12.30"')
    if not isinstance(given, str):
        return given
    if len(given) > _DECIMAL_DIGITS_MAX:
        raise SchemaError(f"a decimal of {len(given)} characters is too long to be one")
    try:
        return Decimal(given)
    except InvalidOperation as error:
        raise SchemaError(f"{given!r:.60} is no decimal number") from error


def _exact_decimal(given: Any) -> Decimal:
    number = _decimal(_text(given, "decimal number"))
    assert isinstance(number, Decimal)
    return number


def _binary(given: Any) -> bytes:
    try:
        return binascii.a2b_base64(_text(given, "base64 text").encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise SchemaError(f"{given!r:.60} is no base64 text: {error}") from error


def _date(given: Any) -> date:
    try:
        return date.fromisoformat(_text(given, "date"))
    except ValueError as error:
        raise SchemaError(f"{given!r:.60} is no date such as 2024-02-29: {error}") from error


def _timestamp(given: Any) -> datetime:
    moment = _any_moment(given)
    if moment.utcoffset() is None:
        raise SchemaError(f"{given!r:.60} has no time zone; write 2024-02-29T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise SchemaError(f"{given!r:.60} is outside the years 1 to 9999 in UTC") from error


def _timestamp_ntz(given: Any) -> datetime:
    moment = _any_moment(given)
    if moment.utcoffset() is not None:
        raise SchemaError(f"{given!r:.60} has a time zone; write 2024-02-29T12:00:00")
    return moment


def _to_microseconds(text: str) -> str:
    """Refuse what Python would cut off in silence: a key would find another row."""
    if any(beyond.strip("0") for beyond in _FRACTION.findall(text)):
        raise ValueError("it has more digits than microseconds; round it")
    return text


def _any_moment(given: Any) -> datetime:
    try:
        return datetime.fromisoformat(_to_microseconds(_text(given, "timestamp")))
    except ValueError as error:
        raise SchemaError(f"{given!r:.60} is no timestamp: {error}") from error


def _time(given: Any) -> time:
    try:
        return time.fromisoformat(_to_microseconds(_text(given, "time of day")))
    except ValueError as error:
        raise SchemaError(f"{given!r:.60} is no time of day: {error}") from error


def _microseconds(given: Any) -> timedelta:
    number = _int(given)
    if isinstance(number, bool) or not isinstance(number, int):
        raise SchemaError(f"{given!r:.60} is no whole number of microseconds")
    try:
        return timedelta(microseconds=number)
    except OverflowError as error:
        raise SchemaError(f"{number} microseconds are more than an interval holds") from error


def _boolean(given: Any) -> Any:
    return {"true": True, "false": False}.get(given, given) if isinstance(given, str) else given


def _variant(given: Any) -> Variant:
    if not isinstance(given, list) or len(given) != 2:
        raise SchemaError(f"{given!r:.60} is no variant; write [value, metadata] in base64")
    return Variant(_binary(given[0]), _binary(given[1]))


def _pairs(given: Any, level: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for pair in given if isinstance(given, list) else (given,):
        if not isinstance(pair, list) or len(pair) != 2:
            raise SchemaError(f"{pair!r:.60} is no [key, value] of a $map")
        try:
            found[_hashable(_untagged(pair[0], level))] = _untagged(pair[1], level)
        except TypeError as error:
            raise SchemaError(f"{pair[0]!r:.60} cannot be a key of a map") from error
    return found


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "boolean": _boolean,
    "byte": _int,
    "short": _int,
    "integer": _int,
    "long": _int,
    "float": _double,
    "double": _double,
    "decimal": _decimal,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
    "time": _time,
}
_UNTAG: Final[dict[str, Callable[[Any], Any]]] = {
    "$int": _big_int,
    "$double": _exact_double,
    "$decimal": _exact_decimal,
    "$binary": _binary,
    "$date": _date,
    "$timestamp": _timestamp,
    "$timestamp_ntz": _timestamp_ntz,
    "$time": _time,
    "$microseconds": _microseconds,
    "$variant": _variant,
}
