"""Leaders are made even by the planner, and each of the two nodes of a move may refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import NodeSettings, RebalanceSettings
from raftstore.engine.leaders import move_requests
from raftstore.engine.leaders.balancer import LOOK_MS, MOVE_MS, PAUSE_MS, LeaderBalancer
from raftstore.ports.machine import MachineStop
from raftstore.protocol.admin import StepDown
from raftstore.protocol.leader_moves import AskLead, LeadRefused, TakeLead
from raftstore.protocol.members import Drain
from raftstore.protocol.message import Done, Message
from raftstore.protocol.rebalance import NodeTag, SwitchLeaders, TagNode
from raftstore.testing.leader_counts import LEADERLESS_MS_MAX, LeaderCounts
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import REBALANCE, STORAGE, SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import NO_GUID, ChannelId, NodeId, Seq, Term, channel_id
from tests.unit.engine.engine_world import ask, run

pytestmark = pytest.mark.slow

PARTITIONS = 6


class World:
    """Three nodes that lead two of six partitions each, and then two of them three."""

    def __init__(self, settings: RebalanceSettings = REBALANCE) -> None:
        options = SimOptions(seed=1, partitions=PARTITIONS, evict_percent=0)
        base = NodeSettings(name="", data_dir="", storage=STORAGE, rebalance=settings)
        self.cluster = cluster = SimCluster(options, base)
        self.counts = LeaderCounts(cluster)
        cluster.start()
        cluster.create_table(PARTITIONS)
        run(cluster, 5_000)
        self.planner = cluster.leaders()[self.metadata]
        self.node = next(node for node in cluster.nodes.values() if node is not self.planner)
        """The node that shall lead more."""
        self.sent: list[tuple[str, str, Message]] = []
        self.lost: Callable[[Message], bool] = lambda _: False
        """Messages that never arrive."""
        self._send = cluster.network.send
        cluster.network.send = self._watch  # type: ignore[method-assign]

    def _watch(self, sender: str, receiver: str, message: Message) -> None:
        self.sent.append((sender, receiver, message))
        if not self.lost(message):
            self._send(sender, receiver, message)

    @property
    def metadata(self) -> ChannelId:
        """The metadata channel."""
        return channel_id(self.cluster.cluster_id, 0)

    @property
    def balancer(self) -> LeaderBalancer:
        """The one that plans."""
        assert self.planner.runner is not None
        return self.planner.runner.leaders.balancer

    @property
    def led(self) -> int:
        """Partitions that the node leads."""
        return self.counts.led()[self.node.node]

    def restart(self, away_ms: float = 2_000) -> None:
        """The node stops, the others take over, and it is back."""
        self.node.crash("test")
        run(self.cluster, away_ms)
        self.node.boot()

    def go(self, ms: float) -> None:
        """Time passes; who leads what is looked at after each step."""
        scheduler = self.cluster.scheduler
        scheduler.run_until(scheduler.now_ms + ms, lambda: self.counts.look() or False)

    def of(self, kind: type[Message]) -> list[Any]:
        """Messages of a kind, as they were sent."""
        return [message for _, _, message in self.sent if type(message) is kind]

    def failures(self) -> list[str]:
        """Reasons of the moves that failed."""
        assert self.planner.runner is not None
        _, events = self.planner.runner.ring.since(0, ("leader_move_failed",), 100)
        return [event["reason"] for event in events]

    def refusals_of(self, node: SimNode) -> list[str]:
        """Reasons of what the node refuses from now on, wherever they go."""
        seen: list[str] = []
        requests = self.runner_of(node).leaders.move_requests
        refuse = requests._refuse

        def noted(channel: ChannelId, term: Term, reason: str) -> None:
            seen.append(reason)
            refuse(channel, term, reason)

        requests._refuse = noted
        return seen

    def runner_of(self, node: SimNode) -> Any:
        """The runner of a live node."""
        assert node.runner is not None
        return node.runner


def test_a_node_that_was_restarted_leads_its_share_again() -> None:
    """No channel is without a leader for longer than a hand-over, and then nothing moves again."""
    world = World()
    assert world.led == 2
    world.restart()
    assert world.led == 0
    world.counts = LeaderCounts(world.cluster)
    world.go(REBALANCE.calm_ms + 3_000)
    assert set(world.counts.led().values()) == {2}
    assert 0 < world.counts.leaderless_ms_most < LEADERLESS_MS_MAX
    assert (world.balancer.moved_total, world.failures()) == (2, [])
    run(world.cluster, 30_000)
    assert world.balancer.moved_total == 2
    assert not world.balancer.moves_under_way


def test_nothing_moves_before_the_nodes_have_been_the_same_for_a_while() -> None:
    """A restart may be followed by the next one."""
    world = World()
    world.restart()
    run(world.cluster, REBALANCE.calm_ms - 100)
    assert (world.led, world.of(TakeLead)) == (0, [])


@pytest.mark.parametrize("moves_max", [1, 2])
def test_no_more_moves_at_a_time_than_the_setting_allows(moves_max: int) -> None:
    """Each looks at what the ones before have done."""
    world = World(replace(REBALANCE, moves_max=moves_max))
    world.restart()
    world.go(REBALANCE.calm_ms + 3_000)
    assert world.led == 2
    assert world.counts.moves_at_once_most == moves_max


def test_where_it_is_off_nothing_moves() -> None:
    """An operator may want so."""
    world = World(replace(REBALANCE, leaders=False))
    world.restart()
    run(world.cluster, 30_000)
    assert (world.led, world.of(TakeLead)) == (0, [])
    assert world.balancer.status(0)["is_on"] is False


def test_what_an_operator_moved_stays_for_a_while() -> None:
    """All that a node leads, so that it is left alone; later it gets its share again."""
    world = World()
    asked_ms = world.cluster.scheduler.now_ms
    led = [c for c, node in world.cluster.leaders().items() if node is world.node]
    for number, channel in enumerate(led):
        ask(world.cluster, world.node, StepDown(number, channel, None, 2_000))
        run(world.cluster, 500)
    run(world.cluster, asked_ms + REBALANCE.respect_ms - world.cluster.scheduler.now_ms)
    assert (world.led, world.of(TakeLead)) == (0, [])
    run(world.cluster, 5_000)
    assert world.led == 2


def test_what_an_operator_moved_ends_with_a_restart() -> None:
    """Leaders are even soon after it, long before the time is up that was respected."""
    world = World(replace(REBALANCE, respect_ms=600_000))
    led = [c for c, node in world.cluster.leaders().items() if node is world.node]
    for number, channel in enumerate(led):
        ask(world.cluster, world.node, StepDown(number, channel, None, 2_000))
        run(world.cluster, 500)
    world.restart()
    run(world.cluster, REBALANCE.calm_ms + 3_000)
    assert world.led == 2


def set_low(runner: Any, is_on: bool) -> None:
    """A disk that is nearly full."""
    runner.space.is_low = is_on
    runner.space._give_away = lambda _: None


def set_stalled(runner: Any, is_on: bool) -> None:
    """A disk that hangs."""
    runner.guard.reason = "the disk hangs" if is_on else None


def set_draining(runner: Any, is_on: bool) -> None:
    """A node that is about to stop."""
    runner.drain.is_draining = is_on


def set_stood_still(runner: Any, is_on: bool) -> None:
    """A processor that is overloaded."""
    runner.leaders.stood_still(runner.clock.now_ms - (0 if is_on else move_requests.STALL_MS))


def set_machine_stopped(runner: Any, is_on: bool) -> None:
    """State machines that cannot go on here."""
    stopped = SimpleNamespace(
        stop=MachineStop(Seq(1), NO_GUID, "its code is not here"),
        on_applied=lambda _answers: None,
        watch=lambda _now_ms: None,
    )
    for channel in runner.channels.values():
        channel.commands = stopped if is_on else None


@pytest.mark.parametrize(
    "change", [set_low, set_stalled, set_draining, set_stood_still, set_machine_stopped]
)
def test_a_node_in_trouble_refuses_to_lead_until_it_is_over(
    change: Callable[[Any, bool], None],
) -> None:
    """No leader is asked to hand over, so the channel never stops taking writes."""
    world = World()
    world.restart()
    run(world.cluster, 1_000)
    runner = world.runner_of(world.node)
    change(runner, True)
    run(world.cluster, REBALANCE.calm_ms + 2 * LOOK_MS)
    asked = [m for s, _, m in world.sent if s == world.node.node and isinstance(m, AskLead)]
    assert (world.led, asked) == (0, [])
    assert len(world.failures()) == len(world.of(LeadRefused)) > 0
    change(runner, False)
    run(world.cluster, 2 * PAUSE_MS)
    assert world.led == 2


def test_a_leader_whose_follower_is_behind_hands_nothing_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever live follower it is: the channel recovers."""
    monkeypatch.setattr(move_requests, "BEHIND_MAX", -1)
    world = World()
    world.restart()
    run(world.cluster, REBALANCE.calm_ms + 2_000)
    assert world.led == 0
    assert world.of(AskLead)
    assert all("the channel recovers" in reason for reason in world.failures())


