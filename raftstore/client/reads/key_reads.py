"""Reads of keys by partition: sent together with others where that is possible.

A part is what one read wants of one partition. Where nothing but a level and bounds is asked for it
takes the fast path (``get_batcher``). Where that fails, or more is asked for, it has a request of
its own (``read_engine``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from raftstore.client.auditing.recorder import Asked, Recorder
from raftstore.client.position import Position
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.get_batcher import KEYS_MAX, Fallback, SharedAnswer, Waiter
from raftstore.client.reads.projection import Projection
from raftstore.client.reads.read_spec import ReadSpec
from raftstore.client.results import GetResult
from raftstore.client.settings import ANSWERS_AT_ONCE, KEYS_PER_GET
from raftstore.config import MIB
from raftstore.errors import PayloadTooLargeError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.reads import FoundKeys, GetAnswer
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import unseal
from raftstore.types import Level, node_name

AT_ONCE_BYTES: Final = 8 * MIB
"""Rows that a call asks for without waiting for answers, by the largest row seen so far."""
ROW_BYTES_GUESS: Final = 16 * 1024


class KeysPart(NamedTuple):
    """Keys of one partition."""

    info: TableInfo
    schema: TableSchema
    partition: int
    keys: tuple[bytes, ...]


class FoundPart(NamedTuple):
    """The rows of a part: those of ``answer`` from number ``first`` on."""

    part: KeysPart
    answer: GetAnswer | FoundKeys
    first: int

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys, in the order of the rows."""
        return self.part.keys

    def sizes(self) -> dict[bytes, int]:
        """Return the bytes of each row."""
        sealed = self.answer.values[self.first : self.first + len(self.keys)]
        return {key: len(row or b"") for key, row in zip(self.keys, sealed, strict=True)}

    def value(self) -> dict[str, Any] | None:
        """Return the row of a part with one key, all columns of it."""
        [key] = self.part.keys
        return row_of(self.part.schema, key, self.answer.values[self.first])

    def values(self) -> list[dict[str, Any] | None]:
        """Return all rows."""
        schema, keys = self.part.schema, self.part.keys
        sealed = self.answer.values[self.first : self.first + len(keys)]
        return [row_of(schema, key, value) for key, value in zip(keys, sealed, strict=True)]

    def results(self, shape: Projection) -> list[GetResult]:
        """Return all rows with their versions, by whom they were served and how fresh that was."""
        served, uuid, partition = self.answer.served, self.part.info.uuid, self.part.partition
        applied = Position.at(uuid, partition, served.term, served.applied_seq)
        node, level = node_name(served.node), Level(served.level)
        seqs = self.answer.seqs[self.first : self.first + len(self.part.keys)]
        return [
            GetResult(
                value=row if row is None or shape.is_of_all else shape.of(row),
                position=None if row is None else Position.at(uuid, partition, served.term, seq),
                seq=seq,
                applied_position=applied,
                applied_seq=served.applied_seq,
                partition=partition,
                term=served.term,
                node=node,
                level=level,
                lag=served.lag,
                leader_info_age_ms=served.leader_info_age_ms,
                staleness_ms=served.staleness_ms,
                batches_behind=served.batches_behind,
            )
            for row, seq in zip(self.values(), seqs, strict=True)
        ]


def row_of(schema: TableSchema, key: bytes, sealed: bytes | None) -> dict[str, Any] | None:
    """Return a row from what a node answered, its seal checked."""
    return None if sealed is None else schema.key_value_to_row(key, unseal(key, sealed))


def parts_of(info: TableInfo, schema: TableSchema, keys: Sequence[bytes]) -> list[KeysPart]:
    """Return the parts of a read, each key once."""
    wanted: dict[int, dict[bytes, None]] = {}
    partitions = info.partitions
    for key in keys:
        wanted.setdefault(partition_of(key, partitions), {})[key] = None
    return [
        KeysPart(info, schema, partition, tuple(of_partition)[at : at + KEYS_PER_GET])
        for partition, of_partition in wanted.items()
        for at in range(0, len(of_partition), KEYS_PER_GET)
    ]


class AnswerBudget:
    """Bytes that the rows of one call may take together; without a limit any number."""

    def __init__(self, bytes_max: int | None) -> None:
        self._bytes_max = bytes_max
        self._taken = 0

    def with_part(self, found: FoundPart) -> FoundPart:
        """Count what was found and return it; PayloadTooLargeError when it is too much."""
        if self._bytes_max is not None:
            self.take(sum(found.sizes().values()))
        return found

    def take(self, size: int) -> None:
        """Count more; PayloadTooLargeError when it is too much."""
        self._taken += size
        if self._bytes_max is not None and self._taken > self._bytes_max:
            raise PayloadTooLargeError(
                f"the rows of these keys take more than {self._bytes_max} bytes; ask for fewer "
                "keys at a time",
                size=self._taken,
                limit=self._bytes_max,
            )


