"""How fast a follower comes nearer to its leader's end (NATS-149, NATS-150, NATS-152)."""

from __future__ import annotations

from raftstore.core.pace import BURST_FACTOR, RATE_MS, Pace, Rates

WINDOW_MS = 10_000


def pace_of(*steps: tuple[int, int], windows: int = 3) -> Pace:
    """A pace after windows in each of which so many rows were stored and written."""
    pace = Pace(0, window_ms=WINDOW_MS, windows=windows)
    verified, end = 1_000, 2_000
    pace.note(0, verified=verified, end=end, taken_bytes=0)
    for number, (stored, written) in enumerate(steps, 1):
        verified, end = verified + stored, end + written
        assert pace.note(number * WINDOW_MS, verified=verified, end=end, taken_bytes=0)
    return pace


def test_distance_that_grows_in_each_window_is_falling_behind() -> None:
    """NATS-150: given a replica that stores four of five rows, its distances are reported after as
    many windows as are asked for, and not before.
    """
    assert pace_of((80, 100), (80, 100)).falls_behind == ()
    assert pace_of((80, 100), (80, 100), (80, 100)).falls_behind == (1_020, 1_040, 1_060)


def test_one_window_in_which_it_came_nearer_begins_the_count_anew() -> None:
    """Given a window in which the distance stayed as it was, those before it say nothing."""
    assert pace_of((80, 100), (80, 100), (100, 100), (80, 100), (80, 100)).falls_behind == ()


def test_burst_of_writes_says_nothing() -> None:
    """NATS-152: given a window in which more than twice as much was written as in the last minute,
    it counts for nothing, and does not break the row either.
    """
    burst = (100, 100 * BURST_FACTOR + 1)
    assert pace_of((80, 100), (80, 100), burst).falls_behind == ()
    assert len(pace_of((80, 100), (80, 100), burst, (80, 100)).falls_behind) == 3


def test_replica_that_gets_nothing_is_not_slow() -> None:
    """Given one that waits for its turn, or for a leader that does not answer, its distance is not
    its own doing.
    """
    assert pace_of((0, 100), (0, 100), (0, 100)).falls_behind == ()


def test_windows_are_told_when_they_end() -> None:
    """Given looks in between, nothing is said; nor before the leader's end is known."""
    pace = Pace(0, window_ms=WINDOW_MS, windows=3)
    assert not pace.note(WINDOW_MS, verified=1, end=0, taken_bytes=0)
    assert not pace.note(WINDOW_MS, verified=1, end=9, taken_bytes=0)
    assert not pace.note(2 * WINDOW_MS - 1, verified=2, end=9, taken_bytes=0)
    assert pace.note(2 * WINDOW_MS, verified=2, end=9, taken_bytes=0)


def test_rates_are_of_the_last_seconds() -> None:
    """Rows, bytes and what the leader wrote, by the second, of no longer ago than the bound."""
    pace = Pace(0, window_ms=WINDOW_MS, windows=3)
    for second in range(31):
        fast = max(0, second - 20)
        pace.note(
            second * 1_000,
            verified=10 * second + 90 * fast,
            end=5_000 + 20 * second,
            taken_bytes=1_000 * second,
        )
    now_ms = 30_000
    assert RATE_MS == 10_000
    rates = pace.rates(now_ms, verified=10 * 30 + 90 * 10, end=5_600, taken_bytes=30_000)
    assert rates == Rates(rows=100, bytes=1_000, written=20)
    assert pace.rates(now_ms + 60_000, verified=9_999, end=9_999, taken_bytes=0) == Rates(0, 0, 0)
