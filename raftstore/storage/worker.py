"""Threads that do one job after another and report the first failure.

No thread of the store may end in silence, whatever it met: a node that seems to live and writes
nothing would be worse than one that stops (S0.4).
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from raftstore.errors import PersistError, StorageError

Post = Callable[[Callable[[], None]], object]
"""Run something later on the loop thread; asyncio's ``loop.call_soon_threadsafe``."""


def failure_of(doing: str, error: BaseException) -> StorageError:
    """Return what a thread reports: a StorageError as it is, anything else as a PersistError."""
    if isinstance(error, StorageError):
        return error
    return PersistError(f"{doing} failed: {error!r}; the node stops")


class Worker:
    """``submit`` from any thread; a job that raises ends its thread (S0.4). With more than one
    thread as many jobs are done at a time, and begun in order."""

    def __init__(
        self, name: str, on_failed: Callable[[StorageError], None], threads: int = 1
    ) -> None:
        self._on_failed = on_failed
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads = [Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], object]) -> None:
        """Do the job behind the others."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End the threads after the jobs before this call."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - a thread must not end in silence
                self._on_failed(failure_of("reading the tables", error))
                return
