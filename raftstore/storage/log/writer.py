"""The log writer: one thread, one group commit in flight, what is buffered meanwhile in the next.

S0.4: the first failure ends the thread; it is reported once and nothing is written afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from raftstore.errors import StorageError
from raftstore.metrics import DURATIONS_MS, FixedHistogram
from raftstore.storage.log.group_commit import Batch
from raftstore.storage.log.mark_syncer import MarkSyncer
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.stalls import UNWATCHED, Area, Operation, StallWatch
from raftstore.storage.worker import Post, failure_of

IDLE_MARK_S: Final = 0.04
"""Pause after which the mark covers everything by itself (its module promises 50 ms)."""


class LogWriter:
    """Drives a SegmentLog. All methods are called from the loop thread."""

    def __init__(
        self,
        log: SegmentLog,
        *,
        post: Post,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
        now_ms: Callable[[], int] = lambda: 0,
        stalls: StallWatch = UNWATCHED,
        on_written: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``on_written`` gets the newest operation that the system has, if a channel waits for it
        (S0.6). ``now_ms`` is the clock for ``commit_times``; it is read on the writer's thread."""
        self._stalls = stalls
        self.commit_times = FixedHistogram(DURATIONS_MS)
        """How long the group commits took: write and sync, the mark's included. In ms."""
        self._now_ms = now_ms
        self._log = log
        self._post = post
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._on_written = on_written
        self._in_flight: Batch | None = None
        self._written: Batch | None = None
        self._is_stopped = False
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._syncer = MarkSyncer()
        log.committer.sync_mark_with(self._syncer)
        self._thread = Thread(target=self._run, name="raftstore-log", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        """Start a group commit of what is buffered, unless one is in flight (it goes on by itself).

        Call it after every turn of the loop that may have written.
        """
        if self._in_flight is not None or self._is_stopped:
            return
        self._in_flight = self._log.take_pending()
        if self._in_flight is not None:
            self._batches.put(self._in_flight)

    def stop(self) -> None:
        """End the threads after the group commit in flight, and count it.

        ``SegmentLog.flush`` writes the rest. Nothing is taken for a thread that is gone: it would
        leave a hole in the log.
        """
        self._is_stopped = True
        self._batches.put(None)
        self._thread.join()
        self._log.committer.sync_mark_with(None)
        self._syncer.close()
        if self._written is not None:
            self._completed(self._written)

    def _run(self) -> None:
        try:
            self._write_batches()
        except Exception as error:  # noqa: BLE001 - a thread must not end in silence
            self._post(partial(self._on_failed, failure_of("writing the log", error)))

    def _write_batches(self) -> None:
        timeout: float | None = None
        while True:
            try:
                batch = self._batches.get(timeout=timeout)
            except Empty:
                with self._committing():
                    self._log.committer.write_mark()
            else:
                if batch is None:
                    return
                began_ms = self._now_ms()
                with self._committing():
                    self._log.committer.write(batch)
                    if batch.is_awaited:
                        self._post(partial(self._on_written, batch.operation))
                    self._log.committer.sync(batch)
                self.commit_times.observe(self._now_ms() - began_ms)
                self._written = batch
                self._post(partial(self._completed, batch))
            timeout = IDLE_MARK_S if self._log.committer.is_mark_behind() else None

    def _committing(self) -> Operation:
        directory = self._log.directory
        return self._stalls.doing(Area.LOG, "a group commit", directory, is_whole=True)

    def _completed(self, batch: Batch) -> None:
        if batch is not self._in_flight:
            return  # ``stop`` has counted it already.
        self._in_flight = None
        self._on_durable(self._log.completed(batch))
        self.kick()