def test_a_leader_hands_nothing_over_to_a_replica_that_is_no_standby_in_sync() -> None:
    """FIP-14: writes would wait for what its table lacks."""
    world = World()
    channel, leader = next(
        (c, node) for c, node in world.cluster.leaders().items() if node is not world.node
        and c != world.metadata
    )  # fmt: skip
    runner, target = world.runner_of(leader), world.node.node
    runner.leaders.standbys._led[channel].judged.leave(target)
    term, refusals = runner.channels[channel].elector.term, world.refusals_of(leader)
    runner.on_peer_message(target, AskLead(channel, term), *[runner.clock.now_ms] * 2)
    assert ["is no standby in sync" in reason for reason in refusals] == [True]


def test_a_leader_that_an_operator_has_hand_over_is_not_asked_for_another_node() -> None:
    """The operator's target counts."""
    world = World()
    channel, leader = next(
        (c, node) for c, node in world.cluster.leaders().items() if node is not world.node
        and c != world.metadata
    )  # fmt: skip
    runner = world.runner_of(leader)
    world.lost = lambda message: type(message).__name__ == "TransferNow"
    other = next(n for n in world.cluster.node_ids if n not in (leader.node, world.node.node))
    ask(world.cluster, leader, StepDown(1, channel, other, 2_000))
    run(world.cluster, 50)
    term, refusals = runner.channels[channel].elector.term, world.refusals_of(leader)
    runner.on_peer_message(world.node.node, AskLead(channel, term), *[runner.clock.now_ms] * 2)
    assert ["under way" in reason for reason in refusals] == [True]


