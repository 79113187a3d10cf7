"""Values as msgpack: every type a Spark row can hold, restored exactly.

msgpack itself has null, bool, 64-bit integers, doubles, text, bytes, arrays and maps (also with
keys that are not text). The rest are extension types; their numbers are stored: never reuse one.

====  ============================  ========================================================
 1    Decimal                       its exact text ("1.00" keeps its scale)
 2    date                          4 bytes, days since 1970-01-01
 3    datetime without zone         8 bytes, microseconds since 1970-01-01
 4    datetime with zone            8 bytes, microseconds of the instant; read back in UTC
 5    int beyond 64 bits            big-endian, signed
 6    time of day                   8 bytes, microseconds since midnight
 7    timedelta                     days (4 bytes), seconds (4), microseconds (4)
 8    Variant                       msgpack array of its value and metadata
====  ============================  ========================================================

Tuples are arrays; structs (pyspark Rows, named tuples) are maps by field name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from numbers import Integral, Rational, Real
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

import msgpack
import msgspec

from raftstore.errors import DecodeError, SchemaError

_I64: Final = Struct(">q")
_I32: Final = Struct(">i")
_DELTA: Final = Struct(">iii")
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_DECIMAL, DATE_CODE, NAIVE_CODE, INSTANT_CODE, _BIG_INT, _TIME, _DELTA_TYPE, _VARIANT = range(1, 9)
_BUFFER_BYTES: Final = 4_096
"""First buffer of a packer: it grows as needed, and a small one is cheap to make."""


class Variant(NamedTuple):
    """A Spark VARIANT in its binary form (pyspark's VariantVal, without needing pyspark)."""

    value: bytes
    metadata: bytes


class ValueCodec:
    """Turns values into bytes and back; may be shared by threads.

    A packer must not be used by two threads at once, so each call borrows one of the idle ones.
    """

    __slots__ = ("_idle",)

    def __init__(self) -> None:
        self._idle: list[Any] = []

    def borrow(self) -> Any:
        """Take a packer for a batch; give it back with ``give_back``."""
        try:
            return self._idle.pop()
        except IndexError:
            return msgpack.Packer(default=_extend, strict_types=True, buf_size=_BUFFER_BYTES)

    def give_back(self, packer: Any) -> None:
        """Return a borrowed packer."""
        self._idle.append(packer)

    def encode(self, value: object) -> bytes:
        """Encode one value; raise SchemaError when a part of it has no meaning in a row."""
        packer = self.borrow()
        try:
            encoded: bytes = packer.pack(value)
        except (ValueError, OverflowError, TypeError, RecursionError) as error:
            raise SchemaError(f"a value cannot be stored: {error}; convert it first") from error
        self._idle.append(packer)
        return encoded

    def encode_cells(self, values: Iterable[object]) -> list[bytes]:
        """Encode values as they stand in lists that begin with ``array_header``.

        Raises what packing raises: who calls this has another way, which names what is wrong.
        """
        packer = self.borrow()
        pack = packer.pack
        # In a list of its own, so that a value may be nested as deeply as in a row's.
        cells = [pack([value])[1:] for value in values]
        self.give_back(packer)
        return cells

    @staticmethod
    def decode(encoded: bytes) -> Any:
        """Decode one value; raise DecodeError when the bytes are not one."""
        try:
            return msgpack.unpackb(encoded, ext_hook=_restore, strict_map_key=False)
        except TypeError:
            return _decode_unhashable(encoded, _restore)
        except _DAMAGES as error:
            raise _damaged(encoded, error) from error

    @staticmethod
    def decode_counts(encoded: bytes) -> Any:
        """Do the same, with dates as days and datetimes as microseconds since 1970-01-01.

        For who knows from elsewhere which numbers those are, and need not see objects of each.
        """
        try:
            return msgpack.unpackb(encoded, ext_hook=_count, strict_map_key=False)
        except TypeError:
            return _decode_unhashable(encoded, _count)
        except _DAMAGES as error:
            raise _damaged(encoded, error) from error


def array_header(length: int) -> bytes:
    """Return what a list of so many values begins with."""
    header: bytes = msgpack.Packer(buf_size=_BUFFER_BYTES).pack_array_header(length)
    return header


def instants(counts: bytes) -> list[object]:
    """Return what packs as datetimes with a zone do: ``counts`` are their microseconds since
    1970-01-01, 8 bytes each, highest first. For who has whole columns of them as numbers.
    """
    return _extensions(INSTANT_CODE, counts, _I64.size)


def naive_datetimes(counts: bytes) -> list[object]:
    """Do the same for datetimes without a zone."""
    return _extensions(NAIVE_CODE, counts, _I64.size)


def dates(counts: bytes) -> list[object]:
    """Do the same for dates: days, 4 bytes each."""
    return _extensions(DATE_CODE, counts, _I32.size)


def _extensions(code: int, counts: bytes, width: int) -> list[object]:
    # As ExtType makes them, without its check of each: that takes longer than all the rest.
    new, kind = tuple.__new__, msgpack.ExtType
    return [new(kind, (code, counts[at : at + width])) for at in range(0, len(counts), width)]


def _decode_unhashable(encoded: bytes, restore: Callable[[int, bytes], object]) -> Any:
    """Decode a value with maps whose keys are arrays or maps: such keys become tuples."""
    try:
        return msgpack.unpackb(
            encoded, ext_hook=restore, strict_map_key=False, object_pairs_hook=_pairs
        )
    except (*_DAMAGES, TypeError) as error:
        raise _damaged(encoded, error) from error


def _damaged(encoded: bytes, error: Exception) -> DecodeError:
    return DecodeError(f"{len(encoded)} bytes are no value: {str(error) or type(error).__name__}")


def _pairs(pairs: list[tuple[Any, Any]]) -> dict[Hashable, Any]:
    return {_frozen(key): value for key, value in pairs}


def _frozen(key: Any) -> Hashable:
    if isinstance(key, list):
        return tuple(map(_frozen, key))
    if isinstance(key, dict):
        return tuple((_frozen(name), _frozen(value)) for name, value in key.items())
    return key  # type: ignore[no-any-return]


# --- extension types -----------------------------------------------------------------------------


def _extend(value: object) -> object:
    """Give msgpack something it can pack instead of ``value``."""
    encode = _EXTENSIONS.get(type(value))
    if encode is not None:
        return encode(value)
    return _extend_other(value)


def _extend_int(value: int) -> msgpack.ExtType:
    return msgpack.ExtType(
        _BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    )


def _extend_decimal(value: Decimal) -> msgpack.ExtType:
    return msgpack.ExtType(_DECIMAL, str(value).encode())


def _extend_date(value: date) -> msgpack.ExtType:
    return msgpack.ExtType(DATE_CODE, _I32.pack(value.toordinal() - _EPOCH_DAY))


def _extend_datetime(value: datetime) -> msgpack.ExtType:
    if value.tzinfo is None or value.utcoffset() is None:
        since = value.replace(tzinfo=None, fold=0) - _EPOCH
        return msgpack.ExtType(NAIVE_CODE, _I64.pack(since // _MICROSECOND))
    since = value.astimezone(UTC) - _EPOCH_UTC
    return msgpack.ExtType(INSTANT_CODE, _I64.pack(since // _MICROSECOND))


def _extend_time(value: time) -> msgpack.ExtType:
    if value.tzinfo is not None:
        raise TypeError(f"the time of day {value} has a zone")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return msgpack.ExtType(_TIME, _I64.pack(seconds * 1_000_000 + value.microsecond))


def _extend_timedelta(value: timedelta) -> msgpack.ExtType:
    return msgpack.ExtType(_DELTA_TYPE, _DELTA.pack(value.days, value.seconds, value.microseconds))


def _extend_variant(value: Variant) -> msgpack.ExtType:
    return msgpack.ExtType(_VARIANT, msgspec.msgpack.encode((value.value, value.metadata)))


def _extend_other(value: Any) -> object:
    """Handle structs, subclasses and look-alikes (numpy scalars, VariantVal) of known types."""
    for method in ("asDict", "_asdict"):
        if callable(as_dict := getattr(value, method, None)):
            return as_dict()
    for base, convert in _BASES:
        if isinstance(value, base):
            return convert(value)
    if isinstance(value, Real) and not isinstance(value, Rational):
        return float(value)
    metadata = getattr(value, "metadata", None)
    if isinstance(metadata, bytes) and isinstance(getattr(value, "value", None), bytes):
        return _extend_variant(Variant(value.value, metadata))
    raise TypeError(f"{value!r:.60} of type {type(value).__name__} has no meaning in a row")


_EXTENSIONS: Final[dict[type, Callable[..., object]]] = {
    tuple: list,
    datetime: _extend_datetime,
    date: _extend_date,
    Decimal: _extend_decimal,
    int: _extend_int,
    time: _extend_time,
    timedelta: _extend_timedelta,
    Variant: _extend_variant,
}
_BASES: Final[tuple[tuple[type, Callable[..., object]], ...]] = (
    (str, str.__str__),
    (int, int),
    (float, float),
    (bytes, bytes),
    (Mapping, dict),
    (list, list),
    *_EXTENSIONS.items(),
    (Integral, int),
)
"""Subclasses, in this order: a datetime is a date."""


def _restore(code: int, data: bytes) -> object:
    """Turn an extension back into the value it was made from."""
    restore = _RESTORERS.get(code)
    if restore is None:
        raise ValueError(f"the extension type {code} is unknown; a newer version wrote it")
    return restore(data)


def _count(code: int, data: bytes) -> object:
    """Do the same, but leave what is counted since 1970-01-01 a number."""
    if code in _COUNTED:
        return int.from_bytes(data, "big", signed=True)
    return _restore(code, data)


def _restore_variant(data: bytes) -> Variant:
    return Variant(*msgspec.msgpack.decode(data, type=tuple[bytes, bytes]))


def _restore_time(data: bytes) -> time:
    return (_EPOCH + timedelta(microseconds=_I64.unpack(data)[0])).time()


def _restore_timedelta(data: bytes) -> timedelta:
    days, seconds, microseconds = _DELTA.unpack(data)
    return timedelta(days, seconds, microseconds)


_RESTORERS: Final[dict[int, Callable[[bytes], object]]] = {
    _DECIMAL: lambda data: Decimal(data.decode()),
    DATE_CODE: lambda data: date.fromordinal(_I32.unpack(data)[0] + _EPOCH_DAY),
    NAIVE_CODE: lambda data: _EPOCH + timedelta(microseconds=_I64.unpack(data)[0]),
    INSTANT_CODE: lambda data: _EPOCH_UTC + timedelta(microseconds=_I64.unpack(data)[0]),
    _BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    _TIME: _restore_time,
    _DELTA_TYPE: _restore_timedelta,
    _VARIANT: _restore_variant,
}
_COUNTED: Final = (INSTANT_CODE, NAIVE_CODE, DATE_CODE)
_DAMAGES: Final = (
    ValueError,
    OverflowError,
    RecursionError,
    StructError,
    InvalidOperation,
    msgspec.MsgspecError,
    msgpack.exceptions.UnpackException,
)
