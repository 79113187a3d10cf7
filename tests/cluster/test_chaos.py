"""Faults on real node processes: acknowledged rows survive, and a node says why it does not serve.

Power loss needs root and loop devices: its test exists only where the machine can do it, and the
report of the run says so otherwise.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.calls import Action, Call
from jepsen_like.checker.verdict import Verdict
from jepsen_like.nemesis.fault import Fault, Heal
from jepsen_like.target.base import FaultUnavailableError, Target
from jepsen_like.target.processes import power
from jepsen_like.target.processes.runner import run_on_processes
from jepsen_like.target.processes.target import ProcessTarget
from jepsen_like.workload.base import Client, Run
from raftstore.client.blocking import Client as Connection
from raftstore.errors import RaftstoreError
from raftstore.types import Outcome

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WAIT_S = 25.0
POWER = [] if power.why_unavailable() else [("power", True)]
"""Empty, and so no test, on a machine that cannot lose power on purpose."""


class Adds:
    """Every client adds rows; the read-back scans them."""

    name = "adds"
    text = "rows are added"

    def __init__(self) -> None:
        self.tables = {"adds": 2}
        self._last = 0

    def client(self, index: int, rng: random.Random) -> Client:
        """Unique rows for ever."""
        del index, rng
        while True:
            self._last += 1
            yield Call(Action.PUT, "adds", self._last, self._last)

    def final_client(self, rng: random.Random) -> Client:
        """One scan."""
        del rng
        yield Call(Action.SCAN, "adds", final=True)

    def check(self, run: Run) -> list[Verdict]:
        """The test looks itself."""
        del run
        return []


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ProcessTarget]:
    """Three nodes behind proxies."""
    with ProcessTarget(tmp_path / "chaos") as running:
        yield running


@pytest.fixture
def client(target: ProcessTarget) -> Iterator[Connection]:
    """A client with a table t of one partition and ten rows in it."""
    with target.cluster.connect(timeout=15.0) as connected:
        connected.create_table("t", key="k", partitions=1)
        _write(connected, 0, 10)
        yield connected


def test_a_leader_that_nobody_hears_is_replaced(target: ProcessTarget, client: Connection) -> None:
    """Cut off from its peers in both directions, and later let in again."""
    leader = target.leaders()["t/0"]
    others = [node for node in target.nodes if node != leader]
    target.block([(leader, o) for o in others] + [(o, leader) for o in others])
    _write(client, 10, 20)
    assert target.leaders()["t/0"] != leader
    target.unblock()
    _wait_until_equal(target, client)
    assert _rows(client) == 20


def test_loss_duplicates_reorder_and_resets_lose_no_row(
    target: ProcessTarget, client: Connection
) -> None:
    """Heartbeats and elections meet the weather too."""
    target.weather(loss=0.1, duplicate=0.2, reorder=0.2, delay_ms=(1, 10))
    _write(client, 10, 30)
    target.reset_connections()
    target.heal()
    _wait_until_equal(target, client)
    assert _rows(client) == 30
    counts = target.links.counts
    assert min(counts.lost, counts.duplicated, counts.reordered, counts.resets) > 0


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_disk_error_ends_the_node_with_70_and_it_comes_back(
    target: ProcessTarget, client: Connection, operation: str
) -> None:
    """S0.4: nothing is retried; started again, it catches up."""
    leader = target.leaders()["t/0"]
    target.fail_disk(leader, operation=operation, sticky=False)
    _write(client, 10, 20)
    _wait_until_equal(target, client)
    assert (leader, 70) in target.exits
    assert _rows(client) == 20


def test_a_full_disk_takes_the_node_out_until_there_is_space(
    target: ProcessTarget, client: Connection
) -> None:
    """It waits, says so, and comes back by itself."""
    leader = target.leaders()["t/0"]
    target.fill_disk(leader)
    _write(client, 10, 20)
    _wait(lambda: "waiting for disk space" in target.log_text(leader), "the node did not wait")
    assert (leader, 70) in target.exits
    target.mend_disk(leader)
    _wait_until_equal(target, client)
    assert _rows(client) == 20


def test_a_clock_that_jumps_and_races_disturbs_no_row(
    target: ProcessTarget, client: Connection
) -> None:
    """Wall clock an hour back, then both ahead at twice the rate."""
    leader = target.leaders()["t/0"]
    target.shift_clock(leader, jump_ms=-3_600_000.0)
    _write(client, 10, 15)
    target.shift_clock(leader, jump_ms=60_000.0, rate=2.0)
    _write(client, 15, 20)
    target.heal()
    _wait_until_equal(target, client)
    assert _rows(client) == 20


def test_a_node_dies_at_the_failpoints_and_acknowledged_rows_stay(
    target: ProcessTarget, client: Connection
) -> None:
    """Around the sync of the log, the ack and the tables."""
    names = ("log.before-sync", "log.after-sync", "ack.before-send", "table.before-apply")
    for number, failpoint in enumerate(names, 1):
        leader = target.leaders()["t/0"]
        target.crash_at(leader, failpoint)
        _write(client, number * 10, number * 10 + 10)
        _wait(lambda node=leader: not target.is_up(node), f"{leader} passed {failpoint}")  # type: ignore[misc]
        assert target.fired(leader)[-1].endswith(failpoint)
        target.start([leader])
        _wait_until_equal(target, client)
    assert _rows(client) == 50


def test_a_damaged_log_or_table_is_refilled_from_the_others(
    target: ProcessTarget, client: Connection
) -> None:
    """S0.3: with its mark intact, without an operator."""
    rows = 10
    for kind, file in (("flip", "log"), ("truncate", "log"), ("zero", "log"), ("flip", "current")):
        target.damage("n2", kind=kind, file=file)
        target.start(["n2"])
        _write(client, rows, rows + 5)
        rows += 5
        _wait_until_equal(target, client)
    assert _rows(client) == rows


def test_a_damaged_mark_or_identity_is_refused_with_a_reason(
    target: ProcessTarget, client: Connection
) -> None:
    """S0.1: what is not known to be its own store does not vote, acknowledge or serve."""
    target.damage("n2", kind="flip", file="mark")
    target.start(["n2"])
    _wait(lambda: "must not vote" in target.log_text("n2"), "n2 did not refuse its mark")
    target.damage("n3", kind="truncate", file="identity")
    _wait(lambda: not target.is_up("n3"), "n3 runs")
    target.start(["n3"])
    _wait(lambda: ("n3", 78) in target.exits, "n3 did not refuse its identity")
    with pytest.raises(RaftstoreError):
        client.table("t").put({"k": 99, "v": 99}, timeout=1.0)


def test_swapped_stores_are_refused(target: ProcessTarget, client: Connection) -> None:
    """Each node sees that the store is another's; swapped back, all is well."""
    target.swap_stores("n1", "n2")
    target.start(["n1", "n2"])
    _wait(lambda: {("n1", 78), ("n2", 78)} <= set(target.exits), "a foreign store was taken")
    target.swap_stores("n1", "n2")
    target.start(target.nodes)
    _wait_until_equal(target, client)
    assert _rows(client) == 10