@pytest.mark.parametrize("case", ["term", "metadata", "follower"])
def test_a_request_that_is_wrong_is_refused_by_the_leader(case: str) -> None:
    """It may be late, or of a node that is mistaken: nothing but a refusal comes of it."""
    world = World()
    leaders = world.cluster.leaders()
    channel, leader = next((c, node) for c, node in leaders.items() if node is not world.planner)
    asked, term = leader, world.runner_of(leader).channels[channel].elector.term
    if case == "metadata":
        channel, asked = world.metadata, world.planner
        term = world.runner_of(asked).channels[channel].elector.term
    elif case == "follower":
        asked = next(n for n in world.cluster.nodes.values() if n not in (leader, world.planner))
    else:
        term = Term(term + 1)
    runner = world.runner_of(asked)
    refusals = world.refusals_of(asked)
    sender = next(n for n in world.cluster.node_ids if n != asked.node)
    runner.on_peer_message(sender, AskLead(channel, term), *[runner.clock.now_ms] * 2)
    run(world.cluster, 1_000)
    assert len(refusals) == 1
    assert world.cluster.leaders()[channel] is leaders[channel]


def test_only_the_planner_is_obeyed() -> None:
    """One that was deposed may not know it; the present one plans by itself."""
    world = World()
    channel, leader = next(
        (c, n) for c, n in world.cluster.leaders().items() if n is world.planner
        and c != world.metadata
    )  # fmt: skip
    term = world.runner_of(leader).channels[channel].elector.term
    stranger = next(
        n for n in world.cluster.node_ids if n not in (world.planner.node, world.node.node)
    )
    runner = world.runner_of(world.node)
    runner.on_peer_message(stranger, TakeLead(channel, term), *[runner.clock.now_ms] * 2)
    run(world.cluster, 500)
    assert not world.of(AskLead)
    runner.on_peer_message(leader.node, TakeLead(channel, term), *[runner.clock.now_ms] * 2)
    run(world.cluster, 500)
    assert world.cluster.leaders()[channel] is world.node


