"""Replicas that operators order, in a calm simulated cluster: carried out, cancelled, refused."""

from __future__ import annotations

import pytest

from raftstore.protocol.message import Done
from raftstore.protocol.replica_orders import CancelOrder
from raftstore.types import channel_id, node_name
from tests.unit.engine.catalog.replica_world import World
from tests.unit.engine.engine_world import run


@pytest.mark.slow
@pytest.mark.parametrize("leaves", ["a follower", "the leader"])
def test_ordered_replica_takes_the_place_of_another_one(leaves: str) -> None:
    """M20 to M22: learner, joint, final, ended; the one that left deletes what it holds (M12)."""
    world = World()
    old = world.leader.node if leaves == "the leader" else world.members[0]
    if leaves == "a follower" and old == world.leader.node:
        old = world.members[1]
    wanted = tuple(world.stranger if node == old else node for node in world.members)
    answer = world.order(*map(node_name, wanted))
    assert isinstance(answer, Done)
    change = answer.detail["change"]
    again = world.order(*wanted)
    assert isinstance(again, Done)
    assert again.detail["change"] == change
    run(world.cluster, 30_000)
    seen = world.seen()
    assert (seen.change, seen.ended_change, seen.is_done) == (0, change, True)
    assert set(seen.config.voters) == set(wanted)
    assert seen.config.numbers == {world.stranger: change}
    assert set(world.hosts()) == set(wanted)
    removed = next(node for node in world.cluster.nodes.values() if node.node == old)
    assert removed.log.removed(world.channel) == 0
    assert not removed.log.holds(world.channel)
    back = world.order(*world.members, order=b"b" * 16)
    assert isinstance(back, Done)
    run(world.cluster, 30_000)
    assert set(world.hosts()) == set(world.members)
    assert world.seen().config.numbers == {old: back.detail["change"]}


@pytest.mark.slow
def test_replicas_are_added_and_removed() -> None:
    """Four, then three again, then one: each order ends by itself."""
    world = World()
    for number, wanted in enumerate(
        ((*world.members, world.stranger), world.members[1:], world.members[1:2])
    ):
        assert isinstance(world.order(*wanted, order=b"%016d" % number), Done)
        run(world.cluster, 40_000)
        assert set(world.hosts()) == set(wanted)
        assert set(world.seen().config.voters) == set(wanted)


@pytest.mark.slow
def test_order_that_is_cancelled_ends_where_it_is() -> None:
    """B2, B3: the next order is taken, and the replica of the first one is gone."""
    world = World()
    node = next(each for each in world.cluster.nodes.values() if each.node == world.stranger)
    node.crash("so that the order waits")
    wanted = (*world.members[:2], world.stranger)
    first = world.order(*wanted).detail["change"]
    assert world.seen().change == first
    pending = world.order(*world.members[:2], order=b"b" * 16)
    assert (pending.code, f"order {first}" in pending.message) == ("change_pending", True)
    assert f"{first} is: cancel that one" in not_cancelled(world, first + 1)
    assert isinstance(world.ask(CancelOrder(1, world.channel, first, 5_000)), Done)
    run(world.cluster, 10_000)
    seen = world.seen()
    assert (seen.change, seen.ended_change, seen.is_done) == (0, first, False)
    assert not_cancelled(world, first).endswith("was cancelled already")
    node.boot()
    run(world.cluster, 10_000)
    assert world.stranger not in world.hosts()
    second = world.order(*wanted, order=b"c" * 16).detail["change"]
    run(world.cluster, 30_000)
    assert set(world.hosts()) == set(wanted)
    assert world.seen().config.numbers == {world.stranger: second}
    assert not_cancelled(world, second).endswith("order the opposite to take it back")
    assert f"the last one is {second}, which has ended" in not_cancelled(world, first)


def not_cancelled(world: World, change: int) -> str:
    """Why an order cannot be cancelled."""
    answer = world.ask(CancelOrder(1, world.channel, change, 5_000))
    assert answer.code == "change_done"
    return str(answer.message)


def test_order_that_never_was_cannot_be_cancelled() -> None:
    """The channel has none, and the refusal names the channel."""
    world = World()
    refusal = not_cancelled(world, 5)
    assert refusal.startswith("there is no order 5 for ")
    assert refusal.endswith("/0, and none was given yet")


@pytest.mark.slow
def test_what_cannot_be_ordered_is_refused_with_the_value() -> None:
    """Nothing is half done: the catalog has no row of it."""
    world = World()
    name = node_name(world.stranger)
    for answer, code, text in (
        (world.order(), "schema", "without voters keeps nothing"),
        (world.order(name, name), "schema", "is named twice"),
        (world.order("n99"), "unknown_node", "has no node 'n99'"),
        (world.order(*world.members), "schema", "has these replicas already"),
        (world.order(name, channel=channel_id(bytes(16), 5)), "unknown_table", "has no channel"),
        (
            world.order(*world.members[:2], learners=(world.members[2],)),
            "schema",
            "cannot become a learner",
        ),
    ):
        assert (answer.code, text in answer.message) == (code, True)
    node = next(each for each in world.cluster.nodes.values() if each.node == world.stranger)
    node.crash("to be down")
    run(world.cluster, 30_000)
    stuck = world.order(name)
    assert (stuck.code, f"{name} are down" in stuck.message) == ("unavailable", True)
    assert world.planner.runner.controller.catalog.changes == {}
    assert isinstance(world.order(name, is_forced=True), Done)
