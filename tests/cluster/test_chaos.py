"""Faults on real node processes: acknowledged rows survive, and a node says why it does not serve.

Power loss needs root and loop devices: its test exists only where the machine can do it, and the
report of the run says so otherwise.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.calls import Action, Call
from jepsen_like.checker.nodes import check_nodes
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.nemesis.fault import Fault, Heal, injected
from jepsen_like.target.base import FaultUnavailableError, Target
from jepsen_like.target.processes import power
from jepsen_like.target.processes.deaths import NodeWatch
from jepsen_like.target.processes.runner import run_on_processes
from jepsen_like.target.processes.target import ProcessTarget
from jepsen_like.workload.base import Client, Run
from raftstore.client.blocking.client import Client as Connection
from raftstore.errors import RaftstoreError
from raftstore.types import Outcome
from tests.promises import promised

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WAIT_S = 25.0
POWER = [] if power.why_unavailable() else [("power", True)]
"""Empty, and so no test, on a machine that cannot lose power on purpose."""


class Adds:
    """Every client adds rows; the read-back scans them."""

    name = "adds"
    text = "rows are added"

    def __init__(self) -> None:
        self.tables: Mapping[str, int] = {"adds": 2}
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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessTarget]:
    """Three nodes behind proxies, for all tests: starting them takes longer than most faults."""
    with ProcessTarget(tmp_path_factory.mktemp("chaos")) as running:
        yield running


@pytest.fixture
def target(shared: ProcessTarget) -> Iterator[ProcessTarget]:
    """The three nodes, whole again afterwards; none ends but by a fault of the test."""
    shared.exits.clear()
    before = len(shared.watched().deaths)
    shared.take_strikes()
    shared.forget_logs()
    yield shared
    shared.heal()
    ended = NodeWatch(shared.watched().deaths[before:], shared.watched().trespasses)
    assert check_nodes(ended).is_valid, check_nodes(ended).summary


class Rows:
    """A table of one partition that a test has for itself."""

    def __init__(self, target: ProcessTarget, client: Connection, name: str) -> None:
        client.create_table(name, key="k", partitions=1, timeout=WAIT_S)
        self.table = client.table(name)
        self._target = target
        self._client = client
        self._name = name

    def leader(self) -> str | None:
        """The leader of the partition."""
        return self._target.leaders().get(f"{self._name}/0")

    def write(self, start: int, stop: int) -> None:
        """One acknowledged row for each number."""
        for number in range(start, stop):
            self.table.put({"k": number, "v": number}, timeout=WAIT_S)

    def count(self) -> int:
        """By a scan."""
        return len(list(self.table.scan(timeout=WAIT_S)))

    def wait_until_equal(self) -> None:
        """Every replica serves and holds the same rows."""

        def is_equal() -> bool:
            try:
                found = [
                    self._client.content_hash(self._name, node, timeout=2.0).content()
                    for node in self._target.nodes
                ]
            except RaftstoreError:
                return False
            return all(content == found[0] for content in found)

        _wait(is_equal, "the replicas are not equal")


_numbers = itertools.count(1)


@pytest.fixture
def rows(target: ProcessTarget) -> Iterator[Rows]:
    """Ten rows in a table."""
    with target.cluster.connect(timeout=15.0) as client:
        made = Rows(target, client, f"t{next(_numbers)}")
        made.write(0, 10)
        yield made


def test_a_leader_that_nobody_hears_is_replaced(target: ProcessTarget, rows: Rows) -> None:
    """Cut off from its peers in both directions, and later let in again (NATS-014)."""
    leader = rows.leader() or "n1"
    others = [node for node in target.nodes if node != leader]
    target.block([(leader, o) for o in others] + [(o, leader) for o in others])
    rows.write(10, 20)
    assert rows.leader() != leader
    target.unblock()
    rows.wait_until_equal()
    assert rows.count() == 20


def test_loss_duplicates_reorder_and_resets_lose_no_row(target: ProcessTarget, rows: Rows) -> None:
    """Heartbeats and elections meet the weather too."""
    target.weather(loss=0.1, duplicate=0.2, reorder=0.2, delay_ms=(1, 10))
    rows.write(10, 30)
    target.reset_connections()
    target.heal()
    rows.wait_until_equal()
    assert rows.count() == 30
    counts = target.links.counts
    assert min(counts.lost, counts.duplicated, counts.reordered, counts.resets) > 0


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_disk_error_ends_the_node_with_70_and_it_comes_back(
    target: ProcessTarget, rows: Rows, operation: str
) -> None:
    """S0.4: nothing is retried; started again, it catches up (NATS-058)."""
    leader = rows.leader() or "n1"
    target.fail_disk(leader, operation=operation, sticky=False)
    rows.write(10, 20)
    rows.wait_until_equal()
    assert (leader, 70) in target.exits
    assert rows.count() == 20


def test_a_full_disk_takes_the_node_out_until_there_is_space(
    target: ProcessTarget, rows: Rows
) -> None:
    """It waits, says so, and comes back by itself."""
    leader = rows.leader() or "n1"
    target.fill_disk(leader)
    rows.write(10, 20)
    _wait_for_text(target, leader, "waiting for disk space")
    assert (leader, 70) in target.exits
    target.mend_disk(leader)
    rows.wait_until_equal()
    assert rows.count() == 20


def test_a_clock_that_jumps_and_races_disturbs_no_row(target: ProcessTarget, rows: Rows) -> None:
    """Wall clock an hour back, then both ahead at twice the rate."""
    leader = rows.leader() or "n1"
    target.shift_clock(leader, jump_ms=-3_600_000.0)
    rows.write(10, 15)
    target.shift_clock(leader, jump_ms=60_000.0, rate=2.0)
    rows.write(15, 20)
    target.heal()
    rows.wait_until_equal()
    assert rows.count() == 20


def test_a_node_dies_at_the_failpoints_and_acknowledged_rows_stay(
    target: ProcessTarget, rows: Rows
) -> None:
    """Around the sync of the log, the ack and the tables."""
    names = ("log.before-sync", "log.after-sync", "ack.before-send", "table.before-apply")
    for number, failpoint in enumerate(names, 1):
        leader = rows.leader() or "n1"
        target.crash_at(leader, failpoint)
        rows.write(number * 10, number * 10 + 10)
        _wait(lambda node=leader: not target.is_up(node), f"{leader} passed {failpoint}")
        assert target.fired(leader)[-1].endswith(failpoint)
        target.start([leader])
        rows.wait_until_equal()
    assert rows.count() == 50


def test_a_damaged_log_or_table_is_refilled_from_the_others(
    target: ProcessTarget, rows: Rows
) -> None:
    """S0.3: with its mark intact, without an operator (GAP-14)."""
    written = 10
    for kind, file in (("flip", "log"), ("truncate", "log"), ("zero", "log"), ("flip", "current")):
        target.damage("n2", kind=kind, file=file)
        target.start(["n2"])
        rows.write(written, written + 5)
        written += 5
        rows.wait_until_equal()
    assert rows.count() == written


def test_a_damaged_mark_or_identity_is_refused_with_a_reason(
    target: ProcessTarget, rows: Rows
) -> None:
    """S0.1: what is not known to be its own store does not vote, acknowledge or serve."""
    target.damage("n2", kind="truncate", file="mark")
    _wait_for_text(target, "n2", "must not vote")
    rows.write(10, 15)
    target.start(["n2"])
    target.damage("n3", kind="truncate", file="identity")
    _wait(lambda: ("n3", 78) in target.exits, "n3 did not refuse its identity")
    rows.write(15, 20)
    target.start(["n3"])
    rows.wait_until_equal()
    assert rows.count() == 20


def test_a_node_that_ends_without_a_fault_is_told(target: ProcessTarget, rows: Rows) -> None:
    """However it ends, and also when somebody starts it before the supervisor saw that."""
    before = len(target.watched().deaths)
    os.kill(target.processes()["n2"], signal.SIGABRT)
    _wait(lambda: not target.is_up("n2"), "n2 did not end")
    target.start(["n2"])
    (ended,) = target.watched().deaths[before:]
    assert (ended.node, ended.code, ended.cause) == ("n2", -signal.SIGABRT, None)
    assert check_nodes(NodeWatch([ended])).validity is Validity.INVALID
    target.watched().deaths.remove(ended)  # this one was meant
    rows.wait_until_equal()


def test_swapped_stores_are_refused(target: ProcessTarget, rows: Rows) -> None:
    """Each node sees that the store is another's; swapped back, all is well."""
    target.swap_stores("n1", "n2")
    target.start(["n1", "n2"])
    _wait(lambda: {("n1", 78), ("n2", 78)} <= set(target.exits), "a foreign store was taken")
    target.swap_stores("n1", "n2")
    target.start(target.nodes)
    rows.wait_until_equal()
    assert rows.count() == 10