def test_a_late_request_of_the_planner_is_refused() -> None:
    """The channel had another leader meanwhile."""
    world = World()
    runner = world.runner_of(world.node)
    channel = next(c for c, n in world.cluster.leaders().items() if n is not world.node)
    term = Term(runner.channels[channel].elector.term - 1)
    request = TakeLead(channel, term)
    runner.on_peer_message(world.planner.node, request, *[runner.clock.now_ms] * 2)
    run(world.cluster, 500)
    assert not world.of(AskLead)
    assert [f"term {term}" in refusal.reason for refusal in world.of(LeadRefused)] == [True]


def test_a_node_of_an_earlier_version_is_asked_for_nothing() -> None:
    """It would not read the message."""
    world = World()
    world.node.level = 5
    world.restart()
    run(world.cluster, REBALANCE.calm_ms + 10_000)
    assert (world.led, world.of(TakeLead), world.of(AskLead)) == (0, [], [])


def test_a_move_without_an_answer_is_given_up_and_tried_later_and_later() -> None:
    """Twice as long each time."""
    world = World(replace(REBALANCE, moves_max=1))
    world.restart()
    world.lost = lambda message: isinstance(message, TakeLead)
    begun = world.cluster.scheduler.now_ms
    run(world.cluster, REBALANCE.calm_ms + MOVE_MS + 2 * LOOK_MS)
    assert "no other node leads it" in world.failures()[0]
    first = world.of(TakeLead)[0].channel
    run(world.cluster, begun + 60_000 - world.cluster.scheduler.now_ms)
    times = [message.channel for message in world.of(TakeLead)].count(first)
    assert times in (2, 3)  # after 0, 15 and 40 s; every 5 s without the pauses
    world.lost = lambda _: False
    run(world.cluster, 60_000)
    assert world.led == 2


def test_a_new_planner_waits_before_it_plans() -> None:
    """Moves of the one before may be under way, and what was moved on purpose is not known."""
    world = World()
    world.restart()
    run(world.cluster, REBALANCE.calm_ms - 500)
    ask(world.cluster, world.planner, StepDown(1, world.metadata, None, 2_000))
    run(world.cluster, REBALANCE.calm_ms - 500)
    assert world.cluster.leaders()[world.metadata] is not world.planner
    assert world.led == 0
    world.planner = world.cluster.leaders()[world.metadata]
    run(world.cluster, 4_000)
    assert world.led == 2
    assert world.balancer.status(0)["moved"] == 2


