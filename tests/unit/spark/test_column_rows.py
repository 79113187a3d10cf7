"""Batches encoded by whole columns: the same bytes, chunks and errors as row by row."""

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.config import KIB
from raftstore.errors import PayloadTooLargeError, RaftstoreError, SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.spark.codec import column_rows, encoding
from raftstore.spark.codec.column_rows import ColumnEncoder
from raftstore.spark.codec.encoding import Chunker, RowEncoder
from raftstore.spark.options import SinkOptions
from raftstore.spark.write.tasks import chunks_of

TOKYO = pa.timestamp("us", "Asia/Tokyo")
INSTANTS = (
    dt.datetime.min.replace(tzinfo=dt.UTC),
    dt.datetime.max.replace(tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
)
LENGTHS = (0, 1, 31, 32, 33, 255, 256, 65_535, 65_536)
"""Around those where msgpack's header of a text or of bytes changes."""


def ints(bits: int) -> st.SearchStrategy[int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    powers = {sign * (1 << at) + by for at in range(64) for sign in (-1, 1) for by in (-1, 0, 1)}
    edges = sorted(number for number in powers | {0} if low <= number <= high)
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", "\0", "a\0\0b", "ü", "\U0001f600", "x" * 31, "x" * 32, "é" * 128]),
)
BYTES = st.one_of(st.binary(max_size=6), st.sampled_from([b"", b"\0\xff", bytes(255), bytes(256)]))
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, float("inf"), float("nan"), 5e-324]), st.floats())
SHORT_FLOATS = st.one_of(st.sampled_from([-0.0, float("-inf"), float("nan")]), st.floats(width=32))
FLAT = {
    "boolean": (pa.bool_(), st.booleans()),
    "byte": (pa.int8(), ints(8)),
    "short": (pa.int16(), ints(16)),
    "integer": (pa.int32(), ints(32)),
    "long": (pa.int64(), ints(64)),
    "float": (pa.float32(), SHORT_FLOATS),
    "double": (pa.float64(), FLOATS),
    "string": (pa.string(), TEXTS),
    "binary": (pa.binary(), BYTES),
    "date": (pa.date32(), st.one_of(st.sampled_from([dt.date.min, dt.date.max]), st.dates())),
    "timestamp": (
        TOKYO,
        st.one_of(st.sampled_from(INSTANTS), st.datetimes(timezones=st.just(dt.UTC))),
    ),
    "timestamp_ntz": (
        pa.timestamp("us"),
        st.one_of(st.sampled_from([m.replace(tzinfo=None) for m in INSTANTS]), st.datetimes()),
    ),
}
"""Arrow's type, and values, of the types that keys and values may have."""
OTHERS = (
    ("void", pa.array([None, None])),
    ("decimal(10,2)", pa.array([Decimal("1.50"), None], pa.decimal128(10, 2))),
    ("string", pa.array(["a", None], pa.large_string())),
    ("string", pa.array(["a", None]).dictionary_encode()),
    ("binary", pa.array([b"a", None], pa.binary(1))),
    ({"type": "array", "elementType": "long"}, pa.array([[1, None], None])),
)
"""Columns of values alone; most are packed one by one."""


def schema_json(**types) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def rows_of(columns, table, types):
    """The rows by whole columns, and one by one."""
    batch = pa.record_batch(columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_rows, "ROWS_MIN", 1)
        found = ColumnEncoder(table, types).encode(batch)
    assert found is not None
    expected = RowEncoder(table, types, delete=False).encode(batch)
    assert found.sizes.tolist() == [len(key) + len(sealed) for key, sealed in expected]
    return found.rows.rows(), expected


@pytest.mark.parametrize("kind", FLAT)
@given(data=st.data())
def test_value_has_the_same_bytes_when_its_column_is_encoded_at_once(kind, data):
    """For all values, with and without nulls and in a slice of a longer column, encoding by columns
    gives the same bytes.
    """
    arrow, strategy = FLAT[kind]
    if data.draw(st.booleans()):
        strategy = st.one_of(st.none(), strategy)
    values = data.draw(st.lists(strategy, min_size=1, max_size=12))
    start = data.draw(st.integers(0, len(values) - 1))
    column = pa.array(values, arrow)[start:]
    types = schema_json(k="long", v=kind)

    by_columns, one_by_one = rows_of(
        {"k": list(range(len(column))), "v": column}, TableSchema(("k",), types), types
    )

    assert by_columns == one_by_one


