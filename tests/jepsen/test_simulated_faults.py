"""Every simulated fault does to the cluster what its name says, and heals."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.target.base import FaultUnavailableError
from raftstore.config import StorageSettings
from raftstore.testing.sim_failpoints import FAILPOINTS
from raftstore.types import Outcome
from tests.jepsen.fault_world import (
    World,
    calm_again,
    everyone,
)

# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("kill-leader", 1),
        ("kill-follower", 1),
        ("kill-quorum", 2),
        ("kill-all", 3),
        ("power-loss-one", 1),
        ("power-loss-quorum", 2),
        ("power-loss-all", 3),
        ("rolling-restart", 1),
    ],
)
def test_ended_nodes_are_silent_until_they_are_started(kind: str, count: int) -> None:
    """Exactly so many nodes stop sending; all work again afterwards."""
    world = World()
    leading = {world.leader(), world.target.leaders()["metadata"]}
    heal = world.inject(kind)
    down = [name for name in world.target.nodes if name not in world.up()]
    assert len(down) == count
    if "leader" in kind:
        assert down[0] in leading
    if "follower" in kind and len(leading) < 3:
        assert down[0] not in leading
    assert not [pair for pair in world.heard() if pair[0] in down]
    calm_again(world, heal)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "loses"), [("kill-all", False), ("power-loss-all", True)])
def test_what_was_written_outlives_the_process_but_not_the_power(kind: str, loses: bool) -> None:
    """Unsynced operations are there after a kill; of power losses some take them."""
    lost = 0
    for seed in range(1, 6):
        world = World(seed=seed)
        for name in world.target.nodes:
            world.target.slow_disk(name, 60_000.0)
        world.write()
        world.run(100.0)
        assert all(n.log.last_operation() > n.log.durable_operation() for n in world.nodes())
        before = stored(world)
        world.inject(kind)
        world.target.start(world.target.nodes)
        lost += before - stored(world)
    assert (lost > 0) is loses


def stored(world: World) -> int:
    """Records of the table in all logs together."""
    return sum(len(list(node.log.records(world.channel))) for node in world.nodes())


@pytest.mark.parametrize(
    ("kind", "count"),
    [("pause-leader", 1), ("pause-follower", 1), ("pause-short", 1), ("pause-all", 3)],
)
def test_paused_nodes_run_but_say_nothing(kind: str, count: int) -> None:
    """A paused node sends nothing; messages that arrive meanwhile are handled when it resumes."""
    world = World()
    heal = world.inject(kind)
    paused = [node.name for node in world.nodes() if node.is_paused]
    assert len(paused) == count
    assert world.up() == list(world.target.nodes)
    assert not [pair for pair in world.heard() if pair[0] in paused]
    calm_again(world, heal)


ELSEWHERE = ("batch.", "copy.", "files.")
"""Tests of micro-batches and of replica snapshots have their own."""


@pytest.mark.parametrize("failpoint", [n for n in FAILPOINTS if not n.startswith(ELSEWHERE)])
def test_node_dies_at_the_failpoint_and_nothing_leaves_it_after(failpoint: str) -> None:
    """Every named place is reached sooner or later, and the node is gone there and then."""
    world = World()
    victim = next(name for name in world.target.nodes if name != world.leader())
    if failpoint == "log.before-truncate":
        victim = leave_a_tail(world)
    world.target.crash_at(victim, failpoint)
    if failpoint == "log.before-truncate":
        world.target.unblock()
    elif failpoint.startswith("catch-up"):
        world.target.block([pair for pair in everyone(world) if victim in pair])
        world.write_until(lambda: len(world.answers) >= 5)
        world.target.unblock()
    elif failpoint.startswith(("vote", "mark")):
        world.target.kill((world.leader(),))
    world.write_until(lambda: bool(world.events("failpoint")))
    (passed,) = world.events("failpoint")
    assert passed == {"node": victim, "at": failpoint}
    assert world.events("kill")[-1]["node"] == victim
    world.target.disarm(victim)
    calm_again(world, lambda: world.target.start(world.target.nodes))


def leave_a_tail(world: World) -> str:
    """Cut the leader off with a record that only it has, and let others commit another one."""
    leader = world.leader()
    world.target.block([pair for pair in everyone(world) if leader in pair])
    world.write()
    world.run(400.0)
    world.write_until(lambda: world.leader() != leader)
    world.run(1_000.0)
    return leader


def test_failpoint_that_nobody_passes_is_not_run() -> None:
    """A fault that never struck is reported, not counted."""
    world = World()
    heal = world.inject("crash-at-failpoint")
    while world.events("failpoint"):
        heal()
        heal = world.inject("crash-at-failpoint")
    with pytest.raises(FaultUnavailableError, match="never passed"):
        heal()


def test_faults_on_nodes_that_are_down_are_not_run() -> None:
    """Nothing is killed, paused or armed twice."""
    world = World()
    world.inject("kill-all")
    for kind in ("kill-leader", "pause-all", "power-loss-one", "rolling-restart"):
        with pytest.raises(FaultUnavailableError, match="did not run"):
            world.inject(kind)


# --- disks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync-error", "write-error"])
def test_one_failed_write_ends_the_node_once(kind: str) -> None:
    """S0.4: the node stops at its next write, and runs again when somebody starts it."""
    world = World()
    heal = world.inject(kind)
    world.write_until(lambda: bool(world.events("disk_error")))
    (error,) = world.events("disk_error")
    heal()
    assert str(error["node"]) in world.up()
    calm_again(world, heal)
    assert len(world.events("disk_error")) == 1


def test_disk_error_that_nothing_met_is_not_run() -> None:
    """An armed error that no write ran into was no fault."""
    world = World()
    heal = world.inject("sync-error")
    with pytest.raises(FaultUnavailableError, match="wrote nothing"):
        heal()
    assert not world.events("disk_error")


@pytest.mark.parametrize("kind", ["sync-error-sticky", "disk-full"])
def test_lasting_disk_error_keeps_the_node_out(kind: str) -> None:
    """No restart helps before the disk is mended; then the node comes back by itself."""
    world = World()
    heal = world.inject(kind)
    world.write_until(lambda: bool(world.events("disk_error")))
    broken = str(world.events("disk_error")[0]["node"])
    world.run(3_000.0)
    world.target.start((broken,))
    assert broken not in world.up()
    calm_again(world, heal)


@pytest.mark.parametrize("part", [0.6, 0.12])
def test_disk_that_is_nearly_full_costs_its_node_the_leaderships_and_no_write(part: float) -> None:
    """GAP-13: another node leads, the node stays up, and is equal again with space."""
    world = World()
    leader = world.target.leaders()["t/0"]
    world.target.crowd_disk(leader, int(part * StorageSettings().min_free_bytes))
    world.write_until(lambda: world.target.leaders().get("t/0", leader) != leader)
    world.answers.clear()
    for _ in range(5):
        world.write()
        world.run(500.0)
    assert [answer.outcome for answer in world.answers] == [Outcome.OK] * 5
    assert leader in world.up()
    calm_again(world, lambda: world.target.mend_disk(leader))


def test_disk_of_one_node_fills_up_and_is_free_again() -> None:
    """One node sees that in time, and takes all that it took before once there is space."""
    world = World()
    heal = world.inject("disk-nearly-full")
    (crowded,) = (node for node in world.nodes() if node.free_bytes is not None)
    assert crowded.runner is not None
    space = crowded.runner.space
    world.write_until(lambda: space.is_low)
    calm_again(world, heal)
    world.write_until(lambda: not space.is_low)
    assert not space.is_exhausted


def test_slow_disk_makes_its_node_late() -> None:
    """Given a slow disk on one node, only this node still waits for its sync while the others are
    done.
    """
    world = World()
    heal = world.inject("slow-disk")
    (slow,) = (node for node in world.nodes() if node.extra_sync_ms)
    world.write()
    world.run(80.0)
    late = [n.name for n in world.nodes() if n.log.last_operation() > n.log.durable_operation()]
    assert late == [slow.name]
    calm_again(world, heal)


def test_hanging_disk_costs_its_node_the_leaderships() -> None:
    """O6: peers and network are well, and still another leads; the node takes part again later."""
    world = World()
    heal = world.inject("disk-hang")
    (hanging,) = (node for node in world.nodes() if node.disk.is_hanging)
    assert world.leader() == hanging.name
    world.write()
    world.run(3_000.0)
    assert world.events("storage_stalled")[0]["node"] == hanging.name
    assert world.leader() != hanging.name
    calm_again(world, heal)


@pytest.mark.parametrize("kind", ["torn-tail", "flip-log", "truncate-log"])
def test_damaged_log_is_noticed_and_refilled(kind: str) -> None:
    """S0.3: records promised by the mark are gone; the replica recovers from the others."""
    world = World()
    # So many that what is lost does not reach back to the birth of the channel.
    world.write_until(lambda: len(world.answers) >= 40)
    world.run(500.0)
    node = world.nodes()[0]
    before = len(list(node.log.records(world.channel)))
    heal = world.inject(kind)
    heal()
    assert len(list(node.log.records(world.channel))) < before
    assert node.runner is not None
    assert node.runner.channels[world.channel].core.is_recovering
    world.run(3_000.0)
    assert not node.runner.channels[world.channel].core.is_recovering
    assert len(list(node.log.records(world.channel))) >= before
    calm_again(world, heal)


@pytest.mark.parametrize("kind", ["flip-table", "truncate-table"])
def test_damaged_table_is_rebuilt_from_the_log(kind: str) -> None:
    """The rows are gone with the store, and all there again after the restart."""
    world = World()
    world.write_until(lambda: len(world.answers) >= 5)
    node = world.nodes()[0]
    rows = node.tables.content_hash(world.channel)
    heal = world.inject(kind)
    assert node.tables.content_hash(world.channel)[1] == 0
    heal()
    world.run(1_000.0)
    assert node.tables.content_hash(world.channel)[:2] == rows[:2]
    calm_again(world, heal)


@pytest.mark.parametrize("kind", ["wipe", "flip-mark", "flip-identity"])
def test_node_without_its_store_never_comes_back(kind: str) -> None:
    """S0.1: it needs a new id; the others go on without it."""
    world = World()
    heal = world.inject(kind)
    heal()
    world.run(5_000.0)
    assert world.up() == ["n2", "n3"]
    assert world.events("refused")
    before = len(world.answers)
    world.write_until(lambda: len(world.answers) >= before + 3)
    assert world.answers[-1].outcome is Outcome.OK
    assert world.cluster.every_channel_has_a_leader()
    with pytest.raises(FaultUnavailableError, match="does not run any more"):
        world.inject(kind)


def test_nodes_with_each_others_stores_refuse_to_start() -> None:
    """Both stay out until the stores are where they belong."""
    world = World()
    heal = world.inject("swap-stores")
    world.run(2_000.0)
    assert len(world.up()) == 1
    assert {event["node"] for event in world.events("refused")} == set(world.target.nodes) - set(
        world.up()
    )
    calm_again(world, heal)


def test_second_damaged_store_is_not_run() -> None:
    """With two damaged stores acknowledged records may rightly be gone."""
    world = World()
    world.target.damage("n1", kind="flip", file="log")
    with pytest.raises(FaultUnavailableError, match="second damaged"):
        world.target.damage("n2", kind="flip", file="log")


# --- clocks, clients, operators -------------------------------------------------------------------


def clocks(world: World) -> list[tuple[float, float]]:
    """(monotonic, wall) of every node."""
    found = []
    for node in world.nodes():
        assert node.runner is not None
        found.append((float(node.clock.now_ms()), float(node.runner.clock.wall_ms())))
    return found


@pytest.mark.parametrize(
    ("kind", "monotonic", "wall"),
    [
        ("clock-forward", 11_000.0, 11_000.0),
        ("clock-back", 1_000.0, -9_000.0),
        ("clock-hour", 3_601_000.0, 3_601_000.0),
        ("clock-hour-back", 1_000.0, -3_599_000.0),
        ("clock-slow", 500.0, 1_000.0),
        ("clock-fast", 2_000.0, 1_000.0),
    ],
)
def test_clock_of_one_node_is_off(kind: str, monotonic: float, wall: float) -> None:
    """A second later the monotonic and the wall clock of one node show this much more."""
    world = World()
    before = clocks(world)
    heal = world.inject(kind)
    world.run(1_000.0)
    passed = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, clocks(world), strict=True)]
    off = [(m, w) for m, w in passed if abs(m - 1_000.0) > 10.0 or abs(w - 1_000.0) > 10.0]
    assert len(off) == 1
    assert off[0] == pytest.approx((monotonic, wall), abs=5.0)
    calm_again(world, heal)


def test_strobing_clocks_are_all_off() -> None:
    """Every clock jumps and runs at a rate of its own."""
    world = World()
    before = clocks(world)
    heal = world.inject("clock-strobe")
    world.run(1_000.0)
    passed = [b[0] - a[0] for a, b in zip(before, clocks(world), strict=True)]
    assert len({round(p) for p in passed}) == 3
    assert all(abs(p - 1_000.0) > 1.0 for p in passed)
    calm_again(world, heal)


def test_step_down_moves_a_leader() -> None:
    """Somebody else leads a channel soon afterwards."""
    world = World()
    before = world.target.leaders()
    heal = world.inject("step-down")
    world.wait(5_000.0, lambda: len(world.target.leaders()) == 2)
    world.run(1_500.0)
    assert world.target.leaders() != before
    calm_again(world, heal)


def test_dead_client_leaves_its_write_in_doubt() -> None:
    """Its write is UNKNOWN, and the next client starts a session of its own."""
    world = World()
    world.write()
    heal = world.inject("kill-client")
    assert world.answers[-1].outcome is Outcome.UNKNOWN
    assert not world.client.has_acknowledged
    calm_again(world, heal)
    with pytest.raises(FaultUnavailableError, match="at work"):
        world.inject("kill-client")


def test_publisher_that_dies_reaches_one_follower_only() -> None:
    """S5.5: one replica holds the payload, the leader does not, the write is UNKNOWN."""
    world = World()
    heal = world.inject("publish-to-one")
    begin = world.cluster.scheduler.now_ms
    world.write()
    world.run(300.0)
    assert world.answers[-1].outcome is Outcome.UNKNOWN
    reached = [
        event.fields["node"]
        for event in world.cluster.events.messages
        if event.at_ms >= begin and event.fields["from"] == "c0"
    ]
    assert len(reached) == 1
    assert reached[0] != world.leader()
    calm_again(world, heal)


def test_order_to_reach_one_that_no_write_met_is_not_run() -> None:
    """A client that published nothing lost nothing."""
    world = World()
    heal = world.inject("publish-to-one")
    with pytest.raises(FaultUnavailableError, match="published nothing"):
        heal()


def test_repeated_publish_is_answered_with_the_same_place() -> None:
    """S4.5: the second ack names the first one's seq, and nothing is committed twice."""
    world = World()
    commits = world.cluster.oracle.commits
    acks = message_count(world, "PubAck")
    heal = world.inject("publish-again")
    world.run(500.0)
    assert message_count(world, "PubAck") > acks
    assert world.cluster.oracle.commits == commits
    calm_again(world, heal)


def message_count(world: World, kind: str) -> int:
    """How many messages of this kind arrived."""
    return sum(event.fields["kind"] == kind for event in world.cluster.events.messages)


def test_every_fault_has_its_effect_shown_here() -> None:
    """A fault in the catalogue without a test of its effect would be a name only."""
    here = Path(__file__).parent
    names = ("test_simulated_faults.py", "test_simulated_links.py", "test_simulated_members.py")
    text = "".join((here / name).read_text(encoding="utf-8") for name in names)
    missing = [kind for kind in CATALOGUE if f'"{kind}"' not in text]
    assert missing == []
