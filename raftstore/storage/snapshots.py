"""States of channels that stay as they are, and the thread on which long reads of them are done.

A LevelDB snapshot costs nothing when it is made; while it lives, what it shows cannot be compacted
away, and LevelDB must not be closed under it. So every open one is known here and closed before
the database is.

Threads: snapshots are made and closed on the loop thread and read on any. Reads that were started
are done one after the other on the thread ``raftstore-scan``, side by side with the apply thread;
whoever has much to count starts one read per slice, so that pages of others get their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice
from threading import Event
from typing import Any, Protocol

from raftstore.errors import StorageError
from raftstore.ports import Counted, Page, ReadDone, Row
from raftstore.storage.keys import rows_end, rows_prefix
from raftstore.storage.leveldb_database import DATABASE_ERRORS
from raftstore.storage.worker import Worker
from raftstore.types import ChannelId, History, Seq


class SnapshotSource(Protocol):
    """The tables that the snapshots are of."""

    def check(self) -> None:
        """Raise PersistError if the tables failed before or are closed."""

    def failed(self, error: Exception) -> StorageError:
        """Poison the tables (S0.4); return what to raise."""

    def position(self, source: Any, channel: ChannelId) -> History:
        """What a snapshot says is applied."""

    def rows(
        self, source: Any, channel: ChannelId, *, start: bytes = b"", stop: bytes = b""
    ) -> Generator[Row, None, None]:
        """Rows of [start, stop) in a snapshot, each checked."""


class LevelDbSnapshot:
    """ports.TableSnapshot over a snapshot of plyvel."""

    def __init__(
        self,
        tables: SnapshotSource,
        snapshot: Any,
        channel: ChannelId,
        on_close: Callable[[LevelDbSnapshot], None],
    ) -> None:
        self._tables = tables
        self._snapshot = snapshot
        self._channel = channel
        self._on_close = on_close
        self.applied_seq: Seq = tables.position(snapshot, channel).seq

    def page(self, start: bytes, stop: bytes, limit: int, bytes_max: int | None = None) -> Page:
        """Rows of [start, stop) in key order, bounded by rows and bytes; a first row always."""
        self._tables.check()
        found: list[Row] = []
        size, more = 0, False
        with closing(
            self._tables.rows(self._snapshot, self._channel, start=start, stop=stop)
        ) as rows:
            for row in rows:
                size += row.size
                is_full = bytes_max is not None and size > bytes_max
                more = len(found) == limit or (is_full and bool(found))
                if more:
                    break
                found.append(row)
        return Page(found, more, self.applied_seq)

    def count(self, start: bytes, stop: bytes, limit: int) -> Counted:
        """Count rows of [start, stop), at most ``limit`` of them; values are not looked at."""
        self._tables.check()
        prefix = rows_prefix(self._channel)
        end = prefix + stop if stop else rows_end(self._channel)
        try:
            with self._snapshot.iterator(
                start=prefix + start,
                stop=end,
                include_value=False,
                verify_checksums=True,
                fill_cache=False,
            ) as keys:
                rows = sum(1 for _ in islice(keys, limit - 1))
                last = next(keys, None)
        except DATABASE_ERRORS as error:
            raise self._tables.failed(error) from error
        if last is None:
            return Counted(rows, None)
        # The lowest key above the last one counted: nothing is between a key and key + NUL.
        return Counted(rows + 1, last[len(prefix) :] + b"\0")

    def close(self) -> None:
        """Nobody reads it any more; closing it again does nothing."""
        self._snapshot.close()
        self._on_close(self)


class SnapshotReads:
    """The open snapshots of a node's tables, and the thread that does its long reads."""

    def __init__(self, tables: SnapshotSource, on_failed: Callable[[StorageError], None]) -> None:
        self._tables = tables
        self._on_failed = on_failed
        self._open: dict[int, LevelDbSnapshot] = {}
        self._worker: Worker | None = None
        self._is_closing = Event()

    def snapshot(self, database: Any, channel: ChannelId) -> LevelDbSnapshot:
        """The applied state of a channel as it is now."""
        made = LevelDbSnapshot(self._tables, database.snapshot(), channel, self._forget)
        self._open[id(made)] = made
        return made

    def start(self, read: Callable[[], ReadDone], done: Callable[[ReadDone], object]) -> None:
        """Read behind the others, on the thread; ``done`` is called there. Not after ``close``."""
        if self._worker is None:
            self._worker = Worker("raftstore-scan", self._on_failed)
        self._worker.submit(lambda: None if self._is_closing.is_set() else done(read()))

    def close(self) -> None:
        """End the thread after the read at hand, then close every snapshot."""
        self._is_closing.set()
        if self._worker is not None:
            self._worker.stop()
        for snapshot in tuple(self._open.values()):
            snapshot.close()

    def _forget(self, snapshot: LevelDbSnapshot) -> None:
        self._open.pop(id(snapshot), None)