@pytest.mark.parametrize(("kind", "column"), OTHERS)
def test_value_has_the_same_bytes_when_its_column_is_packed_by_itself(kind, column):
    """Beside columns that are encoded at once."""
    types = schema_json(k="long", v=kind, w="long")
    columns = {"k": [1, 2], "v": column, "w": [3, None]}

    by_columns, one_by_one = rows_of(columns, TableSchema(("k",), types), types)

    assert by_columns == one_by_one


@pytest.mark.parametrize("kind", FLAT)
@given(data=st.data())
def test_key_has_the_same_bytes_when_its_column_is_encoded_at_once(kind, data):
    """Alone and as a part of a key, with NULs in texts."""
    arrow, strategy = FLAT[kind]
    other, others = FLAT[data.draw(st.sampled_from([*FLAT]))]
    values = data.draw(st.lists(strategy, min_size=1, max_size=12))
    beside = data.draw(st.lists(others, min_size=len(values), max_size=len(values)))
    start = data.draw(st.integers(0, len(values) - 1))
    columns = {"a": pa.array(values, arrow)[start:], "b": pa.array(beside, other)[start:]}
    columns["v"] = list(range(len(values) - start))
    kinds = {name: spark_name(columns[name].type) for name in "ab"}
    keys = data.draw(st.sampled_from([("a",), ("a", "b"), ("b", "a")]))
    types = schema_json(**kinds, v="long")

    by_columns, one_by_one = rows_of(columns, TableSchema(keys, types), types)

    assert by_columns == one_by_one


def spark_name(arrow: pa.DataType) -> str:
    return next(name for name, (given_type, _) in FLAT.items() if given_type == arrow)


@pytest.mark.parametrize("key", ["k", "f", "d"])
def test_nan_has_the_same_bytes_when_it_is_one_of_others(key):
    """Signaling, negative and with a payload: as a value it keeps its bits, as a key it is one."""
    short = np.array([0x7F800001, 0xFFC00001, 0x7FC00000], np.uint32).view(np.float32)
    long = np.array([0x7FF0000000000001, 0xFFF8000000000001, 0x7FF8 << 48], np.uint64)
    types = schema_json(k="long", f="float", d="double")
    columns = {"k": [1, 2, 3], "f": pa.array(short), "d": pa.array(long.view(np.float64))}

    by_columns, one_by_one = rows_of(columns, TableSchema((key,), types), types)

    assert by_columns == one_by_one


