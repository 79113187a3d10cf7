"""States of channels that stay as they are, and the thread on which long reads of them are done.

A LevelDB snapshot costs nothing when it is made; while it lives, what it shows cannot be compacted
away, and LevelDB must not be closed under it. So every open one is known here and closed before
the database is.

Threads: snapshots are made and closed on the loop thread and read on any. Reads that were started
are done one after the other on the thread ``raftstore-scan``, side by side with the apply thread;
a long count starts one read per slice, so that pages of others get their turn. Machines of users
are asked on ``raftstore-query``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Final

from raftstore.errors import StorageError
from raftstore.ports.scrub import TableStep
from raftstore.ports.table_copy import CopyPage
from raftstore.ports.tables import Counted, ExpiryPage, Page, ReadDone, SealedPage
from raftstore.record_machine import Row
from raftstore.storage.stalls import UNWATCHED, Area, StallWatch
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.storage.tables.query_threads import QueryThreads
from raftstore.storage.tables.views import Shared
from raftstore.storage.worker import Worker
from raftstore.types import ChannelId, History, Seq

QUERY_WAIT_S: Final = 2.0
"""For the query at hand when the node stops."""


class LevelDbSnapshot:
    """ports.TableSnapshot over a snapshot of plyvel."""

    def __init__(
        self,
        reads: LevelDbReads,
        shared: Shared,
        channel: ChannelId,
        on_close: Callable[[LevelDbSnapshot], None],
        time_ms: int,
    ) -> None:
        self._reads = reads
        self._shared = shared
        self._channel = channel
        self._on_close = on_close
        self._time_ms = time_ms
        """The channel time of the state: rows that have expired by it are not shown."""
        self._is_closed = False
        self.applied: History = shared.applied
        self.applied_seq: Seq = shared.applied.seq

    def page(self, start: bytes, stop: bytes, limit: int, bytes_max: int | None = None) -> Page:
        """Rows of [start, stop) in key order, bounded by rows and bytes; a first row always."""
        self._reads.check()
        found: list[Row] = []
        size, more = 0, False
        source = self._shared.snapshot
        found_rows = self._reads.rows(
            source, self._channel, start=start, stop=stop, time_ms=self._time_ms
        )
        with closing(found_rows) as rows:
            for row in rows:
                size += row.size
                is_full = bytes_max is not None and size > bytes_max
                more = len(found) == limit or (is_full and bool(found))
                if more:
                    break
                found.append(row)
        return Page(found, more, self.applied_seq)

    def sealed_page(self, start: bytes, stop: bytes, limit: int, bytes_max: int) -> SealedPage:
        """The same page, each seal checked and left on."""
        source = self._shared.snapshot
        return self._reads.sealed_page(
            source, self._channel, start, stop, limit, bytes_max, time_ms=self._time_ms
        )

    def has_lifetimes(self) -> bool:
        """Whether any row of the channel ever had an expiry."""
        return self._time_ms > 0

    def expiries(self, start: bytes, stop: bytes, limit: int) -> ExpiryPage:
        """When the rows of [start, stop) expire that have not; at most ``limit`` rows are read."""
        source = self._shared.snapshot
        return self._reads.expiries(source, self._channel, start, stop, limit, self._time_ms)

    def copy_page(self, after: bytes | None, bytes_max: int) -> CopyPage:
        """All that the table consists of behind the key ``after``, each checked."""
        return self._reads.copy_page(self._shared.snapshot, self._channel, after, bytes_max)

    def verify(self, after: bytes | None, bytes_max: int) -> TableStep:
        """Read and check what is behind the key ``after``; damage is reported and stops nothing."""
        return self._reads.verify(self._shared.snapshot, self._channel, after, bytes_max)

    def state_scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of the state beside the rows in [start, stop), in key order."""
        return self._reads.state_scan(self._shared.snapshot, self._channel, start, stop, limit)

    def count(self, start: bytes, stop: bytes, limit: int) -> Counted:
        """Count rows of [start, stop), at most ``limit`` of them; values are not looked at."""
        source = self._shared.snapshot
        return self._reads.count(source, self._channel, start, stop, limit, self._time_ms)

    def close(self) -> None:
        """Release it after its last read; closing it again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._shared.release()
            self._on_close(self)


class SnapshotReads:
    """The open snapshots of a node's tables, and the thread that does its long reads."""

    def __init__(self, reads: LevelDbReads, on_failed: Callable[[StorageError], None]) -> None:
        self._reads = reads
        self._on_failed = on_failed
        self._open: dict[int, LevelDbSnapshot] = {}
        self._worker: Worker | None = None
        self._asking: QueryThreads | None = None
        """Asks machines of users, whose code may take as long as it likes."""
        self._is_closing = Event()
        self._stalls, self._path = UNWATCHED, Path()

    def note_reads(self, stalls: StallWatch, path: Path) -> None:
        """Note in ``stalls`` when the database at ``path`` is read on the thread, from now on."""
        self._stalls, self._path = stalls, path

    def snapshot(self, channel: ChannelId, shared: Shared, time_ms: int = 0) -> LevelDbSnapshot:
        """One reader's own, of a state with this channel time that is shared with it."""
        made = LevelDbSnapshot(self._reads, shared, channel, self._forget, time_ms)
        self._open[id(made)] = made
        return made

    def start(self, read: Callable[[], ReadDone], done: Callable[[ReadDone], object]) -> None:
        """Read behind the others, on the thread; ``done`` is called there. Not after ``close``."""
        if self._worker is None:
            self._worker = Worker("raftstore-scan", self._on_failed)

        def noted() -> None:
            if not self._is_closing.is_set():
                with self._stalls.doing(Area.READS, "a read of LevelDB", self._path):
                    found = read()
                done(found)

        self._worker.submit(noted)

    def start_query(self, ask: Callable[[], ReadDone], done: Callable[[ReadDone], object]) -> None:
        """The same on the thread of users' queries, whose slowness says nothing of the disk."""
        if self._asking is None:
            self._asking = QueryThreads(self._on_failed, lambda: self._stalls.now_ms)

        def unless_closing() -> None:
            if self._is_closing.is_set():
                return
            try:
                found = ask()
            except StorageError:
                if not self._is_closing.is_set():
                    raise
            else:
                done(found)

        self._asking.submit(unless_closing)

    def close(self) -> None:
        """End the threads after the read at hand, then close every snapshot. A query that does not
        end is left alone: what it reads then raises."""
        self._is_closing.set()
        if self._worker is not None:
            self._worker.stop()
        if self._asking is not None:
            self._asking.stop(QUERY_WAIT_S)
        for snapshot in tuple(self._open.values()):
            snapshot.close()

    def _forget(self, snapshot: LevelDbSnapshot) -> None:
        self._open.pop(id(snapshot), None)
