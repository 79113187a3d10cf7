"""The thread of copies: steps of tables that are copied or read through, with rests in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from time import thread_time

from raftstore.errors import StorageError
from raftstore.ports.tables import ReadDone
from raftstore.storage.giving_way import GivingWay
from raftstore.storage.stalls import UNWATCHED, Area, StallWatch
from raftstore.storage.worker import Post, Worker


class CopySteps:
    """The thread of one node; all else on the loop thread."""

    def __init__(self, on_failed: Callable[[StorageError], None], rest_times_max: int) -> None:
        self._on_failed = on_failed
        self._rest_times_max = rest_times_max
        self._worker: Worker | None = None
        self._is_closing = Event()
        self.giving_way = GivingWay(0, lambda: 0.0, lambda: 0.0, self._is_closing.wait)
        self._stalls, self._path = UNWATCHED, Path()

    def note_steps(self, stalls: StallWatch, path: Path) -> None:
        """Note in ``stalls`` when a step works below ``path``, from now on."""
        self._stalls, self._path = stalls, path

    def give_way_by(
        self, clock_s: Callable[[], float], worked_s: Callable[[], float] = thread_time
    ) -> None:
        """Rest while the main loop is late by this clock, for as long as what the thread worked
        says; before the first step."""
        times = self._rest_times_max
        self.giving_way = GivingWay(times, clock_s, worked_s, self._is_closing.wait)

    def give_way(self) -> None:
        """Rest within a step, if that is due; the thread itself."""
        self.giving_way.rest()

    def start(
        self, step: Callable[[], ReadDone], post: Post, done: Callable[[ReadDone], None]
    ) -> None:
        """Do the step behind others; ``done`` gets what it returned, by ``post``. What is still
        queued when this is closed is not done."""
        if self._worker is None:
            self._worker = Worker("raftstore-copy", self._on_failed)
        giving_way = self.giving_way

        def run() -> None:
            giving_way.rest()
            if self._is_closing.is_set():
                return
            with self._stalls.doing(Area.READS, "a step of a table's copy", self._path):
                found = step()
            post(partial(_take_in, giving_way, giving_way.now_s(), found, done))

        self._worker.submit(run)

    def close(self) -> None:
        """End the thread after the step at hand."""
        self._is_closing.set()
        if self._worker is not None:
            self._worker.stop()


def _take_in(
    giving_way: GivingWay, since_s: float, found: ReadDone, done: Callable[[ReadDone], None]
) -> None:
    giving_way.took_in(since_s)
    done(found)
