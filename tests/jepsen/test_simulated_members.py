"""Faults that change members do what their names say, and everything is as before again."""

from __future__ import annotations

import pytest

from jepsen_like.checker.verdict import Validity
from jepsen_like.nemesis.fault import Heal
from jepsen_like.nemesis.members import MEMBER_FAULTS
from jepsen_like.runner import SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.swarm.draw import KILLS, MEMBER_KINDS, PARTITIONS, draw_scene
from jepsen_like.target import member_goals
from jepsen_like.target.base import FaultUnavailableError
from raftstore.testing.options import MEMBERS_FROM, SimOptions
from tests.jepsen.fault_world import World, calm_again

FOUNDERS = ("n1", "n2", "n3")


def voters(world: World) -> tuple[str, ...]:
    """The voters of the table's only partition, by its leader's log."""
    found = world.target.replicas().get("t/0")
    return () if found is None else found


def hosts(world: World) -> list[str]:
    """Nodes on which the partition is open."""
    return [
        node.name
        for node in world.nodes()
        if node.runner is not None and world.channel in node.runner.channels
    ]


def as_wanted(world: World) -> tuple[str, ...]:
    """The voters while a fault lasts, by the leader's log; none while nobody leads."""
    node = world.cluster.leaders().get(world.channel)
    if node is None or node.runner is None:
        return ()
    config = node.runner.channels[world.channel].core.config()
    return tuple(sorted(name.partition("@")[0] for name in config.voters))


def as_before(world: World, heal: Heal) -> None:
    """After healing the founders are all there is, and hold everything."""
    heal()
    world.wait(15_000.0, lambda: not world.target.why_not_settled())
    assert voters(world) == FOUNDERS
    assert hosts(world) == list(FOUNDERS)
    world.run(1_000.0)
    assert world.target.nodes == FOUNDERS
    calm_again(world, lambda: None)


def test_partition_loses_a_replica_and_gets_it_back() -> None:
    """The replica that was removed is deleted, and copied again later."""
    world = World()
    heal = world.inject("remove-replica")
    world.wait(10_000.0, lambda: len(as_wanted(world)) == 2 and len(hosts(world)) == 2)
    assert hosts(world) == list(as_wanted(world))
    as_before(world, heal)


def test_partition_gets_a_replica_on_a_node_that_joins_for_it() -> None:
    """Four vote; the guest leaves afterwards."""
    world = World()
    heal = world.inject("add-replica")
    world.wait(10_000.0, lambda: as_wanted(world) == (*FOUNDERS, "n4"))
    world.wait(5_000.0, lambda: hosts(world) == [*FOUNDERS, "n4"])
    assert world.target.nodes == (*FOUNDERS, "n4")
    as_before(world, heal)


def test_replica_moves_to_a_node_that_joins_for_it_and_back() -> None:
    """Three vote, one of them new."""
    world = World()
    heal = world.inject("replace-replica")
    world.wait(10_000.0, lambda: "n4" in as_wanted(world) and len(hosts(world)) == 3)
    assert hosts(world) == list(as_wanted(world))
    as_before(world, heal)


def test_replica_moves_to_a_node_that_has_none_where_there_is_one() -> None:
    """No node joins for it."""
    world = World()
    guest = world.target.join_node()
    world.wait(5_000.0, lambda: guest in world.target.nodes)
    heal = world.inject("replace-replica")
    world.wait(10_000.0, lambda: guest in as_wanted(world))
    heal()
    world.wait(15_000.0, lambda: voters(world) == FOUNDERS)
    assert world.target.nodes == (*FOUNDERS, guest)


def test_node_joins_and_leaves() -> None:
    """It is one of the nodes that other faults choose from, as long as it is there."""
    world = World()
    heal = world.inject("join-node")
    world.wait(5_000.0, lambda: "n4" in world.target.nodes)
    world.run(500.0)
    world.target.kill(("n4",))
    assert world.up() == list(FOUNDERS)
    world.target.start(("n4",))
    assert world.up() == [*FOUNDERS, "n4"]
    assert voters(world) == FOUNDERS
    as_before(world, heal)


def test_drained_node_gives_its_replicas_away_and_stays() -> None:
    """On three nodes one joins to take them."""
    world = World()
    heal = world.inject("drain-node")
    world.wait(15_000.0, lambda: "n4" in as_wanted(world) and len(hosts(world)) == 3)
    (drained,) = (name for name in FOUNDERS if name not in hosts(world))
    assert drained in world.up()
    as_before(world, heal)


