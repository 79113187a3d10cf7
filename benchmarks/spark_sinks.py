"""Where ``spark_write`` sends rows beside raftstore, all of it from Spark's Python workers.

A row is the key and one value of MessagePack, which is the least that these stores can be given,
and about what raftstore stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

PIPELINE_ROWS: Final = 1_000
TRANSACTION_OPS: Final = 128
"""etcd's own limit, by default."""
IN_FLIGHT: Final = 8
_encode: Final = msgspec.msgpack.Encoder().encode


def key_of(number: int) -> bytes:
    """A key as wide as raftstore's of a long."""
    return b"%09d" % number


def cells(rows: Iterable[Row]) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each row; its first column is the key."""
    for row in rows:
        yield key_of(row[0]), _encode(row[1:])


def _batched(
    rows: Iterable[tuple[bytes, bytes]], size: int
) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    waiting = iter(rows)
    while some := list(islice(waiting, size)):
        yield some


@dataclass(frozen=True, slots=True)
class Counted(WriterCommitMessage):
    """The number of rows that one task was given."""

    rows: int


class CountingSource(DataSource):
    """A sink that takes the same Arrow batches as raftstore's and only counts their rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> CountingWriter:  # noqa: ARG002, FBT001 - Spark's signature
        """Return a writer that counts the rows of any schema."""
        return CountingWriter(int(self.options["rows"]))


class CountingWriter(DataSourceArrowWriter):
    """Counts, and reports when rows are missing."""

    def __init__(self, expected: int) -> None:
        self._expected = expected

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Count one task's rows."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check the number."""
        found = sum(message.rows for message in messages if isinstance(message, Counted))
        assert found == self._expected, f"{found} rows arrived of {self._expected}"


def count_rows(rows: Iterable[Row]) -> None:
    """For ``foreachPartition``: take every row and do nothing with it."""
    for _ in rows:
        pass


@dataclass(frozen=True, slots=True)
class RedisPartition:
    """For ``foreachPartition``: SET in pipelines."""

    port: int

    def __call__(self, rows: Iterable[Row]) -> None:
        """Send them all; an error of any raises."""
        import redis

        with redis.Redis("127.0.0.1", self.port) as client:
            for some in _batched(cells(rows), PIPELINE_ROWS):
                pipeline = client.pipeline(transaction=False)
                for key, value in some:
                    pipeline.set(key, value)
                pipeline.execute()


@dataclass(frozen=True, slots=True)
class EtcdPartition:
    """For ``foreachPartition``: transactions of as many puts as etcd takes, several in flight."""

    ports: tuple[int, ...]

    def __call__(self, rows: Iterable[Row]) -> None:
        """Send them all; an error of any raises."""
        asyncio.run(self._send(_batched(cells(rows), TRANSACTION_OPS)))

    async def _send(self, waiting: Iterator[Sequence[tuple[bytes, bytes]]]) -> None:
        import aetcd

        clients: list[Any] = [aetcd.Client(port=port) for port in self.ports]
        for client in clients:
            await client.connect()

        async def lane(client: Any) -> None:
            for some in waiting:
                puts = [client.transactions.put(key, value) for key, value in some]
                succeeded, _ = await client.transaction(compare=[], success=puts, failure=[])
                assert succeeded

        async with asyncio.TaskGroup() as lanes:
            for number in range(IN_FLIGHT):
                lanes.create_task(lane(clients[number % len(clients)]))
        for client in clients:
            await client.close()
