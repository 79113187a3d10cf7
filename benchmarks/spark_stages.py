"""raftstore's own format with clocks in its tasks: Spark's part, encoding, the store's part.

The tasks are those of ``raftstore.spark``; only the iterator of rows and the store that they are
given are wrapped, so a clock is read twice an Arrow batch and twice a chunk. Each task writes what
it measured into a file, and so does the driver's commit. Runs in Spark's Python workers.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from raftstore.client.batches.batch_writes import BatchTicket
from raftstore.client.batches.stager import StagedParts
from raftstore.protocol.admin import TableInfo
from raftstore.spark.datasource import RaftStoreDataSource, RaftStoreWriter, Task
from raftstore.spark.identity import BatchIdentity
from raftstore.spark.options import SinkOptions, SourceOptions
from raftstore.spark.store import ChunkStager, Connect, Store, connect

if TYPE_CHECKING:
    import pyarrow as pa

SPARK: Final = "spark"
STORE: Final = "store"
ENCODE: Final = "encode"
TOTAL: Final = "total"
CLIENT: Final = "client"
DIRECTORY: Final = "stagesdirectory"
"""The option that says where the files go; Spark makes options lower case."""


class Clock:
    """Seconds by the wall and of the task's thread, by what they were spent on."""

    def __init__(self) -> None:
        self.wall: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count what is done inside."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.wall[part] += time.perf_counter() - wall
            self.cpu[part] += time.thread_time() - cpu

    def batches(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count the time until each batch is there."""
        while True:
            with self.on(SPARK):
                batch = next(given, None)
            if batch is None:
                return
            yield batch


_clock = Clock()
"""Of the task that this process runs; a worker runs one after the other."""


class _TimedStager:
    def __init__(self, stager: ChunkStager) -> None:
        self._stager = stager

    def add(self, partition: int, payload: bytes, rows: int, mode: int) -> None:
        """Waits while the window is full."""
        with _clock.on(STORE):
            self._stager.add(partition, payload, rows, mode)

    def flush(self) -> StagedParts:
        """Waits for the rest."""
        with _clock.on(STORE):
            return self._stager.flush()


class _TimedStore:
    """A store of which the calls that a task makes are timed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def table_info(self, name: str) -> TableInfo:
        """One round trip."""
        with _clock.on(STORE):
            return self._store.table_info(name)

    def begin(self, name: str, identity: BatchIdentity, options: SinkOptions) -> BatchTicket:
        """BEGIN."""
        with _clock.on(STORE):
            return self._store.begin(name, identity, options)

    @contextmanager
    def stager(self, *given: Any) -> Iterator[ChunkStager]:
        """Time what is done with it."""
        with self._store.stager(*given) as stager:
            yield _TimedStager(stager)


@contextmanager
def _timed_connect(options: SinkOptions | SourceOptions) -> Iterator[Store]:
    with connect(options) as store:
        yield cast(Store, _TimedStore(store))


class StagesSource(RaftStoreDataSource):
    """``raftstore_stages``: as ``raftstore``, and files about where the time went."""

    connect: ClassVar[Connect] = staticmethod(_timed_connect)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "raftstore_stages"

    def writer(self, schema: StructType, overwrite: bool) -> StagesWriter:  # noqa: FBT001 - Spark's signature
        """Take the one option that raftstore does not know."""
        directory = Path(self.options.pop(DIRECTORY))
        task = self._plan(schema, is_overwrite=overwrite, is_stream=False)
        return StagesWriter(task, directory)


class StagesWriter(RaftStoreWriter):
    """Writes one DataFrame and files about it."""

    def __init__(self, task: Task, directory: Path) -> None:
        super().__init__(task)
        self._directory = directory

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows; what is neither Spark nor the store is encoding."""
        _clock.wall.clear()
        _clock.cpu.clear()
        process_s = time.process_time()
        with _clock.on(TOTAL):
            message = super().write(_clock.batches(iterator))
        process_s = time.process_time() - process_s
        for spent in (_clock.wall, _clock.cpu):
            spent[ENCODE] = spent[TOTAL] - spent[SPARK] - spent[STORE]
        context = TaskContext.get()
        assert context is not None
        reported = {
            "wall": dict(_clock.wall),
            "cpu": dict(_clock.cpu) | {CLIENT: process_s - _clock.cpu[TOTAL]},
        }
        (self._directory / f"task-{context.partitionId()}.json").write_text(json.dumps(reported))
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit, timed."""
        started = time.perf_counter()
        super().commit(messages)
        (self._directory / "commit.json").write_text(json.dumps(time.perf_counter() - started))


def stages_in(directory: Path) -> tuple[dict[str, float], dict[str, float], float]:
    """Seconds by the wall and of processors, over all tasks, and the commit's."""
    wall: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    for path in sorted(directory.glob("task-*.json")):
        reported = json.loads(path.read_text())
        wall.update(reported["wall"])
        cpu.update(reported["cpu"])
    return dict(wall), dict(cpu), float(json.loads((directory / "commit.json").read_text()))
