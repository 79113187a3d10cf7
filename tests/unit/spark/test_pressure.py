"""A task's memory, and how far it runs ahead of the store, are bounded."""

import asyncio
import threading
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from raftstore.client.batches.stager import AsyncStager
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.batches import Stager
from raftstore.client.position import Position
from raftstore.client.results import WriteAck
from raftstore.config import KIB
from raftstore.protocol.staged import ChunkHeader
from raftstore.spark.codec import encoding
from raftstore.spark.write.tasks import chunks_of
from raftstore.spark.write.writer import TaskPlace
from raftstore.types import Seq, Term
from tests.spark.file_store import FileDataSource, FileStore

SCHEMA = StructType([StructField("id", LongType()), StructField("text", StringType())])
ROWS = 200
"""Of one batch of Arrow; one record holds as many."""
WINDOW = 3


def batch(number):
    """One batch of Arrow."""
    numbers = range(number * ROWS, (number + 1) * ROWS)
    return pa.record_batch({"id": list(numbers), "text": [f"row {n}".ljust(90) for n in numbers]})


class OverloadedNodes:
    """Publish for a stager, and acknowledge nothing until they are relieved.

    So it looks to a stager when nodes refuse as overloaded: the publisher backs off meanwhile.
    """

    def __init__(self):
        self.loop = BackgroundLoop("nodes of a test")
        self.relieved = asyncio.Event()
        self.acknowledged = 0

    async def publish(self, partition, payload, rows, deadline_ms):
        """Take one chunk."""
        await self.relieved.wait()
        self.acknowledged += 1
        return WriteAck(Position(), partition, Seq(1), Term(1), rows, "fsync", 2)

    def relieve_as_soon_as(self, is_stuck):
        """Acknowledge everything from when this is true on."""

        def look():
            if is_stuck():
                self.relieved.set()
            else:
                asyncio.get_running_loop().call_soon(look)

        async def told():
            look()

        self.loop.call(told())


class WatchedStager(AsyncStager):
    """Count the chunks that the task handed over, and those it could go on after."""

    def __init__(self, chunks, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._chunks = chunks

    async def add(self, *args, **kwargs):
        self._chunks["handed over"] += 1
        await super().add(*args, **kwargs)
        self._chunks["taken"] += 1


class PressedStore(FileStore):
    """A store of files whose chunks go through the client's own stager to such nodes."""

    def __init__(self, directory, nodes):
        super().__init__(directory)
        self._nodes = nodes
        self.chunks = Counter()

    @contextmanager
    def stager(self, name, ticket, partition_id, task_attempt_id, window):
        header = ChunkHeader(ticket.writer, ticket.attempt, partition_id, task_attempt_id, 0)

        async def made():
            return WatchedStager(
                self.chunks,
                header,
                self._nodes.publish,
                max_in_flight=window,
                deadline_ms=lambda: 0,
                now_ms=lambda: 0,
            )

        with Stager(self._nodes.loop.call(made()), self._nodes.loop) as stager:
            yield stager


@pytest.fixture
def nodes():
    """Nodes that are overloaded, for now."""
    overloaded = OverloadedNodes()
    yield overloaded
    overloaded.loop.stop()


def planned(store, connect, **options):
    """The writer that tasks of a job are given."""

    class Source(FileDataSource):
        """The format in front of one store."""

    Source.connect = staticmethod(connect)
    given = {"bootstrap.servers": str(store.directory), "table": "t", **options}
    return Source(given).writer(SCHEMA, overwrite=False)._task


def test_task_takes_no_more_rows_from_spark_while_nodes_are_overloaded(tmp_path, nodes):
    """It stops as soon as its window is full, and goes on as fast as chunks are acknowledged."""
    store = PressedStore(tmp_path / "store", nodes)
    store.add_table("t", ("id",), 1, SCHEMA.json())
    taken, ahead = 0, []

    @contextmanager
    def connect(_options):
        yield store

    def rows_of_spark():
        nonlocal taken
        for number in range(40):
            ahead.append(taken - nodes.acknowledged)
            taken += 1
            yield batch(number)

    task = planned(store, connect, maxinflight=str(WINDOW), maxbatchrows=str(ROWS))
    messages = []
    writing = threading.Thread(
        target=lambda: messages.append(task.write(rows_of_spark(), lambda: 0.0, TaskPlace()))
    )
    writing.start()
    chunks = store.chunks
    # A task that nothing stops has all of its rows before that, so the nodes acknowledge none.
    nodes.relieve_as_soon_as(
        lambda: chunks["handed over"] > chunks["taken"] or chunks["taken"] == 40
    )
    writing.join(60)
    [message] = messages
    assert message.written.rows == 40 * ROWS
    assert nodes.acknowledged == 40
    # The window, one chunk that waits for a place in it, and the rows that are being gathered.
    assert max(ahead) <= WINDOW + 2


@pytest.mark.slow
def test_memory_of_a_task_does_not_grow_with_its_rows(tmp_path, monkeypatch):
    """Ten times the rows need no more memory at once, in a table of many partitions, too."""
    monkeypatch.setattr(encoding, "GATHERED_BYTES_MAX", 256 * KIB)
    store = FileStore(Path(tmp_path) / "store")
    store.add_table("t", ("id",), 64, SCHEMA.json())

    @contextmanager
    def connect(_options):
        yield store

    task = planned(store, connect)

    def peak(batches):
        tracemalloc.start()
        chunks = chunks_of(task.options, task.table, task.schema_json, map(batch, range(batches)))
        rows = sum(chunk.rows for chunk in chunks)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert rows == batches * ROWS
        return most

    assert peak(300) < 1.3 * peak(30)
