"""An atomic write without a JVM: what each of Spark's calls asks of the store, and when."""

import json
import logging
import re
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from raftstore.errors import (
    BatchRegressionError,
    ConfigError,
    OperationInDoubtError,
    PayloadTooLargeError,
    QuorumTimeoutError,
    SchemaError,
    StoreTooOldError,
    UnknownTableError,
    WriterFencedError,
)
from raftstore.spark.identity import query_of
from tests.spark.driver_calls import QUERY, SCHEMA, Driver, ids, place, rows, write
from tests.spark.file_store import FileStore


@pytest.fixture
def store(tmp_path) -> FileStore:
    """A store that has the table t."""
    files = FileStore(tmp_path / "store")
    files.add_table("t", ("id",), 4, SCHEMA.json())
    return files


def writers(store):
    with store.batches("t") as truth:
        return {view.writer: view for view in truth.views()}, truth.begun


def test_micro_batch_is_visible_when_it_is_committed_and_not_before(store, caplog):
    """Tasks begin, once each, and stage; the instance that commits is another one."""
    driver = Driver(store)
    first = driver.stream()
    driver.stream()
    assert writers(store) == ({}, 0)  # neither instance asked for anything
    with pytest.raises(AssertionError):
        assert first.identity.uuid == driver.stream().identity.uuid
    messages = [write(first, rows(1, 2), place(0)), write(first, rows(3), place(0, task=1))]
    assert writers(store)[1] == 2
    assert {message.ticket.attempt for message in messages} == {1}
    assert ids(store) == []
    with caplog.at_level(logging.INFO, "raftstore.spark"):
        driver.stream().commit(messages, 0)
    assert ids(store) == [1, 2, 3]
    size = sum(message.written.payload_bytes for message in messages)
    [said] = caplog.messages
    assert re.fullmatch(
        rf"table=t writer={QUERY} batch=0 attempt=1 commit=1 rows=3 records=3 bytes={size} tasks=2 "
        r"slowest_task_s=0\.000 commit_s=[0-9]+\.[0-9]{3}",
        said,
    )
    view = writers(store)[0][QUERY]
    assert (view.last_batch, view.lineage, view.one_shot) == (0, QUERY, False)


def test_replay_finds_its_batch_written_and_stages_nothing(store, caplog):
    """Its tasks take Spark's rows and leave them; the driver's commit succeeds without a store."""
    driver = Driver(store)
    task = driver.stream()
    driver.stream().commit([write(task, rows(1), place(7))], 7)
    replay = driver.stream()
    batches = chain(rows(8, 9, text="b"), rows(10, text="b"))
    message = write(replay, batches, place(7))
    assert next(batches, None) is None
    assert message.ticket.is_already_written
    assert message.staged.parts == ()
    with caplog.at_level(logging.INFO, "raftstore.spark"):
        driver.stream().commit([message], 7)
    assert (
        caplog.messages[-1] == f"table=t writer={QUERY} batch=7 is in the table already, commit 1"
    )
    assert ids(store) == [1]


def test_task_stages_nothing_in_a_table_that_was_made_anew_before_it_began(store, monkeypatch):
    """S0.8: its rows are split for other partitions, and the driver may know the new table only."""
    began = FileStore.begin

    def late(self, name, identity, options):
        self.add_table(name, ("id",), 2, SCHEMA.json())
        return began(self, name, identity, options)

    monkeypatch.setattr(FileStore, "begin", late)
    task = Driver(store).stream()
    with pytest.raises(UnknownTableError, match=r"TABLE_NOT_FOUND\].*created again"):
        write(task, rows(1, 2), place(0))
    with store.batches("t") as truth:
        assert (truth.begun, len(truth.chunks)) == (1, 0)


def test_task_without_rows_begins_nothing_and_counts_for_nothing(store):
    """Empty batches of Arrow are no rows."""
    driver = Driver(store)
    task = driver.stream()
    empty = [pa.record_batch({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())})]
    message = write(task, iter(empty), place(0, task=5))
    assert (message.ticket, writers(store)) == (None, ({}, 0))
    driver.stream().commit([message, write(task, rows(4), place(0))], 0)
    assert ids(store) == [4]


def test_micro_batch_without_rows_is_begun_and_committed_by_the_driver(store):
    """So that its number is known to be past; the identity is what the tasks reported."""
    driver = Driver(store)
    task = driver.stream()
    driver.stream().commit([write(task, iter([]), place(3))], 3)
    assert writers(store)[0][QUERY].last_batch == 3
    driver.stream().commit([write(driver.stream(), iter([]), place(3))], 3)
    with store.batches("t") as truth:
        assert len(truth.decisions) == 1


