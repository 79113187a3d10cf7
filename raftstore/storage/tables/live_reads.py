"""Reads of a channel's newest state, for records that are being applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

from raftstore.record_machine import Row
from raftstore.storage.tables.keys import rows_end, rows_prefix
from raftstore.storage.tables.leveldb_database import keys_between
from raftstore.storage.tables.leveldb_reads import LevelDbReads
from raftstore.types import ChannelId


class LiveReads:
    """The applier's own reads: of the database, whatever readers are shown."""

    def __init__(self, reads: LevelDbReads, source: Callable[[ChannelId], Any]) -> None:
        self._reads = reads
        self._source = source

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row."""
        return self._reads.row(self._source(channel), channel, key)

    def keys(self, channel: ChannelId, start: bytes) -> Iterator[bytes]:
        """Keys of all rows from ``start`` on, in order."""
        prefix = rows_prefix(channel)
        for key in keys_between(self._source(channel), prefix + start, rows_end(channel)):
            yield key[len(prefix) :]

    def range(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of rows of [start, stop), b"" is open."""
        rows = self._reads.rows(self._source(channel), channel, start=start, stop=stop)
        with closing(rows):
            return [(row.key, row.value) for row in islice(rows, limit)]

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state beside the rows."""
        return self._reads.state_get(self._source(channel), channel, key)

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of that state, in key order."""
        return self._reads.state_scan(self._source(channel), channel, start, stop, limit)
