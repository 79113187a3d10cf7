"""Threads for queries of users' machines: one, and others only while it does not come back.

The code is somebody else's and may never end. No thread can be stopped from outside, so those that
wait behind it get another thread, up to a bound; a restart of the node is what ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread, get_ident
from typing import Final

from raftstore.errors import StorageError
from raftstore.storage.worker import failure_of

LONG_MS: Final = 1_000
"""A query that takes longer has others go past it."""
THREADS_MAX: Final = 4
"""Each one that never ends takes its share of the processor from the whole node."""


class QueryThreads:
    """``submit`` from the loop thread; the first job that raises ends its thread (S0.4)."""

    def __init__(
        self,
        on_failed: Callable[[StorageError], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._on_failed = on_failed
        self._clock_ms = clock_ms
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._busy_since: dict[int, int] = {}
        """When each thread began what it does; one that waits is not here."""
        self._threads: list[Thread] = []

    def submit(self, job: Callable[[], object]) -> None:
        """Do the job behind the others, but not behind one that takes long."""
        self._jobs.put(job)
        busy, now_ms = tuple(self._busy_since.values()), self._clock_ms()
        is_held_up = len(busy) == len(self._threads)
        if is_held_up and all(now_ms - since >= LONG_MS for since in busy):
            self._start()

    def stop(self, timeout_s: float) -> None:
        """End the threads after the jobs before this call; wait about ``timeout_s`` at most."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))

    def _start(self) -> None:
        if len(self._threads) < THREADS_MAX:
            thread = Thread(target=self._run, name="raftstore-query", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        me = get_ident()
        while (job := self._jobs.get()) is not None:
            self._busy_since[me] = self._clock_ms()
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - a thread must not end in silence
                self._on_failed(failure_of("asking a state machine", error))
                return
            finally:
                del self._busy_since[me]