def test_a_wiped_node_is_kept_out_and_the_others_go_on(target: ProcessTarget, rows: Rows) -> None:
    """S0.1: an empty directory under an old name is no member; it and its peers say so."""
    target.wipe("n3")
    _wait_for_text(target, "n3", "already belongs to cluster")
    rows.write(10, 20)
    target.start(["n3"])
    rows.wait_until_equal()
    assert rows.count() == 20


def test_a_shortened_replica_neither_votes_nor_serves_until_it_is_refilled(
    target: ProcessTarget, rows: Rows
) -> None:
    """S0.3: alone, or with another one like it, it makes no leader; a whole replica gives it what
    it lost, and then both are the quorum that they were."""
    target.kill(target.nodes)
    for node in ("n2", "n3"):
        _cut_log(target.data(node))
    target.start(["n2", "n3"])
    for node in ("n2", "n3"):
        _wait_for_text(target, node, "it is recovering")
    with pytest.raises(RaftstoreError):
        rows.table.put({"k": 99, "v": 99}, timeout=3.0)
    for node in ("n2", "n3"):
        for level in ("leader", "any"):
            with pytest.raises(RaftstoreError):
                rows.table.get(1, level=level, replica=node, timeout=1.0)
    assert rows.leader() is None
    target.kill(["n3"])
    target.start(["n1"])
    rows.write(10, 15)
    target.start(["n3"])
    rows.wait_until_equal()
    assert rows.count() == 15


