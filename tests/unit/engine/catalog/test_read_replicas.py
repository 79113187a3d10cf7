"""Read replicas in a calm simulated cluster: they serve reads and nothing else depends on them."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.policy.views import leader_plan
from raftstore.protocol.admin import ClusterInfo, ClusterView
from raftstore.protocol.message import Done, Failed, Request
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.rows.sealing import seal
from raftstore.testing.sim_node import SimNode
from raftstore.types import Level, MemberRole, NodeId, node_name
from tests.unit.engine.catalog.replica_world import World
from tests.unit.engine.engine_world import ask, publish, run

KEY = b"key"


def with_reader() -> tuple[World, SimNode]:
    """Three voters, and a reader on the fourth node."""
    world = World()
    answer = world.order(*map(node_name, world.members), learners=(node_name(world.stranger),))
    assert isinstance(answer, Done)
    run(world.cluster, 20_000)
    config = world.seen().config
    assert config.role_of(world.stranger) is MemberRole.READER
    assert config.ended
    return world, world.cluster.nodes[world.stranger]


def put(world: World, counter: int) -> None:
    """The row's next value, acknowledged."""
    payload = encode_rows([(KEY, seal(KEY, b"%d" % counter))])
    message = publish(world.cluster, world.leader, world.channel, counter, payload)
    answers = ask(world.cluster, world.leader, message)
    run(world.cluster, 2_000)
    assert answers


def read(world: World, node: SimNode, level: Level, **more: Any) -> Any:
    """The node's answer."""
    request = Get(
        1, world.channel, (KEY,), level.value, more.pop("max_lag", None), 0, 1_000, **more
    )
    return asked(world, node, request)


def asked(world: World, node: SimNode, request: Request) -> Any:
    """The node's answer."""
    answers = ask(world.cluster, node, request)
    run(world.cluster, 2_000)
    (answer,) = answers
    return answer


def others(world: World, gone: NodeId) -> list[SimNode]:
    """The voters but one."""
    return [world.cluster.nodes[node] for node in world.members if node != gone]


def test_reader_serves_bounded_reads_and_refuses_the_leaders() -> None:
    """It gets records like a voter, and proofs of its age like one; a read of the leader's level is
    sent on."""
    world, reader = with_reader()
    put(world, 1)
    for level, bounds in (
        (Level.ANY, {}),
        (Level.BOUNDED, {"max_lag": 0}),
        (Level.BOUNDED, {"max_staleness_ms": 500}),
    ):
        answer = read(world, reader, level, **bounds)
        assert isinstance(answer, GetAnswer), answer
        assert answer.values[0] is not None
    refused = read(world, reader, Level.LINEARIZABLE)
    assert isinstance(refused, Failed)
    assert refused.code == "not_leader"


@pytest.mark.slow
def test_channel_writes_on_without_its_reader_and_not_by_it() -> None:
    """It is not counted: its death costs nothing, and it makes no majority."""
    world, reader = with_reader()
    reader.crash("to be down")
    put(world, 1)
    reader.boot()
    run(world.cluster, 5_000)
    assert read(world, reader, Level.ANY).values[0] is not None
    for node in others(world, world.leader.node):
        node.crash("to be down")
    run(world.cluster, 20_000)
    # A leader and a reader are no quorum of three voters.
    assert world.channel not in world.cluster.leaders()


def test_reader_is_shown_as_one_and_never_asked_to_lead() -> None:
    """Clients read from it; plans of leaders leave it out, by hand or not."""
    world, reader = with_reader()
    put(world, 1)
    info = asked(world, reader, ClusterInfo(1))
    (channel,) = info.tables[0].channels
    assert set(channel.replicas) == {*world.members, world.stranger}
    assert channel.roles == {world.stranger: MemberRole.READER}
    view = asked(world, reader, ClusterView(1))
    (seen,) = view.channels
    assert {hint.node: hint.role for hint in seen.replicas}[world.stranger] == "reader"
    leaving = [node for node in world.cluster.node_ids if node != world.stranger]
    assert not leader_plan(view, leaving).moves
    balancer = world.planner.runner.leaders.balancer
    balancer._look_at_catalog()
    assert set(balancer._placed[world.channel][1]) == set(world.members)
    runner, requests = reader.runner.channels[world.channel], reader.runner.leaders.move_requests
    reason = requests._why_not_lead(runner, runner.elector.term)
    assert reason is not None
    assert "no replica that votes" in reason


@pytest.mark.slow
def test_reader_is_removed_and_may_become_a_voter() -> None:
    """Both by an order, like any replica."""
    world, reader = with_reader()
    names = tuple(map(node_name, world.members))
    assert isinstance(world.order(*names, node_name(world.stranger), order=b"v" * 16), Done)
    run(world.cluster, 30_000)
    config = world.seen().config
    assert set(config.voters) == {*world.members, world.stranger}
    assert config.roles == {}
    assert isinstance(world.order(*names, order=b"r" * 16), Done)
    run(world.cluster, 30_000)
    assert set(world.hosts()) == set(world.members)
    assert reader.log.removed(world.channel) is not None
