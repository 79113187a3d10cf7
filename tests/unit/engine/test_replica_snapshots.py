"""Replicas that no log helps take a table or a base from their leader, and are whole again."""

from __future__ import annotations

from tests.snapshot_world import SnapshotWorld
from tests.unit.engine.engine_world import calm_cluster


def world_of(seed: int = 1) -> SnapshotWorld:
    """Three replicas with some rows."""
    world = SnapshotWorld(*calm_cluster(seed))
    world.cluster.add_client("writer", 901, world.answer)
    world.write(20)
    return world


def test_follower_below_the_leaders_base_takes_its_table_then_its_base() -> None:
    """S6.6: it was away while everything that it lacks was cut from the logs."""
    world = world_of()
    away = world.followers()[0]
    away.kill("away")
    world.write(60)
    world.cut_all()
    assert away.boot()
    world.settle()
    assert away.log.base(world.channel).seq > 50
    for name in ("replica_snapshot_needed", "replica_snapshot_finished", "base_taken"):
        assert world.told(name), name
    world.write(5)
    world.settle()
