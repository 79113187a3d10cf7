"""Values: every type of a Spark row survives exactly."""

# ruff: noqa: DTZ001  (datetimes without a zone are values here)

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import VariantVal

from raftstore.errors import DecodeError, SchemaError
from raftstore.rows.values import ValueCodec, Variant, array_header

CODEC = ValueCodec()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(
        datetime(2, 1, 1),
        datetime(9998, 1, 1),
        timezones=st.integers(-840, 840).map(lambda m: timezone(timedelta(minutes=m))),
    ),
    st.times(),
    st.timedeltas(),
    st.builds(Variant, st.binary(), st.binary()),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(SCALARS, inner), max_leaves=12
)


@given(VALUES)
def test_value_is_restored_exactly_when_decoded(value: object) -> None:
    """Values come back equal, of the same types, with the scale of decimals."""
    restored = CODEC.decode(CODEC.encode(value))
    assert restored == value
    assert _types(restored) == _types(value)


def _types(value: object) -> object:
    if isinstance(value, list):
        return [_types(item) for item in value]
    if isinstance(value, dict):
        return [(_types(key), _types(item)) for key, item in value.items()]
    return (type(value), str(value) if isinstance(value, Decimal) else None)


def test_value_keeps_nan_infinities_and_negative_zero() -> None:
    """Doubles keep their special values, decimals too."""
    restored = CODEC.decode(CODEC.encode([math.nan, math.inf, -math.inf, -0.0, Decimal("NaN")]))
    assert math.isnan(restored[0])
    assert restored[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, restored[3]) == -1
    assert restored[4].is_nan()


def test_value_keeps_the_instant_of_a_datetime_with_zone_and_reads_back_in_utc() -> None:
    """A datetime with zone is an instant; one without zone stays without."""
    berlin = datetime(2024, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    restored = CODEC.decode(CODEC.encode([berlin, berlin.replace(tzinfo=None)]))
    assert restored == [datetime(2024, 7, 1, 10, tzinfo=UTC), datetime(2024, 7, 1, 12)]
    assert restored[0].tzinfo is UTC


class Point(NamedTuple):
    """A struct as Python writes it."""

    x: int
    y: date


def test_value_turns_structs_into_maps_by_field_name() -> None:
    """pyspark Rows and named tuples, nested ones too, are maps; plain tuples are arrays."""
    point = Point(1, date(2024, 1, 1))
    row = Row(name="a", inner=Row(at=point), pair=(1, 2))
    assert CODEC.decode(CODEC.encode(row)) == {
        "name": "a",
        "inner": {"at": {"x": 1, "y": date(2024, 1, 1)}},
        "pair": [1, 2],
    }


def test_value_restores_map_keys_that_are_arrays_or_structs_as_tuples() -> None:
    """Spark maps may have composite keys; Python needs them hashable."""
    assert CODEC.decode(CODEC.encode({(1, (2, 3)): "a"})) == {(1, (2, 3)): "a"}
    assert CODEC.decode(CODEC.encode({Row(a=1): 2})) == {(("a", 1),): 2}


class Level(IntEnum):
    """A subclass of int."""

    LOW = 1


class Text(str):
    """A subclass of str."""

    __slots__ = ()


def test_value_takes_subclasses_and_look_alikes_as_their_base_type() -> None:
    """Enums, ordered maps, numpy scalars and VariantVal are stored as what they stand for."""
    given_values = [Level.LOW, Text("t"), OrderedDict(a=1), np.int64(5), np.float32(0.5)]
    restored = CODEC.decode(CODEC.encode(given_values))
    assert restored == [1, "t", {"a": 1}, 5, 0.5]
    assert [type(value) for value in restored] == [int, str, dict, int, float]
    assert CODEC.decode(CODEC.encode(VariantVal(b"v", b"m"))) == Variant(b"v", b"m")
    assert CODEC.decode(CODEC.encode([bytearray(b"x"), memoryview(b"y")])) == [b"x", b"y"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1, 2}, "{1, 2} of type set has no meaning in a row"),
        (object, "of type type has no meaning"),
        ("\ud800", "surrogates not allowed"),
        (time(1, tzinfo=UTC), "time of day 01:00:00+00:00 has a zone"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "date value out of range"),
    ],
)
def test_value_is_refused_when_it_has_no_meaning_in_a_row(value: object, text: str) -> None:
    """Given a value that a row cannot hold, the codec raises a SchemaError and goes on working."""
    with pytest.raises(SchemaError) as error:
        CODEC.encode([value])
    assert text in str(error.value)
    assert CODEC.decode(CODEC.encode(1)) == 1


