"""Waits for positions by themselves: found by the position, and nothing is kept of what is over."""

from __future__ import annotations

import random

from raftstore.engine.reads.position_waits import PositionWaits
from raftstore.types import ChannelId, channel_id

FIRST, SECOND, THIRD = (channel_id(b"t" * 16, number) for number in range(3))
SPARE = 64
"""Entries of dropped tokens that may be kept besides twice those that count."""


def test_waits_end_as_in_a_plain_list() -> None:
    """Given any order of waits, drops and positions, each channel gives back who has reached one,
    the nearest first; a token that waits again waits for its new position alone."""
    for seed in range(5):
        draw = random.Random(seed)
        waits = PositionWaits()
        plain: dict[int, tuple[ChannelId, int]] = {}
        for _ in range(600):
            channel, token = draw.choice((FIRST, SECOND)), draw.randrange(40)
            match draw.randrange(4):
                case 0:
                    waits.drop(token)
                    plain.pop(token, None)
                case 1 if draw.random() < 0.3:
                    position = draw.randrange(100)
                    due = sorted((at, t) for t, (c, at) in plain.items() if c == channel)
                    expected = [t for at, t in due if at <= position]
                    assert waits.take_reached(channel, position) == expected
                    for reached in expected:
                        del plain[reached]
                case _:
                    position = draw.randrange(100)
                    waits.add(channel, position, token)
                    plain[token] = (channel, position)
            assert len(waits) == len(plain)
            channels = {channel for channel, _ in plain.values()}
            assert [each in waits for each in (FIRST, SECOND, THIRD)] == [
                each in channels for each in (FIRST, SECOND, THIRD)
            ]
        for token in range(40):
            waits.drop(token)
        assert not any((waits._heaps, waits._waiting, waits._counts))


def test_dropped_waits_are_forgotten_before_they_outnumber_the_others() -> None:
    """S12: given many waits that end early, memory is bounded by those that still wait."""
    waits = PositionWaits()
    for token in range(100):
        waits.add(FIRST, 1_000 - token, token)
    for token in range(99, 10, -1):
        waits.drop(token)
        live = token
        entries = len(waits._heaps[FIRST])
        assert entries == (100 if SPARE + 2 * live >= 100 else entries)
        assert entries <= SPARE + 2 * live
    assert waits.take_reached(FIRST, 1_000) == list(range(10, -1, -1))
    assert FIRST not in waits


def test_entries_are_tidied_at_their_bound_and_not_before() -> None:
    """To look at all of them each time would cost more than they do."""
    waits = PositionWaits()
    for token in range(SPARE + 4):
        waits.add(FIRST, token, token)
    for token in range(3, SPARE + 4):
        waits.drop(token)
        # At 64 more than twice what waits they are kept; one less that waits, and they are not.
        live = SPARE + 4 - (token - 2)
        expected = SPARE + 4 if SPARE + 2 * live >= SPARE + 4 else len(waits._heaps[FIRST])
        assert len(waits._heaps[FIRST]) == expected
    assert len(waits._heaps[FIRST]) == SPARE + 4
    waits.drop(1)
    assert len(waits._heaps[FIRST]) == SPARE + 4
    waits.drop(2)
    assert waits._heaps[FIRST] == [(0, 0)]
