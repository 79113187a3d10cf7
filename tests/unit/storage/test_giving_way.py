"""Rests between steps of background work: as long as the main loop is late, within bounds."""

from __future__ import annotations

from threading import Thread

import pytest

from raftstore.storage.giving_way import ASKED_S, LATE_S, REMEMBERED, REST_S_MAX, GivingWay

TIMES = 3


class Bench:
    """A thread with a clock that goes on where it waits, and one that goes on where it works."""

    def __init__(self, rest_times_max: int = TIMES, requests: list[int] | None = None) -> None:
        """``requests``: how many there were; without it there always are some."""
        self.now_s, self.worked_s = 100.0, 7.0
        self.giving_way = GivingWay(
            rest_times_max,
            lambda: self.now_s,
            lambda: self.worked_s,
            self._wait,
            None if requests is None else lambda: requests[0],
        )
        self.giving_way.rest()

    def _wait(self, seconds: float) -> None:
        self.now_s += seconds

    def step(self, took_s: float, late_s: float, waited_s: float = 0.0) -> float:
        """A step, whose result the main loop takes in so late; the rest behind it."""
        self.worked_s += took_s
        self.now_s += took_s + waited_s
        self.giving_way.took_in(self.now_s - late_s)
        before_s = self.now_s
        self.giving_way.rest()
        return self.now_s - before_s


@pytest.mark.parametrize(
    ("late_s", "times"),
    [(0.0, 0), (LATE_S, 0), (1.5 * LATE_S, 1.5), (2 * LATE_S, 2), (3 * LATE_S, 3), (1.0, TIMES)],
)
def test_the_later_the_main_loop_is_the_longer_is_the_rest(late_s: float, times: float) -> None:
    """Not at all while it is in time, and never more than a few times the step, so that a copy
    always goes on."""
    bench = Bench()
    assert bench.step(0.004, late_s) == pytest.approx(times * 0.004)
    assert bench.giving_way.rested_s == pytest.approx(times * 0.004)


def test_work_counts_and_no_time_that_a_step_waited() -> None:
    """For a processor, which others have all the while, or for the disk: on a machine with six jobs
    for each processor a copy of 3.5 MB rested for seconds."""
    assert Bench().step(0.004, 1.0, waited_s=2.0) == pytest.approx(TIMES * 0.004)


def test_rest_behind_a_long_step_is_short() -> None:
    """Opening a copied table is work of its own: what it kept others from is done by then."""
    assert Bench().step(2.0, 1.0) == pytest.approx(REST_S_MAX)


def test_each_rest_is_for_the_work_since_the_one_before() -> None:
    """Rests stay bounded where the main loop was in time meanwhile."""
    bench = Bench()
    for _ in range(30):
        bench.step(0.05, 0.0)
    assert bench.step(0.004, 1.0) == pytest.approx(TIMES * 0.004)
    assert bench.step(0.001, 1.0) == pytest.approx(TIMES * 0.001)


def test_one_turn_in_time_does_not_end_the_rests() -> None:
    """It fades: a loop that was late a moment ago, and has the same to do, is late again."""
    bench = Bench()
    bench.step(0.01, 10 * LATE_S)
    rests, late_s = 0, 10 * LATE_S
    while bench.step(0.01, 0.0):
        rests += 1
        late_s *= REMEMBERED
        assert late_s > LATE_S
    assert 5 < rests < 20


def test_without_rests_nobody_is_given_way() -> None:
    """The setting at 0."""
    assert Bench(0).step(0.05, 1.0) == 0


def test_nothing_rests_where_nobody_asks() -> None:
    """The main loop of a node that gets its tables anew is late by their chunks alone; a rest for
    those would only have the copy take longer."""
    requests = [0]
    bench = Bench(requests=requests)
    assert bench.step(0.004, 1.0) == 0
    requests[0] += 1
    assert bench.step(0.004, 1.0) == pytest.approx(TIMES * 0.004)


def test_requests_are_expected_for_a_while_behind_the_last_one() -> None:
    """Steps take milliseconds: that there was no request since the last one says little."""
    requests = [1]
    bench = Bench(requests=requests)
    assert bench.step(0.004, 1.0) == pytest.approx(TIMES * 0.004)
    assert bench.step(0.004, 1.0) == pytest.approx(TIMES * 0.004), "asked a moment ago"
    bench.now_s += ASKED_S
    late_s, rested = 1.0, 0
    while bench.step(0.004, 1.0):
        rested += 1
        late_s *= REMEMBERED
        assert late_s > LATE_S, "it fades, whatever the main loop does"
    assert rested > 0


def test_each_thread_rests_for_what_it_worked_itself() -> None:
    """Two threads share the rests of a node: one is not charged with the work of the other."""
    bench = Bench()
    bench.step(0.004, 1.0)
    worked_s, bench.worked_s = bench.worked_s, 1_000.0
    other = Thread(target=bench.giving_way.rest)
    other.start()
    other.join()
    bench.worked_s = worked_s + 0.001
    assert bench.giving_way.rest_s() == pytest.approx(TIMES * 0.001)
