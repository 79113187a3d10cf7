"""Worlds whose logs are cut all the time: replicas die, fall behind and lose their tables."""

from __future__ import annotations

import random

import pytest

from tests.snapshot_world import SnapshotWorld, world_of
from tests.unit.engine.engine_world import run

ROUNDS = 12


def act(world: SnapshotWorld, rng: random.Random) -> None:  # noqa: C901 - one arm per fault
    """One thing happens."""
    nodes = list(world.cluster.nodes.values())
    up = [node for node in nodes if node.is_up]
    down = [node for node in nodes if not node.is_up]
    kind = rng.choice(
        ("write", "write", "cut", "cut", "end", "end", "lose", "boot", "part", "lead")
    )
    if kind == "write" and world.has_leader():
        world.write(rng.randrange(1, 25))
    elif kind == "cut" and up:
        node = rng.choice(up)
        if world.may_cut(node):
            world.cut(node)
    elif kind == "end" and len(up) == len(nodes):
        node = rng.choice(up)
        if rng.random() < 0.5:
            node.failpoint = rng.choice(
                ("copy.before-write", "copy.before-switch", "copy.after-switch")
            )
        elif rng.random() < 0.5:
            node.crash("power")
        else:
            node.kill("killed")
    elif kind == "lose" and len(down) == 1 and world.is_whole():
        down[0].tables.lose()
    elif kind == "boot" and down:
        down[0].boot()
    elif kind == "part" and len(up) == len(nodes):
        one, other = rng.sample(up, 2)
        world.cluster.network.cut(one.node, other.node)
    elif kind == "lead" and world.has_leader():
        world.leader.hand_over_all()
    run(world.cluster, rng.choice((1, 20, 300, 3_000)))


def left_behind(world: SnapshotWorld, rng: random.Random) -> None:
    """One replica is away while the others go on and cut their logs."""
    nodes = list(world.cluster.nodes.values())
    if not all(node.is_up for node in nodes):
        return
    away = rng.choice(nodes)
    away.kill("away")
    run(world.cluster, 3_000)
    world.write(rng.randrange(20, 60))
    for node in nodes:
        if node.is_up and world.may_cut(node):
            world.cut(node)
    run(world.cluster, rng.choice((1, 1_000)))
    away.boot()
    run(world.cluster, rng.choice((1, 100, 1_000)))


def run_world(seed: int) -> int:
    """Run one world; return how many tables were taken over."""
    rng = random.Random(seed)
    world = world_of(seed)
    taken = world.count("replica_snapshot_finished")
    for _ in range(ROUNDS):
        for _ in range(rng.randrange(1, 8)):
            act(world, rng)
            if rng.random() < 0.2:
                left_behind(world, rng)
        world.cluster.network.heal()
        for node in world.cluster.nodes.values():
            node.failpoint = None
            if not node.is_up:
                assert node.boot()
        world.cluster.reconnect_all()
        world.settle(180_000)
    return taken[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_replicas_are_whole_again_whatever_happened_to_them(seed: int) -> None:
    """S0.3, S6.4, S6.6: the oracle watches all along, and in the end all replicas are equal."""
    assert run_world(seed) >= 3
