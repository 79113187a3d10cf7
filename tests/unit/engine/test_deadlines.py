"""Deadlines: one moment per key, the earliest first, never all of a thousand at once."""

from __future__ import annotations

from random import Random

from raftstore.engine.deadlines import NEVER_MS, Deadlines
from raftstore.types import ChannelId, channel_id

AT_MOST = 64
CHANNELS = [channel_id(b"u" * 16, number) for number in range(3 * AT_MOST)]


def test_what_is_due_at_once_is_taken_in_slices() -> None:
    """A node that leads a thousand channels ends: other messages get turns between elections."""
    deadlines: Deadlines[ChannelId] = Deadlines()
    for channel in CHANNELS:
        deadlines.push(channel, 5)
    turns = [list(deadlines.due(5, AT_MOST)) for _ in range(4)]
    assert [len(turn) for turn in turns] == [AT_MOST, AT_MOST, AT_MOST, 0]
    assert sorted(channel for turn in turns for channel in turn) == CHANNELS
    assert deadlines.next_ms == NEVER_MS


def test_newer_moment_replaces_the_one_before() -> None:
    """A channel is looked at when it wants to be, and not when it once wanted to be."""
    deadlines: Deadlines[ChannelId] = Deadlines()
    early, late = CHANNELS[:2]
    deadlines.push(early, 5)
    deadlines.push(early, 9)
    deadlines.push(late, 7)
    assert deadlines.next_ms == 7
    assert list(deadlines.due(6)) == []
    assert list(deadlines.due(9)) == [late, early]
    deadlines.push(early, 11)
    deadlines.cancel(early)
    deadlines.cancel(late)
    assert deadlines.next_ms == NEVER_MS
    assert list(deadlines.due(20)) == []


def test_replaced_moments_do_not_pile_up() -> None:
    """A channel that is re-armed for years takes the room of one."""
    deadlines: Deadlines[ChannelId] = Deadlines()
    deadlines.push(CHANNELS[1], 0)
    for due_ms in range(10_000):
        deadlines.push(CHANNELS[0], due_ms)
    assert len(deadlines._heap) < 100
    assert len(deadlines) == 2


def test_what_is_pushed_or_cancelled_while_the_due_are_taken_counts() -> None:
    """A part that gives up what others waited for cancels their moments as it goes."""
    deadlines: Deadlines[int] = Deadlines()
    for key, due_ms in ((1, 1), (2, 2), (3, 3)):
        deadlines.push(key, due_ms)
    taken = []
    for key in deadlines.due(10):
        taken.append(key)
        if key == 1:
            deadlines.cancel(2)
            deadlines.push(4, 4)
            deadlines.push(1, 11)
    assert taken == [1, 3, 4]
    assert (len(deadlines), deadlines.next_ms, 1 in deadlines) == (1, 11, True)


def test_earliest_is_that_of_a_plain_dict() -> None:
    """Given any series of pushes, replacements, cancellations and removals, the earliest deadline
    and the due keys are those of a plain dict.
    """
    chance = Random(7)
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for now_ms in range(2_000):
        key = chance.randrange(20)
        if chance.random() < 0.6:
            model[key] = now_ms + chance.randrange(-3, 50)
            deadlines.push(key, model[key])
        else:
            model.pop(key, None)
            deadlines.cancel(key)
        if chance.random() < 0.1:
            due = sorted((due_ms, key) for key, due_ms in model.items() if due_ms <= now_ms)
            assert list(deadlines.due(now_ms)) == [key for _, key in due]
            model = {key: due_ms for key, due_ms in model.items() if due_ms > now_ms}
        assert deadlines.next_ms == min(model.values(), default=NEVER_MS)
        assert len(deadlines) == len(model)
