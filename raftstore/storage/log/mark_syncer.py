"""A thread that syncs the mark while the log writer thread syncs the log."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread


class MarkSyncer:
    """One job at a time: ``start`` it, do something else, ``wait`` for it. Writer thread only."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._results: SimpleQueue[Exception | None] = SimpleQueue()
        self._is_started = False
        self._thread = Thread(target=self._run, name="raftstore-mark", daemon=True)
        self._thread.start()

    def start(self, job: Callable[[], None]) -> None:
        """Begin the job."""
        assert not self._is_started, "the mark is synced twice at a time"
        self._is_started = True
        self._jobs.put(job)

    def wait(self) -> None:
        """Wait for the job; raise what it ended with."""
        assert self._is_started, "no sync of the mark was begun (S0.3)"
        self._is_started = False
        error = self._results.get()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                self._results.put(error)
            else:
                self._results.put(None)
