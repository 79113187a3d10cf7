"""Guards against mutations of client and store: sound code passes, and seeds replay."""

from __future__ import annotations

import asyncio

import pytest

from jepsen_like.runner import SimulatedRun
from raftstore.testing.invariants import InvariantError
from raftstore.testing.sim_clock import Scheduler
from raftstore.testing.sim_loop import SchedulerLoop
from tests.mutations.client_world import run_client_world
from tests.mutations.disk_run import run_disk_run
from tests.mutations.guard import Chaos, DiskRuns, Worlds
from tests.mutations.suite import SuiteError, Told, run_guard


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_store_keeps_its_promises_in_a_random_run(seed: int) -> None:
    """Killed, failing, rotten or in pieces: nothing promised is lost, nothing wrong answered."""
    assert run_disk_run(seed) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_client_keeps_its_word_in_a_random_world(seed: int) -> None:
    """The real publisher under faults: every outcome it reported is true in the committed log."""
    assert run_client_world(seed, {"operations": "200"}) is None


@pytest.mark.slow
def test_worlds_and_workloads_pass_on_sound_code() -> None:
    """Guards run what `raftstore simulate` and `raftstore chaos run` run."""
    assert run_guard(Worlds((("operations", "100"),)), 1) == Told()
    assert run_guard(Chaos("register", ("kill-leader",), 2.0), 1) == Told()
    assert run_guard(DiskRuns(), 4) == Told()


def test_run_that_ends_before_its_clients_began_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a cluster that breaks before its clients began, the guard fails: no checker of clients
    had a history to judge.
    """

    def broken(_: SimulatedRun) -> None:
        raise InvariantError("O5: applied beyond its commit seq")

    monkeypatch.setattr(SimulatedRun, "_birth", broken)
    with pytest.raises(SuiteError, match="before its clients did anything: O5"):
        run_guard(Chaos("register", ("kill-leader",), 2.0), 1)


def test_loop_runs_tasks_and_timers_on_virtual_time() -> None:
    """Sleeping costs nothing, a cancelled timer is passed over, what is raised is seen."""
    scheduler = Scheduler()
    loop = SchedulerLoop(scheduler)
    told: list[object] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(2.5):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            told.append(round(loop.time(), 3))

    with loop.running():
        task = loop.create_task(work())
        task.add_done_callback(lambda done: told.append(done.exception()))
        loop.call_at(1.0, told.append, "cancelled").cancel()
        loop.call_at(1.0, told.append, "in time")
        scheduler.run_until(10_000.0)
    assert told == ["in time", 2.5, None]
    assert not loop.get_debug()
    with pytest.raises(RuntimeError, match="a task was destroyed"):
        loop.call_exception_handler({"message": "a task was destroyed"})
