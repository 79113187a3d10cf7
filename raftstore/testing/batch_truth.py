"""The sum of micro-batches, computed from the committed log alone.

Written anew from the protocol's words and not from ``raftstore.state_machines.batches.staging``, so
that a mistake there is not made twice: chunks are kept as they come, and a BATCH_APPLY record that
is next in its channel's chain makes the listed ones visible.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from raftstore.protocol.payload import Cell
from raftstore.protocol.records import Record
from raftstore.protocol.staged import BatchApply, ChunkHeader, decode_apply, decode_staged
from raftstore.types import Seq

TRUNCATES = 1
"""``BatchApply.mode`` of a batch that replaces the table."""


@dataclass(slots=True)
class _Chunk:
    header: ChunkHeader
    cells: list[Cell]
    rows: int


@dataclass(slots=True)
class BatchTruth:
    """The micro-batches of one channel."""

    chunks: dict[tuple[str, int, int, int, int], _Chunk] = field(default_factory=dict)
    """By writer, attempt, partition id, task attempt id and number: the first one counts."""
    applied: list[tuple[Seq, BatchApply]] = field(default_factory=list)
    """What was made visible, with the seq from which on it is."""

    @property
    def newest(self) -> int:
        """The number of the newest commit that is visible."""
        return self.applied[-1][1].n if self.applied else 0

    def commit_at(self, seq: Seq) -> int:
        """The number of the newest commit in the state as of ``seq``."""
        at = bisect_right(self.applied, seq, key=lambda each: each[0])
        return self.applied[at - 1][1].n if at else 0

    def stage(self, record: Record) -> None:
        """A committed STAGED record: invisible."""
        header, cells = decode_staged(record.payload)
        name = (
            header.writer,
            header.attempt,
            header.partition_id,
            header.task_attempt_id,
            header.number,
        )
        self.chunks.setdefault(name, _Chunk(header, cells, record.rows))

    def apply(self, record: Record) -> tuple[bool, list[tuple[bytes, Cell]]] | str:
        """A committed BATCH_APPLY: (is the table emptied first, rows in order), or what is wrong.

        One that is not the next in the chain changes nothing.
        """
        batch = decode_apply(record.payload)
        if batch.prev != self.newest or batch.n <= self.newest:
            return False, []
        winners = dict(batch.winners)
        listed = [
            chunk
            for chunk in self.chunks.values()
            if (chunk.header.writer, chunk.header.attempt) == (batch.writer, batch.attempt)
            and winners.get(chunk.header.partition_id) == chunk.header.task_attempt_id
        ][: batch.part.chunks]  # what a task staged behind those that it reported does not count
        found = (len(listed), sum(chunk.rows for chunk in listed))
        if found != (batch.part.chunks, batch.part.rows):
            return f"commit {batch.n} lists {batch.part}, staged are {found}"
        listed.sort(key=lambda chunk: (chunk.header.partition_id, chunk.header.number))
        rows: list[tuple[bytes, Cell]] = []
        for chunk in listed:
            cells = iter(chunk.cells)
            rows += [(key or b"", sealed) for key, sealed in zip(cells, cells, strict=True)]
        self.applied.append((record.last_seq, batch))
        return batch.mode == TRUNCATES, rows