def test_a_channel_whose_replicas_are_all_damaged_halts_and_says_so(tmp_path: Path) -> None:
    """Never wrong rows and never fewer: no leader, no answer, and every node says why."""
    with ProcessTarget(tmp_path / "halting") as target:
        with target.cluster.connect(timeout=15.0) as client:
            rows = Rows(target, client, "halting")
            rows.write(0, 10)
            target.kill(target.nodes)
            for node in target.nodes:
                _cut_log(target.data(node))
            target.start(target.nodes)
            for node in target.nodes:
                _wait_for_text(target, node, "it is recovering")
            with pytest.raises(RaftstoreError):
                rows.table.put({"k": 99, "v": 99}, timeout=2.0)
            for level in ("linearizable", "any"):
                with pytest.raises(RaftstoreError):
                    rows.table.get(1, level=level, timeout=1.0)


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
        Adds(), faults, seconds=5.0, clients=3, seed=1, directory=tmp_path / name
    )
    sure = {op.value for op in run.history if op.action == "put" and op.outcome is Outcome.OK}
    found: dict[Any, Any] = run.history[-1].result
    assert len(sure) > 20
    lost = sure - set(found.values())
    promised(not lost, f"acknowledged rows are gone: {sorted(lost)[:10]}")
    assert run.nodes is not None
    promised(check_nodes(run.nodes).is_valid, check_nodes(run.nodes).summary)
    assert all(len(set(of.values())) == 1 for of in run.replica_hashes.values())
    meant = injected(run.faults)
    assert all(fault["fired"] == (fault["kind"] == name) for fault in meant)
    assert any(fault["fired"] for fault in meant)


def test_publishers_that_die_or_repeat_themselves_change_nothing_else(tmp_path: Path) -> None:
    """NATS-198: what only one replica got is fetched by the leader or by nobody, and its publisher,
    which died, got no answer; S4.5: a repeated one is not applied twice."""
    faults = [CATALOGUE["publish-to-one"], CATALOGUE["publish-again"]]
    run = run_on_processes(
        Adds(), faults, seconds=12.0, clients=3, seed=1, directory=tmp_path / "run",
        fault_pause_s=0.5,
    )  # fmt: skip
    meant = injected(run.faults)
    assert {fault["kind"] for fault in meant if fault["fired"]} == {f.name for f in faults}
    assert run.repeats.answered > 0
    assert run.repeats.verdict().is_valid
    puts = [op for op in run.history if op.action == "put"]
    left_alone = {op.value for op in puts if op.details["error"] == "killed"}
    found: dict[Any, Any] = run.history[-1].result
    assert left_alone
    acknowledged = {op.value for op in puts if op.outcome is Outcome.OK}
    promised(acknowledged <= set(found.values()), "acknowledged rows are gone")
    promised(len(set(found.values())) == len(found), "a row was applied twice")
    assert set(found.values()) <= acknowledged | left_alone


def _cut_log(store: Path) -> None:
    """Lose the second half of the log, acknowledged records with it."""
    for path in sorted((store / "log").glob("*.log")):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _wait_for_text(target: ProcessTarget, node: str, text: str) -> None:
    """The node says so in its log."""
    _wait(lambda: text in target.log_text(node), f"{node} did not say {text!r}")


def _wait(is_so: Any, otherwise: str) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end, otherwise
        time.sleep(0.05)
