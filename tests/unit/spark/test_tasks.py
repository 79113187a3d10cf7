"""A write as planned on the driver and run by a task, against a store in memory."""

import json
import pickle
from contextlib import contextmanager

import msgspec
import pyarrow as pa
import pytest

from raftstore.errors import (
    ConfigError,
    PartialWriteError,
    PersistError,
    QuorumTimeoutError,
    SchemaError,
    UnknownTableError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.payload import decode_rows
from raftstore.spark.failures import bracketed
from raftstore.spark.options import SinkOptions
from raftstore.spark.tables import check_fits
from raftstore.spark.write.tasks import Written, plan_write


def schema_json(**types) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


TYPES = schema_json(id="long", text="string")
MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}


def table_info(schema=TYPES, key=("id",), uuid=bytes(16), partitions=4) -> TableInfo:
    return TableInfo(
        name="t",
        uuid=uuid,
        key_columns=key,
        partitions=partitions,
        replicas=3,
        durability="fsync",
        max_lag=None,
        schema_json=schema,
        channels=(),
    )


class MemoryStore:
    """A store that remembers what it was given; ``failure`` is raised by flush."""

    def __init__(self, table=None):
        self.table = table
        self.created = []
        self.records = []
        self.failure = None
        self.opened = 0

    @contextmanager
    def connect(self, _options):
        self.opened += 1
        yield self

    def table_info(self, name):
        if self.table is None:
            raise UnknownTableError(f"there is no table {name!r}")
        return self.table

    def create_table(self, options, schema):
        self.created.append((options.table, options.key, options.partitions, schema))
        self.table = table_info(schema, options.key, partitions=options.partitions)
        return self.table

    @contextmanager
    def writer(self, _name, _max_in_flight):
        yield self

    def add(self, partition, payload, rows):
        self.records.append((partition, payload, rows))

    def flush(self):
        if self.failure is not None:
            raise self.failure


def options(**changes) -> SinkOptions:
    return SinkOptions(bootstrap_servers="a:1", table="t", isolation="row", **changes)


def ids(*numbers):
    return pa.record_batch({"id": list(numbers), "text": [str(number) for number in numbers]})


def clock():
    return 0.0


def test_plan_creates_the_table_when_it_is_missing_and_a_key_is_named():
    """The new table has the DataFrame's schema and the named key."""
    store = MemoryStore()

    task = plan_write(options(key=("id",), partitions=2), TYPES, store.connect)

    assert store.created == [("t", ("id",), 2, TYPES)]
    assert task.table.partitions == 2


@pytest.mark.parametrize(
    ("changes", "schema", "error", "said"),
    [
        ({"key": ("id",), "create_table": False}, TYPES, UnknownTableError, "createTable is false"),
        ({}, TYPES, SchemaError, "KEY_MISSING"),
        ({"key": ("no",)}, TYPES, SchemaError, "'no' is not in the schema"),
        ({"key": ("m",)}, schema_json(m=MAP), SchemaError, "cannot be a key"),
        ({"key": ("id",)}, schema_json(id="long", y="interval year"), SchemaError, "column 'y'"),
    ],
)
def test_plan_creates_nothing_when_the_table_would_be_impossible(changes, schema, error, said):
    """Refused definitions leave the catalog as it was."""
    store = MemoryStore()

    with pytest.raises(error, match=said):
        plan_write(options(**changes), schema, store.connect)

    assert store.created == []


def test_task_sends_every_row_and_counts_it_when_all_is_acknowledged():
    """The counts are those of the records sent, over all batches of the task."""
    store = MemoryStore(table_info())
    task = plan_write(options(max_batch_rows=2), TYPES, store.connect)

    written = task.run(iter([ids(1, 2, 3), ids(4, 5, 6, 7)]), clock)

    assert sum(rows for _, _, rows in store.records) == written.rows == 7
    assert written.records == len(store.records) >= 4
    assert written.payload_bytes == sum(len(payload) for _, payload, _ in store.records)
    assert all(len(decode_rows(payload)) == 2 * rows for _, payload, rows in store.records)


def test_task_does_not_connect_when_its_partition_is_empty():
    """Spark plans many empty tasks; they cost the cluster nothing."""
    store = MemoryStore(table_info())
    task = plan_write(options(), TYPES, store.connect)
    opened = store.opened

    assert task.run(iter([]), clock) == Written()
    assert task.run(iter([ids(1).slice(1)]), clock) == Written()
    assert store.opened == opened


def test_task_raises_what_the_client_concluded_when_a_record_is_in_doubt():
    """A task never ends well while the outcome of one of its records is unknown."""
    store = MemoryStore(table_info())
    store.failure = QuorumTimeoutError("no quorum")

    with pytest.raises(QuorumTimeoutError):
        plan_write(options(), TYPES, store.connect).run(iter([ids(1)]), clock)


def test_task_is_refused_when_the_table_was_made_anew_since_it_was_planned():
    """Rows split for one table are never sent to another of the same name."""
    store = MemoryStore(table_info())
    task = plan_write(options(), TYPES, store.connect)
    store.table = table_info(uuid=bytes(15) + b"\x01", partitions=9)

    with pytest.raises(UnknownTableError, match="dropped and created again"):
        task.run(iter([ids(1)]), clock)

    assert store.records == []


