"""A node loses its disk in the middle of an upgrade: it is replaced once the others are newer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raftstore.config import LEVEL
from raftstore.policy.levels import MEMBERS_LEVEL
from raftstore.protocol.members import JoinAccepted, MakeTicket
from raftstore.protocol.message import Done
from raftstore.protocol.tickets import stored_key
from raftstore.testing.sim_node import SimNode
from raftstore.testing.sim_operator import SimJoin, SimOperator
from raftstore.types import NodeId, node_name
from tests.unit.engine.catalog.replica_world import World
from tests.unit.engine.engine_world import run


def exchange(world: World, node: SimNode, level: int) -> None:
    """Start a node as another version."""
    node.crash("another version is installed")
    node.level = level
    node.boot()
    run(world.cluster, 10_000)


@pytest.mark.slow
def test_s8_lost_node_of_an_older_version_is_replaced_when_all_others_are_newer() -> None:
    """While another one is older, too, that one is named; nothing of this waits for the lost one,
    which nobody can upgrade."""
    world = World(member_changes=True)
    lost, other = (world.cluster.nodes[n] for n in world.members if n != world.planner.node)
    exchange(world, lost, MEMBERS_LEVEL - 1)
    exchange(world, other, MEMBERS_LEVEL - 1)
    lost.kill("its disk is lost")
    lost.lose("its disk is lost")
    run(world.cluster, 10_000)

    def ask_for_ticket(replaces: str) -> Any:
        ticket = MakeTicket(1, b"t" * 16, stored_key(bytes(32)), 60_000, 5_000, replaces)
        return world.ask(ticket)

    refused = ask_for_ticket(lost.name)
    older = f"{other.name} is at level {MEMBERS_LEVEL - 1}"
    assert refused.code == "store_too_old"
    assert (older in refused.message, lost.name in refused.message) == (True, False)
    exchange(world, other, LEVEL)
    assert f"{lost.name} is at level" in ask_for_ticket("").message
    assert isinstance(ask_for_ticket(lost.name), Done)

    joined: list[SimNode] = []

    def start(node: NodeId, answer: JoinAccepted) -> None:
        joined.append(world.cluster.add_node(node, answer))
        joined[0].boot()

    refusals: list[SimJoin] = []
    SimJoin(
        SimOperator(world.cluster, random.Random(1)), lost.name, lost.node, start, refusals.append
    )
    run(world.cluster, 60_000)
    assert refusals == []
    assert node_name(joined[0].node) == lost.name
    config = world.seen().config
    assert (len(config.members), lost.node in config.members) == (3, False)
    assert set(world.hosts()) == set(config.members)
    world.write(1, 10)
