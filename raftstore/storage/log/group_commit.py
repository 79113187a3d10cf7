"""The writing side of the log: group commits and the mark that follows them (S0.3, S0.4).

One object, used by one thread: the log writer's (``raftstore.storage.log.writer``), or the only one
in tests and tools.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raftstore.errors import PersistError, StorageError
from raftstore.storage.files import FileOps, persisting
from raftstore.storage.log.mark import Floor, MarkFile, MarkRow
from raftstore.storage.log.mark_syncer import MarkSyncer
from raftstore.storage.log.segments import SegmentWriter, segment_path
from raftstore.storage.presence import Place
from raftstore.types import ChannelId, Durability

OPERATION_BYTES: Final = 512
"""What a buffered operation costs beyond its bytes: itself, its mark row and its cached record."""


@dataclass(frozen=True, slots=True)
class RaisedFloor:
    """A new floor, and the segments below it, oldest first, which are not needed any more."""

    floor: Floor
    removed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """One group commit. ``steps``: bytes to append, or (number, header) of a segment to start."""

    operation: int
    end_position: int
    steps: tuple[tuple[int, bytes] | bytes, ...]
    rows: dict[ChannelId, MarkRow]
    is_urgent: bool
    """Holds a term, vote or drop: the mark must have it before the batch completes (S0.3)."""
    floor: RaisedFloor | None = None
    """To be called once everything of the batch is durable."""
    forgets: bool = False
    """Takes records out of a log without a proof that they were never acknowledged (S0.3)."""
    is_awaited: bool = False
    """Some channel acknowledges what was written, whether it is synced or not (S0.6)."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A buffered change: its bytes, and what the mark may say once they are durable."""

    number: int
    channel: ChannelId | None
    """None: a new floor, which is no change of a channel."""
    parts: tuple[bytes, ...]
    size: int
    end_position: int
    row: MarkRow
    is_urgent: bool
    forgets: bool
    """See ``Batch``."""
    opens: tuple[int, bytes] | None = None
    floor: RaisedFloor | None = None


def next_batch(pending: deque[Operation], bytes_max: int) -> tuple[Batch, int]:
    """Take operations for one group commit, at most ``bytes_max`` of them but at least one.

    Returns it, and the bytes that it holds in memory.
    """
    steps: list[tuple[int, bytes] | bytes] = []
    parts: list[bytes] = []
    rows: dict[ChannelId, MarkRow] = {}
    size = taken = 0
    is_urgent = forgets = False
    assert pending, "a group commit of nothing"
    operation = pending[0]
    while pending:
        following = pending[0]
        if rows and size + following.size > bytes_max:
            break
        operation = pending.popleft()
        if operation.opens is not None:
            if parts:
                steps.append(b"".join(parts))
                parts = []
            steps.append(operation.opens)
        parts.extend(operation.parts)
        size += operation.size
        taken += 1
        if operation.channel is not None:
            rows[operation.channel] = operation.row
        is_urgent |= operation.is_urgent
        forgets |= operation.forgets
        if operation.floor is not None:
            break
    steps.append(b"".join(parts))
    assert not pending or pending[0].number == operation.number + 1, (
        f"operation {pending[0].number} follows {operation.number}: order is what acks rest on"
    )
    number, end, floor = operation.number, operation.end_position, operation.floor
    is_awaited = any(row.durability is Durability.BUFFERED for row in rows.values())
    batch = Batch(number, end, tuple(steps), rows, is_urgent, floor, forgets, is_awaited)
    return batch, size + taken * OPERATION_BYTES


