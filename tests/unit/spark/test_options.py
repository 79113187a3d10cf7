"""Options of the sink: every spelling, every refusal."""

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from raftstore.errors import ConfigError
from raftstore.spark.identity import QUERY_PROPERTY
from raftstore.spark.options import (
    OPTION_NAMES,
    SOURCE_OPTION_NAMES,
    SinkOptions,
    SourceOptions,
    option_names,
    parse_options,
    parse_source_options,
    refuse_overwrite,
)
from raftstore.spark.write.upsert import upsert

BASE = {"bootstrap.servers": "n1:4481,n2:4481", "table": "orders"}


def test_options_have_documented_defaults_when_only_the_required_are_given():
    """Servers and table are enough for a table that exists."""
    assert parse_options(BASE) == SinkOptions(bootstrap_servers="n1:4481,n2:4481", table="orders")


def test_options_are_read_in_any_spelling_when_spark_lowers_their_names():
    """camelCase, lower case and snake_case name the same option."""
    for name in ("maxBatchRows", "maxbatchrows", "max_batch_rows"):
        assert parse_options(BASE | {name: "7"}).max_batch_rows == 7


def test_options_take_the_table_from_the_path_when_it_is_named_in_save():
    """save("orders") arrives as the option path."""
    given = {"bootstrap.servers": "n1:4481", "path": "orders"}
    assert parse_options(given).table == "orders"


def test_options_accept_what_spark_adds_when_a_stream_starts():
    """A checkpoint location and a query name are none of ours and no error."""
    parse_options(BASE | {"checkpointlocation": "/x", "queryname": "q", "outputmode": "append"})


def test_options_split_the_key_when_it_has_several_columns():
    """The key is a comma list, blanks around names do not matter."""
    assert parse_options(BASE | {"key": "tenant, order_id"}).key == ("tenant", "order_id")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bootstrap.servers": " "}, "bootstrap.servers is not set"),
        ({"table": ""}, "no table is named"),
        ({"path": "other"}, "two tables are named, 'orders' as option and 'other'"),
        ({"key": "a,,b"}, "key is 'a,,b': list each key column once"),
        ({"key": "a,a"}, "key is 'a,a': list each key column once"),
        ({"partitions": "0"}, "partitions is '0': give a whole number from 1 to 4096"),
        ({"maxBatchRows": "many"}, "maxBatchRows is 'many'"),
        ({"maxBatchBytes": "99999999"}, "maxBatchBytes is '99999999'"),
        ({"createTable": "yes"}, "createTable is 'yes': give true or false"),
        ({"operation": "merge"}, "operation is 'merge': give upsert, delete, insert or column"),
        ({"isolation": "none"}, "isolation is 'none': give batch or row"),
        ({"isolation": "row", "writerId": "w"}, "writerId cannot be had with isolation=row"),
        ({"isolation": "row", "operation": "insert"}, "operation=insert cannot be had with"),
        ({"isolation": "row", "ignoreNullValues": "true"}, "ignoreNullValues cannot be had with"),
        ({"operation": "delete", "ignoreNullValues": "true"}, "ignoreNullValues has no meaning"),
        ({"batchId": "-1", "writerId": "w"}, "batchId is '-1': give a whole number from 0"),
        ({"writerId": "w" * 257}, "must have 1 to 256 bytes: shorten writerId"),
        ({"stagingTtl": "soon"}, "stagingTtl is 'soon': give a duration, as in"),
        ({"stagingTtl": "999ms"}, "stagingTtl is '999ms'"),
        ({"stagingTtl": "8d"}, "stagingTtl is '8d'"),
        ({"commitTimeoutMs": "0"}, "commitTimeoutMs is '0'"),
        ({"retentionBytes": "5"}, "retentionBytes is '5': give a whole number from 1048576 to"),
        ({"retentionRecords": "5"}, "retentionRecords is '5': give a whole number from 1000 to"),
        ({"retentionAge": "soon"}, "retentionAge is 'soon': give a duration, as in"),
        ({"retentionAge": "367d"}, "from 0s to 366d"),
        ({"onRegression": "retry"}, "onRegression is 'retry': give fail or apply"),
        ({"isolation": "row", "onRegression": "apply"}, "onRegression cannot be had with"),
        ({"mergeSchema": "1"}, "mergeSchema is '1': give true or false"),
        ({"mergeSchema": "true", "operation": "delete"}, "mergeSchema has no meaning for opera"),
        ({"retries": "5"}, "no option 'retries': a request is repeated until its time is up; set"),
        ({"acks": "all"}, "no option 'acks': every write is acknowledged by a quorum; leave it"),
        ({"idFieldList": "a"}, "no option 'idFieldList': it is called key here"),
        ({"columnMapping": "a"}, "no option 'columnMapping': rename the columns"),
        ({"kafka.bootstrap.servers": "a"}, "it is called bootstrap.servers here"),
        ({"maxbatchrow": "1"}, "no option 'maxbatchrow': did you mean 'maxBatchRows'?"),
        ({"zzz": "1"}, "no option 'zzz': there are bootstrap.servers, table,"),
    ],
)
def test_options_are_refused_with_value_and_remedy_when_they_cannot_be_meant(changes, said):
    """Each bad option gives one sentence with a bracketed class, its name and its value."""
    with pytest.raises(ConfigError) as failure:
        parse_options(BASE | changes)

    assert str(failure.value).startswith("[RAFTSTORE_OPTION_")
    assert said in str(failure.value)