def test_texts_have_the_same_bytes_when_their_headers_differ():
    """Every length at which a header changes, as text and as bytes, and two-byte characters."""
    types = schema_json(k="string", t="string", b="binary", u="string")
    columns = {
        "k": [f"{length:05}" for length in LENGTHS],
        "t": ["x" * length for length in LENGTHS],
        "b": [bytes(length) for length in reversed(LENGTHS)],
        "u": ["ß" * (length // 2) for length in LENGTHS],
    }

    by_columns, one_by_one = rows_of(columns, TableSchema(("k",), types), types)

    assert by_columns == one_by_one


def test_list_of_columns_has_the_same_header_when_there_are_many():
    """More than 15 columns have a longer one; those that the DataFrame lacks are null."""
    names = [f"c{number}" for number in range(20)]
    table = TableSchema(("k",), schema_json(k="long", **dict.fromkeys(names, "long")))
    types = schema_json(k="integer", c1="byte", c19="integer")
    columns = {
        "k": pa.array([1, 2], pa.int32()),
        "c1": pa.array([1, None], pa.int8()),
        "c19": pa.array([-1, 1 << 20], pa.int32()),
    }

    by_columns, one_by_one = rows_of(columns, table, types)

    assert by_columns == one_by_one


KEYS = {
    "long": (pa.int64(), st.integers(-2, 3)),
    "string": (pa.string(), st.text("ab", max_size=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_chunks_are_the_same_however_their_batches_are_encoded(kind, data):
    """Same cuts, order, modes and bytes, with keys that come again, and batches of both ways."""
    arrow, keys = KEYS[kind]
    row = st.tuples(keys, st.one_of(st.none(), st.text(max_size=40)))
    batches = [
        pa.record_batch(
            {
                "k": pa.array([key for key, _ in rows], arrow),
                "v": pa.array([value for _, value in rows], pa.string()),
            }
        )
        for rows in data.draw(st.lists(st.lists(row, min_size=1, max_size=30), max_size=6))
    ]
    types = schema_json(k=kind, v="string")
    table = TableSchema(("k",), types)
    limits = {
        "rows_max": data.draw(st.sampled_from([1, 2, 5, 12, 1000])),
        "bytes_max": data.draw(st.sampled_from([30, 100, 300, 1000])),
        "mode": data.draw(st.integers(0, 2)),
    }
    partitions = data.draw(st.integers(1, 3))
    at_once = [
        data.draw(st.booleans() if number else st.just(True)) for number, _ in enumerate(batches)
    ]
    plain, by_columns = (Chunker(partitions, **limits) for _ in range(2))
    row_encoder, column_encoder = (
        RowEncoder(table, types, delete=False),
        ColumnEncoder(table, types),
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_rows, "ROWS_MIN", 1)
        patch.setattr(encoding, "PACKED_ROWS_MIN", data.draw(st.sampled_from([0, 0, 4])))
        patch.setattr(encoding, "GATHERED_BYTES_MAX", data.draw(st.integers(100, 1000)))
        expected = [c for batch in batches for c in plain.add(row_encoder.encode(batch))]
        expected += plain.rest()
        found = []
        for batch, is_at_once in zip(batches, at_once, strict=True):
            encoder = column_encoder if is_at_once else row_encoder
            found += by_columns.add(encoder.encode(batch))
        found += by_columns.rest()

    assert found == expected


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_task_writes_the_same_chunks_when_its_batches_are_encoded_at_once(is_shuffled):
    """Batches as Spark sends them: thousands of rows, some keys again, and a small one last."""
    random = np.random.default_rng(1)
    numbers = random.integers(0, 5000, 8000) if is_shuffled else np.arange(8000)
    whole = pa.record_batch(
        {
            "id": numbers,
            "text": pa.array([None if n % 50 == 0 else "x" * (n % 300) for n in range(8000)]),
            "n": pa.array(numbers * numbers * numbers),
        }
    )
    batches = [whole[:3000], whole[3000:6000], whole[6000:6010], whole[6010:7990], whole[7990:]]
    types = schema_json(id="long", text="string", n="long")
    options = SinkOptions(
        bootstrap_servers="", table="t", max_batch_rows=700, max_batch_bytes=100 * KIB
    )
    table = TableInfo("t", b"", ("id",), 4, 3, "", None, types, ())
    encoder = RowEncoder(TableSchema(("id",), types), types, delete=False)
    chunker = Chunker(4, rows_max=700, bytes_max=100 * KIB)
    expected = [chunk for batch in batches for chunk in chunker.add(encoder.encode(batch))]
    expected += chunker.rest()

    with pytest.MonkeyPatch.context() as patch:
        taken = []
        take = column_rows.PackedRows.take
        patch.setattr(
            column_rows.PackedRows,
            "take",
            lambda rows, places: taken.append(len(places)) or take(rows, places),
        )
        found = list(chunks_of(options, table, types, batches))

    assert found == expected
    assert sum(taken) > 6000


def many(**columns):
    """A batch of enough rows to be encoded by columns: the given ones, and the last again."""
    count = column_rows.ROWS_MIN
    return pa.record_batch(
        {
            name: pa.concat_arrays([array, *[array[-1:]] * (count - len(array))])
            for name, array in columns.items()
        }
    )


def written(types, batch, key=("k",)):
    options = SinkOptions(bootstrap_servers="", table="t", key=key)
    table = TableInfo("t", b"", key, 8, 3, "", None, types, ())
    return list(chunks_of(options, table, types, [batch]))


OK = pa.array([1], pa.int64())
FAR = pa.array([253_402_300_800_000_000], pa.int64())


@pytest.mark.parametrize(
    ("types", "columns", "error"),
    [
        ({"v": "long"}, {"k": pa.array([1, None, 2]), "v": OK}, "'k' is null in row 1 of a batch"),
        ({"v": "timestamp"}, {"k": OK, "v": FAR.cast(TOKYO)}, "'v' has a .* years 1 to 9999"),
        ({"k": "timestamp_ntz", "v": "long"}, {"k": FAR.cast("timestamp[us]"), "v": OK}, "'k' has"),
        ({"v": "date"}, {"k": OK, "v": pa.array([2**31 - 1], pa.date32())}, "years 1 to 9999"),
        (
            {"v": "string"},
            {"k": OK, "v": pa.array([b"\xff"], pa.binary()).view(pa.string())},
            "'v' has a text that is no UTF-8",
        ),
        (
            {"k": "string", "v": "long"},
            {"k": pa.array([b"\xed\xa0\x80"], pa.binary()).view(pa.string()), "v": OK},
            "'k' has a text that is no UTF-8",
        ),
        ({"v": "binary"}, {"k": pa.array([7, 6]), "v": pa.array([bytes(2 << 20), b""])}, "key k=7"),
        ({"k": "string", "v": "long"}, {"k": pa.array(["x" * 5 * KIB]), "v": OK}, "shorter key"),
        ({"k": "integer", "v": "long"}, {"k": pa.array([1 << 40]), "v": OK}, "'k' is integer"),
    ],
)
def test_row_that_cannot_be_written_is_told_as_it_is_one_by_one(types, columns, error):
    """A batch that holds one is encoded again, so the sentence names the column, or the row."""
    text = schema_json(**{"k": "long"} | types)
    batch = many(**columns)

    with pytest.raises(RaftstoreError, match=error) as found:
        written(text, batch)
    with pytest.raises(RaftstoreError) as expected:
        RowEncoder(TableSchema(("k",), text), text, delete=False).encode(batch)

    assert str(found.value) == str(expected.value)
    assert type(found.value) in (SchemaError, PayloadTooLargeError)


def test_columns_that_are_not_the_tables_are_left_to_the_others():
    """Few rows, columns that are not declared, and batches too large for Arrow to count."""
    types = schema_json(k="long", v="long")
    batch = many(k=OK, v=OK)
    table = TableSchema(("k",), types)
    assert ColumnEncoder(table, types).encode(batch) is not None

    assert ColumnEncoder(table, types).encode(batch[1:]) is None
    assert ColumnEncoder(TableSchema(("k",)), types).encode(batch) is None
    assert ColumnEncoder(TableSchema(("k",), schema_json(k="long")), types).encode(batch) is None
    assert ColumnEncoder(table, schema_json(k="long", w="long")).encode(batch) is None
    assert ColumnEncoder(table, schema_json(v="long", w="long")).encode(batch) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_rows, "ARROW_BYTES_MAX", batch.nbytes)
        assert ColumnEncoder(table, types).encode(batch) is None


def test_column_packed_by_itself_is_left_to_the_others_when_it_is_too_large():
    """Names of a struct's fields are in each row; in Arrow they are once."""
    struct = {"type": "struct", "fields": [{"name": "n" * 1000, "type": "long"}]}
    types = schema_json(k="long", v=struct)
    batch = many(k=OK, v=pa.array([{"n" * 1000: 1}]))
    encoder = ColumnEncoder(TableSchema(("k",), types), types)
    assert encoder.encode(batch) is not None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_rows, "ARROW_BYTES_MAX", 32 * KIB)
        assert encoder.encode(batch) is None


def test_gathered_rows_keep_no_others_in_memory():
    """A partition with one row of each batch would else hold all batches until it is cut."""
    types = schema_json(k="long", v="string")
    batch = pa.record_batch({"k": list(range(1000)), "v": ["x" * 100] * 1000})
    rows = ColumnEncoder(TableSchema(("k",), types), types).encode(batch).rows

    one = rows.take(np.array([7]))

    assert one.rows() == rows.rows()[7:8]
    assert sum(array.get_total_buffer_size() for array in one) < 1 * KIB
