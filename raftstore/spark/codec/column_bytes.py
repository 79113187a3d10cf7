"""Whole Arrow columns as the bytes that their values have in the keys and the values of rows.

``rows.keys`` and ``rows.values`` write one Python value after the other; here numpy and Arrow write
all of a column at once, to the same bytes, and no object is made of a value.

Returns None as soon as one row does not fit; the caller then takes the row-by-row path, which
raises where it has to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raftstore.rows import keys
from raftstore.rows.columns import ColumnType
from raftstore.rows.values import ValueCodec
from raftstore.spark.codec.fast_values import DATE, INSTANT, NAIVE, counts_of

Matrix = npt.NDArray[np.uint8]
"""As many bytes in each row."""
Valid = npt.NDArray[np.bool_] | None
"""False where a column is null; None where it never is."""
Part: TypeAlias = Matrix | Any
"""Bytes of each row, to be joined with those of other parts: a matrix, or an array of binary."""

_NIL: Final = 0xC0
_DIGITS: Final = 8
_SIGN: Final = np.uint64(1 << 63)
_ALL: Final = np.uint64((1 << 64) - 1)


class _Forms(NamedTuple):
    """The forms in which msgpack writes numbers: form i those below bounds[i], and not below
    bounds[i - 1]. It is a head and the lowest ``widths`` bytes of the number, highest first; where
    that is none, the number is within the head."""

    bounds: npt.NDArray[np.int64]
    heads: Matrix
    widths: npt.NDArray[np.int64]


def _forms(bounds: Sequence[int], heads: bytes, widths: bytes) -> _Forms:
    assert len(heads) == len(widths) == len(bounds) + 1
    return _Forms(
        np.array(bounds, np.int64),
        np.frombuffer(heads, np.uint8),
        np.frombuffer(widths, np.uint8).astype(np.int64),
    )


_INTS: Final = _forms(
    (-(1 << 31), -(1 << 15), -(1 << 7), -(1 << 5), 1 << 7, 1 << 8, 1 << 16, 1 << 32),
    b"\xd3\xd2\xd1\xd0\x00\xcc\xcd\xce\xcf",
    b"\x08\x04\x02\x01\x00\x01\x02\x04\x08",
)
_TEXT_LENGTHS: Final = _forms((1 << 5, 1 << 8, 1 << 16), b"\xa0\xd9\xda\xdb", b"\x00\x01\x02\x04")
_BINARY_LENGTHS: Final = _forms((1 << 8, 1 << 16), b"\xc4\xc5\xc6", b"\x01\x02\x04")


# --- parts ---------------------------------------------------------------------------------------


def constant(text: bytes, rows: int) -> Matrix:
    """Return the same bytes for each row."""
    return np.broadcast_to(np.frombuffer(text, np.uint8), (rows, len(text)))


def matrix_of(numbers: npt.NDArray[Any]) -> Matrix:
    """Return the bytes of numbers as they are in memory."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), -1)


