"""Columns of dates and timestamps as what is packed of them, without an object of each in between.

Making a datetime of each and counting its microseconds again was most of what encoding such rows
took. Returns None as soon as one row does not fit; the caller then takes Arrow's own conversion,
which raises where it has to.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any, Final, NamedTuple

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raftstore.rows.values import dates, instants, naive_datetimes

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = date.min.toordinal() - _EPOCH_DAY
_LAST_DAY: Final = date.max.toordinal() - _EPOCH_DAY
_DAY_US: Final = 86_400_000_000


class Counted(NamedTuple):
    """A type whose values are counted since 1970-01-01, by its name in Spark."""

    name: str
    numbers: pa.DataType
    width: str
    first: int
    last: int
    packed: Callable[[bytes], list[object]]


def packed_counts(column: pa.Array) -> list[object] | None:
    """Return one value a row, each to be packed, None for nulls; None when this is not for here.

    The values are good for packing and for nothing else.
    """
    found = counts_of(column)
    if found is None:
        return None
    kind, counts = found
    packed = kind.packed(counts.tobytes())
    if column.null_count:
        valid = column.is_valid().to_pylist()
        return [value if there else None for value, there in zip(packed, valid, strict=True)]
    return packed


def counts_of(column: pa.Array) -> tuple[Counted, npt.NDArray[Any]] | None:
    """Return one number a row, highest byte first, 0 for nulls; None when this is not for here."""
    kind = _counted(column.type)
    if kind is None:
        return None
    numbers = column.cast(kind.numbers)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is not None and not kind.first <= ends["min"] <= ends["max"] <= kind.last:
        return None  # Python has no such years, and the error names them
    return kind, numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(kind.width)


def _counted(kind: pa.DataType) -> Counted | None:
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return NAIVE if kind.tz is None else INSTANT
    return DATE if pa.types.is_date32(kind) else None


_FIRST_US: Final = _FIRST_DAY * _DAY_US
_LAST_US: Final = (_LAST_DAY + 1) * _DAY_US - 1
INSTANT: Final = Counted("timestamp", pa.int64(), ">i8", _FIRST_US, _LAST_US, instants)
NAIVE: Final = Counted("timestamp_ntz", pa.int64(), ">i8", _FIRST_US, _LAST_US, naive_datetimes)
DATE: Final = Counted("date", pa.int32(), ">i4", _FIRST_DAY, _LAST_DAY, dates)
