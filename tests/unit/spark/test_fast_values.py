"""Dates and timestamps packed by columns: the same bytes as packing each value by itself."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import PayloadTooLargeError, SchemaError
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import unseal
from raftstore.rows.values import ValueCodec
from raftstore.spark.codec.encoding import RowEncoder
from raftstore.spark.codec.fast_values import packed_counts

KINDS = {
    "timestamp": pa.timestamp("us", "Asia/Tokyo"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
}
INSTANTS = (
    dt.datetime.min.replace(tzinfo=dt.UTC),
    dt.datetime.max.replace(tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
)
EDGES = {
    "timestamp": INSTANTS,
    "timestamp_ntz": tuple(moment.replace(tzinfo=None) for moment in INSTANTS),
    "date": tuple(moment.date() for moment in INSTANTS),
}
MOMENTS = {
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
    "date": st.dates(),
}


def schema_json(**types) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_packed_column_has_the_same_bytes_when_each_value_is_packed_by_itself(kind, data):
    """For any moments with nulls among them, and in a slice of a longer column, packing by columns
    gives the same bytes.
    """
    moments = st.one_of(st.none(), st.sampled_from(EDGES[kind]), MOMENTS[kind])
    values = data.draw(st.lists(moments, max_size=12))
    start = data.draw(st.integers(0, len(values)))
    codec = ValueCodec()

    packed = packed_counts(pa.array(values, KINDS[kind])[start:])

    assert packed is not None
    assert [codec.encode(one) for one in packed] == [codec.encode(one) for one in values[start:]]


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("timestamp", 253_402_300_800_000_000),
        ("timestamp_ntz", -62_135_596_800_000_001),
        ("date", 2_932_897),
        ("date", -719_163),
    ],
)
def test_encoder_refuses_a_moment_when_python_has_no_such_year(kind, number):
    """The first one beyond the years 1 to 9999 on each side; the column is named."""
    types = schema_json(k="long", at=kind)
    width = pa.int32() if kind == "date" else pa.int64()
    column = pa.array([None, number], width).cast(KINDS[kind])
    encoder = RowEncoder(TableSchema(("k",), types), types, delete=False)

    with pytest.raises(SchemaError, match=r"column 'at' has a .* years 1 to 9999 only"):
        encoder.encode(pa.record_batch({"k": [1, 2], "at": column}))


def test_column_is_left_to_arrow_when_it_counts_no_microseconds():
    """Nanoseconds would lose digits, and texts are no moments."""
    assert packed_counts(pa.array([1], pa.timestamp("ns"))) is None
    assert packed_counts(pa.array(["2024-01-01"])) is None


def test_encoder_names_the_key_of_a_row_that_is_too_large_when_it_has_moments():
    """The row is looked at again, as what it was."""
    types = schema_json(k="long", at="timestamp", v="binary")
    moments = pa.array([dt.datetime.now(dt.UTC)] * 2, KINDS["timestamp"])
    encoder = RowEncoder(TableSchema(("k",), types), types, delete=False)

    with pytest.raises(PayloadTooLargeError, match=r"key k=7: .*column 'v'"):
        encoder.encode(pa.record_batch({"k": [6, 7], "at": moments, "v": [b"", bytes(2 << 20)]}))


def test_encoder_keeps_moments_in_keys_and_in_values():
    """A key is compared, so it is encoded by itself; the value beside it is packed by columns."""
    moment = dt.datetime(2024, 6, 1, 12, 0, 0, 7, tzinfo=dt.UTC)
    types = schema_json(day="date", at="timestamp", other="date")
    table = TableSchema(("day", "at"), types)
    column = {
        "day": pa.array([moment.date()]),
        "at": pa.array([moment], KINDS["timestamp"]),
        "other": pa.array([dt.date(1, 1, 1)]),
    }

    ((key, sealed),) = RowEncoder(table, types, delete=False).encode(pa.record_batch(column))

    assert table.key_value_to_row(key, unseal(key, sealed)) == {
        "day": moment.date(),
        "at": moment,
        "other": dt.date(1, 1, 1),
    }
