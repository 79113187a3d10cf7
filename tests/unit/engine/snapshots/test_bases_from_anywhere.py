"""A hole that no record fills: whichever node is whole has the base that stands for it."""

from __future__ import annotations

from functools import partial

import pytest

from raftstore.core.folds import advance
from raftstore.ports.log import EMPTY_BASE
from raftstore.testing.sim_damage import flip_payload
from raftstore.testing.sim_node import SimNode
from raftstore.types import node_name
from tests.storage_helpers import all_records
from tests.unit.engine.catalog.replica_world import World
from tests.unit.engine.catalog.test_witnesses import other_of, put, runner_of, with_witness
from tests.unit.engine.engine_world import run

pytestmark = pytest.mark.slow

AFTER_MS = 60_000


def replaced() -> tuple[World, SimNode]:
    """Three voters with rows, one of which came in the place of another."""
    world = World()
    put(world, 1)
    gone = next(node for node in world.members if node != world.leader.node)
    wanted = [world.stranger if node == gone else node for node in world.members]
    world.order(*map(node_name, wanted))
    run(world.cluster, 20_000)
    assert set(world.seen().config.voters) == set(wanted)
    return world, world.cluster.nodes[world.stranger]


@pytest.mark.parametrize(("is_witness", "at"), [(True, 12), (False, 1)])
def test_hole_is_covered_by_the_only_node_that_is_whole(is_witness: bool, at: int) -> None:
    """S0.3: a witness, or a voter that the configuration in front of the hole does not know. The
    leader is down for good, and the two others have trimmed, or lack, what is missing."""
    world, third = with_witness() if is_witness else replaced()
    for counter in range(2, 14):
        put(world, counter, within_ms=500)
    run(world.cluster, 3_000)
    leader, other = world.leader, other_of(world, third)
    end = runner_of(world, third).core.commit_seq
    trimmed = [
        record for record in all_records(third.log, world.channel) if record.last_seq < end - 1
    ]
    third.log.rebase(world.channel, advance(EMPTY_BASE, trimmed))
    third.log.flush()
    barriers: list[object] = []
    other.runner.ports.tables.start_barrier(world.channel, lambda found, _: barriers.append(found))
    run(world.cluster, 1_000)
    assert barriers
    other.damage("a bit flips", partial(flip_payload, channel=world.channel, at=at))
    leader.kill("down for good")
    third.kill("restart")
    third.boot()
    if other.runner is None:
        other.boot()
    run(world.cluster, 300)
    assert runner_of(world, other).hole is not None
    run(world.cluster, AFTER_MS)
    assert runner_of(world, other).hole is None
    assert world.cluster.leaders()[world.channel] is other