def test_options_are_documented_with_their_defaults_when_they_exist():
    """Every option has its line in docs/spark.md, with the default it really has."""
    text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    lines = [line.split("|") for line in text.splitlines() if re.match(r"\| `[a-z]", line)]
    documented = {line[1].strip(" `"): line[2].strip(" `") for line in lines}

    assert sorted(documented) == sorted({*OPTION_NAMES, *SOURCE_OPTION_NAMES})
    for field in (*fields(SinkOptions), *fields(SourceOptions)):
        name = field.name.title().replace("_", "")
        name = name[0].lower() + name[1:]
        if isinstance(field.default, int) or (isinstance(field.default, str) and field.default):
            assert documented[name] == str(field.default).lower()


def test_settings_of_a_table_that_is_created_are_options():
    """Without them each node decides."""
    given = {"retentionbytes": "2097152", "retention_records": "5000", "retentionAge": "7d"}
    parsed = parse_options(BASE | given)
    assert (parsed.retention_bytes, parsed.retention_records) == (2 << 20, 5_000)
    assert parsed.retention_age_ms == 7 * 86_400_000
    plain = parse_options(BASE)
    assert plain.retention_bytes is plain.retention_records is plain.retention_age_ms is None


def test_rows_are_written_with_a_lifetime():
    """The ttl is that of all rows that are written, and of a table that is created."""
    assert parse_options(BASE | {"ttl": "30d"}).ttl_ms == 30 * 86_400_000
    assert parse_options(BASE).ttl_ms is None
    for wrong in ("soon", "0s", "40000d"):
        with pytest.raises(ConfigError, match=r"ttl is .*give a duration"):
            parse_options(BASE | {"ttl": wrong})


def test_batch_id_needs_a_writer():
    """Numbers are the writer's: without one they say nothing."""
    with pytest.raises(ConfigError, match=r"\[RAFTSTORE_WRITER_ID_MISSING\] batchId is set"):
        parse_options(BASE | {"batchId": "7"})


