"""The newest records of a log in memory, for followers and for applying."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from raftstore.protocol.records import Record

CACHED_RECORD_BYTES: Final = 256
"""What a cached record costs beyond its payload."""


class RecordCache:
    """Records by their position in the log, the oldest first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._records: OrderedDict[int, Record] = OrderedDict()
        self._bytes = 0
        self.get = self._records.get
        """Return the record at a position; None: it is not kept."""

    def clear(self) -> None:
        """Keep none of them."""
        self._records.clear()
        self._bytes = 0

    def put(self, position: int, record: Record) -> None:
        """Keep a record, which is the newest."""
        self._records[position] = record
        self._bytes += len(record.payload) + CACHED_RECORD_BYTES

    def evict(self, durable_position: int) -> None:
        """Drop the oldest ones that are too many, but none that is not on the disk yet."""
        while self._bytes > self._bytes_max:
            position = next(iter(self._records))
            if position >= durable_position:
                return
            self._bytes -= len(self._records.pop(position).payload) + CACHED_RECORD_BYTES
            assert self._records or self._bytes == 0, f"{self._bytes} bytes of no record"
