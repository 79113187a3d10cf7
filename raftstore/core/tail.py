"""Records above the commit seq of a log, and the timestamp that its next one has to be after."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import msgspec

from raftstore.protocol.records import Record
from raftstore.types import RecordKind, Seq, TimestampMs


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The tail as a base keeps it: nothing but its timestamp."""

    last_timestamp_ms: TimestampMs


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)


class UncommittedTail:
    """The uncommitted records of one log, each by its end and its payload's size."""

    NAME: ClassVar = "tail"
    FORMAT: ClassVar = 1
    KINDS: ClassVar = frozenset(RecordKind)
    HEEDS_COMMITS: ClassVar = True

    __slots__ = ("bytes", "committed", "last_timestamp_ms", "records")

    def __init__(self) -> None:
        self.records: deque[tuple[Seq, int, int]] = deque()
        """(last seq, bytes of payload, the newest timestamp in front of it)."""
        self.committed: list[Seq] = []
        """The records that the last commit committed, each by its end."""
        self.bytes = 0
        """Bytes of the payloads of the uncommitted records."""
        self.last_timestamp_ms = 0
        """The newest timestamp in the log (S10)."""

    def append(self, record: Record) -> None:
        """A record at the log's end."""
        size, before_ms = len(record.payload), self.last_timestamp_ms
        last_seq = Seq(record.base_seq + record.rows - 1)
        self.records.append((last_seq, size, before_ms))
        self.bytes += size
        if record.timestamp_ms > before_ms:
            self.last_timestamp_ms = record.timestamp_ms

    def truncate(self, from_seq: Seq) -> None:
        """Records from ``from_seq`` on are gone."""
        while self.records and self.records[-1][0] >= from_seq:
            _, size, self.last_timestamp_ms = self.records.pop()
            self.bytes -= size
        assert self.records or self.bytes == 0, f"{self.bytes} bytes of no uncommitted record"

    def commit(self, commit_seq: Seq) -> None:
        """Nothing up to ``commit_seq`` will be truncated."""
        self.committed = committed = []
        while self.records and self.records[0][0] <= commit_seq:
            last_seq, size, _ = self.records.popleft()
            self.bytes -= size
            committed.append(last_seq)
        assert self.records or self.bytes == 0, f"{self.bytes} bytes of no uncommitted record"

    def encode(self) -> bytes:
        """The newest timestamp."""
        assert not self.records, "a base is of committed records"
        return _encoder.encode(_State(self.last_timestamp_ms))

    def restore(self, state: bytes, _: Seq) -> None:
        """Become what was encoded. Raises ValueError for what no log has."""
        self.last_timestamp_ms = _decoder.decode(state).last_timestamp_ms