def test_options_take_deltas_names_for_the_identity_of_a_batch():
    """txnAppId and txnVersion are writerId and batchId, in Spark and in Python's spelling."""
    parsed = parse_options(BASE | {"txnappid": "w", "txnversion": "4", "stagingttl": "90M"})
    assert (parsed.writer_id, parsed.batch_id, parsed.staging_ttl_ms) == ("w", 4, 5_400_000)
    assert option_names({"txn_app_id": "w"}) == {"writerId": "w"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"isolation": "row"}, "cannot be replaced at once row by row"),
        ({"operation": "delete"}, "is replaced by the rows as they are"),
        ({"operation": "column"}, "is replaced by the rows as they are"),
        ({"ignorenullvalues": "true"}, "is replaced by the rows as they are"),
    ],
)
def test_table_is_not_replaced_by_what_cannot_replace_it(changes, said):
    """Overwrite needs whole rows, all visible at once."""
    refuse_overwrite(parse_options(BASE))
    with pytest.raises(ConfigError, match=r"\[RAFTSTORE_OVERWRITE_UNSUPPORTED\]") as failure:
        refuse_overwrite(parse_options(BASE | changes))
    assert said in str(failure.value)


class Batch:
    """A DataFrame that only remembers how it was written."""

    def __init__(self, query=None, run=None):
        self.calls = []
        told = {QUERY_PROPERTY: query, "spark.jobGroup.id": run}
        context = SimpleNamespace(getLocalProperty=told.get)
        self.sparkSession = SimpleNamespace(_sc=None if query is None else context)

    @property
    def write(self):
        return self

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return call


def test_upsert_writes_the_batch_through_the_format_when_called_by_spark():
    """Keyword arguments become the format's options; lists become comma lists."""
    batch = Batch("query")

    upsert("orders", bootstrap_servers=["a:1", "b:2"], key=("x", "y"), create_table=False)(batch, 3)
    named = Batch("query")
    upsert("orders", bootstrap_servers="a:1", writer_id="towns")(named, 4)
    by_row = Batch()
    upsert("orders", bootstrap_servers="a:1", isolation="row")(by_row, 4)

    assert named.calls[2:4] == [
        ("options", (), {"writerId": "towns", "batchId": 4}),
        ("option", ("lineage", "query"), {}),
    ]
    assert [name for name, _, _ in by_row.calls] == ["format", "options", "mode", "save"]
    assert batch.calls == [
        ("format", ("raftstore",), {}),
        (
            "options",
            (),
            {
                "bootstrap.servers": "a:1,b:2",
                "table": "orders",
                "key": "x,y",
                "createTable": "false",
            },
        ),
        ("options", (), {"writerId": "query", "batchId": 3}),
        ("option", ("lineage", "query"), {}),
        ("mode", ("append",), {}),
        ("save", (), {}),
    ]


def test_upsert_refuses_a_second_write_in_one_micro_batch_under_one_writer():
    """It would be taken for a replay and lost; in another run it is one."""
    run, other = str(uuid4()), str(uuid4())
    write = upsert("orders", bootstrap_servers="twice:1")
    delete = upsert("orders", bootstrap_servers="twice:1", operation="delete")
    write(Batch("query", run), 3)
    for again in (write, delete):
        second = Batch("query", run)
        with pytest.raises(ConfigError, match=r"\[RAFTSTORE_WRITER_USED_TWICE\].*own writer_id"):
            again(second, 3)
        assert ("save", (), {}) not in second.calls
    upsert("orders", bootstrap_servers="twice:1", operation="delete", writer_id="deletes")(
        Batch("query", run), 3
    )
    upsert("others", bootstrap_servers="twice:1")(Batch("query", run), 3)
    for replay in (Batch("query", other), Batch("query", "jobs of mine"), Batch("query")):
        write(replay, 3)
    write(Batch("query", "jobs of mine"), 3)
    write(Batch("query", run), 3)
    write(Batch("query", run), 4)


def test_upsert_may_try_again_what_failed():
    """Given a write that failed, upsert may write the same batch again: nothing
    of it was written.
    """

    class Failing(Batch):
        """One whose write fails."""

        def save(self):
            raise OSError("by test")

    run = str(uuid4())
    write = upsert("orders", bootstrap_servers="again:1")
    with pytest.raises(OSError, match="by test"):
        write(Failing("query", run), 3)
    write(Batch("query", run), 3)


