"""Bulk writing of records that the caller has encoded: a bounded window, order kept per partition.

For the Spark sink and other loaders: rows are already split by ``rows.partitioner`` and encoded by
``protocol.payload``. Up to ``max_in_flight`` records are on their way at once, one per partition,
so records of one partition are applied in the order they were added, through any failover.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from raftstore.client.arguments import whole
from raftstore.client.position import Position
from raftstore.client.results import BulkResult, WriteAck
from raftstore.errors import UnavailableError

WriteRecord = Callable[[int, bytes, int], Awaitable[WriteAck]]
"""(partition, payload, rows) -> ack."""


class AsyncBulkWriter:
    """Made by ``table.bulk_writer()``. Use it as a context manager: leaving it flushes.

    After an error nothing more is sent, every call raises that error, and the caller starts again
    with a new writer: repeating an upsert is harmless.
    """

    def __init__(self, write: WriteRecord, *, max_in_flight: int) -> None:
        whole("max_in_flight", max_in_flight, 1)
        self._write = write
        self._slots = asyncio.Semaphore(max_in_flight)
        self._lanes: dict[int, deque[tuple[bytes, int]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._error: Exception | None = None
        self._rows = 0
        self._chunks = 0
        self._bytes = 0
        self._position = Position()

    async def add(self, partition: int, payload: bytes, rows: int) -> None:
        """Queue a record (``protocol.payload.encode_rows``); waits while the window is full."""
        self._check()
        await self._slots.acquire()
        if self._error is not None:
            self._slots.release()
            self._check()
        self._lanes.setdefault(partition, deque()).append((payload, rows))
        if partition not in self._tasks:
            self._tasks[partition] = asyncio.get_running_loop().create_task(
                self._run(partition), name=f"raftstore bulk writer {partition}"
            )

    async def flush(self) -> BulkResult:
        """Wait for every record added; return what was acknowledged since the last flush."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        self._check()
        result = BulkResult(self._rows, self._chunks, self._bytes, self._position)
        self._rows, self._chunks, self._bytes, self._position = 0, 0, 0, Position()
        return result

    async def close(self) -> None:
        """Stop without waiting: the outcome of records in flight is UNKNOWN."""
        self._error = self._error or UnavailableError("the bulk writer was closed; make a new one")
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def _run(self, partition: int) -> None:
        """Write one partition's records one after the other."""
        lane = self._lanes[partition]
        try:
            while lane and self._error is None:
                payload, rows = lane[0]
                ack = await self._write(partition, payload, rows)
                lane.popleft()
                self._slots.release()
                self._count(ack, len(payload))
        except Exception as error:  # noqa: BLE001 - handed to the caller by add and flush
            self._error = self._error or error
        finally:
            for _ in lane:
                self._slots.release()
            lane.clear()
            del self._tasks[partition]

    def _count(self, ack: WriteAck, payload_bytes: int) -> None:
        self._rows += ack.rows
        self._chunks += 1
        self._bytes += payload_bytes
        self._position = self._position.merge(ack.position)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
