"""An event loop in a thread of its own, for callers that are not asyncio."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from raftstore.errors import ConfigError, UnavailableError
from raftstore.transport.event_loop import new_event_loop
from raftstore.types import Outcome

Result = TypeVar("Result")


class BackgroundLoop:
    """Runs coroutines for any thread of the process that made it, and for no other process.

    A fork copies the object but not the thread: there, every call is refused with a clear text
    instead of hanging for ever.
    """

    def __init__(self, name: str, event_loop: str = "auto") -> None:
        """``name`` is the thread's; ``event_loop`` as in ``transport.event_loop``, which may raise
        ConfigError."""
        self._pid = os.getpid()
        self._loop = new_event_loop(event_loop)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        # Reentrant: a garbage collection may end an unfinished iteration right where it is held.
        self._lock = threading.RLock()
        self._is_stopped = False
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the coroutine to its end and return its result; interrupting it cancels it."""
        future: Future[Result] | None = None
        try:
            self._check_caller()
            with self._lock:
                if self._is_stopped:
                    raise UnavailableError("the client was closed; connect again")
                # Handed over before ``stop``, so ``stop`` ends it; later nobody would ever run it.
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
            return future.result()
        except CancelledError:
            # Only stop cancels. The client has failed its requests before, but a call that had no
            # turn since could not say what it knows of its own: it may have been done (S4.1).
            error = UnavailableError("the client was closed; connect again")
            error.outcome = Outcome.UNKNOWN
            raise error from None
        except BaseException:
            if future is None:
                work.close()
            else:
                future.cancel()
            raise

    @property
    def is_stopped(self) -> bool:
        """True after ``stop``, and where nothing can be run any more: in a process that was forked
        from the one that made it, and while the interpreter ends, which freezes its thread."""
        return self._is_stopped or self._is_out_of_reach

    def stop(self) -> None:
        """End the thread: everything still running is cancelled. Repeating it is harmless."""
        if self._is_out_of_reach:
            return
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def _is_out_of_reach(self) -> bool:
        return os.getpid() != self._pid or sys.is_finalizing()

    def _check_caller(self) -> None:
        """Raise unless the caller can wait for the thread. Without the lock: in a forked process it
        may be held for ever, and the thread itself must never wait for it."""
        if os.getpid() != self._pid:
            raise ConfigError(
                f"this client belongs to process {self._pid} and was carried into process "
                f"{os.getpid()} by a fork; call raftstore.connect there"
            )
        if threading.current_thread() is self._thread:
            raise ConfigError("a blocking call from the client's own loop would wait for itself")
        if sys.is_finalizing():
            raise UnavailableError("the interpreter is ending; use the client before that")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # What is cancelled may begin something to clean up.
            while running := asyncio.all_tasks(self._loop):
                for task in running:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
