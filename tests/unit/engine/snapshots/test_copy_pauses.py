"""Pauses between copies of a table that do not bring a replica to its leader's end."""

from __future__ import annotations

from raftstore.engine.snapshots.copy_pauses import CHANNELS_MAX, IN_VAIN, CopyPauses
from raftstore.types import ChannelId

CHANNEL = ChannelId(bytes(18))
RETRY_MS, PAUSE_MS_MAX = 100, 5_000


def test_pauses_grow_up_to_their_bound_and_end_when_the_replica_is_steady() -> None:
    """As long as the longest copy took, then twice as long each time, from the end of the last."""
    pauses = CopyPauses(RETRY_MS, PAUSE_MS_MAX)
    assert pauses.left_ms(CHANNEL, 0) == 0
    found = []
    for took_ms in (600, 400, 700, 1, 1):
        pauses.copied(CHANNEL, took_ms, 10_000)
        found.append(pauses.left_ms(CHANNEL, 10_000))
    assert found == [600, 1_200, 2_800, 5_000, 5_000]
    assert pauses.left_ms(CHANNEL, 14_000) == 1_000
    assert pauses.left_ms(CHANNEL, 15_000) == pauses.left_ms(CHANNEL, 99_000) == 0
    assert "for 5 s: 5 did not" in pauses.described(CHANNEL, 10_001)
    pauses.steady(CHANNEL)
    assert pauses.left_ms(CHANNEL, 10_000) == 0
    assert pauses.described(CHANNEL, 10_000) == ""
    pauses.copied(CHANNEL, 3, 10_000)
    assert pauses.left_ms(CHANNEL, 10_000) == RETRY_MS


def test_third_copy_in_vain_is_reported_once_with_what_was_lacking() -> None:
    """After each copy the first figure counts, however often it is asked."""
    pauses = CopyPauses(RETRY_MS, PAUSE_MS_MAX)
    found = []
    for number in range(1, IN_VAIN + 3):
        pauses.copied(CHANNEL, 1, 0)
        found += [pauses.lacks(CHANNEL, number * 10), pauses.lacks(CHANNEL, 999)]
    assert [each for each in found if each] == [(10, 20, 30)]


def test_channels_that_are_remembered_are_bounded() -> None:
    """Those that were copied last; of dropped ones nobody says so."""
    pauses = CopyPauses(RETRY_MS, PAUSE_MS_MAX)
    channels = [ChannelId(number.to_bytes(18, "big")) for number in range(CHANNELS_MAX + 1)]
    for channel in channels:
        pauses.copied(channel, 1, 0)
    assert not pauses.left_ms(channels[0], 0)
    assert all(pauses.left_ms(channel, 0) for channel in channels[1:])
