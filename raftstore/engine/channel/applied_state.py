"""The state that a channel keeps beside its rows, as far as it is applied here."""

from __future__ import annotations

from raftstore.ports.tables import TableSnapshot, TableStore
from raftstore.record_machine import StateReader
from raftstore.types import ChannelId


class AppliedState(StateReader):
    """The applied state of one channel: of one position only while nothing is handed over to be
    applied. What takes several reads at one position needs ``SnapshotState``."""

    def __init__(self, tables: TableStore, channel: ChannelId) -> None:
        self._tables = tables
        self._channel = channel

    def get(self, key: bytes) -> bytes | None:
        """One value."""
        return self._tables.state_get(self._channel, key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in the order of the keys."""
        return self._tables.state_scan(self._channel, start, stop, limit)


class SnapshotState(StateReader):
    """The state beside the rows in a snapshot: all reads are of one position."""

    def __init__(self, snapshot: TableSnapshot) -> None:
        self._snapshot = snapshot

    def get(self, key: bytes) -> bytes | None:
        """One value."""
        return dict(self._snapshot.state_scan(key, key + b"\0", 1)).get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in the order of the keys."""
        return self._snapshot.state_scan(start, stop, limit)