class GroupCommitter:
    """Writes batches to the last segment and their rows to the mark."""

    def __init__(
        self,
        ops: FileOps,
        directory: Path,
        segment: int,
        mark: MarkFile,
        reach: Callable[[str], None],
    ) -> None:
        self._ops = ops
        self._directory = directory
        self._reach = reach
        self._segments = SegmentWriter(ops, directory)
        self._segments.resume(segment)
        self._mark = mark
        self._unmarked: dict[ChannelId, MarkRow] = {}
        self._operation = 0
        self._syncer: MarkSyncer | None = None
        self.failure: str | None = None
        """Why nothing may be written any more; read by the loop thread too."""

    def sync_mark_with(self, syncer: MarkSyncer | None) -> None:
        """Let another thread sync the mark while this one syncs the log."""
        self._syncer = syncer

    def write_and_sync(self, batch: Batch) -> None:
        """Make a batch durable, and the mark as its module promises.

        Raises PersistError on any error; nothing is retried and nothing more is accepted (S0.4).
        """
        self.write(batch)
        self.sync(batch)

    def write(self, batch: Batch) -> None:
        """Hand a batch to the system; ``sync`` has to follow. Raises like ``write_and_sync``."""
        self._do(self._write, batch)

    def sync(self, batch: Batch) -> None:
        """Make the batch that was written last durable. Raises like ``write_and_sync``."""
        self._do(self._sync, batch)

    def _do(self, step: Callable[[Batch], None], batch: Batch) -> None:
        self._check()
        try:
            with persisting(self._directory, "writing the log"):
                step(batch)
        except Exception as error:
            self.failure = str(error)
            if isinstance(error, StorageError):
                self._doubt_buffers()
            raise

    def _doubt_buffers(self) -> None:
        """S0.6: what the system was handed may be lost although the machine runs on. The mark
        says so if the disk still takes it; nothing is acknowledged after this in any case."""
        held = self._mark.rows | self._unmarked
        rows = {
            channel: self._mark.rows.get(channel, row)._replace(in_doubt=True)
            for channel, row in held.items()
            if row.durability is Durability.BUFFERED and not row.dropped
        }
        with suppress(OSError):
            if rows:
                self._mark.write(rows)
                self._mark.sync()

    def is_mark_behind(self) -> bool:
        """Whether the mark does not cover the newest group commit yet."""
        return bool(self._unmarked)

    def write_mark(self) -> None:
        """Let the mark cover everything durable: after an idle pause and at the end."""
        self._check()
        if self._unmarked:
            self.write_mark_rows(self._unmarked)
            self._unmarked = {}

    def write_mark_rows(self, rows: dict[ChannelId, MarkRow]) -> None:
        """Write and sync rows of the mark. Raises PersistError, and nothing more is accepted."""
        try:
            with persisting(self._directory.parent, "writing the mark"):
                self._mark.write(rows)
                self._mark.sync()
        except Exception as error:
            self.failure = str(error)
            raise

    def _catch_up_mark(self) -> None:
        if self._unmarked:
            self._mark.write(self._unmarked)
            self._unmarked = {}
            self._mark.sync()

    def places(self) -> tuple[Place, ...]:
        """The files that are written now. Any thread."""
        return self._segments.place, self._mark.place

    def close(self) -> None:
        """Close all files; nothing more is written or synced."""
        self._segments.close()
        self._mark.close()

    def _check(self) -> None:
        if self.failure is not None:
            raise PersistError(f"the log is not usable any more: {self.failure}")

    def _write(self, batch: Batch) -> None:
        # S0.5: a batch is durable together with all before it, which is what acks rest on.
        assert batch.operation > self._operation, (
            f"operation {batch.operation} is written behind {self._operation} (S0.5)"
        )
        self._operation = batch.operation
        if batch.forgets:
            # S0.3: what the mark still lacks of acknowledged records is nowhere else then.
            self._catch_up_mark()
        self._reach("log.before-write")
        for step in batch.steps:
            if isinstance(step, bytes):
                self._segments.write(step)
            else:
                self._reach("segment.before-start")
                self._segments.start(*step)

    def _sync(self, batch: Batch) -> None:
        assert batch.operation == self._operation, (
            f"operation {batch.operation} is synced, written are those to {self._operation} (S0.5)"
        )
        if batch.floor is not None:
            self._segments.sync()
            self._raise_floor(batch.floor, batch.rows)
        elif batch.is_urgent:
            # S0.3: votes are covered without lag: log first, then the mark with this batch too.
            self._reach("vote.before-sync")
            self._segments.sync()
            self._reach("mark.before-write")
            self._mark.write(self._unmarked | batch.rows)
            self._unmarked = {}
            self._mark.sync()
            self._reach("mark.after-sync")
            self._reach("vote.after-sync")
        else:
            # S0.3: in parallel with this group commit, the mark of the ones before it.
            self._reach("log.before-sync")
            self._sync_with_mark_behind()
            self._reach("log.after-sync")
            self._unmarked = dict(batch.rows)

    def _raise_floor(self, raised: RaisedFloor, rows: dict[ChannelId, MarkRow]) -> None:
        """S6.5: everything that replaces the old segments is durable by now.

        First the mark says that they are not needed, then they go: otherwise a start would take
        them for lost.
        """
        self._reach("floor.before-mark")
        self._mark.raise_floor(raised.floor, self._unmarked | rows)
        self._unmarked = {}
        for number in raised.removed:
            self._reach("floor.before-unlink")
            self._ops.unlink(segment_path(self._directory, number))
        self._ops.sync_directory(self._directory)

    def _sync_with_mark_behind(self) -> None:
        if not self._unmarked:
            self._segments.sync()
            return
        self._mark.write(self._unmarked)
        if self._syncer is None:
            self._segments.sync()
            self._mark.sync()
            return
        self._syncer.start(self._mark.sync)
        self._segments.sync()
        self._syncer.wait()
