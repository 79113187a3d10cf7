"""A move of a rebalance that is held up where it usually passes through: what is kept of it then
(FIP-13, FIP-28), and why the next order waits (N11)."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from raftstore.config import LEVEL
from raftstore.engine.catalog.rebalancer import Replicas
from raftstore.policy.levels import REBALANCE_LEVEL
from raftstore.protocol.message import Done, Message
from raftstore.protocol.rebalance import CancelRebalance, MoveState, WantedMove
from raftstore.protocol.replication import ReplicationBundle, StoreAck
from raftstore.types import NodeId, Seq, node_name
from tests.unit.engine.catalog.test_rebalance import GUID, Moves
from tests.unit.engine.engine_world import run

pytestmark = pytest.mark.slow

HELD_MS = 20_000


class HeldUp(Moves):
    """No acknowledgement of the channel's records behind the joint set arrives while ``holds``."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = True
        self.joint: Seq | None = None
        send = self.cluster.network.send

        def held(sender: str, receiver: str, message: Message) -> None:
            if isinstance(message, ReplicationBundle):
                kept = tuple(each for each in message.store_acks if not self.is_held(each))
                message = msgspec.structs.replace(message, store_acks=kept)
            if not self.is_held(message):
                send(sender, receiver, message)

        self.cluster.network.send = held  # type: ignore[method-assign]

    def is_held(self, message: Message) -> bool:
        """Whether it would end the joint set."""
        if not self.holds or not isinstance(message, StoreAck) or message.channel != self.channel:
            return False
        for node in self.cluster.nodes.values():
            runner = None if node.runner is None else node.runner.channels.get(self.channel)
            if runner is not None and runner.core.committed_config().config.is_joint:
                self.joint = runner.core.committed_config().seq
        return self.joint is not None and message.match_seq > self.joint

    def until(self, state: MoveState) -> None:
        """Let time pass until the catalog has the move in this state."""
        for _ in range(HELD_MS // 5):
            if self.catalog.rebalance.moves[self.channel].state is state:
                return
            run(self.cluster, 5)
        raise AssertionError(self.catalog.rebalance.moves[self.channel])


@pytest.mark.parametrize("what", ["goes on", "is cancelled", "its coordinator dies"])
def test_fip_13_move_is_switching_while_two_sets_of_voters_are_in_force(what: str) -> None:
    """The catalog has it so for as long as that lasts. It then ends as a whole: a joint set goes
    forward, also after a cancel and under another leader of the metadata channel."""
    world = HeldUp()
    world.write(1, 10)
    world.begin()
    world.until(MoveState.SWITCHING)
    assert world.seen().config.is_joint
    if what == "is cancelled":
        assert isinstance(world.ask(CancelRebalance(2, 0, 5_000)), Done)
    planner = world.planner
    if what == "its coordinator dies":
        world.let_another_plan()
    run(world.cluster, 2_000)
    assert world.is_open()
    world.holds = False
    state = world.follow(120_000)[-1]
    assert state in (MoveState.COMPLETED, MoveState.CANCELED)
    assert state is MoveState.COMPLETED or what == "is cancelled"
    if not planner.is_up:
        planner.boot()
    run(world.cluster, 30_000)
    assert world.has_no_half_state()
    assert set(world.hosts()) == set(world.new if state is MoveState.COMPLETED else world.old)
    world.write(11, 20)


def exchanged(world: Moves, node: NodeId, level: int) -> None:
    """A node is stopped and started as another version."""
    exchanged = world.node(node)
    exchanged.crash("another version is installed")
    exchanged.level = level
    exchanged.boot()
    run(world.cluster, 10_000)


@pytest.mark.parametrize("number", [0, 2, 3])
def test_fip_24_rebalance_waits_for_the_last_node_that_is_upgraded(number: int) -> None:
    """It is refused with the name of the older node, which goes on as before; nothing is begun."""
    world = Moves()
    older = (*world.old, world.three)[number]
    exchanged(world, older, REBALANCE_LEVEL - 1)
    world.write(1, 10)
    refused = world.start()
    assert refused.code == "store_too_old"
    assert f"{node_name(older)} is at level {REBALANCE_LEVEL - 1}" in refused.message
    assert world.catalog.rebalance.last is None
    assert set(world.hosts()) == set(world.old)
    exchanged(world, older, LEVEL)
    world.write(11, 20)
    assert isinstance(world.start(), Done)
    assert world.follow()[-1] is MoveState.COMPLETED


def test_fip_24_nodes_of_the_version_before_take_part() -> None:
    """Nothing that came behind the level of rebalances is asked of them: every node of a move is
    exchanged in the middle of it, and the move is completed."""
    world = HeldUp()
    world.write(1, 10)
    world.begin()
    world.until(MoveState.SWITCHING)
    for node in (*world.old, world.three):
        exchanged(world, node, REBALANCE_LEVEL)
    world.holds = False
    assert world.follow(120_000)[-1] is MoveState.COMPLETED
    world.write(11, 20)
    run(world.cluster, 10_000)
    assert set(world.hosts()) == set(world.new)


class Seen:
    """Reports about replicas, some of whose nodes look as if they were down."""

    def __init__(self, reports: Replicas, down: set[NodeId]) -> None:
        self._reports = reports
        self._down = down

    def is_up(self, node: NodeId) -> bool:
        """Not one of those."""
        return node not in self._down and self._reports.is_up(node)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reports, name)


@pytest.mark.parametrize(
    ("down", "voters", "why"),
    [
        (2, (1, 2, 3), "too few of its voters are up to change them"),
        (1, (1, 2, 3), ""),
        (0, (1, 2), "it could spare fewer nodes then"),
        (0, (1, 2, 3), ""),
    ],
)
def test_n11_move_waits_while_it_would_leave_the_channel_without_a_spare(
    down: int, voters: tuple[int, ...], why: str
) -> None:
    """No order is given until enough of its voters are up, nor one that leaves it fewer spares."""
    world = Moves()
    nodes = (*world.old, world.three)
    rebalancer = world.planner.runner.controller.rebalancer
    reports = rebalancer._replicas
    rebalancer._replicas = cast("Replicas", Seen(reports, set(world.old[:down])))
    move = WantedMove(world.channel, tuple(nodes[each] for each in voters), (), world.old, ())
    world.start(GUID, move)
    run(world.cluster, 1_000)
    (found,) = world.report().moves
    assert (found.change == 0) == bool(why)
    assert not why or found.waits_for == why
    rebalancer._replicas = reports
    assert world.follow()[-1] is (MoveState.COMPLETED if down or not why else MoveState.TIMEOUT)
