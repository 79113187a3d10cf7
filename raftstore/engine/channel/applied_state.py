"""The state that a channel keeps beside its rows, as far as it is applied here."""

from __future__ import annotations

from raftstore.ports.tables import TableStore
from raftstore.record_machine import StateReader
from raftstore.types import ChannelId


class AppliedState(StateReader):
    """The applied state of one channel: of one position only while nothing is handed over to be
    applied."""

    def __init__(self, tables: TableStore, channel: ChannelId) -> None:
        self._tables = tables
        self._channel = channel

    def get(self, key: bytes) -> bytes | None:
        """One value."""
        return self._tables.state_get(self._channel, key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in the order of the keys."""
        return self._tables.state_scan(self._channel, start, stop, limit)
