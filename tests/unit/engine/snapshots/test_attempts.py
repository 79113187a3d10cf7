"""The order in which a replica asks others, and for what (S0.3, S6.6)."""

from __future__ import annotations

from raftstore.engine.snapshots.attempts import Attempts
from tests.unit.engine.snapshots_bench import CHANNEL, OTHER, A, B


def test_each_attempt_that_failed_has_the_next_ask_another() -> None:
    """By channel; what succeeded counts no more."""
    attempts, asked = Attempts(), []
    for _ in range(3):
        asked.append(attempts.source(CHANNEL, [A, B], {}))
        attempts.fail(CHANNEL)
    assert asked == [A, B, A]
    assert attempts.source(OTHER, [A, B], {}) == A
    assert (attempts.failed(CHANNEL), attempts.failed(OTHER)) == (3, 0)
    attempts.begin_anew(CHANNEL)
    assert attempts.failed(CHANNEL) == 0
    assert not attempts.tries_base(CHANNEL)


def test_everybody_is_asked_for_a_base_and_for_a_table_where_a_hole_is_not_filled() -> None:
    """The base may need a newer table; one that is whole may be any of them."""
    attempts, asked = Attempts(), []
    attempts.hole_unfilled(CHANNEL)
    for _ in range(5):
        asked.append((attempts.source(CHANNEL, [A, B], {}), attempts.tries_base(CHANNEL)))
        attempts.fail(CHANNEL)
    assert asked == [(A, True), (A, False), (B, True), (B, False), (A, True)]
    attempts.begin_anew(CHANNEL)
    assert attempts.is_unfilled(CHANNEL), "until the channel is opened anew"
    attempts.closed(CHANNEL)
    assert not attempts.is_unfilled(CHANNEL)


def test_tables_come_evenly_from_all_nodes() -> None:
    """Followers are asked before a leader; but one that leads all channels sends as many as one
    that follows in all. Behind a failure the turns count alone, so that nobody is asked twice."""
    attempts = Attempts()
    assert attempts.source(CHANNEL, [A, B], {A: 1}) == B
    assert attempts.source(CHANNEL, [A, B], {A: 1, B: 1}) == A
    attempts.fail(CHANNEL)
    assert attempts.source(CHANNEL, [A, B], {B: 1}) == B
