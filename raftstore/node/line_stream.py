"""A stream for log lines that never waits: a thread of its own writes them to the real one.

A pipe that nobody reads fills up after 64 KiB, and its writer then waits for ever. A
node must go on serving meanwhile, and must be able to end. So lines wait here, up to a bound in
bytes; what does not fit is dropped and counted, and the count is reported when lines get through
again.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Final, TextIO

WAITING_BYTES_MAX: Final = 1024 * 1024
"""Characters of lines that wait to be written; beyond it new ones are dropped."""


class LineStream(io.TextIOBase):
    """The stream of ``LineHandler``; methods may be called from any thread and never block."""

    def __init__(self, target: TextIO, say_dropped: Callable[[int], str]) -> None:
        """``say_dropped(count)`` is the line, with its end, that reports dropped ones."""
        super().__init__()
        self.dropped = 0
        """Lines that were dropped so far."""
        self._target = target
        self._descriptor = _descriptor_of(target)
        self._say_dropped = say_dropped
        self._reported = 0
        self._waiting: deque[str] = deque()
        self._size = 0
        self._is_writing = False
        self._is_ending = False
        self._change = Condition()
        self._thread = Thread(target=self._run, name="raftstore-lines", daemon=True)
        self._thread.start()

    def write(self, text: str, /) -> int:
        """Queue one or several whole lines, or drop and count them."""
        with self._change:
            if self._size + len(text) > WAITING_BYTES_MAX:
                self.dropped += text.count("\n")
                return len(text)
            self._waiting.append(text)
            self._size += len(text)
            self._change.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do not wait: ``drain`` does, for a bounded time."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is written, at most so long; whether it is."""
        with self._change:
            return self._change.wait_for(self._is_drained, timeout_s)

    def end(self, timeout_s: float) -> bool:
        """End the thread when everything is written; False: it hangs in a write."""
        with self._change:
            self._is_ending = True
            self._change.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _is_drained(self) -> bool:
        return not self._waiting and not self._is_writing

    def _run(self) -> None:
        while (text := self._take()) is not None:
            try:
                self._put(text)
            except (OSError, ValueError):  # the stream was closed, or its reader ended
                with self._change:
                    self.dropped += text.count("\n")

    def _take(self) -> str | None:
        with self._change:
            self._is_writing = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._waiting or self._is_ending)
            if not self._waiting:
                return None
            text = "".join(self._waiting)
            self._waiting.clear()
            self._size = 0
            self._is_writing = True
            if self.dropped > self._reported:
                text += self._say_dropped(self.dropped - self._reported)
                self._reported = self.dropped
            return text

    def _put(self, text: str) -> None:
        if self._descriptor is None:
            self._target.write(text)
            self._target.flush()
            return
        # Not through the text stream: a thread that hangs in it keeps its lock, and the process
        # could not end.
        view = memoryview(text.encode("utf-8", "backslashreplace"))
        while view:
            view = view[os.write(self._descriptor, view) :]


def _descriptor_of(target: TextIO) -> int | None:
    try:
        return target.fileno()
    except (OSError, AttributeError):  # a buffer in memory
        return None
