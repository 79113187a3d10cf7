"""How long a channel's states of before a micro-batch are kept for readers of the commit before.

A reader of several channels wants one commit of all of them and may come to a channel that has
applied the next one meanwhile (docs/protocol.md). Such reads take one round, or pin a snapshot of
their own, so a short while is enough; what is not kept any more is refused, never mixed.
"""

from __future__ import annotations

from collections import deque

from raftstore.config import ReadSettings
from raftstore.ports.tables import TableStore
from raftstore.types import ChannelId


class Versions:
    """The kept states of one channel, by the time at which they were replaced."""

    def __init__(self, tables: TableStore, channel: ChannelId, settings: ReadSettings) -> None:
        self._tables = tables
        self._channel = channel
        self._settings = settings
        self.kept: deque[tuple[int, int]] = deque()
        """(label, when it was replaced in ms), the oldest first."""

    def on_applied(self, now_ms: int) -> None:
        """A step was applied: a state may have become one of before."""
        known = {label for label, _ in self.kept} if self.kept else ()
        for label in self._tables.versions(self._channel):
            if label not in known:
                self.kept.append((label, now_ms))
        while self.kept and len(self.kept) > self._settings.versions_max:
            self._release()

    def on_timer(self, now_ms: int) -> None:
        """Let go of what was kept long enough."""
        while (due_ms := self.next_deadline_ms()) is not None and due_ms <= now_ms:
            self._release()

    def next_deadline_ms(self) -> int | None:
        """When the oldest one was kept long enough; None while nothing is kept."""
        return self.kept[0][1] + self._settings.versions_keep_ms if self.kept else None

    def _release(self) -> None:
        label, _ = self.kept.popleft()
        self._tables.release_version(self._channel, label)
