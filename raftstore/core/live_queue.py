"""Bounded queue of live StoreRequests: every one passes through it, in both modes (NATS-030).

It holds metadata of the current term only (a new term starts a new queue, S6.3), in seq order.
When it is full the newest is dropped and the gap remembered; catch-up brings those records. Until
it has, nothing is held behind the gap: a queue with a hole in it leads out of steady state again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from raftstore.protocol.records import RecordMeta
from raftstore.protocol.replication import StoreRequest
from raftstore.types import Seq, Term

ENTRY_BYTES = 160
"""What one held entry costs beside an inlined payload (estimate, for the byte bound)."""


class LiveEntry(NamedTuple):
    """One record of a StoreRequest with the term of the seq before it (S2.3)."""

    meta: RecordMeta
    prev_term: Term


@dataclass(frozen=True, slots=True)
class LiveQueueStatistics:
    """Counts of entries held and lost."""

    messages: int
    bytes: int
    dropped: int


class LiveQueue:
    """Entries by base seq, without repetition."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        assert messages_max >= 1, f"{messages_max} messages"
        assert bytes_max >= ENTRY_BYTES, f"{bytes_max} bytes"
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._entries: deque[LiveEntry] = deque()
        self._bytes = 0
        self._dropped = 0
        self._dropped_seq = Seq(0)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LiveEntry]:
        return iter(self._entries)

    @property
    def head(self) -> LiveEntry | None:
        """The entry with the lowest seq."""
        return self._entries[0] if self._entries else None

    @property
    def last_seq(self) -> Seq:
        """Highest seq held; 0 when empty."""
        return self._entries[-1].meta.last_seq if self._entries else Seq(0)

    def seqs(self) -> tuple[tuple[Seq, Seq], ...]:
        """(base, last) of every entry, in order; for status and tests."""
        return tuple((entry.meta.base_seq, entry.meta.last_seq) for entry in self._entries)

    def statistics(self) -> LiveQueueStatistics:
        """Numbers for status."""
        return LiveQueueStatistics(len(self._entries), self._bytes, self._dropped)

    def offer(self, request: StoreRequest) -> bool:
        """Queue every record of a request; False if any had to be dropped for want of room."""
        prev_term, complete = request.prev_term, True
        for meta in request.records:
            complete &= self._offer(LiveEntry(meta, prev_term))
            prev_term = meta.term
        return complete

    def pop(self) -> LiveEntry:
        """Take the head."""
        entry = self._entries.popleft()
        self._bytes -= _size(entry)
        assert self._bytes >= 0, f"{self._bytes} bytes in the live queue"
        assert self._entries or self._bytes == 0, f"{self._bytes} bytes in an empty live queue"
        return entry

    def clear(self) -> None:
        """Drop everything: history will bring it (NATS-145)."""
        if self._entries:
            self._drop(self._entries[-1].meta.last_seq, len(self._entries))
        self._entries.clear()
        self._bytes = 0

    def pass_over(self, request: StoreRequest) -> None:
        """Hold nothing of the request: history will bring it (NATS-145)."""
        self._drop(request.records[-1].last_seq, len(request.records))

    def _drop(self, last_seq: Seq, entries: int) -> None:
        self._dropped += entries
        self._dropped_seq = max(self._dropped_seq, last_seq)

    def drop_through(self, last_seq: Seq) -> list[LiveEntry]:
        """Discard entries whose record ends at or below ``last_seq`` (NATS-165) and return them."""
        dropped: list[LiveEntry] = []
        while self._entries and self._entries[0].meta.last_seq <= last_seq:
            dropped.append(self.pop())
        return dropped

    def has_gap_above(self, seq: Seq) -> bool:
        """Whether something above ``seq`` was dropped since it was last reached."""
        return self._dropped_seq > seq

    def _offer(self, entry: LiveEntry) -> bool:
        at = self._position(entry)
        if at is None:
            return True
        size = _size(entry)
        full = len(self._entries) >= self._messages_max or self._bytes + size > self._bytes_max
        if full or self._is_behind_a_gap(entry):
            self._drop(entry.meta.last_seq, 1)
            return False
        self._entries.insert(at, entry)
        self._bytes += size
        return True

    def _is_behind_a_gap(self, entry: LiveEntry) -> bool:
        """Whether what was dropped lies between the last entry held and this one."""
        return bool(self._entries) and self.last_seq < self._dropped_seq < entry.meta.base_seq

    def _position(self, entry: LiveEntry) -> int | None:
        """Where it belongs (almost always the end); None if it is held already."""
        base_seq = entry.meta.base_seq
        at = len(self._entries)
        while at > 0 and self._entries[at - 1].meta.base_seq >= base_seq:
            at -= 1
            if self._entries[at].meta.base_seq == base_seq:
                return None
        return at


def _size(entry: LiveEntry) -> int:
    payload = entry.meta.payload
    return ENTRY_BYTES if payload is None else ENTRY_BYTES + len(payload)
