"""Threads for queries of users' machines: one, and others only while it does not come back.

The code is somebody else's and may never end. No thread can be stopped from outside, so those that
wait behind it get another thread, up to a bound; a restart of the node is what ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread, get_ident
from typing import Final

from raftstore.errors import StorageError
from raftstore.storage.worker import failure_of

LONG_MS: Final = 1_000
"""A query that takes longer has others go past it."""
THREADS_MAX: Final = 4
"""Each one that never ends takes its share of the processor from the whole node."""
LOOK_S: Final = 0.05
"""Between two looks of a thread whether the query before has become a long one; none of them looks
while nothing is queued."""


class QueryThreads:
    """``submit`` from the loop thread; the first job that raises ends its thread (S0.4)."""

    def __init__(
        self,
        on_failed: Callable[[StorageError], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._on_failed = on_failed
        self._clock_ms = clock_ms
        self._wake = Condition()
        """Guards all below."""
        self._jobs: deque[Callable[[], object]] = deque()
        self._busy_since: dict[int, int] = {}
        """When each thread began what it does; one that waits is not here."""
        self._threads: list[Thread] = []
        self._is_stopping = False

    def submit(self, job: Callable[[], object]) -> None:
        """Do the job behind the others, but not behind one that takes long."""
        with self._wake:
            self._jobs.append(job)
            # Now, not when the query before has become a long one: nobody may come by then.
            idle = len(self._threads) - len(self._busy_since)
            if len(self._jobs) > idle and len(self._threads) < THREADS_MAX:
                thread = Thread(target=self._run, name="raftstore-query", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._wake.notify()

    def stop(self, timeout_s: float) -> None:
        """End the threads after the jobs before this call; wait about ``timeout_s`` at most."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))

    def _run(self) -> None:
        me = get_ident()
        while (job := self._next(me)) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - a thread must not end in silence
                self._on_failed(failure_of("asking a state machine", error))
                return
            finally:
                with self._wake:
                    del self._busy_since[me]
                    self._wake.notify()

    def _next(self, me: int) -> Callable[[], object] | None:
        """The next job, once it has to wait for no other; None: there will be none."""
        with self._wake:
            while not self._jobs or not self._is_turn():
                if self._is_stopping and not self._jobs:
                    return None
                self._wake.wait(LOOK_S if self._jobs else None)
            self._busy_since[me] = self._clock_ms()
            return self._jobs.popleft()

    def _is_turn(self) -> bool:
        """Whether all that is under way takes long."""
        now_ms = self._clock_ms()
        return all(now_ms - since >= LONG_MS for since in self._busy_since.values())
