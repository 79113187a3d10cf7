"""Kinds of writes: a record, a row that may share one, and a record that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from raftstore.client.writes.publishing import Publishing
from raftstore.errors import RequestError
from raftstore.protocol.lifetimes import WITH_TTL, encode_with_ttl
from raftstore.protocol.payload import Cell
from raftstore.protocol.publish import PubAck
from raftstore.types import ChannelId, Guid, RecordKind, Seq

ROW_OVERHEAD_BYTES: Final = 1024
"""What a row without an outcome takes in memory besides its bytes. Counted against the limits of
bytes in flight it bounds the rows that wait, by default to 8,192 for each channel."""

RecordEnd = Callable[[PubAck | RequestError], None]


@dataclass(frozen=True, slots=True)
class Write:
    """A record to be published on a channel."""

    channel: ChannelId
    kind: RecordKind
    payload: bytes
    rows: int

    @classmethod
    def of_rows(
        cls, channel: ChannelId, kind: RecordKind, payload: bytes, rows: int, ttl_ms: int
    ) -> Write:
        """A record of rows, or of a conditional one, that lives for so long (0: for ever)."""
        if ttl_ms:
            kind, payload = WITH_TTL[kind], encode_with_ttl(ttl_ms, payload)
        return cls(channel, kind, payload, rows)


@dataclass(frozen=True, slots=True)
class RowWrite:
    """A write of one row, which may share its record with others."""

    channel: ChannelId
    key: bytes
    sealed: Cell
    """None: a delete."""
    expected: Seq | None = None
    """The version that the row must have, 0 for no row; None: any."""
    ttl_ms: int = 0
    """How long the row lives; 0: for ever."""

    @property
    def size(self) -> int:
        """Bytes of it in memory."""
        return len(self.key) + len(self.sealed or b"") + ROW_OVERHEAD_BYTES


@dataclass(slots=True, eq=False)
class Running:
    """A record between its guid and its outcome."""

    write: Write
    name: str
    """Of the channel, as it was called when this began."""
    digest: bytes
    state: Publishing
    on_end: RecordEnd
    """Called once, with the outcome, unless the record is forgotten before."""
    is_over: bool = False
    timer: asyncio.TimerHandle | None = None
    after_seq: Seq = Seq(0)
    """No attempt of it can be at or below this seq (S4.5)."""


class RecordSender(Protocol):
    """The publisher, as those use it who let writes share records."""

    @property
    def is_closed(self) -> bool:
        """Nothing is begun any more."""

    def new_record(self, guid: Guid, write: Write, deadline_ms: int, on_end: RecordEnd) -> Running:
        """Return a record that is not sent yet."""

    def start(self, running: Running) -> None:
        """Publish it; ``on_end`` is called when it has its outcome, perhaps before this returns."""

    def forget(self, running: Running) -> None:
        """Stop where it is: nobody waits for the outcome any more."""
