"""Damage under running replicas: found in the background, and made good by the others."""

from __future__ import annotations

import pytest

from raftstore.core.folds import advance
from raftstore.ports.scrub import LogDamage
from raftstore.testing.sim_damage import flip_payload
from raftstore.testing.sim_node import SimNode
from raftstore.types import Role
from tests.snapshot_world import SnapshotWorld, world_of
from tests.unit.engine.engine_world import run

pytestmark = pytest.mark.slow


def runner_of(world: SnapshotWorld, node: SimNode):
    """The replica of the world's channel on a node."""
    assert node.runner is not None
    return node.runner.channels[world.channel]


def forget_in_memory(node: SimNode) -> None:
    """Reads of the log find nothing in memory."""
    node.log._cache.clear()
    node.log._cache_bytes = 0


@pytest.mark.parametrize("trimmed", [False, True])
def test_damaged_record_of_a_follower_is_given_back_while_it_runs(trimmed: bool) -> None:
    """S0.3: no node restarts; the hole is filled by one that holds the same, and that is all."""
    world = world_of(scrub=True)
    if trimmed:
        world.cut_all()
        world.write(12)
    node = world.followers()[0]
    life, before = node.runner, runner_of(world, node)
    found, filled = world.count("log_damaged"), world.count("hole_filled")
    flip_payload(node.log, node.store.files, world.channel, 5)
    forget_in_memory(node)
    world.until(lambda: filled[0] > 0)
    world.settle()
    assert node.runner is life
    assert runner_of(world, node) is not before
    assert found == [1]
    assert node.runner.healing.log_repairs.healed_total == 1
    index = node.log.index_of(world.channel)
    assert index is not None
    assert not index.kept
    run(world.cluster, 3_000)
    assert found == [1], "what was made good is not told again by the next pass"
    node.kill("again")
    run(world.cluster, 1_000)
    node.boot()
    world.settle()


def test_leader_hands_over_before_its_log_is_made_good() -> None:
    """S9: a leader with a hole would be deaf, and the channel without one for a while."""
    world = world_of(scrub=True)
    node = world.leader
    flip_payload(node.log, node.store.files, world.channel, 3)
    forget_in_memory(node)
    filled = world.count("hole_filled")
    world.until(lambda: filled[0] > 0)
    world.settle()
    assert world.leader is not node
    assert world.told("transfer")


def test_nobody_is_made_deaf_while_no_other_replica_is_up() -> None:
    """A hole is opened only when somebody may fill it."""
    world = world_of(scrub=True)
    node = world.leader
    others = world.followers()
    for other in others:
        other.kill("away")
    flip_payload(node.log, node.store.files, world.channel, 3)
    forget_in_memory(node)
    found = world.count("log_damaged")
    world.until(lambda: found[0] > 0)
    run(world.cluster, 15_000)
    assert not runner_of(world, node).ignores_peers
    for other in others:
        other.boot()
    filled = world.count("hole_filled")
    world.until(lambda: filled[0] > 0, 60_000)
    world.settle()


def test_base_entry_is_written_anew_as_the_log_has_it() -> None:
    """S6.5: the log took another replica's base, with which the channel is not opened yet."""
    world = world_of()
    node = world.followers()[0]
    world.cut(node)
    world.write(12)
    life, runner = node.runner, runner_of(world, node)
    assert life is not None
    runner.pause()
    records = [each for each in node.log.records(world.channel) if each.last_seq <= 25]
    taken = advance(node.log.base(world.channel), records)
    assert runner.core.base.seq < taken.seq
    node.log.rebase(world.channel, taken)
    index = node.log.index_of(world.channel)
    assert index is not None
    life.healing.log_repairs.found(LogDamage(index.base_segment, 1, 2, "a bit"), 0)
    assert node.log.committer.failure is None
    assert node.log.base(world.channel) == taken


@pytest.mark.parametrize("trimmed", [False, True])
def test_damaged_table_is_replaced_by_a_replica_snapshot_while_it_runs(trimmed: bool) -> None:
    """S6.4: it goes on voting and acknowledging, and serves no read before it is whole."""
    world = world_of(scrub=True)
    if trimmed:
        world.cut_all()
        world.write(12)
    node = world.followers()[0]
    life = node.runner
    assert life is not None
    key = next(iter(node.tables._tables[world.channel].rows))
    healed = world.count("table_healed")
    node.tables.corrupt(world.channel, key)
    world.until(lambda: bool(life.healing.table_repairs.open))
    runner = runner_of(world, node)
    assert runner.table_damage is not None
    assert not runner.core.is_recovering
    assert runner.core.may_vote()
    world.write(5)
    world.until(lambda: healed[0] > 0)
    world.settle()
    assert node.runner is life
    assert runner_of(world, node).table_damage is None
    assert life.healing.table_repairs.open == {}
    assert node.tables.get(world.channel, key) is not None


def test_damaged_leader_of_a_table_hands_over_and_copies_then() -> None:
    """Reads of a leader are verified, so it serves until another one leads."""
    world = world_of(scrub=True)
    node = world.leader
    key = next(iter(node.tables._tables[world.channel].rows))
    node.tables.corrupt(world.channel, key)
    healed = world.count("table_healed")
    world.until(lambda: healed[0] > 0)
    world.settle()
    assert runner_of(world, node).elector.role is not Role.LEADER


def test_log_is_not_cut_while_a_table_is_replaced() -> None:
    """S6.5: the table that comes may be older than the one that is there."""
    world = world_of(scrub=True)
    node = world.followers()[0]
    assert node.runner is not None
    runner = runner_of(world, node)
    trimmer = node.runner.retention.trimmer
    assert trimmer._may_trim(runner)
    runner.table_damage = "a block"
    assert not trimmer._may_trim(runner)
