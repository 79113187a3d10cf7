"""A thread that does one job after another and reports the first failure.

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
    """``submit`` from any thread; the first job that raises ends the thread (S0.4)."""

    def __init__(self, name: str, on_failed: Callable[[StorageError], None]) -> None:
        self._on_failed = on_failed
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], object]) -> None:
        """Do the job behind the others."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End the thread after the jobs before this call."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - a thread must not end in silence
                self._on_failed(failure_of("reading the tables", error))
                return