def lengths_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each row of an array of binary without nulls."""
    return pc.binary_length(array).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def binary_heads(lengths: npt.NDArray[np.int64]) -> Part:
    """Return what msgpack writes before as many bytes."""
    return _headed(lengths, _BINARY_LENGTHS, None)


def joined(parts: Sequence[Part]) -> pa.Array:
    """Return the parts side by side, as one array of binary."""
    arrays: list[pa.Array] = []
    fixed: list[Matrix] = []
    for part in parts:
        if isinstance(part, np.ndarray):
            fixed.append(part)
            continue
        if fixed:
            arrays.append(_array_of(fixed))
            fixed = []
        arrays.append(part)
    if fixed:
        arrays.append(_array_of(fixed))
    return arrays[0] if len(arrays) == 1 else pc.binary_join_element_wise(*arrays, b"")


def _array_of(matrices: Sequence[Matrix]) -> pa.Array:
    # The rows of a constant are one row, and what is made of such is not always row after row.
    matrix = np.ascontiguousarray(np.concatenate(matrices, axis=1))
    rows, width = matrix.shape
    return _array(matrix, np.arange(0, (rows + 1) * width, width))


def _varied(matrix: Matrix, kept: npt.NDArray[np.bool_], widths: npt.NDArray[np.int64]) -> pa.Array:
    """Return the bytes of each row that are kept, which are ``widths``."""
    ends = np.zeros(len(matrix) + 1, np.int64)
    np.cumsum(widths, out=ends[1:])
    return _array(matrix[kept], ends)


def _array(content: Matrix, ends: npt.NDArray[np.int64]) -> pa.Array:
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def _headed(numbers: npt.NDArray[np.int64], forms: _Forms, valid: Valid) -> Part:
    """Return the heads and the bytes of numbers, or of nothing: of nulls."""
    found = np.searchsorted(forms.bounds, (numbers.min(), numbers.max()), "right")
    if found[0] == found[1]:  # as it often is, and then it need not be asked of each
        found = found[:1]
    else:
        found = np.searchsorted(forms.bounds, numbers, "right")
    digits = matrix_of(numbers.astype(">i8"))
    widths = forms.widths[found]
    heads = np.where(widths == 0, forms.heads[found] | digits[:, -1], forms.heads[found])
    if valid is not None:
        heads = np.where(valid, heads, np.uint8(_NIL))
        widths = np.where(valid, widths, 0)
    most = int(widths.max())
    matrix = np.empty((len(numbers), 1 + most), np.uint8)
    matrix[:, 0] = heads
    matrix[:, 1:] = digits[:, _DIGITS - most :]
    if most == widths.min():
        return matrix
    kept = np.arange(1 + most) > (most - widths)[:, None]
    kept[:, 0] = True
    return _varied(matrix, kept, 1 + widths)


def _or_nil(matrix: Matrix, valid: Valid) -> Part:
    """Put nil where a column of cells of one width is null."""
    if valid is None:
        return matrix
    width = matrix.shape[1]
    matrix[~valid, 0] = _NIL
    if width == 1:
        return matrix
    kept = np.repeat(valid[:, None], width, axis=1)
    kept[:, 0] = True
    return _varied(matrix, kept, np.where(valid, width, 1))


def _headed_by(head: bytes, numbers: npt.NDArray[Any]) -> Matrix:
    return np.concatenate((constant(head, len(numbers)), matrix_of(numbers)), axis=1)


# --- values --------------------------------------------------------------------------------------


def value_parts(column: pa.Array) -> list[Part] | None:
    """Return what msgpack writes of a column, as ``ValueCodec`` has it written; None for types
    whose values are looked at one by one. The column has rows."""
    make = _VALUE_PARTS.get(column.type, _moments)
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    return make(column, valid)


def _integers(column: pa.Array, valid: Valid) -> list[Part]:
    return [_headed(_filled(column, 0).astype(np.int64), _INTS, valid)]


def _doubles(column: pa.Array, valid: Valid) -> list[Part]:
    with _any_nan():
        numbers = _filled(column, 0).astype(">f8")
    return [_or_nil(_headed_by(b"\xcb", numbers), valid)]


def _booleans(column: pa.Array, valid: Valid) -> list[Part]:
    return [_or_nil(0xC2 + _filled(column, value=False).astype(np.uint8)[:, None], valid)]


def _nulls(column: pa.Array, _valid: Valid) -> list[Part]:
    return [constant(bytes((_NIL,)), len(column))]


def _texts(column: pa.Array, valid: Valid) -> list[Part] | None:
    return _contents(column, _TEXT_LENGTHS, valid) if _is_unicode(column) else None


def _binaries(column: pa.Array, valid: Valid) -> list[Part]:
    return _contents(column, _BINARY_LENGTHS, valid)


def _contents(column: pa.Array, forms: _Forms, valid: Valid) -> list[Part]:
    content = column.cast(pa.binary())
    if valid is not None:
        content = pc.fill_null(content, b"")
    return [_headed(lengths_of(content), forms, valid), content]


def _moments(column: pa.Array, valid: Valid) -> list[Part] | None:
    found = counts_of(column)
    if found is None:
        return None
    kind, counts = found
    return [_or_nil(_headed_by(_MOMENT_HEADS[kind.name], counts), valid)]


def _filled(column: pa.Array, value: float) -> npt.NDArray[Any]:
    filled = column.fill_null(value) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _any_nan() -> np.errstate:
    """Let numpy take signaling ones without a warning, as Python does."""
    return np.errstate(invalid="ignore")


def _is_unicode(column: pa.Array) -> bool:
    """Spark's texts may hold any bytes; the others name the column that has some."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


