"""The stream of changes without a JVM: offsets, limits, what is decoded, and what is refused."""

import importlib
import json
import logging
import pickle
import sys

import pyarrow as pa
import pytest

from raftstore.client.changes.change_feed import Ends
from raftstore.errors import ConfigError, RaftstoreError, SchemaError, UnavailableError
from raftstore.protocol.admin import ChannelInfo, TableInfo
from raftstore.protocol.changes import ChangePiece
from raftstore.protocol.payload import encode_rows
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.spark.datasource import RaftStoreDataSource
from raftstore.spark.options import parse_source_options
from raftstore.spark.read import change_streams
from raftstore.spark.read.changes_reader import ChangeDecoder, ChangeSlice, changes_schema

UUID = b"u" * 16
OPTIONS = {"bootstrap.servers": "127.0.0.1:1", "table": "t", "readChangeFeed": "true"}


def field(name, kind, *, nullable=True):
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def struct(*fields):
    return json.dumps({"type": "struct", "fields": list(fields)})


SCHEMA = struct(field("id", "long", nullable=False), field("text", "string"))


def limits():
    """The module for pyspark 4.2: on 4.1 it can be imported, though not all of it can run."""
    return importlib.import_module("raftstore.spark.read.limited_changes")


def table_of(schema=SCHEMA, uuid=UUID, partitions=2):
    infos = tuple(
        ChannelInfo(channel=uuid + bytes((0, n)), replicas=(), leader=None, term=0)
        for n in range(partitions)
    )
    return TableInfo("t", uuid, ("id",), partitions, 3, "fsync", None, schema, infos)


class Changing:
    """A table whose ends are what the test says; a record is a row."""

    def __init__(self, last=(0, 0), first=(0, 0)):
        self.table = table_of()
        self.first, self.last = first, last
        self.pieces = []
        self.asked = []
        self.failure = None

    def __call__(self, options):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return None

    def table_info(self, name):
        assert name == "t"
        return self.table

    def definition(self, name):
        assert name == "t"
        return self.table

    def change_ends(self, name):
        if self.failure is not None:
            raise self.failure
        return Ends(self.first, self.last)

    def change_limit(self, name, partition, after, to_seq, rows_max):
        self.asked.append((partition, after, to_seq, rows_max))
        return min(to_seq, after + rows_max)

    def change_pieces(self, options, partition, after, to_seq):
        self.asked.append((partition, after, to_seq))
        yield self.pieces


def reader_of(store, schema=None, **more):
    class Source(RaftStoreDataSource):
        connect = store

    source = Source({**OPTIONS, **more})
    chosen = schema or changes_schema(store.table)
    from pyspark.sql.types import StructType

    return source.streamReader(StructType.fromJson(json.loads(chosen)))


def offset(*places, uuid=UUID):
    return {"table": uuid.hex(), **{str(n): place for n, place in enumerate(places)}}


def text_of(call):
    with pytest.raises(RaftstoreError) as failure:
        call()
    return str(failure.value)


def test_query_begins_where_it_is_told():
    """latest without a word, earliest, and places by partition as Kafka has them."""
    store = Changing(last=(10, 20), first=(3, 0))

    def initial(**more):
        return reader_of(store, **more).initialOffset()

    assert initial() == initial(startingOffsets="Latest") == offset(10, 20)
    assert initial(startingOffsets="earliest") == offset(3, 0)
    assert initial(startingOffsets='{"0": -2, "1": -1}') == offset(3, 20)
    assert initial(startingOffsets='{"0": 5, "1": 20}') == offset(5, 20)
    assert initial(startingOffsets=json.dumps(offset(4, 4))) == offset(4, 4)


def test_micro_batches_have_what_is_there_or_their_share_of_the_limit():
    """All partitions get on; what is not new is not asked for; nothing goes back."""
    store = Changing(last=(100, 300))
    reader = reader_of(store, maxOffsetsPerTrigger="40")
    limited_changes = limits()
    everything = limited_changes.ReadAllAvailable()
    assert reader.latestOffset(offset(0, 0), everything) == offset(100, 300)
    limit = reader.getDefaultReadLimit()
    assert limit == limited_changes.ReadMaxRows(40)
    assert reader.latestOffset(offset(0, 0), limit) == offset(10, 30)
    assert store.asked == [(0, 0, 100, 10), (1, 0, 300, 30)]
    assert reader.latestOffset(offset(100, 280), limit) == offset(100, 300)
    assert reader.latestOffset(offset(100, 300), limit) == offset(100, 300)
    assert reader_of(store).getDefaultReadLimit() == everything
    assert reader.reportLatestOffset() == offset(100, 300)


