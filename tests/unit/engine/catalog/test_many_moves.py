"""Orders that the leader of the metadata channel gives at a time, in a cluster of many nodes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import RebalanceSettings
from raftstore.engine.catalog.evacuator import Evacuator
from raftstore.engine.catalog.order_proposals import OrderProposals
from raftstore.engine.catalog.rebalancer import OTHERS_FIRST, Rebalancer
from raftstore.policy.open_moves import MOVES_OF_TAKER_MAX, moves_at_once
from raftstore.protocol.rebalance import MoveState, WantedMove
from raftstore.state_machines.catalog import TableEntry, create_table_command
from raftstore.state_machines.catalog_members import drain_node_command
from raftstore.state_machines.catalog_rebalance import (
    BeginRebalance,
    CancelMoves,
    rebalance_command,
)
from raftstore.state_machines.catalog_replicas import ReportConfig, report_config_command
from raftstore.types import ChannelConfig, ChannelId, NodeId, Seq, Term, node_id
from tests.unit.state_machines.catalog_rows import CatalogRows

NODES = tuple(node_id(f"n{number:02}", bytes([number + 1]) * 16) for number in range(30))
NEW = NODES[-1]
UUID = b"a-table-of-many!"
PARTITIONS = 180
PLACED = tuple(tuple(NODES[(each + step) % 30] for step in range(3)) for each in range(PARTITIONS))
AT_ONCE = moves_at_once(len(NODES))


class Planner(CatalogRows):
    """A catalog of thirty nodes, whose leader's proposals wait until the test answers them."""

    def __init__(self) -> None:
        super().__init__(*NODES, now_ms=1_000)
        entry = TableEntry("t", UUID, ("k",), PARTITIONS, 3, "fsync", None, "", PLACED)
        assert self.command(create_table_command(entry)) is None
        self.channels = entry.channels
        self.waiting: list[tuple[bytes, Any]] = []
        replicas: Any = SimpleNamespace(
            is_up=bool, hosts=lambda *_: False, last_seq=lambda *_: 0, bytes_of=lambda *_: 0
        )
        view: Any = self
        self.rebalancer = Rebalancer(
            view, replicas, replicas, RebalanceSettings(), lambda *_, **__: None
        )
        ids: Any = SimpleNamespace(uuid=lambda: b"%016d" % self.seq)
        self.orders = OrderProposals(view, ids)
        self.evacuator = Evacuator(view, self.orders, bool)
        self.proposals = self
        self.metadata = None

    # --- what parts see -------------------------------------------------------------------------

    def refusal_of_format(self, _: int) -> None:
        """Every node is new."""

    def on_catalog_applied(self, _: int) -> None:
        """The test looks by itself."""

    def propose(self, _: Any, command: bytes, done: Any, __: int) -> None:
        """A command on its way."""
        self.waiting.append((command, done))

    # --- what tests do --------------------------------------------------------------------------

    def answer(self, count: int = 1_000) -> None:
        """So many of the proposals are in the catalog, the oldest first."""
        applied, self.waiting = self.waiting[:count], self.waiting[count:]
        for command, done in applied:
            self.command(command)
            done(SimpleNamespace(conflict=False), 0)

    def begin(self, *moves: WantedMove) -> None:
        """Begin a rebalance."""
        command = BeginRebalance(b"g" * 16, "test", moves)
        assert self.command(rebalance_command(command)) is None

    def open_orders(self) -> dict[ChannelId, tuple[NodeId, ...]]:
        """The nodes that take a replica by each order of the catalog."""
        entries = self.catalog.changes.items()
        return {channel: each.takers for channel, each in entries if each.order is not None}

    def carry_out(self, channel: ChannelId) -> None:
        """The channel's leader reports that the order is done."""
        entry = self.catalog.changes[channel]
        assert entry.order is not None
        target = entry.order.target
        config = ChannelConfig(
            (target.voters,), numbers=target.numbers, change=target.change, ended=True
        )
        report = ReportConfig(channel, "t", Seq(entry.config_seq + 9), Term(1), config)
        assert self.command(report_config_command(report)) is None

    def moves(self, to: Any) -> list[WantedMove]:
        """The third replica of each channel goes to the node that is named for it."""
        return [
            WantedMove(channel, (*placed[:2], to(number)), (), placed, ())
            for number, (channel, placed) in enumerate(zip(self.channels, PLACED, strict=True))
        ]

    def states(self) -> Counter[MoveState]:
        """Of all moves."""
        return Counter(each.state for each in self.catalog.rebalance.moves.values())


