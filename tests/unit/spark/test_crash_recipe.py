"""The crash points of the recipe that need no JVM, each by its name; the others kill a driver.

The driver that is killed between the store's commit and Spark's log, and the one whose task has
staged, are in tests/spark/test_crash_points.py.
"""

import pytest

from raftstore.errors import BatchRegressionError, OperationInDoubtError, WriterFencedError
from tests.spark.driver_calls import SCHEMA, Driver, place, rows, write
from tests.spark.file_store import FileStore


@pytest.fixture
def store(tmp_path) -> FileStore:
    """A store that has the table t."""
    files = FileStore(tmp_path / "store")
    files.add_table("t", ("id",), 4, SCHEMA.json())
    return files


def texts(store):
    """The table, as id -> text."""
    return {row["id"]: row["text"] for row in store.rows("t")}


def stage(driver, batch_id, text, tasks):
    """Stage a micro-batch whose rows are cut into so many tasks; what the tasks reported."""
    task = driver.stream()
    numbers = range(10 * batch_id, 10 * batch_id + 12)
    return [
        write(task, rows(*numbers[at::tasks], text=text), place(batch_id, task=at))
        for at in range(tasks)
    ]


def commit(driver, batch_id, messages):
    """Commit as Spark does: by an instance of its own."""
    driver.stream().commit(messages, batch_id)


def test_two_live_drivers_one_checkpoint(store):
    """Given two drivers with one checkpoint, the later one commits and the earlier is refused at
    its commit or next batch; neither can put a row of its own beside the other's.
    """
    old, new = Driver(store), Driver(store)
    commit(old, 0, stage(old, 0, "old 0", 2))
    behind = stage(old, 1, "old 1", 3)
    ahead = stage(new, 1, "new 1", 2)
    with pytest.raises(WriterFencedError):
        commit(old, 1, behind)
    commit(new, 1, ahead)
    expected = dict.fromkeys(range(10), "old 0") | dict.fromkeys(range(10, 22), "new 1")
    assert texts(store) == expected
    commit(old, 1, stage(old, 1, "old again", 1))  # it learns that the batch is there
    assert texts(store) == expected
    mixed = [stage(old, 2, "old 2", 2)[0], stage(new, 2, "new 2", 2)[1]]
    with pytest.raises(OperationInDoubtError, match="ATTEMPTS_MIXED"):
        commit(new, 2, mixed)
    assert texts(store) == expected
    commit(new, 2, stage(new, 2, "new 2", 2))
    commit(new, 3, stage(new, 3, "new 3", 2))
    with pytest.raises(BatchRegressionError):
        stage(old, 2, "old 2", 2)
    with store.batches("t") as truth:
        assert [made.batch_id for made in truth.decisions] == [0, 1, 2, 3]


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 5), (1, 4), (4, 1)])
def test_changed_partition_count_on_replay(store, before, after, is_committed):
    """A replay with other rows in another number of tasks: the batch that was committed stays as it
    was; of one that was not committed nothing stays, whichever driver staged it."""
    driver = Driver(store)
    first = stage(driver, 0, "first", before)
    if is_committed:
        commit(driver, 0, first)
    replay = Driver(store)
    again = stage(replay, 0, "again", after)
    assert [message.ticket.is_already_written for message in again] == [is_committed] * after
    commit(replay, 0, again)
    assert texts(store) == dict.fromkeys(range(12), "first" if is_committed else "again")
    if not is_committed:
        with pytest.raises(WriterFencedError):
            commit(driver, 0, first)
    with store.batches("t") as truth:
        assert [(made.batch_id, made.n) for made in truth.decisions] == [(0, 1)]


@pytest.mark.parametrize("winner", [0, 1])
def test_speculation(store, winner):
    """Both runs of a task stage everything, with other rows; only the one that Spark names in the
    commit counts, whichever it was, and the other leaves nothing."""
    driver = Driver(store)
    task = driver.stream()
    runs = [
        write(task, rows(1, 2, 3 + run, text=f"run {run}"), place(0, attempt=run))
        for run in range(2)
    ]
    assert runs[0].ticket.attempt == runs[1].ticket.attempt
    other = write(task, rows(9, text="other task"), place(0, task=1))
    commit(driver, 0, [runs[winner], other])
    text = f"run {winner}"
    assert texts(store) == {1: text, 2: text, 3 + winner: text, 9: "other task"}
    with store.batches("t") as truth:
        assert not truth.chunks
