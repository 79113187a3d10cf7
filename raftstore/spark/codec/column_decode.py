"""Pages of stored rows as Arrow columns at once, without an object of each value in between.

The value of a row is a msgpack array of its columns (``raftstore.rows.values``), each of which
begins where the one before it ends. So every row has a cursor, and all cursors of a page move on
column by column: decoding rows one after the other was most of what reading a table took.

Returns None as soon as one row does not fit; the caller then takes the row-by-row path. What does
not fit: another length than the page's first row, a longer row than the schema, nested types,
damage. That path also says what is wrong, so nothing here does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftstore.rows.sealing import SEAL_BYTES, checksums
from raftstore.rows.values import DATE_CODE, INSTANT_CODE, NAIVE_CODE

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ReadColumn = Callable[["_Page"], pa.Array]
"""Return the column at the cursors and move them behind it; raise _UnexpectedError."""

_PADDING: Final = bytes(16)
"""What is read at the end of the last row, whatever its tag promises, is there."""
_BYTES_MAX: Final = 2**31 - 1
"""Arrow's offsets of text have 32 bits."""

_ARRAY, _ARRAY_MASK, _ARRAY_16 = 0x90, 0x0F, 0xDC
_NIL, _FALSE, _TRUE, _DOUBLE = 0xC0, 0xC2, 0xC3, 0xCB
_UINT_64, _FIXEXT_4, _FIXEXT_8 = 0xCF, 0xD6, 0xD7


class _UnexpectedError(Exception):
    """The page is for the decoder that takes rows one by one."""


def column_decoder(kinds: Sequence[pa.DataType]) -> ColumnDecoder | None:
    """Return what decodes rows of these columns; None when one of the types is not for here."""
    readers = [_READERS.get(kind) for kind in kinds]
    if None in readers:
        return None
    return ColumnDecoder(cast("list[ReadColumn]", readers))


class ColumnDecoder:
    """Decodes pages of one table. Made by ``column_decoder``."""

    def __init__(self, readers: Sequence[ReadColumn]) -> None:
        self._readers = readers

    def decode(
        self, keys: Sequence[bytes], sealed: Sequence[bytes | None]
    ) -> list[pa.Array] | None:
        """Return the columns that the rows have, every seal checked; None: take the rows one by
        one. Fewer columns than there are types: the rows were written before some were appended.
        """
        if not sealed or None in sealed:
            return None
        values = cast("Sequence[bytes]", sealed)
        try:
            page = _Page(values)
            page.check_seals(checksums(keys, values))
            columns = [read(page) for read in self._readers[: self._count(page)]]
            page.check_ends()
        except (_UnexpectedError, pa.ArrowInvalid):
            return None
        return columns

    def _count(self, page: _Page) -> int:
        """Columns of every row; the cursors move to the first."""
        tags = page.tags()
        count, width = int(tags[0]) & _ARRAY_MASK, 1
        if tags[0] == _ARRAY_16:
            counts = page.words(1) >> np.uint64(48)
            _expect(counts == counts[0])
            count, width = int(counts[0]), 3
        else:
            _expect(tags & ~np.uint8(_ARRAY_MASK) == _ARRAY)
        _expect(tags == tags[0])
        # Columns of a newer schema would have to be looked at too, to know where the rows end.
        _expect(np.bool_(count <= len(self._readers)))
        page.move(width)
        return count


class _Page:
    """Rows of a page one behind the other, with a cursor in each."""

    __slots__ = ("_at", "_bytes", "_ends", "_words", "buffer", "rows")

    def __init__(self, sealed: Sequence[bytes]) -> None:
        joined = b"".join((*sealed, _PADDING))
        _expect(np.bool_(len(joined) <= _BYTES_MAX))
        self.rows: Final = len(sealed)
        self.buffer: Final = pa.py_buffer(joined)
        self._bytes: Final[Bytes] = np.frombuffer(joined, np.uint8)
        # At every place the eight bytes from there on as one number.
        places = len(joined) - 7
        self._words: Final = np.ndarray((places,), np.dtype(">u8"), joined, strides=(1,))
        lengths = np.fromiter(map(len, sealed), np.int64, self.rows)
        self._ends: Final[Places] = lengths.cumsum()
        self._at: Places = self._ends - lengths

    def check_seals(self, checksums: Iterable[int]) -> None:
        """Check the seal of every row and move behind it."""
        seals = self.words(0) >> np.uint64(32)
        self.move(SEAL_BYTES)
        _expect(seals == np.fromiter(checksums, np.uint64, self.rows))

    def check_ends(self) -> None:
        """Check that nothing is left of any row."""
        _expect(self._at == self._ends)

    def tags(self) -> Bytes:
        """The byte at each cursor."""
        return self.byte(0)

    def byte(self, behind: int) -> Bytes:
        """The byte so far behind each cursor."""
        return self._bytes[self._at + behind]

    def words(self, behind: int) -> npt.NDArray[np.uint64]:
        """The eight bytes so far behind each cursor; 9 at most, as the padding has no more."""
        return self._words[self._at + behind].astype(np.uint64)

    def move(self, widths: npt.NDArray[Any] | int) -> Places:
        """Move the cursors within their rows; returns where they were."""
        before = self._at
        self._at = before + widths
        _expect(self._at <= self._ends)
        return before


def _expect(flags: Flags | np.bool_) -> None:
    if not flags.all():
        raise _UnexpectedError


# --- columns --------------------------------------------------------------------------------------


