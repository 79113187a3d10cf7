"""Worlds whose members change, moved by hand."""

from __future__ import annotations

from collections.abc import Iterable

from raftstore.config import MembershipSettings
from raftstore.core.configs import decode_config
from raftstore.core.events import TargetKnown
from raftstore.types import (
    ChangeTarget,
    ChannelConfig,
    NodeId,
    RecordKind,
    ReplicaNumber,
    Role,
    Seq,
    Term,
)
from tests.core_bench import N4, N5
from tests.core_world import N1, N2, N3, TRIO, Node, World

ORDER = 7
SETTINGS = MembershipSettings()


def target(
    *voters: NodeId,
    change: int = ORDER,
    new: Iterable[NodeId] = (),
    learners: tuple[NodeId, ...] = (),
    cancelled: bool = False,
) -> ChangeTarget:
    """An order; the replicas of ``new`` nodes get its number."""
    numbers = {node: ReplicaNumber(change) for node in new}
    return ChangeTarget(change, voters, learners, numbers, cancelled)


REPLACE = target(N1, N2, N4, new=(N4,))
"""n4 for n3."""


def world_of(config: ChannelConfig = TRIO, *, spare: Iterable[NodeId] = (N4, N5)) -> World:
    """The members of ``config``, and nodes whose replicas an order of ``ORDER`` may add."""
    world = World((*config.members, *spare), config=config)
    for node in spare:
        world[node].begin_life(ReplicaNumber(ORDER))
    return world


def led(config: ChannelConfig = TRIO, *, spare: Iterable[NodeId] = (N4, N5)) -> World:
    """The same, led by n1, which has committed a record of its term."""
    world = world_of(config, spare=spare)
    world.elect(N1, voters=config.voters)
    world.settle()
    return world


def order(world: World, ordered: ChangeTarget | None, *, at: Iterable[NodeId] = ()) -> None:
    """These nodes' catalogs (default: all) have the order now."""
    for node in tuple(at) or tuple(world.nodes):
        if world[node].is_up:
            world[node].step(TargetKnown(ordered))


def configs(node: Node) -> list[ChannelConfig]:
    """All configurations of its log."""
    return [decode_config(r.payload) for r in node.log if r.kind is RecordKind.CONFIG]


def steps(node: Node) -> list[str]:
    """The same in short: voters/voters+learners, and a full stop where the order ended."""
    return [short(config) for config in configs(node)]


def short(config: ChannelConfig) -> str:
    """123/124+5. is the joint configuration of 1, 2, 3 and 1, 2, 4 with learner 5, ended."""
    groups = "/".join("".join(sorted(n[1] for n in group)) for group in config.voter_sets)
    learners = "".join(sorted(n[1] for n in config.learners))
    return f"{groups}{'+' if learners else ''}{learners}{'.' if config.ended else ''}"


def settle(world: World, seconds: int = 3) -> None:
    """Deliver, persist and let time pass."""
    for _ in range(seconds * 5):
        world.settle()
        world.tick(200)
    world.settle()


def leader_of(world: World) -> Node:
    """The one that leads."""
    found = world.leader()
    assert found is not None
    return found


__all__ = [
    "N1",
    "N2",
    "N3",
    "N4",
    "N5",
    "ORDER",
    "REPLACE",
    "Role",
    "Seq",
    "Term",
    "configs",
    "leader_of",
    "led",
    "order",
    "settle",
    "short",
    "steps",
    "target",
    "world_of",
]