def test_a_wiped_node_is_kept_out_and_the_others_go_on(
    target: ProcessTarget, client: Connection
) -> None:
    """S0.1: an empty directory under an old name is no member; it and its peers say so."""
    target.wipe("n3")
    target.start(["n3"])
    _wait(
        lambda: "already belongs to cluster" in target.log_text("n3"),
        "n3 did not say what is wrong",
    )
    _write(client, 10, 20)
    assert _rows(client) == 20


@pytest.mark.parametrize(("name", "with_power"), [("calm", False), *POWER])
def test_a_run_keeps_every_acknowledged_row(tmp_path: Path, name: str, *, with_power: bool) -> None:
    """Faults and clients together, then healing, read-back and equal replicas."""

    def inject(target: Target, rng: random.Random) -> Heal:
        node = rng.choice(target.nodes)
        if with_power:
            target.power_loss(target.nodes)
            return lambda: target.start(target.nodes)
        target.kill([node])
        return lambda: target.start([node])

    def impossible(_target: Target, _rng: random.Random) -> Heal:
        raise FaultUnavailableError("this fault needs another machine")

    faults = [
        Fault(name, "the node dies", inject, (500.0, 1_000.0), needs_root=with_power),
        Fault("impossible", "cannot be", impossible),
    ]
    run = run_on_processes(
        Adds(), faults, seconds=8.0, clients=3, seed=1, directory=tmp_path / name
    )
    sure = {op.value for op in run.history if op.action == "put" and op.outcome is Outcome.OK}
    found: dict[Any, Any] = run.history[-1].result
    assert len(sure) > 20
    assert sure <= set(found.values())
    assert all(len(set(of.values())) == 1 for of in run.replica_hashes.values())
    assert all(fault["fired"] == (fault["kind"] == name) for fault in run.faults)
    assert any(fault["fired"] for fault in run.faults)


def _write(client: Connection, start: int, stop: int) -> None:
    table = client.table("t")
    for number in range(start, stop):
        table.put({"k": number, "v": number}, timeout=WAIT_S)


def _rows(client: Connection) -> int:
    return len(list(client.table("t").scan(timeout=WAIT_S)))


def _wait(is_so: Any, otherwise: str) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end, otherwise
        time.sleep(0.05)


def _wait_until_equal(target: ProcessTarget, client: Connection) -> None:
    """Every replica serves and holds the same rows."""

    def is_equal() -> bool:
        try:
            found = [client.content_hash("t", n, timeout=2.0).content() for n in target.nodes]
        except RaftstoreError:
            return False
        return all(content == found[0] for content in found)

    _wait(is_equal, "the replicas are not equal")