def test_micro_batch_without_tasks_is_committed_where_the_checkpoint_can_be_read(store, tmp_path):
    """An unknown query that appends nothing is no loss, but replaces no table."""
    unknown = Driver(store)
    unknown.stream().commit([], 0)
    assert writers(store) == ({}, 0)
    replacing = Driver(store, is_overwrite=True)
    with pytest.raises(ConfigError, match=r"\[RAFTSTORE_WRITER_ID_MISSING\] a batch without tasks"):
        replacing.stream().commit([], 0)
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    known = Driver(store, is_overwrite=True, checkpointlocation=f"file:{tmp_path}")
    task = known.stream()
    known.stream().commit([write(task, rows(1), place(0))], 0)
    assert ids(store) == [1]
    known.stream().commit([], 1)
    assert ids(store) == []
    assert writers(store)[0][QUERY].last_batch == 1


def test_nothing_is_committed_while_a_tasks_message_is_missing(store):
    """A batch without some task's rows must not be reported as written."""
    driver = Driver(store)
    message = write(driver.stream(), rows(1), place(0))
    with pytest.raises(OperationInDoubtError, match=r"\[RAFTSTORE_MESSAGE_MISSING\].*gave None"):
        driver.stream().commit([message, None], 0)
    assert ids(store) == []


def test_losing_attempts_of_tasks_never_become_visible(store):
    """A task that failed, one that was faster elsewhere, and one that comes after the commit."""
    driver = Driver(store)
    task = driver.stream()
    write(task, rows(1, 2, text="lost"), place(0, attempt=0))
    winner = write(task, rows(1, text="won"), place(0, attempt=1))
    driver.stream().commit([winner], 0)
    assert [(row["id"], row["text"]) for row in store.rows("t")] == [(1, "won")]
    late = write(task, rows(2, text="late"), place(0, attempt=2))
    assert late.ticket.is_already_written
    assert ids(store) == [1]


def test_second_driver_fences_the_first(store):
    """One commits; the other is asked to stop, and its tasks' attempts do not mix."""
    driver = Driver(store)
    first, second = driver.stream(), driver.stream()
    old = [write(first, rows(1, text="first"), place(0))]
    new = [write(second, rows(2, text="second"), place(0))]
    with pytest.raises(WriterFencedError, match=r"\[RAFTSTORE_WRITER_FENCED\].*as a whole or not"):
        driver.stream().commit(old, 0)
    with pytest.raises(OperationInDoubtError, match=r"\[RAFTSTORE_ATTEMPTS_MIXED\].*stagingTtl"):
        driver.stream().commit(old + new, 0)
    driver.stream().commit(new, 0)
    assert ids(store) == [2]


def test_lower_batch_and_other_checkpoint_are_refused_in_the_task(store):
    """A checkpoint that was set back, and a new one under the old writer's name."""
    driver = Driver(store, writerid="towns")
    for batch_id in (4, 5):
        task = driver.stream()
        driver.stream().commit([write(task, rows(batch_id), place(batch_id))], batch_id)
    said = r"\[RAFTSTORE_BATCH_REGRESSION\].*nothing of this attempt is visible.*writer adopt"
    with pytest.raises(BatchRegressionError, match=said):
        write(driver.stream(), rows(9), place(4))
    with pytest.raises(BatchRegressionError, match="another checkpoint"):
        write(driver.stream(), rows(9), place(5, query="other"))
    assert ids(store) == [4, 5]


def test_attempt_is_given_up_when_spark_aborts(store, caplog):
    """As far as a message names it; one that is closed can never commit."""
    driver = Driver(store)
    task = driver.stream()
    message = write(task, rows(1), place(0))
    driver.stream().abort([message, None], 0)
    assert (
        "table=t batch=0 was given up: 1 of 2 tasks had staged 1 rows, which nobody" in caplog.text
    )
    driver.stream().abort([None], 0)
    with pytest.raises(WriterFencedError):
        driver.stream().commit([message], 0)
    again = driver.stream()
    driver.stream().commit([write(again, rows(2), place(0))], 0)
    assert ids(store) == [2]


def test_batch_job_is_a_writer_of_its_own(store):
    """The same instance plans and commits; a job started again is another one."""
    driver = Driver(store)
    for number in (1, 2):
        job = driver.job()
        job.commit([write(job, rows(number))])
    found, _ = writers(store)
    assert ids(store) == [1, 2]
    assert all(name.startswith("job-") and view.one_shot for name, view in found.items())
    assert len(found) == 2
    empty = driver.job()
    empty.commit([])
    assert len(writers(store)[0]) == 3


def test_batch_job_with_its_own_number_is_written_once(store):
    """writerId and batchId: a job that is started again finds its batch."""
    for text in ("first", "again"):
        job = Driver(store, writerid="nightly", batchid="20").job()
        job.commit([write(job, rows(1, text=text))])
    assert [row["text"] for row in store.rows("t")] == ["first"]
    with pytest.raises(ConfigError, match=r"\[RAFTSTORE_BATCH_ID_MISSING\] writerId is 'nightly'"):
        Driver(store, writerid="nightly").job()
    with pytest.raises(ConfigError, match="batchId is set for a stream"):
        Driver(store, writerid="nightly", batchid="20").stream()


