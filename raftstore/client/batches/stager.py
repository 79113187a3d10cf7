"""Staging the rows of one task of a micro-batch: replicated and durable, seen by nobody.

A staged record is published like any other; its acknowledgement says that a quorum has the chunk,
which is all that a later COMMIT needs. The same chunk may be staged any number of times: its name
in the batch (task, partition, number) makes the copies one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from raftstore.client.arguments import Ttl, lifetime_ms
from raftstore.client.results import WriteAck
from raftstore.client.writes.bulk import AsyncBulkWriter
from raftstore.errors import ArgumentError, GuidExpiredError
from raftstore.protocol.batches import ChannelPart
from raftstore.protocol.staged import UPSERT, ChunkHeader, encode_staged
from raftstore.state_machines.batches.staging import CHECK_MODULUS, check_of
from raftstore.types import DIGEST_BYTES

Publish = Callable[[int, bytes, int, int], Awaitable[WriteAck]]
"""(partition, staged payload, rows, deadline ms) -> ack."""
NewDeadline = Callable[[], int]
"""By when one chunk must be acknowledged, from now on; and, called later, what the time is."""

STATED_BITS: Final = 31
RANDOM_BITS: Final = 32
"""Of a task attempt id, which has 63 bits: what the caller said, and what makes it its own."""


def own_name(task_attempt_id: int) -> int:
    """A task attempt id that no other stager has; ArgumentError for what is none.

    A second stager of a task attempt, in another process even, may have other rows. A chunk
    whose name meant two contents could be listed in a manifest, and no channel could apply it.
    """
    if task_attempt_id < 0:
        raise ArgumentError(f"task_attempt_id={task_attempt_id} is below 0; use 0 or more")
    stated = task_attempt_id % (1 << STATED_BITS)
    return (stated << RANDOM_BITS) + secrets.randbits(RANDOM_BITS)


@dataclass(frozen=True, slots=True)
class StagedParts:
    """The staged rows of one task attempt: its place in the manifest of its batch."""

    partition_id: int
    task_attempt_id: int
    parts: tuple[ChannelPart, ...] = ()
    """One for each partition that got rows, in order."""

    @property
    def rows(self) -> int:
        """Rows of all partitions."""
        return sum(part.rows for part in self.parts)


class AsyncStager:
    """Made by ``table.stager(ticket, …)``. Use it as a context manager: leaving it flushes.

    After an error nothing more is sent and every call raises that error; what was staged stays
    invisible and is dropped in time.
    """

    def __init__(
        self,
        header: ChunkHeader,
        publish: Publish,
        *,
        max_in_flight: int,
        deadline_ms: NewDeadline,
        now_ms: Callable[[], int],
    ) -> None:
        self._header: Final = header
        self._publish = publish
        self._deadline_ms = deadline_ms
        self._now_ms = now_ms
        self._numbers: dict[int, int] = {}
        self._parts: dict[int, ChannelPart] = {}
        self._writer = AsyncBulkWriter(self._stage, max_in_flight=max_in_flight)

    async def add(
        self, partition: int, payload: bytes, rows: int, mode: int = UPSERT, *, ttl: Ttl = None
    ) -> None:
        """Queue a chunk (``protocol.payload.encode_rows``); waits while the window is full.

        ``mode`` says how its rows are written when they become visible (``protocol.staged``);
        ``ttl``: how long these rows live then, None: as the stager's do.
        """
        ttl_ms = lifetime_ms(ttl)
        number = self._numbers.get(partition, 0)
        self._numbers[partition] = number + 1
        header = self._header._replace(number=number, mode=mode)
        if ttl_ms is not None:
            header = header._replace(ttl_ms=ttl_ms)
        await self._writer.add(partition, encode_staged(header, payload), rows)

    async def flush(self) -> StagedParts:
        """Wait for every chunk added; return what the whole task has staged so far."""
        await self._writer.flush()
        return self.staged

    @property
    def staged(self) -> StagedParts:
        """Rows and bytes acknowledged so far."""
        parts = tuple(self._parts[partition] for partition in sorted(self._parts))
        return StagedParts(self._header.partition_id, self._header.task_attempt_id, parts)

    async def close(self) -> None:
        """Stop without waiting."""
        await self._writer.close()

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

    async def _stage(self, partition: int, payload: bytes, rows: int) -> WriteAck:
        deadline_ms = self._deadline_ms()
        while True:
            try:
                ack = await self._publish(partition, payload, rows, deadline_ms)
            except GuidExpiredError:
                # Whether the copy before took a place is unknown, and makes no difference: this
                # one has the same name in the batch.
                if self._now_ms() >= deadline_ms:
                    raise
                continue
            # Rule 2: only what a quorum has may be listed in a manifest.
            self._count(partition, payload, rows)
            return ack

    def _count(self, partition: int, payload: bytes, rows: int) -> None:
        digest = hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()
        known = self._parts.get(partition) or ChannelPart(partition, 0, 0, 0, 0)
        self._parts[partition] = add_parts(
            known, ChannelPart(partition, 1, rows, len(payload), check_of(digest))
        )


def add_parts(one: ChannelPart, other: ChannelPart) -> ChannelPart:
    """The sum of two tasks, or of two chunks, staged in one partition."""
    assert one.partition == other.partition
    return ChannelPart(
        one.partition,
        one.chunks + other.chunks,
        one.rows + other.rows,
        one.bytes + other.bytes,
        (one.check + other.check) % CHECK_MODULUS,
    )
