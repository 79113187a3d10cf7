"""States of channels that readers are shown instead of what the database holds now.

While a record's slices are written (``raftstore.storage.tables.pieces``), the database holds some
of them: every read of the channel goes to its *view*, a snapshot from before the first slice, until
the node's thread learns that the last one is in. A view may be kept after that, under a label, for
readers that need one and the same commit of every channel.

LevelDB must not be closed under a snapshot, and closes none by itself: ``Shared`` is closed with
its last reader, and each reader that shares one is known here or in
``raftstore.storage.tables.snapshots``.
Views belong to the loop thread; what is shared may be let go of in any.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from raftstore.types import ChannelId, History, Seq


class Shared:
    """A snapshot of the database with as many readers as there are; made with the first."""

    def __init__(
        self, snapshot: Any, applied: History, on_closed: Callable[[], None] = lambda: None
    ) -> None:
        """``on_closed`` is called in the thread of its last reader, when the snapshot is closed."""
        self._on_closed = on_closed
        self.snapshot = snapshot
        self.applied = applied
        """Of the channel it was made for."""
        self._readers = 1
        self._lock = Lock()

    def share(self) -> Shared:
        """One reader more."""
        with self._lock:
            assert self._readers > 0, "a closed snapshot was shared"
            self._readers += 1
        return self

    def release(self) -> None:
        """One reader less; once for each."""
        with self._lock:
            self._readers -= 1
            is_unread = self._readers == 0
        if is_unread:
            self.snapshot.close()
            self._on_closed()


class Views:
    """The views of all channels: the one that is shown, and those that are kept."""

    def __init__(self) -> None:
        self.shown: dict[ChannelId, Shared] = {}
        """What readers of these channels are shown instead of the database."""
        self._labels: dict[ChannelId, int] = {}
        self._kept: dict[ChannelId, dict[int, Shared]] = {}

    def show(self, channel: ChannelId, view: Shared, label: int) -> None:
        """Readers see this from now on; a label below 0: it is not kept after that."""
        self.shown[channel] = view
        self._labels[channel] = label

    def end(self, channel: ChannelId) -> None:
        """Readers see the database again."""
        view = self.shown.pop(channel, None)
        if view is None:
            return  # the channel was dropped meanwhile
        label = self._labels.pop(channel)
        if label >= 0:
            self.release(channel, label)
            self._kept.setdefault(channel, {})[label] = view
        else:
            view.release()

    def applied_seq(self, channel: ChannelId) -> Seq | None:
        """Applied seq of what is shown; None: it is the database."""
        view = self.shown.get(channel)
        return None if view is None else view.applied.seq

    def at(self, channel: ChannelId, label: int) -> Shared | None:
        """The state with this label, shown or kept."""
        if self._labels.get(channel) == label:
            return self.shown[channel]
        return self._kept.get(channel, {}).get(label)

    def labels(self, channel: ChannelId) -> tuple[int, ...]:
        """Labels of the states that are kept, oldest first."""
        return tuple(self._kept.get(channel, ()))

    def release(self, channel: ChannelId, label: int) -> None:
        """Keep a state no longer."""
        kept = self._kept.get(channel, {})
        view = kept.pop(label, None)
        if view is not None:
            view.release()
        if not kept:
            self._kept.pop(channel, None)

    def forget(self, channel: ChannelId) -> None:
        """Release the channel's views: it is closed."""
        view = self.shown.pop(channel, None)
        self._labels.pop(channel, None)
        if view is not None:
            view.release()
        for label in self.labels(channel):
            self.release(channel, label)

    def close(self) -> None:
        """Let everything go, before the database is closed."""
        for channel in (*self.shown, *self._kept):
            self.forget(channel)
