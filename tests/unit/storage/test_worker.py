"""The threads of the store: none of them ends in silence."""

from __future__ import annotations

from queue import SimpleQueue

from raftstore.errors import StorageError
from raftstore.storage.worker import Worker


def test_worker_reports_an_error_nobody_expected() -> None:
    """S0.4: a later caller would wait for ever for a thread that ended in silence."""
    failures: SimpleQueue[StorageError] = SimpleQueue()

    def job() -> None:
        raise RuntimeError("a bug")

    worker = Worker("test", failures.put)
    worker.submit(job)
    assert "a bug" in str(failures.get(timeout=20))
    worker.stop()


def test_worker_does_nothing_behind_a_failure() -> None:
    """S0.4: what was queued meanwhile may rest on what failed; the thread has ended."""
    failures: SimpleQueue[StorageError] = SimpleQueue()
    done: list[str] = []

    def job() -> None:
        raise RuntimeError("a bug")

    worker = Worker("test", failures.put)
    worker.submit(job)
    worker.submit(lambda: done.append("another"))
    worker.stop()
    assert (failures.qsize(), done) == (1, [])