def test_value_is_refused_when_it_is_nested_without_end() -> None:
    """A value that contains itself ends in an error, not in a crash."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(SchemaError):
        CODEC.encode(endless)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x01\x01",
        msgpack.packb(msgpack.ExtType(99, b"")),
        msgpack.packb(msgpack.ExtType(1, b"x")),
        msgpack.packb(msgpack.ExtType(2, b"x")),
        msgpack.packb(msgpack.ExtType(3, b"\x7f" + b"\xff" * 7)),
        msgpack.packb(msgpack.ExtType(8, b"\x01")),
        b"\xa1\xff",
        b"\x91" * 5000 + b"\x01",
        b"\x81\x90",
    ],
)
def test_decode_value_raises_decode_error_when_bytes_are_no_value(encoded: bytes) -> None:
    """Damaged values are reported as such, never as another exception."""
    with pytest.raises(DecodeError):
        CODEC.decode(encoded)


@given(st.binary(max_size=60))
def test_decode_value_returns_or_raises_decode_error_for_any_bytes(encoded: bytes) -> None:
    """Arbitrary bytes never end in another exception."""
    try:
        CODEC.decode(encoded)
    except DecodeError:
        return


@given(st.lists(SCALARS, max_size=20))
def test_cells_behind_a_header_are_the_list_of_their_values(values: list[object]) -> None:
    """Values encoded column by column have the bytes of their list."""
    assert array_header(len(values)) + b"".join(CODEC.encode_cells(values)) == CODEC.encode(values)


def test_cell_is_nested_as_deeply_as_a_value_of_a_list() -> None:
    """A cell may be nested as deeply as inside a list: both refuse the same values."""
    value: object = 1
    taken = []
    for levels in range(1030):
        value = [value]
        if levels < 1000:
            continue
        try:
            is_taken = bool(CODEC.encode([value]))
        except SchemaError:
            is_taken = False
        taken.append(is_taken)
        if is_taken:
            assert CODEC.encode_cells([value]) == [CODEC.encode([value])[1:]]
        else:
            with pytest.raises(ValueError, match="recursion limit"):
                CODEC.encode_cells([value])
    assert set(taken) == {True, False}


def test_value_encodings_stay_as_they_are_stored() -> None:
    """Golden bytes: extension numbers and layouts are on disk."""
    values = [
        Decimal("1.50"),
        date(2024, 2, 29),
        datetime(2024, 2, 29, 12),
        datetime(2024, 2, 29, 12, tzinfo=UTC),
        2**64,
        time(1, 2, 3, 4),
        timedelta(days=-1, seconds=2, microseconds=3),
        Variant(b"v", b"m"),
    ]
    assert CODEC.encode(values).hex() == (
        "98"
        "d601312e3530"
        "d60200004d46"
        "d70300061283ffaff000"
        "d70400061283ffaff000"
        "c70905010000000000000000"
        "d70600000000dde878c4"
        "c70c07ffffffff0000000200000003"
        "c7070892c40176c4016d"
    )


def test_codec_keeps_values_apart_when_threads_share_it() -> None:
    """A call never borrows the packer of a call that has not ended."""

    class Sneaky:
        """Encodes another value while it is being encoded, as another thread might."""

        def asDict(self) -> dict[str, object]:  # noqa: N802
            return {"inner": CODEC.encode(["other", 1])}

    restored = CODEC.decode(CODEC.encode(["before", Sneaky(), "after"]))
    assert restored == ["before", {"inner": CODEC.encode(["other", 1])}, "after"]
    errors: list[object] = []

    def work(number: int) -> None:
        for turn in range(200):
            value = [number, turn, Decimal(turn), {"n": (number, turn)}]
            if CODEC.decode(CODEC.encode(value)) != [number, turn, turn, {"n": [number, turn]}]:
                errors.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
