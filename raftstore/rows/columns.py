"""Types of declared columns: their names in Spark's schema JSON, what fits, how keys encode.

The names are those of ``df.schema.json()``. A check returns the value to store (an int in a double
column becomes a float, one in a float column is rounded to single precision) or raises TypeError or
ValueError with the reason. Arrays, maps and structs are checked in all their parts (``nested``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal
from struct import Struct
from typing import Any, Final

from raftstore.errors import SchemaError
from raftstore.rows import keys, nested
from raftstore.rows.nested import Check, Part

_SINGLE: Final = Struct(">f")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A declared type: its Spark name, its check, and how it is encoded when it is a key.

    ``encode`` is None for types that cannot be keys. ``restore`` gives a decoded key value the
    declared form (a decimal its scale); None when there is nothing to do.
    """

    name: str
    check: Check
    encode: Callable[[Any], bytes] | None = None
    restore: Callable[[Any], Any] | None = None
    map_key_check: Check | None = None
    """Of a type that is checked otherwise where it is a key of a map, or a part of one."""

    @property
    def part(self) -> Part:
        """Its checks, for a value that is a part of another one."""
        return Part(self.name, self.check, self.map_key_check or self.check)


def parse_column_type(spec: object) -> ColumnType:
    """Return the type that a field of Spark's schema JSON names; raise SchemaError if unknown."""
    if isinstance(spec, Mapping):
        return _parse_nested(spec)
    if not isinstance(spec, str):
        raise SchemaError(f"the column type {spec!r} is not one of Spark's schema JSON")
    if spec in _SIMPLE:
        return _SIMPLE[spec]
    if match := _DECIMAL.fullmatch(spec):
        precision, scale = int(match[1]), int(match[2])
        if max(1, scale) <= precision <= DECIMAL_DIGITS_MAX:
            return _decimal_type(spec, precision=precision, scale=scale)
    if _TEXT.fullmatch(spec):
        return ColumnType(spec, _check_str, keys.encode_str)
    if _TIME.fullmatch(spec):
        return ColumnType(spec, _instance_check(time))
    if _INTERVAL.fullmatch(spec):
        return ColumnType(spec, _instance_check(timedelta))
    raise SchemaError(
        f"the column type {spec!r:.80} is unknown to this version; cast the column to a Spark SQL "
        "type such as string, long, double, decimal, date or timestamp"
    )


def _parse_nested(spec: Mapping[Any, Any]) -> ColumnType:
    kind = spec.get("type")
    try:
        if kind == "udt":
            return parse_column_type(spec["sqlType"])
        if kind == "array":
            element = parse_column_type(spec["elementType"]).part
            return ColumnType(
                "array",
                nested.array_check(element),
                map_key_check=nested.array_key_check(element),
            )
        if kind == "map":
            key, item = (parse_column_type(spec[name]).part for name in ("keyType", "valueType"))
            check = nested.map_check(key, item)
            return ColumnType("map", check, map_key_check=nested.no_key_check("map"))
        if kind == "struct":
            parts = {
                field["name"]: parse_column_type(field["type"]).part for field in spec["fields"]
            }
            return ColumnType(
                "struct",
                nested.struct_check(parts),
                map_key_check=nested.struct_key_check(parts),
            )
    except (KeyError, TypeError) as error:
        raise SchemaError(f"the column type {spec!r:.80} lacks a part ({error!r})") from error
    raise SchemaError(f"the column type {kind!r} is unknown; expected array, map, struct or udt")


# --- checks --------------------------------------------------------------------------------------


def _instance_check(expected: type, *refused: type) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, expected) and not isinstance(value, refused):
            return value
        raise TypeError(f"use {expected.__name__}")

    return check


def _int_check(bits: int) -> Check:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def check(value: Any) -> int:
        number: int = value if type(value) is int else _whole(value)
        if low <= number <= high:
            return number
        raise ValueError(f"the column holds {low} to {high}")

    return check


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError("use int")
    return int(value)


