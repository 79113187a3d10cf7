"""The threads of copies: steps of tables that are copied or read through, with rests in between.

What a step does is hashing, waiting for the disk, and reading rows back, in turn. So there are two
threads: while one waits, the other one goes on with another channel. The steps of one channel are
done one after the other, in the order in which they were started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from time import thread_time
from typing import Final

from raftstore.errors import StorageError
from raftstore.ports.tables import ReadDone
from raftstore.storage.giving_way import GivingWay
from raftstore.storage.stalls import UNWATCHED, Area, StallWatch
from raftstore.storage.worker import Post, Worker
from raftstore.types import ChannelId

COPY_THREADS: Final = 2
"""More would gain nothing: what reads rows back is Python, of which one thread runs at a time."""
Taken = Callable[[ReadDone], None]
"""Takes what a step returned."""


class CopySteps:
    """The threads of one node; all else on the loop thread."""

    def __init__(self, on_failed: Callable[[StorageError], None], rest_times_max: int) -> None:
        self._on_failed = on_failed
        self._rest_times_max = rest_times_max
        self._worker: Worker | None = None
        self._is_closing = Event()
        self._queued: dict[ChannelId | None, deque[Callable[[], None]]] = {}
        """Channels with a step under way, and the steps behind it."""
        self.giving_way = GivingWay(0, lambda: 0.0, lambda: 0.0, self._is_closing.wait)
        self._stalls, self._path = UNWATCHED, Path()

    def note_steps(self, stalls: StallWatch, path: Path) -> None:
        """Note in ``stalls`` when a step works below ``path``, from now on."""
        self._stalls, self._path = stalls, path

    def give_way_by(
        self,
        clock_s: Callable[[], float],
        worked_s: Callable[[], float] = thread_time,
        requests: Callable[[], int] | None = None,
    ) -> None:
        """Rest while the main loop is late by this clock, for as long as what a thread worked
        says; before the first step. ``requests`` counts those that the node was sent: while there
        are none nothing rests."""
        self.giving_way = GivingWay(
            self._rest_times_max, clock_s, worked_s, self._is_closing.wait, requests
        )

    def give_way(self) -> None:
        """Rest within a step, if that is due; the thread itself."""
        self.giving_way.rest()

    def start(
        self, channel: ChannelId | None, step: Callable[[], ReadDone], post: Post, done: Taken
    ) -> None:
        """Do the step behind others of the channel (None: it is of none); ``done`` gets what it
        returned, by ``post``. What is still queued when this is closed is not done."""
        run = partial(self._run, channel, step, post, done)
        if channel in self._queued:
            self._queued[channel].append(run)
        else:
            self._queued[channel] = deque()
            self._submit(run)

    def _submit(self, run: Callable[[], None]) -> None:
        if self._worker is None:
            self._worker = Worker("raftstore-copy", self._on_failed, COPY_THREADS)
        self._worker.submit(run)

    def _run(
        self, channel: ChannelId | None, step: Callable[[], ReadDone], post: Post, done: Taken
    ) -> None:
        """On one of the threads."""
        giving_way = self.giving_way
        giving_way.rest()
        if self._is_closing.is_set():
            return
        with self._stalls.doing(Area.READS, "a step of a table's copy", self._path):
            found = step()
        post(partial(self._take_in, channel, giving_way.now_s(), found, done))

    def _take_in(
        self, channel: ChannelId | None, since_s: float, found: ReadDone, done: Taken
    ) -> None:
        self.giving_way.took_in(since_s)
        queued = self._queued[channel]
        if queued:
            self._submit(queued.popleft())
        else:
            del self._queued[channel]
        done(found)

    def close(self) -> None:
        """End the threads after the steps at hand."""
        self._is_closing.set()
        if self._worker is not None:
            self._worker.stop()
