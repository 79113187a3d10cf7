"""Readers of changes that a node remembers: a bounded number, the ones that asked last."""

from __future__ import annotations

import pytest

from raftstore.engine.reads import change_readers
from raftstore.engine.reads.change_readers import READERS_MAX, ChangeReaders
from raftstore.types import Seq, channel_id

FIRST, SECOND = (channel_id(b"orders-table-id!", number) for number in range(2))
IDLE_MS = 1_000


def positions(readers: ChangeReaders, now_ms: int = 0) -> dict[int, int]:
    """Of the first channel: client -> position."""
    return {client: int(seq) for client, seq in readers.positions(FIRST, now_ms)}


def test_no_more_readers_are_remembered_than_the_bound_says() -> None:
    """Of all channels together, however many clients ask: 4,096."""
    readers = ChangeReaders(IDLE_MS)
    for client in range(READERS_MAX + 100):
        readers.asked(FIRST if client % 2 else SECOND, client, Seq(client), 0)
    assert READERS_MAX == 4_096
    assert len(readers._asked) == READERS_MAX
    assert sorted(positions(readers)) == [*range(101, READERS_MAX + 100, 2)]


def test_reader_that_asked_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks again is young again, and counts once."""
    monkeypatch.setattr(change_readers, "READERS_MAX", 3)
    readers = ChangeReaders(IDLE_MS)
    for number, client in enumerate((1, 2, 3, 1, 1, 4)):
        readers.asked(FIRST, client, Seq(number), number)
    assert positions(readers, 5) == {3: 2, 1: 4, 4: 5}


def test_silent_readers_and_those_that_are_gone_are_forgotten() -> None:
    """By themselves, with their connection, and with their channel."""
    readers = ChangeReaders(IDLE_MS)
    for client in range(4):
        readers.asked(FIRST, client, Seq(7), 10 * client)
        readers.asked(SECOND, client, Seq(8), 10 * client)
    assert sorted(positions(readers, IDLE_MS + 10)) == [2, 3]
    readers.client_gone(2)
    assert positions(readers, IDLE_MS + 10) == {3: 7}
    readers.channel_closed(SECOND)
    assert list(readers._asked) == [(FIRST, 3)]
