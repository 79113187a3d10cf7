"""Keys as bytes whose order is the order of the keys.

A key is a tuple of one or more columns. Each column is a type tag and a body that ends itself, so
that comparing bytes compares column after column, and the bytes of the first columns are a prefix
of exactly the keys that begin with those columns (range and prefix scans need no decoding).

==========  ====  =============================================================================
type        tag   body
==========  ====  =============================================================================
bool        0x10  1 byte
int         0x18  8 bytes big-endian, sign bit flipped; 64-bit signed only
float       0x20  8 bytes IEEE 754, negative numbers inverted; -0.0 is 0.0, nan is last
Decimal     0x28  class byte, exponent, digit pairs; numerically equal decimals are one key
str         0x30  UTF-8, NUL as 00 FF, ended by 00 01
bytes       0x38  as str
date        0x40  4 bytes: days since 0001-01-01
datetime    0x48  without zone: 8 bytes, microseconds since 0001-01-01
datetime    0x50  with zone: 8 bytes, microseconds of the instant in UTC; read back in UTC
==========  ====  =============================================================================

Keys of different types are ordered by tag: 1 and 1.0 are different keys. A table with declared key
types (``raftstore.rows.schema``) cannot hold both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isnan
from numbers import Integral, Rational, Real
from struct import Struct
from struct import error as StructError
from typing import Final

from raftstore.errors import DecodeError, SchemaError

KeyValue = bool | int | float | str | bytes | Decimal | date | datetime
"""What a key column may be."""

_BOOL: Final = 0x10
_INT: Final = 0x18
_FLOAT: Final = 0x20
_DECIMAL: Final = 0x28
_STR: Final = 0x30
_BYTES: Final = 0x38
_DATE: Final = 0x40
_NAIVE: Final = 0x48
_INSTANT: Final = 0x50

_TAG_U64: Final = Struct(">BQ")
_TAG_U32: Final = Struct(">BI")
_U64: Final = Struct(">Q")
_U32: Final = Struct(">I")
_DOUBLE: Final = Struct(">d")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_TRUE: Final = bytes((_BOOL, 1))
_FALSE: Final = bytes((_BOOL, 0))
_STR_TAG: Final = bytes((_STR,))
_BYTES_TAG: Final = bytes((_BYTES,))
_DECIMAL_TAG: Final = bytes((_DECIMAL,))
_NAN: Final = bytes((_FLOAT,)) + b"\xff" * 8
_END: Final = b"\x00\x01"
_EPOCH: Final = datetime(1, 1, 1)
_EPOCH_UTC: Final = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEGATIVE, _ZERO, _POSITIVE = 0, 1, 2
_INVERT: Final = bytes(255 - value for value in range(256))
_PLAIN_DIGITS: Final = 38
"""Whole decimals are read back as 100 rather than 1E+2 as far as Spark's decimals go."""
_TYPES_TEXT: Final = "bool, int, float, str, bytes, Decimal, date or datetime"


def encode_key(values: tuple[KeyValue, ...]) -> bytes:
    """Encode the key columns in their order; raise SchemaError when one cannot be a key."""
    return b"".join([_ENCODERS.get(type(value), _encode_other)(value) for value in values])


def encode_column(value: object) -> bytes:
    """Encode one key column of any type; raise SchemaError when it cannot be a key."""
    return _ENCODERS.get(type(value), _encode_other)(value)


def decode_key(key: bytes) -> tuple[KeyValue, ...]:
    """Return the columns of an encoded key; raise DecodeError when it is not one."""
    if key[:1] == _STR_TAG and key.find(b"\0") == len(key) - len(_END) and key.endswith(_END):
        # One text without an escape, as most keys are; reads of many rows wait for this.
        try:
            return (key[1 : -len(_END)].decode(),)
        except UnicodeDecodeError:
            pass  # raised below, with its place
    values: list[KeyValue] = []
    at, size = 0, len(key)
    while at < size:
        decode = _DECODERS.get(key[at])
        if decode is None:
            raise DecodeError(
                f"the key {key.hex()} has an unknown type tag at byte {at}: {key[at]}"
            )
        try:
            value, at = decode(key, at + 1)
        except (StructError, IndexError, ValueError, OverflowError) as error:
            raise DecodeError(f"the key {key.hex()} is damaged at byte {at}: {error}") from error
        values.append(value)
    if not values:
        raise DecodeError("an empty key has no columns; keys have at least one")
    return tuple(values)


