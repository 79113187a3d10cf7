"""Stalls that the machine causes are distinguished from faults that a run injects."""

from __future__ import annotations

import os
import threading
import time

from jepsen_like.checker.progress import check_progress
from jepsen_like.history import Operation
from jepsen_like.nemesis.fault import BY_MACHINE
from jepsen_like.result import Result
from jepsen_like.target.processes.machine import (
    STALLED,
    STARVED,
    MachineWatch,
    Stretches,
    waited_ns,
)
from jepsen_like.workload.base import Run
from raftstore.types import Outcome

MS = 1_000_000
TICK = 250 * MS


def looked(*waits: dict[str, int]) -> list[dict[str, object]]:
    """Reports after one look every 250 ms; each look has the ms a node has
    waited since the last.
    """
    told: list[dict[str, object]] = []
    stretches = Stretches(told)
    totals: dict[tuple[str, int], int] = {}
    stretches.look(0, 0, {("n1", 1): 0, ("n2", 2): 0})
    for number, wait in enumerate(waits):
        for process, node in enumerate(("n1", "n2"), 1):
            key = (node, process)
            totals[key] = totals.get(key, 0) + wait.get(node, 0) * MS
        stretches.look(number * TICK, (number + 1) * TICK, dict(totals))
    return told


def test_node_that_waits_for_a_processor_is_starved_after_two_seconds() -> None:
    """A stretch begins with its first look, and ends with the last one that found it."""
    assert looked(*[{"n1": 240}] * 7) == []
    [entry] = looked({"n1": 20}, *[{"n1": 240}] * 12, {"n1": 20})
    assert (entry["kind"], entry["nodes"], entry["by"]) == (STARVED, ["n1"], BY_MACHINE)
    assert (entry["started"], entry["ended"]) == (TICK, 13 * TICK)
    assert entry["is_minority"]


def test_nodes_that_share_processors_with_clients_are_not_starved() -> None:
    """Waiting for half of the time is what four busy processes on two processors do."""
    assert looked(*[{"n1": 150, "n2": 190}] * 40) == []


def test_two_starved_nodes_are_two_stretches_and_each_may_come_again() -> None:
    """One that goes in between begins a new stretch."""
    both = {"n1": 240, "n2": 240}
    entries = looked(*[both] * 9, {"n2": 240}, *[both] * 9)
    told = [(entry["nodes"], entry["started"], entry["ended"]) for entry in entries]
    assert sorted(told) == [
        (["n1"], 0, 9 * TICK),
        (["n1"], 10 * TICK, 19 * TICK),
        (["n2"], 0, 19 * TICK),
    ]


def test_new_process_of_a_node_is_measured_by_itself() -> None:
    """A node's new process is measured by itself, without the waits of the one before."""
    told: list[dict[str, object]] = []
    stretches = Stretches(told)
    for number in range(40):
        stretches.look(number * TICK, (number + 1) * TICK, {("n1", number): number * 1_000 * MS})
    assert told == []


def test_look_that_comes_late_is_a_stall_of_everything() -> None:
    """Whether the watch was late or its own small write: nobody else can be blamed for less."""
    told: list[dict[str, object]] = []
    stretches = Stretches(told)
    stretches.look(0, 1_200 * MS, {})
    assert told == []
    stretches.look(1_200 * MS, 2_500 * MS, {})
    [entry] = told
    assert (entry["kind"], entry["started"], entry["ended"]) == (STALLED, 1_200 * MS, 2_500 * MS)
    assert not entry["is_minority"]


def silent_from(began_s: int, until_s: int) -> list[Operation]:
    """A linearizable read each second, without an answer in between."""
    history = []
    for at in range(40):
        is_silent = began_s <= at < until_s
        history.append(
            Operation(
                "c1", "get", "k", None, at * 1_000 * MS,
                None if is_silent else (at * 1_000 + 1) * MS,
                Outcome.UNKNOWN if is_silent else Outcome.OK, None,
                {"table": "t", "positions": [] if is_silent else [[0, 1]]},
            )
        )  # fmt: skip
    return history


def test_progress_blames_nobody_while_a_majority_is_starved() -> None:
    """One starved node of three is no excuse."""
    one = looked({}, *[{"n1": 250}] * 80)
    two = looked({}, *[{"n1": 250, "n2": 250}] * 80)
    hashes = {("t", 0): {"n1": "h", "n2": "h", "n3": "h"}}
    history = silent_from(10, 18)
    assert not check_progress(Run(history, {}, hashes, one)).is_valid
    assert check_progress(Run(history, {}, hashes, two)).is_valid


def test_what_the_machine_did_is_not_counted_as_injected() -> None:
    """A run of which nothing was struck stays one."""
    told = [{"kind": "kill-leader"}, *looked(*[{"n1": 250}] * 9)]
    result = Result("processes", "register", (), 1, {}, 1.0, [], [], told)
    assert [fault["kind"] for fault in result.injected] == ["kill-leader"]
    assert [fault["kind"] for fault in result.of_machine] == [STARVED]


def test_watch_looks_by_itself_and_leaves_nothing_behind(tmp_path) -> None:
    """It reads real processes: this one has run, so Linux says what it waited."""
    asked = threading.Event()

    def processes() -> dict[str, int]:
        asked.set()
        return {"n1": os.getpid()}

    with MachineWatch(tmp_path, processes, time.monotonic_ns, []):
        assert asked.wait(60)
    assert list(tmp_path.iterdir()) == []
    waited = waited_ns(os.getpid())
    assert waited is not None
    later = waited_ns(os.getpid())
    assert later is not None
    assert waited <= later < waited + 60 * 10**9, "nanoseconds since the process began"


def test_process_that_is_gone_has_no_time() -> None:
    """Nodes die at any moment."""
    assert waited_ns(2**22 + 1) is None
