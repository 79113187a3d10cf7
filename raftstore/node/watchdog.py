"""A thread that touches no disk looks for what hangs, and ends the node if need be (S0.4).

The steps, each with its setting: after ``storage.stall_handover_ms`` the main loop is notified, so
that the node refuses writes and gives its leaderships away; after ``storage.stall_limit_ms`` the
process ends with exit code 70, whatever the main loop is doing. A main loop that hangs in a call of
the store is found by its silence; its heartbeats have stopped long before (``transport.control``).
A node that was asked to stop gets less time for each operation, and a bound for all of it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import raftstore.storage
from raftstore.config import StorageSettings
from raftstore.storage.stalls import Area, StallWatch
from raftstore.storage.worker import Post
from raftstore.types import StorageStall

TICK_MS: Final = 50
"""How often it looks. A tick counts twice that at most: a stopped process waits for no disk."""
STOP_MS_MAX: Final = 20_000
"""A node that was asked to stop ends within this, whatever hangs; systemd kills it at 30 s as
docs/operations.md sets it up."""
_STORAGE: Final = str(Path(next(iter(raftstore.storage.__path__))))


class Watchdog:
    """The watchdog of one node, from before its store is opened to its end."""

    def __init__(
        self,
        stalls: StallWatch,
        settings: StorageSettings,
        *,
        node: str,
        end: Callable[[str], NoReturn],
    ) -> None:
        """``end(reason)`` ends the process; it is called on the watchdog's thread."""
        self._stalls = stalls
        self._settings = settings
        self._node = node
        self._end = end
        self._post: Post | None = None
        self._on_stall: Callable[[StorageStall | None], None] = lambda _stall: None
        self._is_reported = False
        self._asked_ms = 0
        self._answered_ms = 0
        """When the main loop was asked whether it turns, and the newest question it answered."""
        self._stopping_ms: int | None = None
        self._main = threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raftstore-watchdog", daemon=True)
        self._thread.start()

    # --- called on the main loop ---

    def attend(self, post: Post, on_stall: Callable[[StorageStall | None], None]) -> None:
        """From now on ``on_stall`` is called through ``post``: with what hangs once it does for
        longer than its patience, and with None when it ended after all."""
        self._on_stall = on_stall
        self._post = post  # last: from here on the thread asks

    def stopping(self) -> None:
        """The node was asked to stop: an operation has less time, and so has everything."""
        if self._stopping_ms is None:
            self._stopping_ms = self._stalls.now_ms

    def close(self) -> None:
        """The node has stopped; nobody is watched any more."""
        self._ended.set()
        self._thread.join()

    def stall(self) -> StorageStall | None:
        """The operation that has hung for longer than its patience; from any thread."""
        settings = self._settings
        for area, patience_ms in (
            (Area.LOG, settings.stall_handover_ms),
            (Area.TABLES, settings.tables_stall_handover_ms),
        ):
            found = self._stalls.oldest(area)
            if found is not None and found.for_ms >= patience_ms:
                return found
        return None

    # --- the thread ---

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(TICK_MS / 1000):
            now = time.monotonic()
            # The time in which this process did not run is nobody's delay.
            self.look(min(round((now - before) * 1000), 2 * TICK_MS))
            before = now

    def look(self, elapsed_ms: int) -> None:
        """One tick: count the time, notify the main loop, end what must end."""
        self._stalls.tick(elapsed_ms)
        reason = self._why_end()
        if reason is not None:
            self._end(reason)
        stall = self.stall()
        if (stall is not None) != self._is_reported and self._post is not None:
            self._is_reported = stall is not None
            self._tell(lambda: self._on_stall(stall))
        # A question that nobody could be asked would never be answered.
        if self._post is not None and self._asked_ms == self._answered_ms:
            asked_ms = self._asked_ms = self._stalls.now_ms
            self._tell(lambda: self._turned(asked_ms))

    def _tell(self, call: Callable[[], None]) -> None:
        if self._post is not None:
            with suppress(RuntimeError):  # the loop is closed: the process is about to end
                self._post(call)

    def _turned(self, asked_ms: int) -> None:
        self._answered_ms = asked_ms

    def _why_end(self) -> str | None:
        now_ms, settings = self._stalls.now_ms, self._settings
        stopping_ms = self._stopping_ms
        limit_ms, why = settings.stall_limit_ms, "storage.stall_limit_ms"
        if stopping_ms is not None and settings.stall_stop_ms < limit_ms:
            limit_ms, why = settings.stall_stop_ms, "storage.stall_stop_ms, as it was asked to stop"
        for area in Area:
            stall = self._stalls.oldest(area)
            if stall is not None and stall.for_ms >= limit_ms:
                return f"{stall.describe(self._node)}; the node ends ({why}): look at the disk"
        silent_ms = now_ms - self._asked_ms
        if self._asked_ms != self._answered_ms and silent_ms >= limit_ms:
            place = place_in_storage(sys._current_frames().get(self._main))  # noqa: SLF001
            if place is not None:
                return (
                    f"the main loop of {self._node} has hung in {place} for {silent_ms / 1000:.1f} "
                    f"s; the node ends ({why}): look at the disk"
                )
        if stopping_ms is not None and now_ms - stopping_ms >= STOP_MS_MAX:
            return (
                f"{self._node} was asked to stop and has not within {STOP_MS_MAX / 1000:.0f} s; "
                "the node ends without waiting any longer"
            )
        return None


def place_in_storage(frame: FrameType | None) -> str | None:
    """Where in the store a thread is, as file and function; None: it is not there."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_STORAGE):
            return f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
        frame = frame.f_back
    return None