def after_prefix(prefix: bytes) -> bytes:
    """Return the lowest bytes above everything that begins with ``prefix`` (b"": no such bound)."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else b""


def prefix_range(values: tuple[KeyValue, ...]) -> tuple[bytes, bytes]:
    """Return [start, stop) of all keys whose first columns are ``values``; () is every key."""
    start = encode_key(values)
    return start, after_prefix(start)


def text_prefix_range(values: tuple[KeyValue, ...], text: str | bytes) -> tuple[bytes, bytes]:
    """Return [start, stop) of the keys of ``values`` whose next column begins with ``text``."""
    start = encode_key((*values, text))[: -len(_END)]
    return start, after_prefix(start)


# --- encoding of one column ----------------------------------------------------------------------


def encode_bool(value: object) -> bytes:
    """Encode a truth value."""
    return _TRUE if value else _FALSE


def encode_int(value: int) -> bytes:
    """Encode an integer of at most 64 bits."""
    try:
        return _TAG_U64.pack(_INT, value + _SIGN)
    except StructError:
        raise SchemaError(
            f"the integer {value} does not fit a key of 64 bits; use a decimal or a string"
        ) from None


def encode_float(value: float) -> bytes:
    """Encode a double; every nan is the same key, above infinity (as Spark orders it)."""
    if isnan(value):
        return _NAN
    (bits,) = _U64.unpack(_DOUBLE.pack(value or 0.0))
    return _TAG_U64.pack(_FLOAT, bits ^ (_ALL if bits & _SIGN else _SIGN))


def encode_str(value: str) -> bytes:
    """Encode text in code point order."""
    try:
        body = value.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(
            f"the text {value!r} is not valid Unicode ({error.reason}); store it as bytes"
        ) from None
    return _STR_TAG + body.replace(b"\0", b"\0\xff") + _END


def encode_bytes(value: bytes) -> bytes:
    """Encode bytes in their order."""
    return _BYTES_TAG + value.replace(b"\0", b"\0\xff") + _END


def encode_decimal(value: Decimal) -> bytes:
    """Encode a finite decimal; 1.0 and 1.00 are one key."""
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, str):
        raise SchemaError(f"the decimal {value} cannot be a key; use a finite decimal")
    text = "".join(map(str, digits)).strip("0")
    if not text:
        return _DECIMAL_TAG + bytes((_ZERO,))
    pairs = text + "0" * (len(text) % 2)
    body = _U64.pack(value.adjusted() + _SIGN)
    body += bytes(int(pairs[at : at + 2]) + 1 for at in range(0, len(pairs), 2)) + b"\0"
    if sign:
        return _DECIMAL_TAG + bytes((_NEGATIVE,)) + body.translate(_INVERT)
    return _DECIMAL_TAG + bytes((_POSITIVE,)) + body


def encode_date(value: date) -> bytes:
    """Encode a calendar day."""
    return _TAG_U32.pack(_DATE, value.toordinal())


def encode_datetime(value: datetime) -> bytes:
    """Encode a moment: wall-clock time without a zone, or an instant with one."""
    if value.tzinfo is None or value.utcoffset() is None:
        return _TAG_U64.pack(_NAIVE, (value.replace(tzinfo=None, fold=0) - _EPOCH) // _MICROSECOND)
    try:
        return _TAG_U64.pack(_INSTANT, (value.astimezone(UTC) - _EPOCH_UTC) // _MICROSECOND)
    except OverflowError:
        raise SchemaError(
            f"the time {value} is outside the years 1 to 9999 in UTC; use a date or a string"
        ) from None


def _encode_other(value: object) -> bytes:
    """Encode subclasses and look-alikes of the known types; refuse everything else."""
    for base, encode in _BASES:
        if isinstance(value, base):
            return encode(value)
    if isinstance(value, bytearray | memoryview):
        return encode_bytes(bytes(value))
    if isinstance(value, Integral):
        return encode_int(int(value))
    if isinstance(value, Real) and not isinstance(value, Rational):
        return encode_float(float(value))
    given = "null" if value is None else f"{value!r:.60} of type {type(value).__name__}"
    raise SchemaError(f"{given} cannot be a key; use {_TYPES_TEXT}")


_ENCODERS: Final[dict[type, Callable[..., bytes]]] = {
    bool: encode_bool,
    int: encode_int,
    float: encode_float,
    str: encode_str,
    bytes: encode_bytes,
    Decimal: encode_decimal,
    datetime: encode_datetime,
    date: encode_date,
}
_BASES: Final[tuple[tuple[type, Callable[..., bytes]], ...]] = tuple(_ENCODERS.items())
"""In this order: a bool is an int and a datetime is a date."""


# --- decoding of one column ----------------------------------------------------------------------


def _decode_bool(key: bytes, at: int) -> tuple[bool, int]:
    if key[at] > 1:
        raise ValueError(f"{key[at]} is no truth value")
    return key[at] == 1, at + 1


def _decode_int(key: bytes, at: int) -> tuple[int, int]:
    return _U64.unpack_from(key, at)[0] - _SIGN, at + 8


def _decode_float(key: bytes, at: int) -> tuple[float, int]:
    bits = _U64.unpack_from(key, at)[0]
    bits ^= _SIGN if bits & _SIGN else _ALL
    return _DOUBLE.unpack(_U64.pack(bits))[0], at + 8


def _decode_decimal(key: bytes, at: int) -> tuple[Decimal, int]:
    kind = key[at]
    if kind == _ZERO:
        return Decimal(0), at + 1
    if kind not in (_NEGATIVE, _POSITIVE):
        raise ValueError(f"{kind} is no class of decimals")
    end = key.index(b"\0" if kind == _POSITIVE else b"\xff", at + 9)
    body = key[at + 1 : end]
    if kind == _NEGATIVE:
        body = body.translate(_INVERT)
    adjusted = _U64.unpack_from(body)[0] - _SIGN
    digits = "".join(f"{pair - 1:02d}" for pair in body[8:]).rstrip("0")
    exponent = adjusted - len(digits) + 1
    if 0 < exponent <= _PLAIN_DIGITS:
        digits, exponent = digits + "0" * exponent, 0
    return Decimal((int(kind == _NEGATIVE), tuple(map(int, digits)), exponent)), end + 1


def _unescape(key: bytes, at: int) -> tuple[bytes, int]:
    end = key.find(b"\0", at)
    if key[end : end + 2] == _END:  # nothing is escaped, as nearly always
        return key[at:end], end + 2
    end = at
    while (end := key.index(b"\0", end)) + 1 < len(key) and key[end + 1] == 0xFF:
        end += 2
    if key[end : end + 2] != _END:
        raise ValueError("text without an end")
    return key[at:end].replace(b"\0\xff", b"\0"), end + 2


def _decode_str(key: bytes, at: int) -> tuple[str, int]:
    body, at = _unescape(key, at)
    return body.decode(), at


def _decode_date(key: bytes, at: int) -> tuple[date, int]:
    return date.fromordinal(_U32.unpack_from(key, at)[0]), at + 4


def _decode_naive(key: bytes, at: int) -> tuple[datetime, int]:
    return _EPOCH + timedelta(microseconds=_U64.unpack_from(key, at)[0]), at + 8


def _decode_instant(key: bytes, at: int) -> tuple[datetime, int]:
    return _EPOCH_UTC + timedelta(microseconds=_U64.unpack_from(key, at)[0]), at + 8


_DECODERS: Final[dict[int, Callable[[bytes, int], tuple[KeyValue, int]]]] = {
    _BOOL: _decode_bool,
    _INT: _decode_int,
    _FLOAT: _decode_float,
    _DECIMAL: _decode_decimal,
    _STR: _decode_str,
    _BYTES: _unescape,
    _DATE: _decode_date,
    _NAIVE: _decode_naive,
    _INSTANT: _decode_instant,
}
