"""A node that stops, or is asked to, gives its leaderships to somebody who can take them (S9)."""

from __future__ import annotations

import pytest

from raftstore.node.process import DRAIN_TIMEOUT_S
from raftstore.protocol.admin import StepDown
from raftstore.protocol.election import TransferNow
from raftstore.protocol.message import Failed, Message
from raftstore.types import NodeId
from tests.unit.engine.engine_world import ask, calm_cluster, run


def test_node_that_stops_hands_over_to_a_live_voter() -> None:
    """The other one held everything, too, when it died."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    voters = leader.runner.channels[channel].config().voters
    dead, alive = (node for node in voters if node != leader.node)
    cluster.nodes[dead].kill("test")
    run(cluster, 1_000)
    leader.runner.begin_drain(leader.clock.now_ms())
    run(cluster, 300)
    assert leader.runner.channels[channel].elector.leader == alive
    assert leader.runner.drain.is_done()


def test_node_that_stops_turns_to_the_next_voter_when_the_first_one_is_silent() -> None:
    """S9: the word to take over may be lost; what is left of the drain goes to another voter."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    asked: list[str] = []
    send = cluster.network.send

    def without_the_first(sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, TransferNow) and message.channel == channel:
            asked.append(receiver)
            if receiver == asked[0]:
                return
        send(sender, receiver, message)

    cluster.network.send = without_the_first  # type: ignore[method-assign]
    leader.runner.begin_drain(leader.clock.now_ms())
    run(cluster, 900)
    assert not leader.runner.drain.is_done()
    run(cluster, DRAIN_TIMEOUT_S * 1_000 - 900)
    assert leader.runner.drain.is_done()
    assert leader.runner.channels[channel].elector.leader == asked[1] != asked[0]


@pytest.mark.slow
def test_operator_hears_at_once_why_a_hand_over_is_impossible() -> None:
    """S4.1: nobody was asked, so it is no matter of doubt, and no time need pass."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    told: list[tuple[str, dict[str, object]]] = []
    leader.runner.events.sink = lambda name, fields: told.append((name, fields))
    answers = ask(cluster, leader, StepDown(1, channel, NodeId("n9"), 5_000))
    run(cluster, 100)
    [line] = [fields for name, fields in told if name == "hand_over_failed"]
    assert line == {"channel": "t/0", "reason": "n9 is no other voter of the channel"}
    [failed] = answers
    assert isinstance(failed, Failed)
    assert failed.code == "unavailable"
    assert "n9 is no other voter of the channel" in failed.message


def test_node_that_stops_gives_away_what_it_is_given_meanwhile() -> None:
    """S9: another one's leadership, handed to it while it stops, is handed on."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    stopping = next(node for node in cluster.nodes.values() if node is not leader)
    ask(cluster, leader, StepDown(1, channel, stopping.node, 5_000))
    stopping.runner.begin_drain(stopping.clock.now_ms())
    led: list[bool] = []
    for _ in range(300):
        run(cluster, 10)
        led.append(cluster.leaders().get(channel) is stopping)
    assert any(led)
    assert not led[-1]
    assert stopping.runner.drain.is_done()