def test_available_now_ends_where_it_began():
    """Given changes that come during an availableNow run, they are left to another run, with a
    limit and without.
    """
    store = Changing(last=(100, 300))
    reader = reader_of(store, maxOffsetsPerTrigger="400")
    reader.prepareForTriggerAvailableNow()
    store.last = (500, 500)
    limited_changes = limits()
    everything = limited_changes.ReadAllAvailable()
    assert reader.latestOffset(offset(0, 0), everything) == offset(100, 300)
    assert reader.latestOffset(offset(100, 300), reader.getDefaultReadLimit()) == offset(100, 300)


def test_tasks_read_the_partitions_that_changed():
    """A stretch each, behind the start and up to the end; the reader and its parts travel."""
    store = Changing(last=(9, 9))
    reader = reader_of(store)
    [part] = reader.partitions(offset(2, 9), offset(7, 9))
    assert isinstance(part, ChangeSlice)
    assert (part.partition, part.after, part.to_seq) == (0, 2, 7)
    assert pickle.loads(pickle.dumps(part)) == part
    assert reader.partitions(offset(2, 9), offset(2, 9)) == []
    store.pieces = [ChangePiece(7, 5, encode_rows([(TableSchema(("id",)).key_of(1), None)]))]
    [batch] = reader.read(part)
    assert batch.to_pylist()[0]["_change_type"] == "delete"
    assert store.asked == [(0, 2, 7)]
    reader.commit(offset(7, 9))
    reader.stop()


class Anew(Changing):
    """A table that is dropped and made anew at some moment of the reading of it."""

    def __init__(self, moment, pages):
        super().__init__(last=(9, 9))
        self.moment, self.pages = moment, pages

    def reach(self, moment):
        if moment == self.moment:
            self.table = table_of(uuid=b"w" * 16, partitions=1)

    def table_info(self, name):
        self.reach("before")
        return super().table_info(name)

    def change_ends(self, name):
        self.reach("asked")
        return super().change_ends(name)

    def change_pieces(self, options, partition, after, to_seq):
        assert self.table.uuid == UUID, "it has no such partition"
        self.reach("opened")
        for number in range(self.pages):
            if number:
                self.reach("between")
            yield [ChangePiece(7, 5, encode_rows([(TableSchema(("id",)).key_of(1), None)]))]


@pytest.mark.parametrize(
    ("moment", "pages", "read"),
    [("before", 1, 0), ("opened", 1, 0), ("opened", 0, 0), ("between", 2, 1)],
)
def test_task_ends_when_its_table_was_made_anew_since_it_was_planned(moment, pages, read):
    """S0.8: the seqs of the plan mean other rows there, or none; a retry of the task asks anew."""
    store = Anew(None, pages)
    reader = reader_of(store)
    [part, _] = reader.partitions(offset(2, 2), offset(7, 9))
    store.moment = moment
    batches = reader.read(part)
    assert [next(batches).num_rows for _ in range(read)] == [1] * read
    lost = text_of(lambda: next(batches))
    assert lost.startswith("[RAFTSTORE_DATA_LOSS] table 't' was dropped and made anew")


def test_driver_takes_no_offsets_of_a_table_made_anew_while_it_asks():
    """They would be reported as those of the table that the query began with."""
    store = Anew("asked", 0)
    assert "made anew" in text_of(reader_of(store).latestOffset)