def _check_float(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool | Decimal | str) or not hasattr(type(value), "__float__"):
        raise TypeError("use float")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("the number is beyond what a double holds; use a decimal column") from None
    if isinstance(value, int) and int(number) != value:
        raise ValueError("the number is not exact as a double; use a long or decimal column")
    return number


def _check_single(value: Any) -> float:
    """Round to single precision: keys are compared by their bytes, and Spark's 0.1f is one key.

    Stored as the double 0.1 it would be another, which Spark shows as the same.
    """
    number = _check_float(value)
    try:
        single: float = _SINGLE.unpack(_SINGLE.pack(number))[0]
    except OverflowError:
        raise ValueError("the number is beyond single precision; use a double column") from None
    if isinstance(value, int) and single != value:
        raise ValueError("the number is not exact in single precision; use a double or long column")
    return single


def _check_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError("use str")


def _check_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError("use bytes")


def _check_instant(value: Any) -> datetime:
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value
    raise TypeError("use datetime with a time zone, as in datetime.now(timezone.utc)")


def _check_naive(value: Any) -> datetime:
    if isinstance(value, datetime) and value.utcoffset() is None:
        return value
    raise TypeError("use datetime without a time zone, as from value.replace(tzinfo=None)")


def _check_null(value: Any) -> Any:
    raise TypeError(f"the column can only be null, not {type(value).__name__}")


def _check_variant(value: Any) -> Any:
    parts = (getattr(value, "value", None), getattr(value, "metadata", None))
    if all(isinstance(part, bytes) for part in parts):
        return value
    raise TypeError("use Variant, or pyspark's VariantVal")


def _check_any(value: Any) -> Any:
    return value


def _decimal_type(name: str, *, precision: int, scale: int) -> ColumnType:
    """Build a decimal(precision, scale): values that would lose digits are refused."""
    context = Context(prec=precision + 1)
    unit = Decimal((0, (1,), -scale))

    def check(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, Decimal | int):
            raise TypeError("use Decimal")
        number = Decimal(value)
        if not number.is_finite() or (number and number.adjusted() >= precision - scale):
            raise ValueError(f"the column holds {precision - scale} digits before the point")
        if (exact := number.quantize(unit, context=context)) != number:
            raise ValueError(f"the column holds {scale} digits after the point")
        return exact

    def restore(value: Decimal) -> Decimal:
        return value.quantize(unit, context=context)

    return ColumnType(name, check, keys.encode_decimal, restore)


DECIMAL_DIGITS_MAX: Final = 38
"""Spark's own limit; what is larger is no type of Spark's."""

_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_TEXT: Final = re.compile(r"(char|varchar)\(\d+\)|string collate \w+")
_TIME: Final = re.compile(r"time(\(\d\))?")
_INTERVAL: Final = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")

ANY: Final = ColumnType("any", _check_any, None)
"""A key column of a table without schema; its values bring their own types."""

_SIMPLE: Final[dict[str, ColumnType]] = {
    kind.name: kind
    for kind in (
        ColumnType("boolean", _instance_check(bool), keys.encode_bool),
        ColumnType("byte", _int_check(8), keys.encode_int),
        ColumnType("short", _int_check(16), keys.encode_int),
        ColumnType("integer", _int_check(32), keys.encode_int),
        ColumnType("long", _int_check(64), keys.encode_int),
        ColumnType("float", _check_single, keys.encode_float),
        ColumnType("double", _check_float, keys.encode_float),
        ColumnType("string", _check_str, keys.encode_str),
        ColumnType("binary", _check_bytes, keys.encode_bytes),
        ColumnType("date", _instance_check(date, datetime), keys.encode_date),
        ColumnType("timestamp", _check_instant, keys.encode_datetime),
        ColumnType("timestamp_ntz", _check_naive, keys.encode_datetime),
        _decimal_type("decimal", precision=10, scale=0),
        ColumnType("variant", _check_variant),
        ColumnType("void", _check_null),
    )
}
