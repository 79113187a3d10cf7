"""The LevelDB of one channel: it exists from the first record applied until the channel is dropped.

Before it exists, readers read ``NOTHING``. It is made by the thread that applies, read by any, and
closed when the last reader of a snapshot has let go: LevelDB must never be closed under one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol

from raftstore.storage.tables.views import Shared
from raftstore.types import History


class WriteBatch(Protocol):
    """An atomic batch of a database."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""

    def delete(self, key: bytes) -> None:
        """Remove a key."""

    def write(self) -> None:
        """Write everything at once."""


class _NoKeys:
    """Where there is no key."""

    def seek(self, _key: bytes) -> None:
        """Nothing is found, and no error."""


class _Nothing:
    """Reads of a channel of which nothing is applied: no row and no position."""

    def get(self, _key: bytes, **_options: object) -> None:
        """No value."""

    def iterator(self, **_options: object) -> AbstractContextManager[Any]:
        """No pairs."""
        return nullcontext(iter(()))

    def raw_iterator(self, **_options: object) -> AbstractContextManager[Any]:
        """No keys."""
        return nullcontext(_NoKeys())

    def snapshot(self) -> AbstractContextManager[Any]:
        """Nothing stays nothing."""
        return nullcontext(self)


class _NothingKept(_Nothing):
    """A snapshot of it, as it is kept."""

    def close(self) -> None:
        """There is nothing to release."""


NOTHING: Final = _Nothing()


class ChannelDatabase:
    """One channel's database, or the place for it.

    ``make`` creates it, ``on_unused`` is called once, by whichever thread lets go of the last
    snapshot after ``retire``.
    """

    __slots__ = (
        "_holds",
        "_is_retired",
        "_lock",
        "_make",
        "_making",
        "_on_unused",
        "_shown",
        "source",
    )

    def __init__(
        self, source: Any, make: Callable[[], Any], on_unused: Callable[[ChannelDatabase], None]
    ) -> None:
        self.source: Any = source
        """To read from; any thread. ``NOTHING`` until there is a database."""
        self._make = make
        self._making: Future[None] | None = None
        self._on_unused = on_unused
        self._lock = Lock()
        self._shown: list[int] = []
        """What ``share`` was given, of each open snapshot."""
        self._holds = 0
        """Merges that are under way or queued; they need no snapshot."""
        self._is_retired = False

    @property
    def is_read(self) -> bool:
        """Whether a snapshot of it is open; any thread."""
        return bool(self._shown)

    def removed_shown(self, removed: int) -> int:
        """How many of ``removed`` rows no open snapshot shows any more; any thread."""
        with self._lock:
            return min(removed, *self._shown) if self._shown else removed

    @property
    def exists(self) -> bool:
        """Whether there is a database."""
        return self.source is not NOTHING

    def prepare(self, run: Callable[[Callable[[], None]], Future[None]]) -> None:
        """Make the database on a thread that ``run`` has, ahead of its first record; loop thread.

        LevelDB syncs several files for it: a table of a thousand channels would keep the thread
        that applies for seconds.
        """
        if self.source is NOTHING and self._making is None:
            self._making = run(self._made)

    def _made(self) -> None:
        self.source = self._make()

    def write_batch(self) -> WriteBatch:
        """Return an empty atomic batch, of a new database if there is none; apply thread."""
        if self.source is NOTHING:
            if self._making is None:
                self._made()
            else:
                self._making.result()
        batch: WriteBatch = self.source.write_batch()
        return batch

    def share(self, position_in: Callable[[Any], History], removed: int = 0) -> Shared:
        """Return a snapshot of the present state for one reader; loop thread.

        ``position_in`` reads the applied position in it; ``removed``: how many rows were removed up
        to there, of all that ever are.
        """
        with self._lock:
            assert not self._is_retired, "a dropped channel is not read any more"
            self._shown.append(removed)
        source = self.source
        snapshot = _NothingKept() if source is NOTHING else source.snapshot()
        try:
            return Shared(snapshot, position_in(snapshot), partial(self._closed_snapshot, removed))
        except BaseException:
            snapshot.close()
            self._closed_snapshot(removed)
            raise

    def hold(self) -> None:
        """Keep it open until ``let_go``, once for each; loop thread."""
        with self._lock:
            assert not self._is_retired, "a dropped channel is not merged any more"
            self._holds += 1

    def let_go(self) -> None:
        """Allow that it is closed again; called by any thread."""
        with self._lock:
            self._holds -= 1
            is_unused = self._is_unused
        if is_unused:
            self._on_unused(self)

    @property
    def _is_unused(self) -> bool:
        return self._is_retired and not self._shown and not self._holds

    def retire(self) -> None:
        """Nothing is written any more, and no new snapshot taken; apply thread."""
        with self._lock:
            self._is_retired = True
            is_unused = self._is_unused
        if is_unused:
            self._on_unused(self)

    def close(self, how: Callable[[Any], None] = lambda source: source.close()) -> None:
        """Close it, if it exists; nothing reads it any more, and it is not synced."""
        if self._making is not None:
            wait((self._making,))
        source, self.source = self.source, NOTHING
        if source is not NOTHING:
            how(source)

    def _closed_snapshot(self, removed: int) -> None:
        with self._lock:
            self._shown.remove(removed)
            is_unused = self._is_unused
        if is_unused:
            self._on_unused(self)
