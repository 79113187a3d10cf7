"""A lost node has one place, by however many tokens new ones come, and if one dies (M29)."""

from __future__ import annotations

import random

import pytest

from raftstore.protocol.members import JoinAccepted
from raftstore.testing.sim_node import SimNode
from raftstore.testing.sim_operator import SimJoin, SimOperator
from raftstore.types import NodeId
from tests.unit.engine.catalog.replica_world import World
from tests.unit.engine.engine_world import run


class Joins:
    """New nodes on their way into the cluster, each by a token of its own."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.operator = SimOperator(world.cluster, random.Random(seed))
        self.joined: list[tuple[NodeId, JoinAccepted]] = []
        self.refused: list[SimJoin] = []

    def begin(self, name: str, replaces: NodeId) -> SimJoin:
        """Make a token for the place of a node, and have a new one use it at once."""
        return SimJoin(self.operator, name, replaces, self._on_joined, self.refused.append)

    def start(self) -> SimNode:
        """The node that was accepted last begins to live."""
        found = self.world.cluster.add_node(*self.joined[-1])
        found.boot()
        return found

    def _on_joined(self, node: NodeId, answer: JoinAccepted) -> None:
        self.joined.append((node, answer))


def lose(world: World) -> NodeId:
    """One member of the table's channel that does not lead the catalog loses its disk."""
    lost = next(world.cluster.nodes[n] for n in world.members if n != world.planner.node)
    lost.kill("its disk is lost")
    lost.lose("its disk is lost")
    run(world.cluster, 10_000)
    return lost.node


def nodes_of(world: World) -> set[NodeId]:
    """Those of the catalog, as its leader has it."""
    return {entry.node for entry in world.planner.runner.controller.catalog.nodes.values()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_two_tokens_for_one_lost_node_that_are_used_at_once_bring_one_node(seed: int) -> None:
    """The cluster is as large as before, and the one that came may ask again, as after a kill."""
    world = World(member_changes=True)
    before, lost = nodes_of(world), lose(world)
    joins = Joins(world, seed)
    both = [joins.begin(name, lost) for name in ("n8", "n9")]
    run(world.cluster, 20_000)
    [(node, answer)] = joins.joined
    [refused] = joins.refused
    assert {node, refused.node} == {each.node for each in both}
    assert nodes_of(world) == before - {lost} | {node}
    next(each for each in both if each.node == node).go_on()
    run(world.cluster, 10_000)
    assert [again.number for _, again in joins.joined] == [answer.number] * 2
    joins.start()
    run(world.cluster, 60_000)
    members = world.seen().config.members
    assert (len(members), lost in members) == (3, False)
    world.write(1, 10)


@pytest.mark.slow
def test_second_token_brings_nobody_where_the_first_node_died_before_it_lived() -> None:
    """That one has the place, and is replaced by a token that names it."""
    world = World(member_changes=True)
    before, lost = nodes_of(world), lose(world)
    joins = Joins(world, 1)
    joins.begin("n8", lost)
    run(world.cluster, 20_000)
    [(dead, _)] = joins.joined
    joins.begin("n9", lost)
    run(world.cluster, 20_000)
    assert len(joins.refused) == 1
    assert nodes_of(world) == before - {lost} | {dead}
    joins.begin("n9", dead)
    run(world.cluster, 20_000)
    alive = joins.start().node
    run(world.cluster, 90_000)
    assert nodes_of(world) == before - {lost} | {alive}
    members = world.seen().config.members
    assert (len(members), {lost, dead} & set(members)) == (3, set())
    world.write(1, 10)