@pytest.mark.parametrize("fault", MEMBER_FAULTS, ids=lambda fault: fault.name)
def test_change_that_nobody_took_is_not_run(fault: object) -> None:
    """The order was lost with all nodes: reported, not counted, and all is as before."""
    world = World()
    for node in world.nodes():
        world.cluster.network.cut("operator", node.node)
    heal = world.inject(fault.name)  # type: ignore[attr-defined]
    with pytest.raises(FaultUnavailableError, match=r"nobody took the order|did not come to join"):
        heal()
    world.target.unblock()
    as_before(world, lambda: None)


def test_partition_is_changed_by_one_fault_at_a_time() -> None:
    """The second one would take what the first one ordered for what was there before."""
    world = World()
    heal = world.inject("remove-replica")
    with pytest.raises(FaultUnavailableError, match="being changed already"):
        world.inject("add-replica")
    world.wait(10_000.0, lambda: len(as_wanted(world)) == 2)
    with pytest.raises(FaultUnavailableError, match="being changed already"):
        world.target.move_replicas("t/0", ("n1",))
    as_before(world, heal)


def test_one_node_drains_at_a_time_and_nodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything has to fit on those that stay."""
    monkeypatch.setattr(member_goals, "NODES_MAX", 4)
    world = World()
    heal = world.inject("drain-node")
    with pytest.raises(FaultUnavailableError, match="one at a time"):
        world.inject("drain-node")
    with pytest.raises(FaultUnavailableError, match="4 nodes, which is enough"):
        world.inject("join-node")
    world.run(5_000.0)
    as_before(world, heal)


def test_no_store_is_lost_while_members_change() -> None:
    """A majority may be among fewer replicas than it seems."""
    world = World()
    heal = world.inject("remove-replica")
    for kind in ("wipe", "flip-mark", "flip-identity"):
        with pytest.raises(FaultUnavailableError, match="while members change"):
            world.inject(kind)
    world.wait(10_000.0, lambda: len(as_wanted(world)) == 2)
    as_before(world, heal)


def test_where_a_node_is_gone_for_good_no_replica_is_removed_and_others_move() -> None:
    """Two of three are left: they can take a fourth one in, and lose none."""
    world = World()
    world.inject("wipe")
    world.wait(10_000.0, lambda: bool(world.target.replicas()))
    with pytest.raises(FaultUnavailableError, match="could lose its majority"):
        world.target.move_replicas("t/0", ("n2", "n3"))
    heal = world.inject("add-replica")
    world.wait(10_000.0, lambda: as_wanted(world) == (*FOUNDERS, "n4"))
    heal()
    world.wait(15_000.0, lambda: not world.target.why_not_settled())
    assert hosts(world) == ["n2", "n3"]


def test_guest_without_whom_replicas_have_no_place_stays_after_the_healing() -> None:
    """A run ends, although nothing can be as it was."""
    world = World()
    world.inject("wipe")
    world.wait(10_000.0, lambda: bool(world.target.replicas()))
    world.target.move_replicas("t/0", ("n2", "n3", world.target.join_node()))
    world.wait(10_000.0, lambda: as_wanted(world) == ("n2", "n3", "n4"))
    world.target.remove_node("n4")
    world.target.restore_replicas("t/0")
    world.target.heal_everything()
    world.wait(15_000.0, lambda: not world.target.why_not_settled())
    assert world.target.nodes == (*FOUNDERS, "n4")
    assert hosts(world) == ["n2", "n3", "n4"]


def test_members_that_do_not_settle_are_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """S8: a change that never ends is found, however well clients are served."""
    scene = Scene(1, "register", (), SimOptions(seed=1), (), 1.0, 1, "")
    world = SimulatedRun(scene, lambda _: None)
    monkeypatch.setattr(world.target, "why_not_settled", lambda: "t/0 is being changed")
    (oracle,) = (each for each in world.run().verdicts if each.checker == "oracle")
    assert oracle.validity is Validity.INVALID
    assert "members do not settle in 30000 ms: t/0 is being changed" in oracle.summary


def test_worlds_whose_members_change_have_a_kill_and_a_partition_too() -> None:
    """Each of the three strikes in the time that the world has at least."""
    changing = [scene for scene in map(draw_scene, range(1, 301)) if has_members(scene)]
    assert 15 <= len(changing) <= 60
    assert min(scene.seed for scene in changing) >= MEMBERS_FROM, "tests name earlier seeds"
    for scene in changing:
        early = {each.kind for each in scene.schedule if each.at_ms < scene.seconds * 800}
        for group in (MEMBER_KINDS, KILLS, PARTITIONS):
            assert early & set(group), (scene.seed, group)
        assert [each.at_ms for each in scene.schedule] == sorted(
            each.at_ms for each in scene.schedule
        )
    assert {kind for scene in changing for kind in scene.kinds} >= set(MEMBER_KINDS)


def has_members(scene: Scene) -> bool:
    """Whether any of its faults changes members."""
    return bool(set(scene.kinds) & set(MEMBER_KINDS))