def test_table_is_replaced_at_once(store):
    """The table may be replaced by an empty one."""
    for numbers in ((1, 2), (2, 3), ()):
        job = Driver(store, is_overwrite=True).job()
        messages = [write(job, rows(*numbers))] if numbers else []
        before = ids(store)
        assert ids(store) == before
        job.commit(messages)
        assert ids(store) == list(numbers)


@pytest.mark.parametrize(
    ("options", "mode"),
    [({"operation": "insert"}, 1), ({"ignorenullvalues": "true"}, 2), ({"operation": "delete"}, 0)],
)
def test_rows_are_staged_with_the_mode_that_the_options_ask_for(store, options, mode):
    """Rows are staged with the mode of the options; the replicas interpret it when they apply the
    batch.
    """
    task = Driver(store, **options).stream()
    write(task, rows(1), place(0))
    with store.batches("t") as truth:
        assert {chunk.header.mode for chunk in truth.chunks.values()} == {mode}


def test_write_is_refused_before_any_task_where_it_cannot_work(store):
    """A store that is too old, columns that are not declared, a table that must not be made."""
    store.add_table("loose", ("id",), 2, "")
    with pytest.raises(ConfigError, match="ignoreNullValues needs the columns of table 'loose'"):
        Driver(store, table="loose", ignorenullvalues="true").job()
    (store.directory / "too_old").write_text("n2 is at level 0; upgrade")
    for make in (Driver(store).job, Driver(store).stream):
        with pytest.raises(StoreTooOldError, match=r"\[RAFTSTORE_STORE_TOO_OLD\] n2 is at level 0"):
            make()
    with pytest.raises(StoreTooOldError):
        Driver(store, table="new", key="id").job()
    assert not (store.directory / "catalog" / "new").exists()
    job = Driver(store, isolation="row").job()
    job.commit([write(job, rows(1))])
    assert ids(store) == [1]


def test_task_tells_class_and_outcome_when_it_fails(store):
    """Null keys and chunks in doubt; nothing of the batch is visible."""
    task = Driver(store).stream()
    null = iter([pa.record_batch({"id": pa.array([1, None]), "text": ["a", "b"]})])
    with pytest.raises(SchemaError, match=r"\[RAFTSTORE_KEY_NULL\] the key column 'id' is null"):
        write(task, null, place(0))
    store.refuse_next("no quorum")
    with pytest.raises(
        QuorumTimeoutError, match=r"\[RAFTSTORE_QUORUM_TIMEOUT\].*as a whole or not"
    ):
        write(task, rows(1), place(0))
    assert ids(store) == []


def test_row_that_is_too_large_is_named_by_its_key(store):
    """Its own or its key's size; the others of the task are not written either."""
    task = Driver(store).stream()
    texts = ["a", "x" * 5_000_000, "b"]
    batch = pa.record_batch({"id": [1, 22, 3], "text": texts})
    said = r"\[RAFTSTORE_VALUE_TOO_LARGE\] the row with the key id=22: a row takes .*'text' \(str\)"
    with pytest.raises(PayloadTooLargeError, match=said):
        write(task, iter([batch]), place(0))


def test_task_and_driver_refuse_a_table_that_was_made_anew(store):
    """S0.8: it may have other partitions."""
    driver = Driver(store)
    task = driver.stream()
    message = write(task, rows(1), place(0))
    committing = driver.stream()
    store.add_table("t", ("id",), 2, SCHEMA.json())
    for call in (lambda: write(task, rows(1), place(0)), lambda: committing.commit([message], 0)):
        with pytest.raises(
            UnknownTableError, match=r"\[RAFTSTORE_TABLE_NOT_FOUND\].*created again"
        ):
            call()


def test_task_refuses_a_batch_without_a_number_and_one_of_another_query(store, tmp_path):
    """Without the micro-batch's number nothing can be exactly once."""
    with pytest.raises(ConfigError, match=r"\[RAFTSTORE_BATCH_ID_MISSING\] Spark did not give"):
        write(Driver(store).stream(), rows(1))
    (tmp_path / "metadata").write_text(json.dumps({"id": "other"}))
    task = Driver(store, checkpointlocation=str(tmp_path)).stream()
    with pytest.raises(ConfigError, match="the checkpoint is of query other, but query"):
        write(task, rows(1), place(0))


@pytest.mark.parametrize(
    ("content", "url", "found"),
    [
        ('{"id": "q"}', "{}", "q"),
        ('{"id": "q"}', "file:{}", "q"),
        ('{"id": "q"}', "file://{}", "q"),
        ('{"id": "q"}', "hdfs://namenode{}", ""),
        ("no json", "{}", ""),
        ("[]", "{}", ""),
        ("{}", "{}", ""),
        (None, "{}", ""),
    ],
)
def test_query_is_read_from_a_checkpoint_that_is_a_file_here(tmp_path, content, url, found):
    """Anywhere else the tasks report it."""
    directory = Path(tmp_path) / "check point"
    directory.mkdir()
    if content is not None:
        (directory / "metadata").write_text(content)
    path = str(directory)
    assert query_of(url.format(path.replace(" ", "%20") if ":" in url else path)) == found
    assert query_of(None) == ""