def test_task_can_be_pickled_when_spark_ships_it():
    """Options, table and the way to connect survive the trip to an executor."""
    store = MemoryStore(table_info())
    task = plan_write(options(key=("id",)), TYPES, store.connect)
    shipped = pickle.loads(pickle.dumps(type(task)(task.options, task.table, TYPES, print)))

    assert shipped == type(task)(task.options, task.table, TYPES, print)
    assert msgspec.to_builtins(shipped.table) == msgspec.to_builtins(task.table)


# --- does it fit? --------------------------------------------------------------------------------


def array_of(element):
    return {"type": "array", "elementType": element, "containsNull": True}


def map_of(key, value):
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def struct_of(**types):
    return json.loads(schema_json(**types))


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        ("integer", "long"),
        ("byte", "short"),
        ("float", "double"),
        ("varchar(10)", "string"),
        ("void", "date"),
        (array_of("integer"), array_of("long")),
        (map_of("string", "short"), map_of("string", "integer")),
        (struct_of(a="integer"), struct_of(a="long")),
    ],
)
def test_column_fits_when_its_values_are_values_of_the_declared_type(given, declared):
    """Widening without loss needs no cast."""
    check_fits(
        table_info(schema_json(id="long", c=declared)), options(), schema_json(id="long", c=given)
    )


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        ("long", "integer"),
        ("long", "double"),
        ("string", "varchar(10)"),
        ("timestamp", "timestamp_ntz"),
        ("decimal(10,2)", "decimal(12,2)"),
        ("string", array_of("string")),
        (array_of("string"), map_of("string", "string")),
        (array_of("long"), array_of("integer")),
        (map_of("string", "long"), map_of("string", "integer")),
        (struct_of(a="long"), struct_of(b="long")),
    ],
)
def test_column_is_refused_when_its_type_is_another(given, declared):
    """Anything that could lose or change a value is refused, naming both types."""
    with pytest.raises(SchemaError, match=r"RAFTSTORE_SCHEMA_MISMATCH. column 'c' is .*cast it"):
        check_fits(
            table_info(schema_json(id="long", c=declared)),
            options(),
            schema_json(id="long", c=given),
        )


@pytest.mark.parametrize(
    ("changes", "given", "said"),
    [
        ({"key": ("text",)}, TYPES, "KEY_MISMATCH. key is text, but the key of table 't' is id"),
        ({}, schema_json(ids="long", text="string"), "key column 'id'.*rename 'ids'"),
        ({}, schema_json(id="long"), "lacks the column 'text' of table 't'"),
        ({}, schema_json(id="long", text="string", more="long"), "has the column 'more'"),
    ],
)
def test_frame_is_refused_when_its_columns_are_others(changes, given, said):
    """Missing and additional columns are reported by name with what to do."""
    with pytest.raises(SchemaError, match=said):
        check_fits(table_info(), options(**changes), given)


def test_delete_fits_when_only_the_key_is_there():
    """The other columns of a delete may be missing, additional or not storable."""
    deletes = options(operation="delete")
    check_fits(table_info(), deletes, schema_json(id="long"))
    check_fits(table_info(), deletes, schema_json(id="integer", why="interval year"))
    with pytest.raises(SchemaError, match="column 'id' is string"):
        check_fits(table_info(), deletes, schema_json(id="string"))


def test_any_columns_fit_when_the_table_has_no_schema():
    """Tables without schema take what comes, as long as the key can be one."""
    check_fits(table_info(schema=""), options(), schema_json(id="string", x="double"))
    with pytest.raises(SchemaError, match="cannot be a key"):
        check_fits(table_info(schema=""), options(), schema_json(id=array_of("long")))


def test_any_columns_fit_beside_the_key_when_the_table_declares_its_key_alone():
    """The key's type holds, the rest is free."""
    table = table_info(schema=schema_json(id="long"))
    check_fits(table, options(), schema_json(id="integer", x="double"))
    with pytest.raises(SchemaError, match="column 'id' is string"):
        check_fits(table, options(), schema_json(id="string", x="double"))


# --- how failures read ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            QuorumTimeoutError("no quorum"),
            "[RAFTSTORE_QUORUM_TIMEOUT] no quorum (table 't'; outcome UNKNOWN: rows may have been "
            "applied, writing them again is harmless)",
        ),
        (
            UnknownTableError("no such table"),
            "[RAFTSTORE_TABLE_NOT_FOUND] no such table (table 't'; outcome NOT_APPLIED: the rows "
            "of this request were not written)",
        ),
        (ConfigError("bad address"), "[RAFTSTORE_CONFIG] bad address"),
        (SchemaError("[RAFTSTORE_KEY_MISSING] no key"), "[RAFTSTORE_KEY_MISSING] no key"),
        (PersistError("disk"), "[RAFTSTORE_FAILED] disk (table 't')"),
    ],
)
def test_failure_reads_class_sentence_and_outcome_when_spark_shows_it(error, text):
    """Spark shows nothing but the text, so the text carries everything."""
    assert bracketed(error, "t") is error
    assert str(error) == text


def test_failure_keeps_its_numbers_when_it_is_bracketed():
    """Attributes of the error are left alone."""
    error = bracketed(PartialWriteError("some", applied=[0], not_applied=[], unknown=[1]), "t")

    assert error.unknown == [1]
    assert "[RAFTSTORE_PARTIAL_WRITE] some" in str(error)


def test_frame_that_does_not_fit_is_refused_when_the_write_is_planned():
    """No task starts for rows that the table cannot take."""
    store = MemoryStore(table_info())

    with pytest.raises(SchemaError, match="lacks the column 'text'"):
        plan_write(options(), schema_json(id="long"), store.connect)
