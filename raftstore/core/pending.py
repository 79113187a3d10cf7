"""Bounded tables by GUID: payloads waiting for metadata, publishers waiting for outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from raftstore.core.dedupe import WrittenRecord
from raftstore.protocol.publish import PubMsg
from raftstore.types import ChannelId, Guid, Seq

NO_CLIENT: Final = 0
"""Nobody's share: the leader itself handed the payload over."""


_ANY_CHANNEL: Final = ChannelId(b"")


class PayloadRoom(Protocol):
    """Room for the payloads of one client in all channels of its node."""

    def admit(self, client: int, channel: ChannelId, guid: Guid, digest: bytes, size: int) -> bool:
        """Whether one more payload may be held; then it counts until it is released."""

    def release(self, client: int, channel: ChannelId, guid: Guid, digest: bytes) -> None:
        """Stop counting a payload that is held no longer."""


class _HeldPayload(NamedTuple):
    payload: bytes
    drop_at_ms: int
    client: int
    write: PubMsg | None
    """The publisher's message; None: the payload came from another replica."""


@dataclass(frozen=True, slots=True)
class PendingStatistics:
    """Counts of payloads held and lost."""

    messages: int
    bytes: int
    dropped: int


class PendingPayloads:
    """Payloads held until a StoreRequest names them: a cache, never history (S5.3, NATS-051).

    Dropping one is no error: catch-up repairs it. Keyed by (guid, digest), so a wrong payload under
    a right GUID neither correlates nor displaces the right one (S5.2).
    """

    def __init__(
        self,
        *,
        messages_max: int,
        bytes_max: int,
        hold_ms: int,
        offer_ms: int = 0,
        channel: ChannelId = _ANY_CHANNEL,
        room: PayloadRoom | None = None,
    ) -> None:
        """``room``: what the node's clients may have held in all channels; None: as much as fits
        into this one. ``offer_ms``: after so long a publisher's message is due in ``take_offers``;
        0: none ever is."""
        assert min(messages_max, bytes_max, hold_ms) >= 1, f"{messages_max} {bytes_max} {hold_ms}"
        self._channel = channel
        self._room = room
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._hold_ms = hold_ms
        self._offer_ms = offer_ms
        self._offers: deque[tuple[int, tuple[Guid, bytes]]] = deque()
        """(when due, key) of publishers' messages that were not offered, oldest first."""
        self._held: dict[tuple[Guid, bytes], _HeldPayload] = {}  # oldest first
        self.next_ms: int | None = None
        """When the oldest held payload expires, or is to be offered; None while none is held."""
        self._bytes = 0
        self._dropped = 0

    def hold(
        self,
        guid: Guid,
        digest: bytes,
        payload: bytes,
        now_ms: int,
        client: int = NO_CLIENT,
        write: PubMsg | None = None,
    ) -> None:
        """Keep a payload; the oldest ones make room. One beyond its client's share is dropped.

        ``write``: the publisher's message, if it came from there.
        """
        key = (guid, digest)
        if key in self._held:
            return
        size = len(payload)
        room = self._room
        if size > self._bytes_max or not (
            room is None or room.admit(client, self._channel, guid, digest, size)
        ):
            self._dropped += 1
            return
        held = _HeldPayload(payload, now_ms + self._hold_ms, client, write)
        self._held[key] = held
        if write is not None and self._offer_ms:
            self._offers.append((now_ms + self._offer_ms, key))
        if self.next_ms is None or len(self._offers) == 1:
            self._arm()
        self._bytes += len(payload)
        while len(self._held) > self._messages_max or self._bytes > self._bytes_max:
            self._drop_oldest()

    def find(self, guid: Guid, digest: bytes, length: int) -> bytes | None:
        """The payload that a StoreRequest describes."""
        # S5.2: correlate by guid, digest and length, never by guid alone.
        held = self._held.get((guid, digest))
        return held.payload if held is not None and len(held.payload) == length else None

    def write_of(self, guid: Guid, digest: bytes) -> tuple[int, PubMsg] | None:
        """The publisher's message with its client, while it is held."""
        held = self._held.get((guid, digest))
        return None if held is None or held.write is None else (held.client, held.write)

    def take_offers(self, now_ms: int) -> list[PubMsg]:
        """Publishers' messages that no StoreRequest named for long; each comes once."""
        due: list[PubMsg] = []
        while self._offers and self._offers[0][0] <= now_ms:
            _, key = self._offers.popleft()
            held = self._held.get(key)
            if held is not None and held.write is not None:
                due.append(held.write)
        self._arm()
        return due

    def discard(self, guid: Guid, digest: bytes) -> None:
        """The payload is in the log now."""
        if (guid, digest) in self._held:
            self._remove((guid, digest))

    def discard_all(self) -> None:
        """The channel is closed."""
        for key in tuple(self._held):
            self._remove(key)

    def expire(self, now_ms: int) -> None:
        """S5.3: an orphan payload is dropped; no error, no truncation, no step-down."""
        while self._held and next(iter(self._held.values())).drop_at_ms <= now_ms:
            self._drop_oldest()

    def statistics(self) -> PendingStatistics:
        """Numbers for status."""
        return PendingStatistics(len(self._held), self._bytes, self._dropped)

    def _arm(self) -> None:
        due = next(iter(self._held.values())).drop_at_ms if self._held else None
        if self._offers and due is not None:
            due = min(due, self._offers[0][0])
        self.next_ms = due

    def _drop_oldest(self) -> None:
        self._remove(next(iter(self._held)))
        self._dropped += 1

    def _remove(self, key: tuple[Guid, bytes]) -> None:
        held = self._held.pop(key)
        while self._offers and self._offers[0][1] not in self._held:
            self._offers.popleft()
        self._arm()
        self._bytes -= len(held.payload)
        assert self._bytes >= 0, f"{self._bytes} bytes of held payloads"
        assert self._held or self._bytes == 0, f"{self._bytes} bytes of no held payload"
        if self._room is not None:
            self._room.release(held.client, self._channel, *key)


