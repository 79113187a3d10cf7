"""Threads of users' queries: what waits behind one that does not come back, and what ends."""

from __future__ import annotations

from threading import Event
from time import sleep

from raftstore.errors import StorageError
from raftstore.storage.tables.query_threads import LONG_MS, LOOK_S, THREADS_MAX, QueryThreads


class Bench:
    """The threads, and a clock of the test's."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.failures: list[StorageError] = []
        self.may_end = Event()
        self.threads = QueryThreads(self.failures.append, lambda: self.now_ms)

    def hang(self) -> None:
        """Have a query begin that does not come back."""
        begun = Event()

        def endless() -> None:
            begun.set()
            self.may_end.wait(20)

        self.threads.submit(endless)
        assert begun.wait(10)

    def answers(self, within_s: float = 10) -> bool:
        """Whether a query is answered."""
        done = Event()
        self.threads.submit(done.set)
        return done.wait(within_s)

    def end(self) -> None:
        """All of them come back."""
        self.may_end.set()
        self.threads.stop(10)
        assert self.failures == []


def test_queries_go_past_those_that_do_not_come_back() -> None:
    """So many of them as there may be threads; then the node has to be restarted."""
    bench = Bench()
    for _ in range(THREADS_MAX - 1):
        bench.hang()
        assert not bench.answers(0.01), "one that takes no longer yet is waited for"
        bench.now_ms += LONG_MS
        assert bench.answers()
    bench.hang()
    bench.now_ms += LONG_MS
    assert not bench.answers(0.01)
    assert len(bench.threads._threads) == THREADS_MAX
    bench.end()


def test_a_query_that_waits_goes_past_by_itself() -> None:
    """The one in front of it is known to take long after a second, without another query."""
    bench = Bench()
    bench.hang()
    done = Event()
    bench.threads.submit(done.set)
    assert not done.wait(3 * LOOK_S), "the one before takes no longer yet"
    bench.now_ms += LONG_MS
    assert done.wait(10)
    bench.end()


def test_queries_that_come_back_are_asked_one_after_the_other() -> None:
    """Their time together counts for nothing, and however many threads wait: one is busy."""
    bench = Bench()
    busy, most, all_done = [0], [0], Event()

    def ask() -> None:
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        sleep(0.002)  # lets the other threads run, which must not take the next one
        busy[0] -= 1

    for _ in range(20):
        bench.threads.submit(ask)
    bench.threads.submit(all_done.set)
    assert all_done.wait(10)
    assert most == [1]
    bench.end()


def test_a_query_that_raises_is_a_failure_of_the_store() -> None:
    """Users' errors are answers; what comes through is damage, or a bug (S0.4)."""
    bench = Bench()
    done = Event()
    bench.threads._on_failed = lambda error: (bench.failures.append(error), done.set())[0]

    def broken() -> None:
        raise GeneratorExit

    bench.threads.submit(broken)
    assert done.wait(10)
    assert "asking a state machine failed: GeneratorExit()" in str(bench.failures[0])


def test_the_end_waits_for_no_query_for_ever() -> None:
    """A node that was asked to stop stops."""
    bench = Bench()
    bench.hang()
    bench.threads.stop(0.01)
    bench.may_end.set()