def _table(values: Mapping[range, int], otherwise: int, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Facts that follow from a tag, to be looked up by it."""
    table = np.full(256, otherwise, kind)
    for tags, value in values.items():
        table[tags.start : tags.stop] = value
    return table


def _one(tag: int) -> range:
    return range(tag, tag + 1)


_UNKNOWN: Final = 255
_FIXINTS: Final = {range(0x80): 0, range(0xE0, 0x100): 0, _one(_NIL): 0}
_UINTS: Final = {_one(0xCC + n): 1 << n for n in range(4)}
_INTS: Final = {_one(0xD0 + n): 1 << n for n in range(4)}
_INT_BYTES: Final = _table(_FIXINTS | _UINTS | _INTS, _UNKNOWN, np.uint8)
"""Bytes of an integer behind its tag."""
_IS_SIGNED: Final = _table(dict.fromkeys(_INTS, 1), 0, np.bool_)

_FIXSTRS: Final = range(0xA0, 0xC0)
_TEXT_BYTES: Final = _table(
    {_FIXSTRS: 0, _one(_NIL): 0, _one(0xD9): 1, _one(0xDA): 2, _one(0xDB): 4}, _UNKNOWN, np.uint8
)
"""Bytes of the length of a text behind its tag."""
_TEXT_FIXED: Final = _table({range(tag, tag + 1): tag & 0x1F for tag in _FIXSTRS}, 0, np.int64)
"""The length that the tag itself gives."""
_BINARY_BYTES: Final = _table(
    {_one(_NIL): 0, _one(0xC4): 1, _one(0xC5): 2, _one(0xC6): 4}, _UNKNOWN, np.uint8
)
_BINARY_FIXED: Final = _table({}, 0, np.int64)


def _shifted(words: npt.NDArray[Any], widths: Bytes) -> npt.NDArray[Any]:
    """The first so many bytes of each word as a number; anything where they are none."""
    bits: npt.NDArray[Any] = 8 * widths.clip(1).astype(words.dtype)
    shifted: npt.NDArray[Any] = words >> (64 - bits)
    return shifted


def _ints(kind: pa.DataType) -> ReadColumn:
    def read(page: _Page) -> pa.Array:
        tags = page.tags()
        widths = _INT_BYTES[tags]
        _expect(widths != _UNKNOWN)
        words = page.words(1)
        unsigned = _shifted(words, widths).view(np.int64)
        values = np.where(_IS_SIGNED[tags], _shifted(words.view(np.int64), widths), unsigned)
        _expect((tags != _UINT_64) | (values >= 0))
        page.move(1 + widths.astype(np.int64))
        # The tag of a small integer is the integer.
        return _array(np.where(widths == 0, tags.view(np.int8), values), tags).cast(kind)

    return read


def _counts(kind: pa.DataType, tag: int, code: int, width: int) -> ReadColumn:
    """Dates and times: numbers of one width, in an extension of their own."""

    def read(page: _Page) -> pa.Array:
        tags = page.tags()
        is_null = tags == _NIL
        _expect(is_null | ((tags == tag) & (page.byte(1) == code)))
        values = page.words(2).view(np.int64) >> (64 - 8 * width)
        page.move(np.where(is_null, 1, 2 + width))
        return _array(values.astype(f"i{width}"), tags).view(kind)

    return read


def _doubles(page: _Page) -> pa.Array:
    tags = page.tags()
    is_null = tags == _NIL
    _expect(is_null | (tags == _DOUBLE))
    values = page.words(1).view(np.float64)
    page.move(np.where(is_null, 1, 9))
    return _array(values, tags)


def _floats(page: _Page) -> pa.Array:
    """Stored as doubles, which are rounded as Arrow rounds those of Python."""
    return _doubles(page).cast(pa.float32(), safe=False)


def _booleans(page: _Page) -> pa.Array:
    tags = page.tags()
    _expect((tags == _NIL) | (tags == _FALSE) | (tags == _TRUE))
    page.move(1)
    return _array(tags == _TRUE, tags)


def _array(values: npt.NDArray[Any], tags: Bytes) -> pa.Array:
    is_null = tags == _NIL
    return pa.array(values, mask=is_null if is_null.any() else None)


def _binaries(page: _Page) -> pa.Array:
    return _slices(page, _BINARY_BYTES, _BINARY_FIXED)


def _texts(page: _Page) -> pa.Array:
    return _slices(page, _TEXT_BYTES, _TEXT_FIXED).cast(pa.string())


def _slices(page: _Page, length_bytes: Bytes, fixed: Places) -> pa.Array:
    """Bytes behind their length, as they are."""
    tags = page.tags()
    widths = length_bytes[tags]
    _expect(widths != _UNKNOWN)
    stated = _shifted(page.words(1), widths).view(np.int64)
    lengths = np.where(widths == 0, fixed[tags], stated)
    before = page.move(1 + widths + lengths)
    # Every second one of these is between two rows' values. Arrow takes the others out at once.
    bounds = np.empty((page.rows, 2), np.int32)
    bounds[:, 0] = before + 1 + widths
    bounds[:, 1] = bounds[:, 0] + lengths
    count = 2 * page.rows - 1
    pieces = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(bounds.tobytes()), page.buffer]
    )
    return pieces.take(_array(np.arange(0, count, 2), tags))


_INSTANT: Final = pa.timestamp("us", tz="UTC")
_NAIVE: Final = pa.timestamp("us")
_READERS: Final[Mapping[pa.DataType, ReadColumn]] = {
    pa.bool_(): _booleans,
    **{kind: _ints(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.float32(): _floats,
    pa.float64(): _doubles,
    pa.string(): _texts,
    pa.binary(): _binaries,
    pa.date32(): _counts(pa.date32(), _FIXEXT_4, DATE_CODE, 4),
    _NAIVE: _counts(_NAIVE, _FIXEXT_8, NAIVE_CODE, 8),
    _INSTANT: _counts(_INSTANT, _FIXEXT_8, INSTANT_CODE, 8),
}