class KeyReads:
    """Reads of the keys of one table."""

    def __init__(
        self,
        channel_reads: ChannelReads,
        bytes_max: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._channel_reads = channel_reads
        self._recorder = recorder
        self._bytes_max = bytes_max
        self._row_bytes = ROW_BYTES_GUESS

    async def read(
        self, part: KeysPart, spec: ReadSpec, timeout_ms: int, deadline_ms: int
    ) -> FoundPart:
        """Read one part that is small enough for one answer, or say that it is not."""
        began_ms = None if self._recorder is None else self._recorder.began(part.keys)
        found = await self._read(part, spec, timeout_ms, deadline_ms)
        if began_ms is not None:
            self._record([found], spec, began_ms)
        return found

    async def _read(
        self, part: KeysPart, spec: ReadSpec, timeout_ms: int, deadline_ms: int
    ) -> FoundPart:
        if not spec.may_share:
            return await self._alone(part, spec, deadline_ms, None)
        found = await self._begin(part, spec, timeout_ms)
        if isinstance(found, SharedAnswer):
            return FoundPart(part, found.answer, found.first)
        return await self._alone(part, spec, deadline_ms, found)

    async def read_all(
        self, parts: list[KeysPart], spec: ReadSpec, timeout_ms: int, deadline_ms: int
    ) -> list[FoundPart]:
        """Read all parts, those that turn out too large for one answer in halves."""
        recorder = self._recorder
        began_ms = None if recorder is None else recorder.began([k for p in parts for k in p.keys])
        found = await self._read_all(parts, spec, timeout_ms, deadline_ms)
        if began_ms is not None:
            self._record(found, spec, began_ms)
        return found

    async def _read_all(
        self, parts: list[KeysPart], spec: ReadSpec, timeout_ms: int, deadline_ms: int
    ) -> list[FoundPart]:
        left: list[tuple[KeysPart, Fallback | None]] = [(part, None) for part in parts]
        found: list[FoundPart] = []
        budget = AnswerBudget(self._bytes_max)
        if spec.may_share and self._fit(parts):
            begun = [(part, self._begin(part, spec, timeout_ms)) for part in parts]
            left = []
            for part, waiter in begun:
                outcome = await waiter
                if isinstance(outcome, SharedAnswer):
                    found.append(budget.with_part(FoundPart(part, outcome.answer, outcome.first)))
                else:
                    left.append((part, outcome))
        if left:
            slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

            async def read(part: KeysPart, fallback: Fallback | None) -> list[FoundPart]:
                async with slots:
                    return await self._in_halves(part, spec, deadline_ms, fallback, budget)

            late = await gather_or_cancel([read(part, why) for part, why in left])
            found += [part for parts_found in late for part in parts_found]
        self._learn(found)
        return found

    # --- inside ----------------------------------------------------------------------------------

    def _record(self, found: list[FoundPart], spec: ReadSpec, began_ms: float) -> None:
        assert self._recorder is not None
        for each in found:
            info, _, partition, keys = each.part
            wanted = spec.consistency(spec.min_seq(info, partition))
            asked = Asked(info, partition, keys, wanted, began_ms)
            self._recorder.read(asked, each.answer, each.first)

    def _begin(self, part: KeysPart, spec: ReadSpec, timeout_ms: int) -> Waiter:
        channel = part.info.channels[part.partition].channel
        return self._channel_reads.batcher.get(channel, part.keys, spec, timeout_ms)

    def _fit(self, parts: list[KeysPart]) -> bool:
        """Whether all answers may be under way at once: a node gives up a client for which too many
        bytes wait. What turns out to be larger is read in halves, a few at a time."""
        return (
            all(len(part.keys) <= KEYS_MAX for part in parts)
            and sum(len(part.keys) for part in parts) * self._row_bytes <= AT_ONCE_BYTES
        )

    def _learn(self, found: list[FoundPart]) -> None:
        for part in found:
            largest = max(map(len, filter(None, part.answer.values)), default=0)
            self._row_bytes = max(self._row_bytes, largest)

    async def _alone(
        self, part: KeysPart, spec: ReadSpec, deadline_ms: int, fallback: Fallback | None
    ) -> FoundPart:
        channel = part.info.channels[part.partition].channel
        min_seq = spec.min_seq(part.info, part.partition)
        answer = await self._channel_reads.get(
            channel, part.keys, spec, deadline_ms, min_seq=min_seq, fallback=fallback
        )
        return FoundPart(part, answer, 0)

    async def _in_halves(
        self,
        part: KeysPart,
        spec: ReadSpec,
        deadline_ms: int,
        fallback: Fallback | None,
        budget: AnswerBudget,
    ) -> list[FoundPart]:
        """Read keys of one partition; rows too large for one answer are asked for in halves."""
        try:
            found = await self._alone(part, spec, deadline_ms, fallback)
        except PayloadTooLargeError:
            if len(part.keys) == 1:
                raise
        else:
            return [budget.with_part(found)]
        half = len(part.keys) // 2
        first = part._replace(keys=part.keys[:half])
        rest = part._replace(keys=part.keys[half:])
        return [
            *await self._in_halves(first, spec, deadline_ms, None, budget),
            *await self._in_halves(rest, spec, deadline_ms, None, budget),
        ]


async def gather_or_cancel(coroutines: Sequence[Any]) -> list[Any]:
    """Await all; when one fails cancel the others, and leave none behind."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
