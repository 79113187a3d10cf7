"""Rebalances in a calm simulated cluster: states, failures, cancelling (FIP-13 to 23, 28, 29)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from raftstore.protocol.admin import StepDown
from raftstore.protocol.message import Done
from raftstore.protocol.rebalance import (
    AskRebalance,
    AskTableSizes,
    CancelRebalance,
    MoveState,
    NodeTag,
    RebalanceReport,
    StartRebalance,
    SwitchLeaders,
    TableSizesAnswer,
    TagNode,
    ThrottleCopies,
    WantedMove,
)
from raftstore.protocol.replica_orders import CancelOrder
from raftstore.testing.sim_node import SimNode
from raftstore.types import NodeId, node_name
from tests.unit.engine.catalog.test_replica_commands import World
from tests.unit.engine.engine_world import ask, run

pytestmark = pytest.mark.slow

GUID = b"r" * 16
STUCK_MS = 60_000


class Moves(World):
    """[0, 1, 2] of four nodes have the table, 0 leads it; it is to go to [1, 2, 3]."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__(seed)
        self.zero = self.leader.node
        one, two = (node for node in self.members if node != self.zero)
        self.old = (self.zero, one, two)
        self.three = self.stranger
        self.new = (one, two, self.three)
        for node in self.cluster.nodes.values():
            self.have_patience(node, STUCK_MS)

    @property
    def catalog(self) -> Any:
        """The catalog of the leader of the metadata channel; while there is none, of any node."""
        runners = [node.runner for node in self.cluster.nodes.values() if node.runner is not None]
        leader = self.cluster.leaders().get(runners[0].metadata_channel)
        return (runners[0] if leader is None else leader.runner).controller.catalog

    def node(self, node: NodeId) -> SimNode:
        """A simulated node."""
        return next(each for each in self.cluster.nodes.values() if each.node == node)

    def have_patience(self, node: SimNode, stuck_ms: int) -> None:
        """Let a node's rebalances time out after so long."""
        rebalance = dataclasses.replace(node.settings.rebalance, stuck_ms=stuck_ms)
        node.settings = dataclasses.replace(node.settings, rebalance=rebalance)
        if node.runner is not None:
            node.runner.controller.rebalancer._settings = rebalance

    def move(self) -> WantedMove:
        """[0, 1, 2] -> [1, 2, 3]."""
        return WantedMove(self.channel, self.new, (), self.old, ())

    def start(self, guid: bytes = GUID, *moves: WantedMove) -> Any:
        """Begin a rebalance, by default of the one move."""
        return self.ask(StartRebalance(1, guid, moves or (self.move(),), "test", 5_000))

    def begin(self) -> list[Any]:
        """Begin the one move, and stop when its order is in the catalog; the answers come in."""
        request = StartRebalance(1, GUID, (self.move(),), "test", 5_000)
        answers: list[Any] = ask(self.cluster, self.planner, request)
        for _ in range(200):
            run(self.cluster, 5)
            if self.channel in self.catalog.changes:
                return answers
        raise AssertionError("no order was given")

    def report(self) -> RebalanceReport:
        """The rebalance, as operators see it."""
        found = self.ask(AskRebalance(1)).rebalance
        assert isinstance(found, RebalanceReport)
        return found

    def follow(self, for_ms: int = 60_000) -> list[MoveState]:
        """States of the move, in the order in which they are in the catalog."""
        seen: list[MoveState] = []
        for _ in range(for_ms // 5):
            entry = self.catalog.rebalance.moves[self.channel]
            if not seen or entry.state is not seen[-1]:
                seen.append(entry.state)
            if not self.is_open():
                return seen
            run(self.cluster, 5)
        return seen

    def is_open(self) -> bool:
        """Whether the planner's catalog has an open rebalance."""
        return self.catalog.rebalance.open is not None

    def let_another_plan(self) -> None:
        """The leader of the metadata channel is gone for good, and another one takes over."""
        self.planner.crash("the coordinator dies")
        run(self.cluster, 15_000)

    def has_no_half_state(self) -> bool:
        """FIP-28: no order is open, voters are one set, no learner is left, all host it."""
        entry = self.catalog.changes.get(self.channel)
        if entry is None:
            return True
        config = entry.config
        return entry.order is None and not config.is_joint and not config.learners


def test_fip_22_scenario_with_its_numbers() -> None:
    """[0,1,2] -> [1,2,3]: through every state in order; the leader is one that stays, the last
    record has no trace of 0, and 0 has deleted what it held (FIP-13 to FIP-22)."""
    world = Moves()
    world.write(1, 20)
    answers = world.begin()
    world.node(world.three).crash("so that it has to catch up")
    seen = world.follow(3_000)
    world.node(world.three).boot()
    seen += [state for state in world.follow() if state not in seen]
    order = list(MoveState)
    assert seen == sorted(seen, key=order.index)
    assert {MoveState.EXPANDING, MoveState.CATCHING_UP, MoveState.COMPLETED} <= set(seen)
    report = world.report()
    (answer,) = answers
    assert isinstance(answer, Done)
    assert (report.state, report.number) == (MoveState.COMPLETED, answer.detail["rebalance"])
    assert world.start().detail["rebalance"] == report.number
    assert [each.state for each in report.moves] == [MoveState.COMPLETED]
    assert 0 < report.begun_ms <= report.moves[0].begun_ms <= report.ended_ms
    run(world.cluster, 5_000)
    config = world.seen().config
    assert set(config.members) == set(world.new)
    assert set(world.hosts()) == set(world.new)
    assert world.leader.node in world.new
    assert not world.node(world.zero).log.holds(world.channel)
    world.write(21, 40)
    assert world.start(b"s" * 16).code == "change_pending"  # it was planned for other replicas


def test_fip_28_new_replica_dies_and_the_move_times_out_with_the_reason() -> None:
    """Its order is cancelled: the channel has the voters that it had, and no learner."""
    world = Moves()
    world.begin()
    world.node(world.three).crash("the standby dies")
    seen = world.follow(STUCK_MS + 60_000)
    assert seen[-1] is MoveState.TIMEOUT
    report = world.report()
    assert report.state is MoveState.TIMEOUT
    assert "is down" in report.moves[0].reason
    assert world.has_no_half_state()
    assert set(world.hosts()) == set(world.old)
    world.node(world.three).boot()
    run(world.cluster, 20_000)
    assert world.start(b"s" * 16).detail["rebalance"] > report.number
    assert world.follow()[-1] is MoveState.COMPLETED


def test_fip_28_leader_dies_and_the_move_goes_on() -> None:
    """The channel elects another leader, which carries the order out; 0 comes back later, and
    deletes what it holds."""
    world = Moves()
    world.begin()
    world.node(world.zero).crash("the leader dies")
    assert world.follow(120_000)[-1] is MoveState.COMPLETED
    world.node(world.zero).boot()
    run(world.cluster, 30_000)
    assert set(world.hosts()) == set(world.new)
    assert world.has_no_half_state()


def test_fip_29_coordinator_dies_and_another_one_goes_on() -> None:
    """Nothing is ordered twice: the new metadata leader finds the order under its id."""
    world = Moves()
    world.begin()
    world.node(world.three).crash("so that the order is open")
    number = world.catalog.rebalance.last.number
    world.let_another_plan()
    assert world.is_open()
    world.node(world.three).boot()
    assert world.follow(120_000)[-1] is MoveState.COMPLETED
    report = world.report()
    assert report.number == number
    entry = world.catalog.changes[world.channel]
    assert entry.ended.change == report.moves[0].change == entry.config.change


@pytest.mark.parametrize("after_ms", [0, 40, 400, 1_000, 2_000, 4_000, 10_000])
def test_fip_28_cancel_at_any_state_leaves_nothing_half_done(after_ms: int) -> None:
    """The move is undone or done as a whole; a second cancel says so."""
    world = Moves()
    world.write(1, 10)
    world.begin()
    run(world.cluster, after_ms)
    answers = ask(world.cluster, world.planner, CancelRebalance(2, 0, 5_000))
    run(world.cluster, 40)
    again = ask(world.cluster, world.planner, CancelRebalance(3, 0, 5_000))
    run(world.cluster, 1_000)
    if after_ms < 1_000:
        assert isinstance(answers[0], Done)
    assert again[0].code == "change_done"
    state = world.follow(120_000)[-1]
    report = world.report()
    assert report.state is state
    assert state in (MoveState.CANCELED, MoveState.COMPLETED)
    assert world.has_no_half_state()
    run(world.cluster, 30_000)
    expected = world.new if state is MoveState.COMPLETED else world.old
    assert set(world.hosts()) == set(expected)
    world.write(11, 20)
    late = world.ask(CancelRebalance(4, report.number, 5_000))
    assert (late.code, late.message) == (
        "change_done", f"rebalance {report.number} has ended as {state.value}",
    )  # fmt: skip


@pytest.mark.parametrize("state", [MoveState.EXPANDING, MoveState.CATCHING_UP])
def test_fip_28_cancel_undoes_a_move_whose_new_replica_is_not_there_yet(state: MoveState) -> None:
    """The channel has the voters that it had; a new replica that began deletes what it holds."""
    world = Moves()
    world.begin()
    world.node(world.three).crash("so that it stays behind")
    for _ in range(2_000):
        if world.catalog.rebalance.moves[world.channel].state is state:
            break
        run(world.cluster, 5)
    assert world.report().moves[0].state.rank >= state.rank
    assert isinstance(world.ask(CancelRebalance(2, 0, 5_000)), Done)
    assert world.follow(STUCK_MS // 2)[-1] is MoveState.CANCELED
    assert world.has_no_half_state()
    world.node(world.three).boot()
    run(world.cluster, 20_000)
    assert set(world.hosts()) == set(world.old)
    world.write(1, 10)


def test_order_that_an_operator_cancels_is_a_failed_move() -> None:
    """The reason names the order."""
    world = Moves()
    world.begin()
    world.node(world.three).crash("so that the order waits")
    run(world.cluster, 500)
    change = world.seen().change
    assert change
    assert isinstance(world.ask(CancelOrder(1, world.channel, change, 5_000)), Done)
    assert world.follow(STUCK_MS)[-1] is MoveState.FAILED
    assert f"order {change} was cancelled" in world.report().moves[0].reason


def test_moves_wait_until_their_node_is_up_and_time_out_at_last() -> None:
    """N11: an order is not given to a node that cannot carry it out."""
    world = Moves()
    world.node(world.three).crash("it is down before")
    run(world.cluster, 20_000)
    world.start()
    run(world.cluster, 2_000)
    (move,) = world.report().moves
    assert (move.state, move.change) == (MoveState.NOT_STARTED, 0)
    assert move.waits_for == f"{node_name(world.three)} is down"
    assert world.follow(STUCK_MS + 30_000)[-1] is MoveState.TIMEOUT
    assert world.channel not in world.catalog.changes


def test_tagged_node_gets_no_replica_and_loses_the_tag_when_asked() -> None:
    """FIP-23: neither by a rebalance nor by a table; an unknown node is refused."""
    world = Moves()
    name = node_name(world.three)
    assert isinstance(world.ask(TagNode(1, name, NodeTag.TEMPORARY_OFFLINE, 5_000)), Done)
    assert world.ask(AskRebalance(1)).tags == {world.three: NodeTag.TEMPORARY_OFFLINE}
    refused = world.start()
    assert (refused.code, f"cannot go to {name}" in refused.message) == ("schema", True)
    catalog = world.catalog
    assert world.three not in catalog.placeable()
    assert isinstance(world.ask(TagNode(1, name, None, 5_000)), Done)
    assert world.ask(AskRebalance(1)).tags == {}
    assert isinstance(world.start(), Done)
    assert world.ask(TagNode(1, "n99", None, 5_000)).code == "unknown_node"


def test_what_cannot_be_started_is_refused_with_the_value() -> None:
    """Nothing is half done."""
    world = Moves()
    move = world.move()
    other = WantedMove(move.channel, move.voters, (), (*move.old_voters[:2], world.three), ())
    stranger = WantedMove(b"x" * 20, move.voters, (), move.old_voters, ())
    for moves, code, text in (
        ((move, move), "schema", "has two moves"),
        ((other,), "change_pending", "others than planned"),
        ((stranger,), "unknown_table", "has no channel"),
    ):
        answer = world.start(GUID, *moves)
        assert (answer.code, text in answer.message) == (code, True)
    empty = world.ask(StartRebalance(1, GUID, (), "test", 5_000))
    assert "does nothing" in empty.message
    assert world.ask(AskRebalance(1)).rebalance is None
    assert world.ask(CancelRebalance(1, 0, 5_000)).code == "change_done"
    assert isinstance(world.start(), Done)
    second = world.start(b"s" * 16)
    assert (second.code, "is open" in second.message) == ("change_pending", True)


def test_rebalance_that_never_was_cannot_be_cancelled() -> None:
    """The refusal names the one that there is, open or not, and nothing is cancelled."""
    world = Moves()

    def refused(number: int) -> str:
        answer = world.ask(CancelRebalance(1, number, 5_000))
        assert answer.code == "change_done"
        return str(answer.message)

    assert refused(7) == "there is no rebalance 7: the cluster has had none yet"
    number = world.start().detail["rebalance"]
    wanted = f"there is no rebalance {number + 1}; {number} is open: cancel that one"
    assert refused(number + 1).startswith(wanted)
    assert not world.report().is_cancelled
    assert world.follow()[-1] is MoveState.COMPLETED
    ended = f"the last one is {number}, which has ended as COMPLETED, and none is open"
    assert ended in refused(1)


def test_throttle_bounds_what_every_node_sends() -> None:
    """At run time, on all nodes; 0 takes it back, and one that starves copies is refused."""
    world = Moves()
    most = world.planner.settings.snapshot.second_bytes_max
    low = world.ask(ThrottleCopies(1, 1_000, 5_000))
    assert (low.code, "1000 bytes/s" in low.message) == ("schema", True)
    for wanted, sent in ((1_000_000, 1_000_000), (0, most)):
        assert isinstance(world.ask(ThrottleCopies(1, wanted, 5_000)), Done)
        run(world.cluster, 2_000)
        for node in world.cluster.nodes.values():
            assert node.runner is not None
            assert node.runner.snapshots.sender.second_bytes() == sent
        assert world.ask(AskRebalance(1)).throttle == wanted


def test_switch_for_even_leaders_is_shown_where_it_was_set() -> None:
    """None: settings count."""
    world = Moves()
    assert world.ask(AskRebalance(1)).leaders is None
    for wanted in (False, True, None):
        assert isinstance(world.ask(SwitchLeaders(1, wanted, 5_000)), Done)
        assert world.ask(AskRebalance(1)).leaders is wanted


def test_sizes_of_tables_are_reported() -> None:
    """Of the replicas of the node that is asked."""
    world = Moves()
    world.write(1, 5)
    answers = ask(world.cluster, world.leader, AskTableSizes(1))
    run(world.cluster, 100)
    (answer,) = answers
    assert isinstance(answer, TableSizesAnswer)
    sizes = dict(answer.sizes)
    assert sizes.keys() == world.leader.runner.channels.keys()
    assert sizes[world.leader.runner.metadata_channel] > 0
    assert answer.second_bytes_max == world.leader.settings.snapshot.second_bytes_max


def replacing(world: Moves, after_ms: int) -> None:
    """Have nodes replaced that are down for so long."""
    for node in world.cluster.nodes.values():
        replica = dataclasses.replace(node.settings.replica, replace_after_ms=after_ms)
        node.settings = dataclasses.replace(node.settings, replica=replica)
        assert node.runner is not None
        node.runner.controller.replacer._after_ms = after_ms


def test_node_that_is_gone_for_long_is_replaced_by_itself() -> None:
    """``replica.replace_after_ms``: not before; what it held is on the others then."""
    world = Moves()
    replacing(world, 60_000)
    gone = next(node for node in world.old if node != world.planner.node)
    world.node(gone).crash("its disk is lost")
    run(world.cluster, 50_000)
    assert world.ask(AskRebalance(1)).rebalance is None
    run(world.cluster, 60_000)
    report = world.report()
    assert (report.state, f"{node_name(gone)} is down" in report.reason) == (
        MoveState.COMPLETED, True,
    )  # fmt: skip
    assert set(world.hosts()) == {*world.old, world.three} - {gone}


def test_node_is_not_replaced_where_that_is_off_or_it_is_away_for_a_while() -> None:
    """The default is off; the tag says that the operator knows."""
    for tag, after_ms in ((None, 0), (NodeTag.TEMPORARY_OFFLINE, 30_000)):
        world = Moves()
        replacing(world, after_ms)
        gone = next(node for node in world.old if node != world.planner.node)
        assert isinstance(world.ask(TagNode(1, gone, tag, 5_000)), Done)
        world.node(gone).crash("an upgrade")
        run(world.cluster, 90_000)
        assert world.ask(AskRebalance(1)).rebalance is None


def test_node_that_comes_back_keeps_what_was_not_begun() -> None:
    """Its replacement is cancelled; what was under way ends as a whole."""
    world = Moves()
    replacing(world, 30_000)
    gone = next(node for node in world.old if node != world.planner.node)
    other = world.node(world.three)
    world.node(gone).crash("a long repair")
    run(world.cluster, 20_000)
    other.crash("so that the replacement waits")
    run(world.cluster, 200)
    other.boot()
    for _ in range(200):
        run(world.cluster, 500)
        if world.catalog.rebalance.last is not None:
            break
    world.node(gone).boot()
    for _ in range(200):
        run(world.cluster, 500)
        if not world.is_open():
            break
    assert world.report().is_cancelled or world.report().state is MoveState.COMPLETED
    assert world.has_no_half_state()


def test_leader_may_be_moved_meanwhile() -> None:
    """An operator's step-down in the middle is no failure."""
    world = Moves()
    world.begin()
    ask(world.cluster, world.leader, StepDown(9, world.channel, None, 5_000))
    assert world.follow(120_000)[-1] is MoveState.COMPLETED