def test_a_node_that_plans_again_waits_as_a_new_planner_does() -> None:
    """It does not know what was moved, and for what reason, while another node planned."""
    world = World()
    world.restart()
    run(world.cluster, REBALANCE.calm_ms - 1_500)
    other = next(n for n in world.cluster.nodes.values() if n not in (world.planner, world.node))
    ask(world.cluster, world.planner, StepDown(1, world.metadata, other.node, 2_000))
    run(world.cluster, 1_200)
    assert world.cluster.leaders()[world.metadata] is other
    ask(world.cluster, other, StepDown(2, world.metadata, world.planner.node, 2_000))
    run(world.cluster, REBALANCE.calm_ms - 200)
    assert world.cluster.leaders()[world.metadata] is world.planner
    assert (world.led, world.of(TakeLead)) == (0, [])
    run(world.cluster, 4_000)
    assert world.led == 2


def test_channels_that_lose_their_leaders_hold_the_moves_up_for_a_moment_only() -> None:
    """One that stays without a leader is not waited for."""
    world = World()
    run(world.cluster, REBALANCE.calm_ms)
    balancer, now_ms = world.balancer, world.runner_of(world.planner).clock.now_ms
    assert balancer._is_calm(now_ms)
    balancer._leaderless_since_ms[world.cluster.table_channels[0]] = now_ms
    assert not balancer._is_calm(now_ms + REBALANCE.calm_ms - 1)
    assert balancer._is_calm(now_ms + REBALANCE.calm_ms)


def test_a_refusal_of_another_node_or_term_changes_nothing() -> None:
    """Only the two nodes of the move are asked."""
    world = World()
    world.restart()
    world.lost = lambda message: isinstance(message, TakeLead)
    run(world.cluster, REBALANCE.calm_ms + 2 * LOOK_MS)
    move = world.balancer.moves_under_way[0]
    runner = world.runner_of(world.planner)
    term = runner.leaders.balancer._open[move.channel].term
    stranger = next(n for n in world.cluster.node_ids if n not in (move.source, move.target))
    world.balancer.on_refused(NodeId(stranger), LeadRefused(move.channel, term, "no"))
    world.balancer.on_refused(move.target, LeadRefused(move.channel, Term(term - 1), "no"))
    assert world.failures() == []
    world.balancer.on_refused(move.target, LeadRefused(move.channel, term, "no"))
    assert world.failures() == ["no"]


@pytest.mark.parametrize("tag", [None, *NodeTag])
def test_a_node_that_drains_or_is_tagged_leads_nothing_after_a_while(tag: NodeTag | None) -> None:
    """It is about to be removed, or away: what it leads goes to others, and nothing comes back."""
    world = World()
    drain: Any = Drain(1, world.node.name, drains=True, timeout_ms=2_000)
    order = drain if tag is None else TagNode(1, world.node.name, tag, 2_000)
    answers = ask(world.cluster, world.planner, order)
    run(world.cluster, 1_000)
    assert isinstance(answers[0], Done), answers
    assert world.runner_of(world.node).leaders.balancer.status(0)["drains"]
    run(world.cluster, REBALANCE.calm_ms + 3_000)
    assert world.led == 0
    assert sorted(world.counts.led().values()) == [0, 3, 3]


def switch(world: World, is_on: bool | None) -> Message:
    """An operator turns even leaders on or off, and gets the answer of the planner."""
    world.planner = world.cluster.leaders()[world.metadata]
    answers = ask(world.cluster, world.planner, SwitchLeaders(1, is_on, 2_000))
    run(world.cluster, 1_000)
    return answers[0]


def test_an_operator_turns_it_off_and_on_for_every_planner() -> None:
    """It is in the catalog: a planner that comes later obeys it, too, whatever its settings say."""
    world = World()
    assert isinstance(switch(world, False), Done)
    status = world.balancer.status(0)
    assert (status["is_on"], status["switch"]) == (False, False)
    world.restart()
    other = next(n for n in world.cluster.nodes.values() if n not in (world.planner, world.node))
    ask(world.cluster, world.planner, StepDown(1, world.metadata, other.node, 2_000))
    run(world.cluster, 30_000)
    assert world.cluster.leaders()[world.metadata] is other
    assert (world.led, world.of(TakeLead)) == (0, [])
    assert isinstance(switch(world, True), Done)
    run(world.cluster, REBALANCE.calm_ms + 3_000)
    assert world.led == 2


