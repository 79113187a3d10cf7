"""The order of keys is Spark's order of their columns, for every type that a key may have."""

import datetime as dt
import json
import random
import struct
from decimal import Decimal
from itertools import pairwise

import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from pyspark.sql.window import Window

from raftstore.rows.schema import TableSchema

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 60
"""Of each key: enough that all edges meet each other."""
FIRST, EPOCH, LAST = (
    dt.datetime.fromisoformat(f"{year}-01-01T00:00:00") for year in ("0002", "1970", "9998")
)
"""No zone takes these out of what Python holds."""
SPAN = (LAST - FIRST) // dt.timedelta(microseconds=1)
DAYS = (dt.date.min, dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(1970, 1, 1), dt.date.max)
TEXT = "a\0\x01\x7f\u00ff\uffff\U0001f600"
"""The order of UTF-16 is another than that of code points here, and NUL is escaped in keys."""


def whole(bits):
    """Numbers of so many bits, those around the limits and zero more often."""
    edge = 2 ** (bits - 1)
    edges = (-edge, -edge + 1, -1, 0, 1, edge - 1)
    return lambda draw: draw.choice((*edges, draw.randrange(-edge, edge)))


def real(code):
    """Floats, with both zeros, infinities and what is no number."""
    edges = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), -1.5, 1.5)
    size = struct.calcsize(code)

    def draw_one(draw):
        (any_bits,) = struct.unpack(code, draw.randbytes(size))
        return draw.choice((*edges, any_bits))

    return draw_one


def exact(digits, scale):
    """Decimals of one type; some are written with fewer places."""
    limit = 10**digits - 1
    edges = (-limit, -(10**scale), -1, 0, 1, 10**scale, limit)

    def draw_one(draw):
        # As text: arithmetic would round to the digits of the context.
        number = Decimal(f"{draw.choice((*edges, draw.randint(-limit, limit)))}E-{scale}")
        shorter = Decimal((number.as_tuple().sign, (1, 5), -1))
        return draw.choice((number, number, shorter))

    return draw_one


def moment(zone):
    """Any microsecond; ends, and neighbours of the epoch, more often."""

    def draw_one(draw):
        anywhere = FIRST + dt.timedelta(microseconds=draw.randint(0, SPAN))
        before = EPOCH - dt.timedelta(microseconds=1)
        return draw.choice((FIRST, before, EPOCH, LAST, anywhere)).replace(tzinfo=zone)

    return draw_one


def day(draw):
    """A day; ends, the epoch and the change of calendars more often."""
    some = dt.date.fromordinal(draw.randint(1, dt.date.max.toordinal()))
    return draw.choice((*DAYS, some))


KINDS = {
    "boolean": lambda draw: draw.random() < 0.5,
    "byte": whole(8),
    "short": whole(16),
    "integer": whole(32),
    "long": whole(64),
    "float": real("<f"),
    "double": real("<d"),
    "decimal(9,4)": exact(9, 4),
    "decimal(38,18)": exact(38, 18),
    "string": lambda draw: "".join(draw.choices(TEXT, k=draw.randrange(4))),
    "binary": lambda draw: bytes(draw.choices((0, 1, 97, 255), k=draw.randrange(4))),
    "date": day,
    "timestamp": moment(dt.UTC),
    "timestamp_ntz": moment(None),
}
"""Types of Spark that a key column may have, as its schemas name them, and how to draw one."""

COMPOSITE = [
    ("string", "long"),
    ("binary", "string"),
    ("decimal(9,4)", "double", "string"),
    ("boolean", "string", "date"),
]
"""Keys of more than a part: with text and bytes before what follows them."""
KEYS = [(name,) for name in KINDS] + COMPOSITE
ORDERS = [tuple(KINDS), *COMPOSITE]
"""Columns to rank by: rows of a key of one column have nulls in all others."""


def order_of(key):
    """The columns that rank the rows of a key."""
    return key if len(key) > 1 else tuple(KINDS)


def name_of(order):
    return "by_" + "_".join(map(column, order))


def rank_by(order):
    """Spark's rank of a row among those of its case."""
    window = Window.partitionBy("case").orderBy(*(f.col(column(name)) for name in order))
    return f.dense_rank().over(window).alias(name_of(order))


def column(name):
    return name.translate(str.maketrans("(,", "__", ")"))


def schema_json(key):
    """Spark's JSON of a table with this key and nothing else."""
    fields = [
        {"name": column(name), "type": name, "nullable": True, "metadata": {}} for name in key
    ]
    return json.dumps({"type": "struct", "fields": fields})


def test_key_order_equals_sparks_order(spark):
    """Spark ranks the rows of each key in one job: a lower rank has lower bytes, the same rank the
    same bytes (so zeros, numbers that are none, and scales of a decimal are one key each)."""
    draw = random.Random(20)
    drawn = [[tuple(KINDS[name](draw) for name in key) for _ in range(ROWS)] for key in KEYS]
    rows = []
    for case, (key, values) in enumerate(zip(KEYS, drawn, strict=True)):
        for number, value in enumerate(values):
            given = dict(zip(key, value, strict=True))
            rows.append((case, number, *map(given.get, KINDS)))
    shape = StructType.fromJson(json.loads(schema_json(KINDS)))
    for name in ("number", "case"):
        shape = StructType([StructType().add(name, "integer").fields[0], *shape.fields])
    frame = spark.createDataFrame(rows, shape)
    ranked = frame.select("case", "number", *map(rank_by, ORDERS)).collect()

    assert len(ranked) == len(rows)
    for case, key in enumerate(KEYS):
        table = TableSchema(tuple(map(column, key)), schema_json(key))
        by = name_of(order_of(key))
        ranks = {row["number"]: row[by] for row in ranked if row["case"] == case}
        encoded = sorted(
            (ranks[at], table.encode_key(value)) for at, value in enumerate(drawn[case])
        )
        for (rank, lower), (next_rank, higher) in pairwise(encoded):
            assert (rank == next_rank) == (lower == higher), (key, lower, higher)
            assert lower <= higher, (key, lower, higher)
