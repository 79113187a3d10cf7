"""Which operation on the disk is under way in which thread, and for how long (S0.4).

A disk can hang without an error: fdatasync just does not return. Nobody who waits for it can notice
that, so every blocking operation of the store is noted here before it begins, and a thread that
touches no disk looks (``raftstore.node.watchdog``).

Time is what that thread counted while it ran: when the whole process was stopped, or a machine
asleep, no operation gets older by it. Nothing here waits or takes a lock: each thread changes its
own entry, and the one that looks copies all of them at once.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Final

from raftstore.types import StorageStall


class Area(Enum):
    """The work that an operation is part of; each kind has patience of its own."""

    LOG = "log"
    """Segments, mark, identity: every write waits for them."""
    TABLES = "tables"
    """Writes of LevelDB, which may hold one back by itself while it merges files."""
    READS = "reads"
    """Long reads of the tables on threads of their own; nobody else waits for them."""


class Operation:
    """One operation, as a context manager: under way from its beginning to its end."""

    __slots__ = ("_outer", "area", "_thread", "_watch", "doing", "is_whole", "path", "since_ms")

    def __init__(
        self, watch: StallWatch, area: Area, doing: str, path: Path, *, is_whole: bool
    ) -> None:
        self._watch = watch
        self._thread = 0
        self._outer: Operation | None = None
        self.area = area
        self.doing = doing
        self.path = path
        self.is_whole = is_whole
        self.since_ms = 0

    def __enter__(self) -> None:
        watch = self._watch
        self._thread = thread = get_ident()
        self._outer = outer = watch.under_way.get(thread)
        # What an operation consists of is as old as the whole: all of it must end in time.
        self.since_ms = watch.now_ms if outer is None else outer.since_ms
        watch.under_way[thread] = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._outer is None:
            del self._watch.under_way[self._thread]
        else:
            self._watch.under_way[self._thread] = self._outer


class StallWatch:
    """The operations of one node's store."""

    def __init__(self) -> None:
        self.now_ms = 0
        """Counted by ``tick``; the only clock here."""
        self.under_way: dict[int, Operation] = {}
        """The innermost operation of each thread that is in one."""

    def doing(self, area: Area, doing: str, path: Path, *, is_whole: bool = False) -> Operation:
        """Note an operation for as long as the context lasts, within another one or not.

        ``is_whole``: it consists of others, which show better what hangs, maybe in other threads.
        """
        return Operation(self, area, doing, path, is_whole=is_whole)

    def tick(self, elapsed_ms: int) -> None:
        """Count the time that has passed; called by the one thread that looks."""
        self.now_ms += elapsed_ms

    def oldest(self, area: Area) -> StorageStall | None:
        """The operation that is under way longest, if there is one."""
        found = [at for at in self.under_way.copy().values() if at.area is area]
        if not found:
            return None
        since_ms = min(at.since_ms for at in found)
        at = min(found, key=lambda operation: (operation.is_whole, operation.since_ms))
        return StorageStall(at.doing, str(at.path), self.now_ms - since_ms)


UNWATCHED: Final = StallWatch()
"""For tools and tests, where nobody looks."""