def test_without_the_switch_settings_count_again() -> None:
    """Off in the settings, on by the switch, and as set again."""
    world = World(replace(REBALANCE, leaders=False))
    assert isinstance(switch(world, True), Done)
    world.restart()
    run(world.cluster, REBALANCE.calm_ms + 3_000)
    assert world.led == 2
    assert isinstance(switch(world, None), Done)
    status = world.balancer.status(0)
    assert (status["is_on"], status["switch"]) == (False, None)
    world.restart()
    run(world.cluster, 30_000)
    assert world.led == 0


def test_it_is_turned_off_while_moves_are_under_way() -> None:
    """Those that were asked for come to their end; no other one begins."""
    world = World(replace(REBALANCE, moves_max=1))
    world.restart()
    world.lost = lambda message: isinstance(message, TakeLead)
    run(world.cluster, REBALANCE.calm_ms + 2 * LOOK_MS)
    assert world.balancer.moves_under_way
    switch(world, False)
    assert (world.balancer.moves_under_way, world.balancer.moves_left) == ((), 0)
    asked = len(world.of(TakeLead))
    run(world.cluster, 30_000)
    assert len(world.of(TakeLead)) == asked


def test_the_switch_waits_until_every_node_knows_it() -> None:
    """A node below would stop at the command."""
    world = World()
    world.node.level = 6
    world.restart()
    run(world.cluster, 3_000)
    refused: Any = switch(world, False)
    assert refused.code == "store_too_old"
    assert f"{world.node.name} is at level 6" in refused.message


def given_away(world: World) -> ChannelId:
    """An operator has the node hand one of its channels over to the third one."""
    leaders = world.cluster.leaders()
    channel = next(each for each, node in leaders.items() if node is world.node)
    third = next(n for n in world.cluster.nodes.values() if n not in (world.planner, world.node))
    ask(world.cluster, world.node, StepDown(1, channel, third.node, 2_000))
    run(world.cluster, 1_500)
    assert world.cluster.leaders()[channel] is third
    return channel


def test_what_an_operator_moved_stays_when_another_node_plans() -> None:
    """The node that gave it away says so, for as long as the setting says, and no longer."""
    world = World(replace(REBALANCE, respect_ms=60_000))
    assert world.led == 2
    run(world.cluster, REBALANCE.calm_ms)
    channel = given_away(world)
    before = world.cluster.leaders()[channel]
    world.planner.crash("the planner dies")
    run(world.cluster, 10_000)
    world.planner.boot()
    run(world.cluster, 40_000)
    assert world.cluster.leaders()[channel] is before
    asked = [receiver for _, receiver, message in world.sent if isinstance(message, TakeLead)]
    assert world.planner.node in asked, "the dead one gets its share"
    assert world.node.node not in asked
    world.planner = world.cluster.leaders()[world.metadata]
    now_ms = world.runner_of(world.planner).clock.now_ms
    settled = world.balancer._settled
    assert not settled.may_move(channel, now_ms)
    assert settled.relieved(now_ms) == {world.node.node}
    run(world.cluster, 30_000)
    now_ms = world.runner_of(world.planner).clock.now_ms
    assert settled.may_move(channel, now_ms)
    assert settled.relieved(now_ms) == set()


def test_a_node_that_was_restarted_takes_its_share_whatever_it_gave_away_before() -> None:
    """Mostly that is what it was asked for."""
    world = World(replace(REBALANCE, respect_ms=60_000))
    run(world.cluster, REBALANCE.calm_ms)
    given_away(world)
    world.restart()
    run(world.cluster, REBALANCE.calm_ms + 5_000)
    assert world.led == 2
