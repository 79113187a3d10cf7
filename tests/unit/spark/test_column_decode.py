"""Columns of a page decoded at once: always those that rows decoded one by one would give."""

import datetime as dt
import json
import math
import struct

import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raftstore.errors import CorruptRecordError, DecodeError
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.rows.values import ValueCodec
from raftstore.spark.codec.column_decode import column_decoder
from raftstore.spark.codec.decode import RowDecoder

EDGES = sorted(
    {
        number
        for bits in (5, 7, 8, 15, 16, 31, 32, 63, 64)
        for near in (-1, 0, 1)
        for number in (2**bits + near, -(2**bits) + near, near)
        if -(2**63) <= number < 2**63
    }
)
"""Where msgpack, Arrow or Spark change to another width."""
LENGTHS = (0, 1, 15, 16, 31, 32, 127, 128, 255, 256, 65_535, 65_536)


def ints(bits):
    """Integers of a width, many of them edges."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([n for n in EDGES if low <= n <= high]) | st.integers(low, high)


TEXTS = st.text(max_size=5) | st.builds(
    str.__mul__, st.sampled_from("aé"), st.sampled_from(LENGTHS)
)
FLOATS = st.floats() | st.sampled_from([math.nan, -0.0, math.inf, 5e-324, 1e300, 0.1])
FLAT = {
    "boolean": (pa.bool_(), st.booleans()),
    "byte": (pa.int8(), ints(8)),
    "short": (pa.int16(), ints(16)),
    "integer": (pa.int32(), ints(32)),
    "long": (pa.int64(), ints(64)),
    "float": (pa.float32(), FLOATS),
    "double": (pa.float64(), FLOATS),
    "string": (pa.string(), TEXTS),
    "varchar(9)": (pa.string(), TEXTS),
    "binary": (pa.binary(), TEXTS.map(str.encode)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes()),
}
CODEC = ValueCodec()


def told(array):
    """Text that distinguishes all columns: NaN is itself here, and zeroes have a sign."""
    array.validate(full=True)
    return f"{array.type} {array.to_pylist()!r}"


def sealed_page(contents):
    """Keys and sealed values of rows that hold these bytes."""
    keys = [struct.pack(">I", number) for number in range(len(contents))]
    return keys, [seal(key, content) for key, content in zip(keys, contents, strict=True)]


def one_by_one(kinds, contents):
    """The result of the decoder of single rows; None where it raises."""
    try:
        rows = [CODEC.decode_counts(content) for content in contents]
        if not all(type(row) is list and len(row) >= len(kinds) for row in rows):
            return None
        return [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(kinds)]
    except (DecodeError, pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


@given(st.data(), st.lists(st.sampled_from(sorted(FLAT)), min_size=1, max_size=20))
def test_columns_at_once_are_those_that_were_written(data, names):
    """For all types, their edges and nulls anywhere, columns decoded at once equal the written
    ones.
    """
    row = st.tuples(*(st.none() | FLAT[name][1] for name in names))
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    kinds = [FLAT[name][0] for name in names]
    keys, sealed = sealed_page([CODEC.encode(list(row)) for row in rows])
    found = column_decoder(kinds).decode(keys, sealed)
    expected = map(pa.array, zip(*rows, strict=True), kinds)
    assert list(map(told, found)) == list(map(told, expected))


TAGS = st.integers(0, 255).map(lambda tag: bytes([tag]))
PIECES = TAGS | st.binary(max_size=9) | st.builds(msgpack.packb, st.none() | ints(64) | TEXTS)


@given(
    st.lists(st.sampled_from(sorted({kind for kind, _ in FLAT.values()}, key=str)), max_size=3),
    st.lists(st.builds(b"".join, st.lists(PIECES, max_size=4)), min_size=1, max_size=3),
    st.sampled_from([b"", b"\x90", b"\x91", b"\x92", b"\xdc\x00\x01", b"\xdc\x00\x02"]),
)
@example([pa.int64()], [b"\xcf" + b"\xff" * 8], b"\x91")
@example([pa.string()], [b"\xa1\xff"], b"\x91")
@example([pa.string()], [b"\xd9"], b"\x91")
@example([pa.binary()], [b"\xc6\xff\xff\xff\xff", b""], b"\x91")
@example([pa.date32()], [b"\xd6\x04\x00\x00\x00\x01"], b"\x91")
@example([pa.timestamp("us")], [b"\xd7\x04" + bytes(8)], b"\x91")
@example([pa.timestamp("us")], [b"\xd7\x06" + bytes(8)], b"\x91")
@example([pa.float64()], [b"\xca" + bytes(4)], b"\x91")
@example([pa.int64(), pa.int64()], [b"\x01", b"\x01\x01\x01"], b"\x92")
def test_no_bytes_are_taken_for_other_columns_than_they_are(kinds, contents, start):
    """Any bytes at all: what is decoded at once is what each row alone says; else nothing is."""
    contents = [start + content for content in contents]
    found = column_decoder(kinds).decode(*sealed_page(contents))
    if found is not None:
        expected = one_by_one(kinds[: len(found)], contents)
        assert expected is not None
        assert list(map(told, found)) == list(map(told, expected))


def test_rows_of_several_lengths_or_newer_schemas_are_left_to_the_other_decoder():
    """Rows from before a column was appended are not, as long as there are no others among them."""
    decoder = column_decoder([pa.int64(), pa.string()])
    short, full, newer = b"\x91\x01", b"\x92\x01\xa1x", b"\x93\x01\xa1x\xc0"
    assert [column.to_pylist() for column in decoder.decode(*sealed_page([short] * 2))] == [[1, 1]]
    assert decoder.decode(*sealed_page([full] * 2))[1].to_pylist() == ["x", "x"]
    for contents in ([short, full], [full, newer], [newer], [b"\x80"], [b""], [full + b"\xc0"]):
        assert decoder.decode(*sealed_page(contents)) is None


def test_nested_types_are_left_to_the_other_decoder():
    """So is a table that has one of them among others."""
    assert column_decoder([pa.int64(), pa.list_(pa.int64())]) is None
    assert column_decoder([pa.decimal128(5, 2)]) is None


@given(st.data())
def test_page_with_a_damaged_row_is_never_decoded_at_once(data):
    """Whichever bit of a key or of a stored value changed: the other decoder says what is wrong."""
    number = {"name": "a", "type": "long", "nullable": True, "metadata": {}}
    text = {"name": "b", "type": "string", "nullable": True, "metadata": {}}
    fields = [number | {"name": "id"}, number, text]
    schema = TableSchema(("id",), json.dumps({"type": "struct", "fields": fields}))
    rows = [schema.row_to_key_value({"id": n, "a": n, "b": "text"}) for n in range(3)]
    items = [[key, seal(key, value), 1] for key, value in rows]
    decoder = RowDecoder(schema, schema.schema_json)
    assert decoder.decode(items).column("b").to_pylist() == ["text"] * 3
    row, part = data.draw(st.sampled_from(items)), data.draw(st.sampled_from([0, 1]))
    bit = data.draw(st.integers(0, 8 * len(row[part]) - 1))
    changed = bytearray(row[part])
    changed[bit // 8] ^= 1 << bit % 8
    row[part] = bytes(changed)
    with pytest.raises((CorruptRecordError, DecodeError)):
        decoder.decode(items)
    decoder = column_decoder([pa.int64(), pa.string()])
    assert decoder.decode([key for key, _, _ in items], [sealed for _, sealed, _ in items]) is None


def test_page_without_values_is_not_decoded_at_once():
    """Keys alone are no rows."""
    decoder = column_decoder([pa.int64()])
    assert decoder.decode([b"k"], [None]) is None
    assert decoder.decode([], []) is None
