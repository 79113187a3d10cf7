"""The threads of copies: one step of a channel at a time, rests while the main loop is late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest

from raftstore.errors import StorageError
from raftstore.ports.tables import ReadDone
from raftstore.storage.giving_way import LATE_S
from raftstore.storage.tables.copy_steps import CopySteps
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.types import EMPTY_HISTORY, ChannelId
from tests.storage_helpers import CHANNEL, SMALL, STORE_UUID

OTHER = ChannelId(b"o" * len(CHANNEL))


class Bench:
    """A thread of copies whose clock is set by hand, and a main loop that takes in when asked."""

    def __init__(self) -> None:
        self.now_s = self.worked_s = 0.0
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.failures: list[StorageError] = []
        self.steps = CopySteps(self.failures.append, 3)
        self.steps.note_steps(self.steps._stalls, Path("tables"))
        self.steps.give_way_by(lambda: self.now_s, lambda: self.worked_s)
        self.taken: list[int] = []

    def start(self, number: int, took_s: float) -> None:
        """A step that takes so long by the clock."""

        def step() -> ReadDone:
            self.now_s += took_s
            self.worked_s += took_s
            return lambda _now_ms: self.taken.append(number)

        self.steps.start(CHANNEL, step, self.posted.put, lambda done: done(0))

    def take_in(self, late_s: float) -> None:
        """The main loop comes by so long after the step has ended."""
        result = self.posted.get(timeout=20)
        self.now_s += late_s
        result()


def test_steps_of_a_channel_are_done_one_after_the_other_and_those_of_another_beside_them() -> None:
    """A table is written, made durable and read back in that order, whichever thread does it."""
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    steps = CopySteps(lambda error: None, 3)
    begun: SimpleQueue[str] = SimpleQueue()
    goes_on = {name: Event() for name in ("first", "second", "other", "of none")}

    def start(channel: ChannelId | None, name: str) -> None:
        def step() -> ReadDone:
            begun.put(name)
            assert goes_on[name].wait(20)
            return lambda _now_ms: None

        steps.start(channel, step, posted.put, lambda done: done(0))

    start(CHANNEL, "first")
    start(CHANNEL, "second")
    start(OTHER, "other")
    start(None, "of none")
    assert {begun.get(timeout=20), begun.get(timeout=20)} == {"first", "other"}
    goes_on["other"].set()
    assert begun.get(timeout=20) == "of none", "the second waits for the first"
    goes_on["first"].set()
    for _ in range(2):
        posted.get(timeout=20)()
    assert begun.get(timeout=20) == "second", "what the first one found is taken in"
    for name in ("second", "of none"):
        goes_on[name].set()
        posted.get(timeout=20)()
    steps.close()


def test_thread_of_copies_rests_before_its_next_step_while_the_main_loop_is_late() -> None:
    """The result of a step waits for the main loop then, and so does every request."""
    bench = Bench()
    bench.start(1, 0.0002)
    bench.take_in(10 * LATE_S)
    assert (bench.taken, bench.steps.giving_way.rested_s) == ([1], 0)
    assert 0 < bench.steps.giving_way.rest_s() < 0.001
    bench.start(2, 5.0)
    bench.take_in(0.0)
    assert bench.taken == [1, 2]
    bench.steps.close()
    assert bench.failures == []


@pytest.mark.parametrize("times", [0, 2])
def test_tables_give_way_as_their_settings_and_their_clock_say(tmp_path: Path, times: int) -> None:
    """A store of a node: what its main loop takes in late has its copies rest."""
    now_s = [0.0]
    posted: SimpleQueue[Callable[[], object]] = SimpleQueue()
    settings = replace(SMALL, rest_times_max=times)
    LevelDbTables.create(tmp_path, STORE_UUID, settings)
    tables = LevelDbTables.open(tmp_path, STORE_UUID, settings)
    requests = [0]
    tables.start(
        post=posted.put,
        on_applied=lambda *_: None,
        on_failed=lambda error: None,
        on_read=lambda done: done(0),
        clock_s=lambda: now_s[0],
        requests=lambda: requests[0],
    )

    def take_in_late() -> None:
        tables.start_copy_step(CHANNEL, lambda: lambda _now_ms: None)
        late = posted.get(timeout=20)
        now_s[0] += 100 * LATE_S
        late()

    take_in_late()
    assert tables._copy_steps.giving_way.rest_s() == 0, "nobody asks this node for anything"
    requests[0] += 1
    take_in_late()
    assert (tables._copy_steps.giving_way.rest_s() > 0) == (times > 0)
    copy = tables.begin_copy(CHANNEL, EMPTY_HISTORY)
    assert copy.give_way == tables._copy_steps.give_way
    tables.close()


def test_waiting_for_a_processor_is_no_work() -> None:
    """A step that takes long on a busy machine is followed by no longer a rest than elsewhere."""
    bench = Bench()
    bench.start(1, 0.0)
    bench.take_in(10 * LATE_S)
    bench.now_s += 5.0
    assert bench.steps.giving_way.rest_s() == 0
    bench.steps.close()


def test_thread_rests_within_a_step_that_asks_for_it() -> None:
    """A copied table is read back in larger steps than the thread works without a rest."""
    bench = Bench()
    bench.start(1, 0.0)
    bench.take_in(10 * LATE_S)
    bench.worked_s += 0.001
    bench.steps.give_way()
    assert bench.steps.giving_way.rest_s() == 0, "it rested for that work"
    bench.worked_s += 0.001
    assert bench.steps.giving_way.rest_s() > 0
    bench.steps.close()


def test_rest_ends_when_the_node_stops() -> None:
    """A stop waits for no rest, and nothing that is queued is done any more."""
    bench = Bench()
    asked, waits = Event(), Event()

    def wait(seconds: float) -> None:
        asked.set()
        bench.steps._is_closing.wait(seconds + 60)
        waits.set()

    bench.start(1, 10.0)
    bench.take_in(1.0)
    bench.steps.giving_way._wait = wait
    bench.start(2, 1.0)
    assert asked.wait(20)
    bench.steps.close()
    assert waits.is_set()
    assert (bench.taken, bench.posted.qsize()) == ([1], 0)
