"""Holes in logs whose records everybody else trimmed: a base stands for them (S0.3, S6.4)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from raftstore.core.folds import advance
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_damage import flip_payload
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId
from tests.storage_helpers import all_records
from tests.unit.engine.channel.test_hole_repairs import contents, damaged, runner_of
from tests.unit.engine.engine_world import calm_cluster, publish, run


class World:
    """Three nodes with one partition; ``n3`` is whole, and has trimmed what the others lost."""

    def __init__(self) -> None:
        self.cluster, self.channel = calm_cluster()
        self.events: list[tuple[str, Any]] = []
        self.rows = 0
        trace = self.cluster.trace

        def traced(name: str, **fields: Any) -> None:
            self.events.append((name, fields))
            trace(name, **fields)

        self.cluster.trace = traced  # type: ignore[method-assign]
        self.nodes: dict[str, SimNode] = {n.name: n for n in self.cluster.nodes.values()}

    def write(self, count: int) -> None:
        """Some rows, one record each."""
        leader = self.cluster.leaders()[self.channel]
        assert leader.runner is not None
        for _ in range(count):
            self.rows += 1
            key = b"%d" % self.rows
            payload = encode_rows([(key, seal(key, b"row"))])
            message = publish(self.cluster, leader, self.channel, self.rows, payload)
            leader.on_client_message(1, message)
        run(self.cluster, 3_000)

    def trim(self, name: str, seq: int) -> None:
        """Have a log begin behind what it applied."""
        log = self.nodes[name].log
        held = [r for r in all_records(log, self.channel) if r.last_seq <= seq]
        log.rebase(self.channel, advance(EMPTY_BASE, held))
        log.flush()

    def base(self, name: str) -> Base:
        """Of a node's log."""
        return self.nodes[name].log.base(self.channel)

    def covered(self) -> list[str]:
        """The nodes whose logs began behind a base instead of having their holes filled."""
        return [fields["node"] for name, fields in self.events if name == "hole_covered"]


@pytest.fixture
def world() -> World:
    """With some rows everywhere."""
    made = World()
    made.write(12)
    return made


def whole(cluster: SimCluster, channel: ChannelId, nodes: dict[str, SimNode]) -> None:
    """All replicas take part, with the same rows."""
    assert cluster.every_channel_has_a_leader()
    one, *others = contents(cluster, channel)
    assert others == [one, one]
    for node in nodes.values():
        runner = runner_of(node, channel)
        assert runner.hole is None
        assert runner.core.may_vote()


def test_two_logs_lost_what_the_third_one_trimmed_and_no_leader_is_needed(world: World) -> None:
    """Both voters keep what they promised behind the hole, and vote."""
    world.trim("n3", 9)
    before = contents(world.cluster, world.channel)
    damaged(world.cluster, world.channel, {"n1": 3, "n2": 3})
    ends = {name: runner_of(world.nodes[name], world.channel).core for name in ("n1", "n2")}
    assert all(core.is_recovering for core in ends.values())
    run(world.cluster, 8_000)
    assert sorted(world.covered()) == ["n1", "n2"]
    whole(world.cluster, world.channel, world.nodes)
    assert contents(world.cluster, world.channel) == before
    assert world.base("n1") == world.base("n2") == world.base("n3")


def test_table_is_taken_first_where_the_base_is_above_it(world: World) -> None:
    """It was away, and its table is older than the base; the third one stays down. Its log goes
    when it has the table, and not before (S6.4)."""
    away = world.nodes["n2"]
    away.damage("a bit flips", partial(flip_payload, channel=world.channel, at=3))
    world.write(6)
    end = runner_of(world.nodes["n3"], world.channel).core.commit_seq
    world.trim("n3", end - 2)
    before = contents(world.cluster, world.channel)[2]
    for name in ("n1", "n3"):
        world.nodes[name].kill("to stop")
    for name in ("n2", "n3"):
        world.nodes[name].boot()
    assert runner_of(away, world.channel).hole is not None
    run(world.cluster, 15_000)
    assert world.channel in world.cluster.leaders()
    steps = [name for name, fields in world.events if fields.get("node") == "n2"]
    assert steps.index("replica_snapshot_finished") < steps.index("hole_covered")
    world.nodes["n1"].boot()
    run(world.cluster, 5_000)
    whole(world.cluster, world.channel, world.nodes)
    assert contents(world.cluster, world.channel)[0] == before
