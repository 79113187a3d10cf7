"""Timers of a node's channels: one each, the earliest first, never all of a thousand at once."""

from __future__ import annotations

from raftstore.engine.channel.timers import SLICE, ChannelTimers
from raftstore.types import channel_id

CHANNELS = [channel_id(b"u" * 16, number) for number in range(3 * SLICE)]


def test_timers_due_at_once_run_in_slices() -> None:
    """A node that leads a thousand channels ends: other messages get turns between elections."""
    timers = ChannelTimers()
    for channel in CHANNELS:
        timers.arm(channel, 5)
    turns = [list(timers.take_due(5)) for _ in range(4)]
    assert [len(turn) for turn in turns] == [SLICE, SLICE, SLICE, 0]
    assert sorted(channel for turn in turns for channel in turn) == CHANNELS
    assert timers.next_ms() is None


def test_newer_deadline_replaces_the_one_before() -> None:
    """A channel is looked at when it wants to be, and not when it once wanted to be."""
    timers = ChannelTimers()
    early, late = CHANNELS[:2]
    timers.arm(early, 5)
    timers.arm(early, 9)
    timers.arm(late, 7)
    assert list(timers.take_due(6)) == []
    assert list(timers.take_due(9)) == [late, early]
    timers.arm(early, 11)
    timers.arm(early, None)
    assert list(timers.take_due(20)) == []


def test_replaced_deadlines_do_not_pile_up() -> None:
    """A channel that is re-armed for years takes the room of one."""
    timers = ChannelTimers()
    for due_ms in range(10_000):
        timers.arm(CHANNELS[0], due_ms)
        timers.tidy()
    assert len(timers._heap) < 100
    assert len(timers) == 1