def far(number: int) -> NodeId:
    """A node that is not of the partition."""
    return NODES[(number + 15) % 30]


def test_as_many_channels_move_at_a_time_as_the_cluster_carries() -> None:
    """Not one more, also while orders are on their way into the catalog."""
    planner = Planner()
    planner.begin(*planner.moves(far))
    planner.rebalancer.look(1)
    assert len(planner.waiting) == AT_ONCE == 15
    planner.answer(3)
    planner.rebalancer.look(2)
    orders = [command for command, _ in planner.waiting if b"change_replicas" in command]
    assert len(orders) == AT_ONCE - 3
    planner.answer()
    assert len(planner.open_orders()) == AT_ONCE
    assert list(planner.rebalancer.waits_for.values()).count(OTHERS_FIRST) == PARTITIONS - AT_ONCE
    for channel in [*planner.open_orders()][:2]:
        planner.carry_out(channel)
    planner.rebalancer.look(3)
    planner.answer()
    assert len(planner.open_orders()) == AT_ONCE


def test_node_that_joined_takes_few_replicas_at_a_time() -> None:
    """Its disk and its line are those of one node; moves to others go on beside it."""
    planner = Planner()
    planner.begin(*planner.moves(lambda number: NEW if number < 20 else far(number)))
    planner.rebalancer.look(1)
    planner.answer()
    takers = Counter(node for each in planner.open_orders().values() for node in each)
    assert takers[NEW] == MOVES_OF_TAKER_MAX
    assert takers.total() == AT_ONCE


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_moves_that_wait_for_others_end_with_the_rebalance(*, is_cancelled: bool) -> None:
    """A move that has not begun is not looked at while there is no room, unless it is cancelled."""
    planner = Planner()
    planner.begin(*planner.moves(far))
    planner.rebalancer.look(1)
    planner.answer()
    if is_cancelled:
        number = planner.catalog.rebalance.open
        assert number is not None
        assert planner.command(rebalance_command(CancelMoves(number.number))) is None
    for turn in range(100):
        if not is_cancelled:
            for channel in planner.open_orders():
                planner.carry_out(channel)
        planner.rebalancer.look(2 + turn)
        planner.answer()
    expected = (
        {MoveState.CANCELED: PARTITIONS - AT_ONCE, MoveState.EXPANDING: AT_ONCE}
        if is_cancelled
        else {MoveState.COMPLETED: PARTITIONS}
    )
    assert planner.states() == expected


def test_drain_moves_as_many_channels_at_a_time_to_different_nodes() -> None:
    """It goes on as orders end, and never further ahead."""
    planner = Planner()
    leaves = NODES[5]
    assert planner.command(drain_node_command(leaves, drains=True)) is None
    held = [each for each in planner.channels if leaves in planner.catalog.voters_of(each)]
    assert len(held) > AT_ONCE
    planner.evacuator.look(1)
    planner.evacuator.look(2)
    assert len(planner.waiting) == moves_at_once(len(NODES) - 1) == 14
    planner.answer()
    takers = Counter(node for each in planner.open_orders().values() for node in each)
    assert max(takers.values()) == 1
    for channel in planner.open_orders():
        planner.carry_out(channel)
    planner.evacuator.look(3)
    planner.answer()
    for channel in planner.open_orders():
        planner.carry_out(channel)
    assert not any(leaves in planner.catalog.voters_of(each) for each in planner.channels)


def test_rows_of_channels_are_read_once_for_every_look() -> None:
    """Channels that were never changed are as their table says, the others as was reported."""
    planner = Planner()
    planner.begin(*planner.moves(far)[:1])
    planner.rebalancer.look(1)
    planner.answer()
    first, *others = planner.orders.hosted_channels()
    assert (first.has_order, first.takes) == (True, (far(0),))
    assert [each.voters for each in others] == list(PLACED[1:])
    assert not any(each.has_order for each in others)