def test_upsert_needs_a_writer_where_the_query_is_not_told(monkeypatch):
    """On Spark Connect, when the query is built if that can be known, else at its first batch."""
    said = r"\[RAFTSTORE_WRITER_ID_MISSING\] a Spark Connect session"
    with pytest.raises(ConfigError, match=said):
        upsert("orders", bootstrap_servers="a:1")(Batch(), 0)
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(ConfigError, match=said):
        upsert("orders", bootstrap_servers="a:1")
    upsert("orders", bootstrap_servers="a:1", writer_id="towns")
    upsert("orders", bootstrap_servers="a:1", isolation="row")
    with pytest.raises(ConfigError, match="batchId is Spark's in foreachBatch"):
        upsert("orders", bootstrap_servers="a:1", writer_id="towns", batch_id=3)


def test_upsert_refuses_bad_options_when_the_query_is_written():
    """A mistake is reported at once, not when the first micro-batch arrives."""
    with pytest.raises(ConfigError, match="no option 'max_batch_row': did you mean"):
        upsert("orders", bootstrap_servers="a:1", max_batch_row=5)
    with pytest.raises(ConfigError, match="partitions"):
        upsert("orders", bootstrap_servers="a:1", partitions=-1)


def test_options_of_reading_have_defaults_and_refuse_what_is_not_theirs():
    """Spelled in any way, checked like those of writing; what only writes is distinguished from
    them."""
    assert parse_source_options(BASE) == SourceOptions("n1:4481,n2:4481", "orders")
    parsed = parse_source_options(BASE | {"pin_life": "90s", "preferreplica": "nearest"})
    assert (parsed.pin_life_ms, parsed.prefer_replica) == (90_000, "nearest")
    parsed = parse_source_options(BASE | {"max_lag_seq": "10", "maxlagms": "2000"})
    assert (parsed.level, parsed.max_lag_seq, parsed.max_lag_ms) == ("bounded", 10, 2_000)
    assert parse_source_options(BASE | {"level": "Bounded"}).level == "bounded"
    parsed = parse_source_options(BASE | {"atbatch": "a:b:17", "filterpushdown": "True"})
    assert (parsed.at_batch, parsed.filter_pushdown) == (("a:b", 17), True)
    for changes, said in (
        ({"key": "id"}, "there is no option 'key'"),
        ({"pinlive": "1m"}, "did you mean 'pinLife'?"),
        ({"txnappid": "w"}, "there is no option 'txnappid'"),
        ({"level": "leader"}, "level is 'leader': give linearizable, bounded or any"),
        ({"maxlagseq": "-1"}, "maxLagSeq is '-1': give a whole number from 0"),
        ({"max_lag_ms": "soon"}, "maxLagMs is 'soon': give a whole number from 0"),
        ({"maxLagMs": "5", "level": "any"}, "no meaning at level=any: leave level out"),
        ({"atBatch": "w"}, "atBatch is 'w': give the writer and the number"),
        ({"atBatch": "w:-1"}, "atBatch is 'w:-1'"),
        ({"atBatch": ":1"}, "atBatch is ':1'"),
        ({"atBatch": "w:1", "level": "any"}, "atBatch names one state"),
        ({"atBatch": "w:1", "maxLagSeq": "1"}, "atBatch names one state"),
        ({"splitsPerChannel": "65"}, "splitsPerChannel is '65': give a whole number from 1 to 64"),
        ({"filterPushdown": "maybe"}, "filterPushdown is 'maybe': give true or false"),
        ({"pinlife": "forever"}, "pinLife is 'forever': give a duration"),
    ):
        with pytest.raises(ConfigError) as failure:
            parse_source_options(BASE | changes)
        assert said in str(failure.value)
