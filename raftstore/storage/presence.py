"""Whether the files that a node writes are still those that its next start would read.

A file that was removed or moved away can be written and synced without any error as long as it is
open, and what is acknowledged then is gone with the process. So a thread looks, twice a second,
whether the paths of the data directory still lead to what is open: the directory itself, its lock,
the log with its current segment, the mark and the tables. Two looks in a row must agree, since the
mark is replaced by a new file when it is full.

The thread exists because a look may hang where a disk does; the loop thread never waits for it. So
it looks at the free space of the disk, too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple

LOOK_INTERVAL_S: Final = 0.5

_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class Place(NamedTuple):
    """A path and the file that is open under it."""

    path: Path
    device: int
    inode: int


def place_of(path: Path, descriptor: int) -> Place:
    """The path and what ``descriptor`` has open."""
    facts = os.fstat(descriptor)
    return Place(path, facts.st_dev, facts.st_ino)


def is_gone(place: Place) -> bool:
    """Whether the path leads nowhere or elsewhere; False when that cannot be known."""
    try:
        facts = os.stat(place.path)  # noqa: PTH116 - of the path as it is now
    except OSError as error:
        return error.errno in _GONE
    return (facts.st_dev, facts.st_ino) != (place.device, place.inode)


class PresenceWatch:
    """Looks after the directories it is given and the files that ``files`` names at each look.

    ``on_gone`` is called once, from the watching thread, with one sentence.
    """

    def __init__(
        self,
        directories: Iterable[Path],
        files: Callable[[], Iterable[Place]],
        on_gone: Callable[[str], None],
        *,
        interval_s: float = LOOK_INTERVAL_S,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """``look``: what else is to be looked at on the disk each time, in the same thread."""
        # Held open: a file system may number a directory anew once nobody has it open.
        self._held = {path: os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in directories}
        self._directories = [place_of(path, held) for path, held in self._held.items()]
        self._files = files
        self._on_gone = on_gone
        self._interval_s = interval_s
        self._look = look
        self._is_stopped = Event()
        self._thread = Thread(target=self._run, name="raftstore-presence", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, unless it hangs in a look: it does nothing more then."""
        self._is_stopped.set()
        self._thread.join(timeout=self._interval_s)
        if not self._thread.is_alive():
            while self._held:
                os.close(self._held.popitem()[1])

    def _run(self) -> None:
        before: set[Place] = set()
        while not self._is_stopped.wait(self._interval_s):
            self._look()
            places = (*self._directories, *self._files())
            gone = [place for place in places if is_gone(place)]
            for place in gone:
                if place in before and not self._is_stopped.is_set():
                    self._on_gone(
                        f"{place.path} is not what this node has open: it was removed, moved or "
                        "replaced while the node ran, and what is written now would be lost; put "
                        "the data directory back as it was, then start the node again"
                    )
                    return
            before = set(gone)
