"""Keys: the order of their bytes is the order of the keys, and nothing is lost."""

# ruff: noqa: DTZ001  (datetimes without a zone are values here)

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raftstore.errors import DecodeError, SchemaError
from raftstore.rows.keys import (
    after_prefix,
    decode_key,
    encode_key,
    prefix_range,
    text_prefix_range,
)

INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("\0\x01a\xff\U0010ffff")
BYTES = st.binary() | st.lists(st.sampled_from([0, 1, 2, 255])).map(bytes)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(
    min_value=-1000, max_value=1000, places=3
)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
INSTANTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES)
KINDS = {
    "bool": st.booleans(),
    "int": INTS,
    "float": FLOATS,
    "str": TEXTS,
    "bytes": BYTES,
    "decimal": DECIMALS,
    "date": st.dates(),
    "naive": st.datetimes(),
    "instant": INSTANTS,
}
ANY_KEY = st.lists(st.one_of(*KINDS.values()), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_key_bytes_order_as_values_do_within_a_type(kind: str, data: st.DataObject) -> None:
    """For two values of one type, bytes compare exactly as the values compare."""
    left, right = data.draw(KINDS[kind]), data.draw(KINDS[kind])
    one, two = encode_key((left,)), encode_key((right,))
    assert (one < two, one == two) == (left < right, left == right)


@given(st.tuples(TEXTS, DECIMALS, BYTES, INTS), st.tuples(TEXTS, DECIMALS, BYTES, INTS))
@example(("a", Decimal(1), b"", 0), ("a\0", Decimal(0), b"", 0))
@example(("", Decimal(-1), b"\0", 0), ("", Decimal("-1.0"), b"\0\xff", 0))
def test_composite_key_bytes_order_as_tuples_do(left: tuple, right: tuple) -> None:
    """Keys of several columns compare column by column."""
    one, two = encode_key(left), encode_key(right)
    assert (one < two, one == two) == (left < right, left == right)


@given(ANY_KEY)
def test_key_is_restored_with_its_types_when_decoded(values: tuple) -> None:
    """decode_key gives back equal values of equal types."""
    restored = decode_key(encode_key(values))
    assert restored == values
    assert [type(value) for value in restored] == [type(value) for value in values]


@given(ANY_KEY, ANY_KEY)
def test_key_bytes_are_a_prefix_exactly_when_the_columns_are(first: tuple, key: tuple) -> None:
    """A prefix scan of bytes finds the keys that begin with the columns, and no others."""
    encoded = encode_key(first)
    assert encode_key(first + key).startswith(encoded)
    assert encode_key(key).startswith(encoded) == (encode_key(key[: len(first)]) == encoded)


@given(ANY_KEY, ANY_KEY)
def test_prefix_range_holds_exactly_the_keys_of_the_prefix(first: tuple, key: tuple) -> None:
    """[start, stop) of a prefix contains a key if and only if the key begins with it."""
    start, stop = prefix_range(first)
    encoded = encode_key(key)
    assert (start <= encoded < stop) == encoded.startswith(start)


@given(st.text("ab\0\xff", max_size=3), st.text("ab\0\xff", max_size=5), INTS)
def test_text_prefix_range_holds_exactly_the_texts_that_begin_so(
    prefix: str, text: str, other: int
) -> None:
    """A text prefix selects by the characters of the next column, whatever columns follow."""
    start, stop = text_prefix_range((7,), prefix)
    assert (start <= encode_key((7, text, other)) < stop) == text.startswith(prefix)


def test_after_prefix_is_open_when_nothing_can_follow() -> None:
    """Bytes of 0xff only have no upper bound, which is written as empty."""
    assert after_prefix(b"\xff\xff") == b""
    assert after_prefix(b"") == b""
    assert after_prefix(b"a\xff") == b"b"


def test_key_of_nan_is_one_key_above_infinity() -> None:
    """Every nan is the same key, ordered last as in Spark, and -0.0 is the key 0.0."""
    nan = encode_key((math.nan,))
    assert nan == encode_key((-math.nan,)) > encode_key((math.inf,))
    assert math.isnan(decode_key(nan)[0])  # type: ignore[arg-type]
    assert encode_key((-0.0,)) == encode_key((0.0,))


def test_key_of_equal_decimals_is_one_key() -> None:
    """Trailing zeros do not make another key, and whole decimals read back as whole."""
    assert encode_key((Decimal(100),)) == encode_key((Decimal("1E+2"),))
    assert encode_key((Decimal(0),)) == encode_key((Decimal("-0.00"),))
    assert str(decode_key(encode_key((Decimal("1E+2"),)))[0]) == "100"
    assert str(decode_key(encode_key((Decimal("1E-7"),)))[0]) == "1E-7"


def test_key_of_an_instant_is_the_same_in_every_zone() -> None:
    """An aware datetime is its instant, also in a zone with summer time."""
    berlin = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    key = encode_key((berlin,))
    assert key == encode_key((datetime(2024, 10, 27, 1, 30, tzinfo=UTC),))
    assert decode_key(key) == (datetime(2024, 10, 27, 1, 30, tzinfo=UTC),)
    assert key != encode_key((datetime(2024, 10, 27, 1, 30),))


class Colour(IntEnum):
    """A subclass of int, as callers use."""

    RED = 3


def test_key_takes_subclasses_and_scalars_of_numpy_as_their_base_type() -> None:
    """A key from pandas, numpy or an enum is the key of the plain value."""
    assert encode_key((Colour.RED, np.int32(4), np.float32(0.5), bytearray(b"x"))) == (
        encode_key((3, 4, 0.5, b"x"))
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null cannot be a key; use bool, int"),
        ([1], "[1] of type list cannot be a key"),
        (2**63, "9223372036854775808 does not fit a key of 64 bits"),
        (Decimal("nan"), "NaN cannot be a key; use a finite decimal"),
        (Decimal("-inf"), "-Infinity cannot be a key"),
        ("\ud800", "is not valid Unicode"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "outside the years 1 to 9999"),
    ],
)
def test_key_is_refused_with_value_and_remedy_when_it_cannot_be_ordered(
    value: object, text: str
) -> None:
    """Given a value that cannot be a key, the SchemaError names it."""
    with pytest.raises(SchemaError) as error:
        encode_key((value,))  # type: ignore[arg-type]
    assert text in str(error.value)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\x99",
        b"\x18\0",
        b"\x10\x02",
        b"\x10",
        b"\x30abc",
        b"\x30abc\0",
        b"\x30abc\0\x02",
        b"\x30\xff\0\x01",
        b"\x28",
        b"\x28\x07",
        b"\x28\x02\0\0\0\0\0\0\0\0\x01",
        b"\x40\xff\xff\xff\xff",
        b"\x48" + b"\xff" * 8,
    ],
)
def test_decode_key_raises_decode_error_when_bytes_are_no_key(key: bytes) -> None:
    """Damaged keys are reported as such, never as another exception."""
    with pytest.raises(DecodeError):
        decode_key(key)


@given(st.binary(max_size=40))
def test_decode_key_returns_or_raises_decode_error_for_any_bytes(key: bytes) -> None:
    """Arbitrary bytes never end in another exception."""
    try:
        values = decode_key(key)
    except DecodeError:
        return
    assert values


def test_key_encodings_stay_as_they_are_stored() -> None:
    """Golden bytes: a change of any of these would lose every stored row."""
    day = date(2024, 2, 29)
    moment = datetime(2024, 2, 29, 12, 30, 0, 5)
    assert encode_key((True, -1, 1.5, "a\0", b"\xff")).hex() == (
        "1001187fffffffffffffff20bff8000000000000306100ff000138ff0001"
    )
    assert encode_key((Decimal("-12.5"), day)).hex() == "28007ffffffffffffffef2ccff40000b4681"
    assert encode_key((moment, moment.replace(tzinfo=UTC))).hex() == (
        "4800e2d2836a2582055000e2d2836a258205"
    )