def test_offsets_that_are_not_there_end_the_query_or_are_passed_over_aloud(caplog):
    """Of another table, from the future, older than what is kept: before any task runs."""
    store = Changing(last=(10, 10), first=(4, 0))
    strict = reader_of(store)
    for bad in (offset(11, 0), offset(3, 0), offset(5, 5, uuid=b"v" * 16)):
        assert "[RAFTSTORE_DATA_LOSS]" in text_of(lambda bad=bad: strict.latestOffset(bad))
        lost = text_of(lambda bad=bad: strict.partitions(bad, offset(10, 10)))
        assert "failOnDataLoss=false" in lost
    lax = reader_of(store, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert lax.latestOffset(offset(11, 0)) == offset(10, 10)
        [first, second] = lax.partitions(offset(3, 0), offset(10, 10))
        assert (first.after, second.after) == (4, 0)
        parts = lax.partitions(offset(5, 5, uuid=b"v" * 16), offset(10, 10))
        assert [part.after for part in parts] == [4, 0]
    assert "data loss ignored" in caplog.text
    store.table = table_of(uuid=b"w" * 16)
    assert "made anew" in text_of(strict.initialOffset)
    store.failure = UnavailableError("nobody is there")
    store.table = table_of()
    assert "[RAFTSTORE_UNAVAILABLE] nobody is there" in text_of(strict.initialOffset)


def test_changes_are_decoded_with_what_is_told_of_them():
    """Rows in order, deletes with their key alone, rows that do not count, truncations, batches."""
    table = table_of()
    schema = TableSchema(table.key_columns, table.schema_json)
    keys = [schema.row_to_key_value({"id": n, "text": f"row {n}"}) for n in range(3)]
    rows = encode_rows(
        [(keys[0][0], seal(*keys[0])), (keys[1][0], None), (keys[2][0], seal(*keys[2]))]
    )
    pieces = [
        ChangePiece(8, 1_700_000_000_123, rows, bits=bytes((0b011,))),
        ChangePiece(9, 1_700_000_000_124, b"", truncate=True, writer="w", batch_id=3),
        ChangePiece(10, 1_700_000_000_125, encode_rows([(keys[1][0], None)]), expired=True),
    ]
    batches = list(ChangeDecoder(table, changes_schema(table)).decode(1, pieces))
    told = [row for batch in batches for row in batch.to_pylist()]
    assert [tuple(row.values())[:5] for row in told] == [
        (0, "row 0", "upsert", 1, 8),
        (1, None, "delete", 1, 8),
        (None, None, "truncate", 1, 9),
        (1, None, "expire", 1, 10),
    ]
    assert [(row["_writer"], row["_batch_id"]) for row in told] == [
        *[(None, None)] * 2, ("w", 3), (None, None),
    ]  # fmt: skip
    assert told[0]["_commit_timestamp"].timestamp() == 1_700_000_000.123
    assert {batch.schema for batch in map(hashable, batches)} == {hashable(batches[0]).schema}
    chosen = struct(field("_seq", "long"), field("_change_type", "string"), field("id", "long"))
    batch = next(ChangeDecoder(table, chosen).decode(0, pieces))
    assert batch.schema.names == ["_seq", "_change_type", "id"]
    assert batch.schema.field("id").type == pa.int64()


def hashable(batch):
    class Shown:
        schema = str(batch.schema)

    return Shown


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"startingOffsets": "newest"}, "give earliest, latest or JSON"),
        ({"startingOffsets": '{"0": 1'}, "give earliest, latest or JSON"),
        ({"startingOffsets": '{"0": 1}'}, "name the partitions 0 to 1"),
        ({"startingOffsets": '{"0": 1, "1": -3}'}, "whole numbers from -2 on"),
        ({"startingOffsets": json.dumps(offset(1, 1, uuid=b"v" * 16))}, "it is of the table with"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'"),
        ({"level": "any"}, "level have no meaning for a stream"),
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'?"),
    ],
)
def test_bad_options_are_refused_with_the_remedy(more, text):
    """When the query begins, before a task runs."""
    store = Changing(last=(5, 5))
    assert text in text_of(lambda: reader_of(store, **more).initialOffset())


def test_schema_must_be_that_of_changes():
    """A stream without the kind of a change would report deletes as rows."""
    store = Changing()
    assert '.option("readChangeFeed", "true")' in text_of(lambda: reader_of(store, SCHEMA))
    strict = struct(field("id", "long", nullable=False), field("_change_type", "string"))
    assert "leave NOT NULL out" in text_of(lambda: reader_of(store, strict))
    other = struct(field("_seq", "string"), field("_change_type", "string"))
    assert "column '_seq' of changes is long" in text_of(lambda: reader_of(store, other))
    absent = struct(field("x", "long"), field("_change_type", "string"))
    assert "has no column 'x'" in text_of(lambda: reader_of(store, absent))
    taken = table_of(struct(field("id", "long"), field("_seq", "long")))
    with pytest.raises(SchemaError, match="has the column '_seq'"):
        changes_schema(taken)


def test_batch_reads_do_not_take_what_only_streams_obey():
    """readChangeFeed and the others have no meaning for one state."""
    store = Changing()

    class Source(RaftStoreDataSource):
        connect = store

    source = Source(OPTIONS)
    assert source.schema()["_seq"].nullable
    with pytest.raises(ConfigError, match="readChangeFeed are for streams"):
        source.reader(source.schema())


def test_spark_before_4_2_has_no_limits(monkeypatch):
    """Before pyspark 4.2 a limit per trigger is refused; without one, changes are read as ever."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "raftstore.spark.read.limited_changes", raising=False)
    given = parse_source_options({**OPTIONS, "maxOffsetsPerTrigger": "5"})
    with pytest.raises(ConfigError, match=r"RAFTSTORE_SPARK_TOO_OLD.*pyspark 4\.2"):
        change_streams.stream_reader_class(given)
    plain = parse_source_options(OPTIONS)
    assert change_streams.stream_reader_class(plain) is change_streams.ChangeStreamReader
    store = Changing(last=(7, 8))
    assert reader_of(store).latestOffset() == offset(7, 8)
