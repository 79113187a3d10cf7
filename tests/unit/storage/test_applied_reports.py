"""Applied records are told in order, and wake the loop only for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from raftstore.storage.tables.applied_reports import AppliedReports


class Bench:
    """Reports, with the calls that would wake the loop."""

    def __init__(self) -> None:
        self.reports = AppliedReports()
        self.posted: list[Callable[[], None]] = []
        self.reports.post = self.posted.append
        self.told: list[int] = []

    def put(self, *numbers: int, may_wait: bool = True) -> None:
        """The apply thread is done with these."""
        self.reports.put((partial(self.told.append, each) for each in numbers), may_wait=may_wait)


def test_plain_rows_that_nobody_waits_for_wake_nobody() -> None:
    """They are told in order when the next turn begins."""
    bench = Bench()
    bench.reports.is_awaited = False
    bench.put(1, 2)
    bench.put(3)
    assert bench.posted == []
    assert bench.told == []
    assert len(bench.reports.waiting) == 3
    bench.reports.tell()
    assert bench.told == [1, 2, 3]
    assert not bench.reports.waiting


def test_what_somebody_waits_for_wakes_the_loop_once() -> None:
    """With all that was left before it; what comes while that call is on its way goes with it."""
    bench = Bench()
    bench.reports.is_awaited = False
    bench.put(1)
    bench.put(2, may_wait=False)
    assert len(bench.posted) == 1
    bench.reports.is_awaited = True
    bench.put(3)
    assert len(bench.posted) == 1
    bench.posted.pop()()
    assert bench.told == [1, 2, 3]
    bench.put(4)
    assert len(bench.posted) == 1


def test_reports_that_a_turn_took_leave_a_call_with_nothing_to_do() -> None:
    """The next report asks for a call of its own when that has run."""
    bench = Bench()
    bench.put(1)
    bench.reports.tell()
    [call] = bench.posted
    call()
    assert bench.told == [1]
    bench.put(2)
    assert len(bench.posted) == 2


def test_report_put_while_the_call_runs_is_told() -> None:
    """By that call or by one of its own: the apply thread goes on meanwhile."""
    bench = Bench()
    bench.reports.put([partial(bench.put, 2)], may_wait=False)
    bench.posted.pop(0)()
    for call in bench.posted:
        call()
    assert bench.told == [2]


def test_order_holds_when_a_report_begins_a_turn() -> None:
    """S10: a turn that a report begins must not tell the later ones of its channel first."""
    bench = Bench()

    def begin() -> None:
        bench.reports.tell()
        bench.told.append(1)

    bench.reports.put([begin], may_wait=True)
    bench.put(2)
    bench.reports.tell()
    assert bench.told == [1, 2]