@dataclass(slots=True)
class Waiter:
    """A publisher that wants to know; ``deadline_ms`` bounds how long (S4.1)."""

    client: int
    guid: Guid
    attempt: int
    """The newest attempt of this client: what an answer answers (S12)."""
    last_seq: Seq
    deadline_ms: int
    is_answered: bool = False


@dataclass(slots=True)
class WaitingRecord:
    """An unanswered record with everybody who asked for it (a retry waits with the first)."""

    written: WrittenRecord
    waiters: list[Waiter] = field(default_factory=list)


class WaitingPublishers:
    """Publishers of records without an outcome yet, found by the record's last seq."""

    def __init__(self, *, quorum_timeout_ms: int) -> None:
        self._quorum_timeout_ms = quorum_timeout_ms
        self._records: dict[Seq, WaitingRecord] = {}
        self._by_deadline: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._by_deadline)

    def add(self, client: int, message: PubMsg, written: WrittenRecord, now_ms: int) -> None:
        """Wait for a record; the same client waits once however often its message arrives."""
        record = self._records.get(written.last_seq)
        if record is None:
            record = self._records[written.last_seq] = WaitingRecord(written)
        for waiter in record.waiters:
            if waiter.client == client:
                waiter.attempt = max(waiter.attempt, message.attempt)
                return
        deadline_ms = now_ms + self._quorum_timeout_ms
        waiter = Waiter(client, message.guid, message.attempt, written.last_seq, deadline_ms)
        record.waiters.append(waiter)
        self._by_deadline.append(waiter)

    def find(self, last_seq: Seq) -> WaitingRecord | None:
        """Clients that wait for the record that ends there."""
        return self._records.get(last_seq)

    def up_to(self, last_seq: Seq) -> list[WaitingRecord]:
        """Records that end no later, and for which somebody waits."""
        return [record for seq, record in self._records.items() if seq <= last_seq]

    def take(self, last_seq: Seq) -> list[Waiter]:
        """The record has its outcome: take out those who wait for it."""
        record = self._records.pop(last_seq, None)
        if record is None:
            return []
        for waiter in record.waiters:
            waiter.is_answered = True
        self._forget_answered()
        return record.waiters

    def take_overdue(self, now_ms: int) -> Iterator[Waiter]:
        """Take out, one by one, everybody whose deadline has passed; their records stay."""
        while self._by_deadline and self._by_deadline[0].deadline_ms <= now_ms:
            waiter = self._by_deadline.popleft()
            if waiter.is_answered:
                continue
            record = self._records[waiter.last_seq]
            record.waiters.remove(waiter)
            if not record.waiters:
                del self._records[waiter.last_seq]
            self._forget_answered()
            yield waiter

    def take_all(self) -> list[Waiter]:
        """Take everybody out, in the order they came."""
        waiters = [waiter for waiter in self._by_deadline if not waiter.is_answered]
        self._by_deadline.clear()
        self._records.clear()
        return waiters

    def next_deadline_ms(self) -> int | None:
        """When the first of them must be answered."""
        return self._by_deadline[0].deadline_ms if self._by_deadline else None

    def _forget_answered(self) -> None:
        while self._by_deadline and self._by_deadline[0].is_answered:
            self._by_deadline.popleft()