_VALUE_PARTS: Final[dict[pa.DataType, Callable[[pa.Array, Valid], list[Part] | None]]] = {
    pa.int8(): _integers,
    pa.int16(): _integers,
    pa.int32(): _integers,
    pa.int64(): _integers,
    pa.float32(): _doubles,
    pa.float64(): _doubles,
    pa.bool_(): _booleans,
    pa.null(): _nulls,
    pa.string(): _texts,
    pa.binary(): _binaries,
}
_pack: Final = ValueCodec().encode
_MOMENT: Final = datetime.min.replace(tzinfo=UTC)
_MOMENT_HEADS: Final = {
    DATE.name: _pack(date.min)[:-4],
    NAIVE.name: _pack(_MOMENT.replace(tzinfo=None))[:-8],
    INSTANT.name: _pack(_MOMENT)[:-8],
}


# --- keys ----------------------------------------------------------------------------------------


def key_parts(column: pa.Array, kind: ColumnType) -> list[Part] | None:
    """Return what ``rows.keys`` writes of a key column of a declared type; None where it has to
    look at the values one by one."""
    make = None if kind.encode is None else _KEY_PARTS.get(kind.encode)
    return None if make is None or column.null_count else make(column, kind)


def _integer_keys(column: pa.Array, kind: ColumnType) -> list[Part] | None:
    if not pa.types.is_signed_integer(column.type) or column.type.bit_width > _BITS[kind.name]:
        return None
    numbers = column.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    return [_headed_by(_INT_TAG, (numbers ^ _SIGN).astype(">u8"))]


def _double_keys(column: pa.Array, _kind: ColumnType) -> list[Part] | None:
    if column.type not in (pa.float32(), pa.float64()):
        return None
    with _any_nan():
        # -0.0 is 0.0, which an addition makes of it.
        numbers = column.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
    bits = numbers.view(np.uint64)
    bits = np.where(bits & _SIGN != 0, bits ^ _ALL, bits ^ _SIGN)
    bits[np.isnan(numbers)] = _ALL
    return [_headed_by(_FLOAT_TAG, bits.astype(">u8"))]


def _boolean_keys(column: pa.Array, _kind: ColumnType) -> list[Part] | None:
    if column.type != pa.bool_():
        return None
    return [_headed_by(_BOOL_TAG, column.to_numpy(zero_copy_only=False).astype(np.uint8))]


def _text_keys(column: pa.Array, _kind: ColumnType) -> list[Part] | None:
    if column.type != pa.string() or not _is_unicode(column):
        return None
    return _content_keys(column, _TEXT_TAG)


def _binary_keys(column: pa.Array, _kind: ColumnType) -> list[Part] | None:
    return _content_keys(column, _BINARY_TAG) if column.type == pa.binary() else None


def _content_keys(column: pa.Array, tag: bytes) -> list[Part]:
    content = pc.replace_substring(column.cast(pa.binary()), b"\0", b"\0\xff")
    return [constant(tag, len(column)), content, constant(_CONTENT_END, len(column))]


def _moment_keys(column: pa.Array, kind: ColumnType) -> list[Part] | None:
    found = counts_of(column)
    if found is None or found[0].name != kind.name:
        return None
    counted, counts = found
    since_year_one = counts - counted.first + (1 if counted is DATE else 0)
    return [_headed_by(_MOMENT_TAGS[counted.name], since_year_one.astype(counts.dtype))]


_BITS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_KEY_PARTS: Final[
    dict[Callable[[Any], bytes], Callable[[pa.Array, ColumnType], list[Part] | None]]
] = {
    keys.encode_int: _integer_keys,
    keys.encode_float: _double_keys,
    keys.encode_bool: _boolean_keys,
    keys.encode_str: _text_keys,
    keys.encode_bytes: _binary_keys,
    keys.encode_date: _moment_keys,
    keys.encode_datetime: _moment_keys,
}
_INT_TAG: Final = keys.encode_int(0)[:1]
_FLOAT_TAG: Final = keys.encode_float(0.0)[:1]
_BOOL_TAG: Final = keys.encode_bool(value=False)[:1]
_TEXT_TAG: Final = keys.encode_str("")[:1]
_BINARY_TAG: Final = keys.encode_bytes(b"")[:1]
_CONTENT_END: Final = keys.encode_bytes(b"")[1:]
_MOMENT_TAGS: Final = {
    DATE.name: keys.encode_date(date.min)[:1],
    NAIVE.name: keys.encode_datetime(_MOMENT.replace(tzinfo=None))[:1],
    INSTANT.name: keys.encode_datetime(_MOMENT)[:1],
}
