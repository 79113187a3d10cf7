"""onRegression=apply: the user's word that an older batch, or another checkpoint, goes on."""

import json

import pytest

from raftstore.errors import (
    BatchRegressionError,
    ConfigError,
    UnknownTableError,
    WriterFencedError,
)
from raftstore.spark.identity import newest_batch
from tests.spark.driver_calls import QUERY, SCHEMA, Driver, place, rows, write
from tests.spark.file_store import FileStore


@pytest.fixture
def store(tmp_path) -> FileStore:
    """A store that has the table t, with batches 4 and 5 of a query."""
    files = FileStore(tmp_path / "store")
    files.add_table("t", ("id",), 4, SCHEMA.json())
    driver = Driver(files, writerid="towns")
    for batch_id in (4, 5):
        micro_batch(driver, batch_id, QUERY)
    return files


def micro_batch(driver, batch_id, query):
    """One batch of a stream, with its number as its row."""
    message = write(driver.stream(), rows(batch_id, text=query[:1]), place(batch_id, query=query))
    driver.stream().commit([message], batch_id)


def checkpoint(path, query, newest):
    """A checkpoint as Spark leaves it when it begins a batch."""
    (path / "offsets").mkdir(parents=True, exist_ok=True)
    (path / "metadata").write_text(json.dumps({"id": query}))
    for number in range(newest + 1):
        (path / "offsets" / str(number)).touch()
        (path / "offsets" / f".{number}.crc").touch()
    return str(path)


def last(store):
    view = store.writer_of("t", "towns")
    return view.last_batch, view.lineage


def test_stream_goes_on_from_a_checkpoint_that_was_set_back(store, tmp_path, caplog):
    """Its batches are written again, in their order; without the option it is refused."""
    where = checkpoint(tmp_path / "ck", QUERY, 2)
    refused = Driver(store, writerid="towns", checkpointlocation=where)
    with pytest.raises(BatchRegressionError):
        micro_batch(refused, 2, QUERY)
    driver = Driver(store, writerid="towns", checkpointlocation=where, onregression="apply")
    micro_batch(driver, 2, QUERY)
    assert last(store) == (2, QUERY)
    checkpoint(tmp_path / "ck", QUERY, 3)
    micro_batch(driver, 3, QUERY)
    assert last(store) == (3, QUERY)
    said = [text for text in caplog.messages if "onRegression=apply" in text]
    assert len(said) == 1  # and not again for the batches that follow
    assert f"was at batch 5 of checkpoint {QUERY!r} and begins anew at batch 2" in said[0]


def test_stream_with_another_checkpoint_takes_its_writer_over(store, tmp_path):
    """Given a stream with another checkpoint, it takes the writer over, and the older query's open
    batch is fenced.
    """
    older = Driver(store, writerid="towns")
    open_one = older.stream()
    message = write(open_one, rows(6), place(6))
    where = checkpoint(tmp_path / "ck", "new query", 0)
    driver = Driver(store, writerid="towns", checkpointlocation=where, onregression="apply")
    micro_batch(driver, 0, "new query")
    assert last(store) == (0, "new query")
    with pytest.raises(WriterFencedError):
        older.stream().commit([message], 6)
    assert [row["id"] for row in store.rows("t")] == [0, 4, 5]


def test_replay_of_the_newest_batch_takes_nothing_over(store, tmp_path):
    """It is found written, as without the option."""
    where = checkpoint(tmp_path / "ck", QUERY, 5)
    driver = Driver(store, writerid="towns", checkpointlocation=where, onregression="apply")
    before = last(store)
    message = write(driver.stream(), rows(50), place(5))
    assert message.ticket.is_already_written
    driver.stream().commit([message], 5)
    assert last(store) == before


def test_job_with_a_number_of_its_own_takes_over_for_one_that_was_passed(store):
    """As upsert does for its query: there the driver is given number and checkpoint."""
    options = {"writerid": "towns", "batchid": "1", "lineage": QUERY}
    job = Driver(store, **options).job()
    with pytest.raises(BatchRegressionError):
        write(job, rows(1))
    job = Driver(store, **options, onregression="apply").job()
    job.commit([write(job, rows(1))])
    assert last(store) == (1, QUERY)


def test_nobody_is_taken_over_where_nothing_is_known(store, tmp_path):
    """A job of its own has no other batch, a new writer no earlier one; a checkpoint that cannot be
    read gives neither query nor batch."""
    job = Driver(store, onregression="apply").job()
    job.commit([write(job, rows(1))])
    where = checkpoint(tmp_path / "ck", "q", 0)
    micro_batch(
        Driver(store, writerid="new", checkpointlocation=where, onregression="apply"), 0, "q"
    )
    with pytest.raises(ConfigError, match=r"\[RAFTSTORE_OPTION_INVALID\] onRegression=apply needs"):
        Driver(store, writerid="towns", onregression="apply").stream()
    assert newest_batch(None) is None
    assert newest_batch("hdfs://name/x") is None
    assert newest_batch(str(tmp_path)) is None
    (tmp_path / "offsets").mkdir()
    assert newest_batch(f"file:{tmp_path}") is None


@pytest.mark.parametrize("isolation", ["batch", "row"])
def test_stream_makes_its_table_in_batch_0_alone(tmp_path, isolation):
    """A later batch would begin a table without what earlier ones wrote, and nobody would see it.
    Who wants that makes the table; a checkpoint that is no file here says nothing."""
    store = FileStore(tmp_path / "store")
    given = {"key": "id", "isolation": isolation, "createtable": "true"}
    first = Driver(store, checkpointlocation=checkpoint(tmp_path / "new", QUERY, 0), **given)
    first.stream()
    assert store.table_info("t").key_columns == ("id",)
    (tmp_path / "store" / "catalog" / "t").unlink()
    first.stream()  # batch 0 again: nothing can be missing
    (tmp_path / "store" / "catalog" / "t").unlink()
    old = Driver(store, checkpointlocation=checkpoint(tmp_path / "old", QUERY, 3), **given)
    with pytest.raises(UnknownTableError) as refused:
        old.stream()
    assert str(refused.value).startswith("[RAFTSTORE_TABLE_NOT_FOUND] there is no table 't'")
    assert "is at batch 3" in str(refused.value)
    with pytest.raises(UnknownTableError):
        store.table_info("t")
    elsewhere = Driver(store, checkpointlocation="s3://bucket/checkpoint", **given)
    elsewhere.stream()
    old.stream()  # there is one
