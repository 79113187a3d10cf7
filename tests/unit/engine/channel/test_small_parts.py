"""Small parts of a node by themselves: halt, idle electors, outbox, and a client's end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.channel.drain import Drain
from raftstore.engine.channel.idle_electors import EVICT_INTERVAL_MS, IdleElectors
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.clock import Clock
from raftstore.engine.halt import NodeHalt
from raftstore.protocol.election import TransferNow
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.types import ChannelId, NodeId, Role, Term, channel_id
from tests.unit.engine.engine_world import calm_cluster, publish

PEER = NodeId("n2@00")


def test_halt_is_told_once_with_its_first_reason() -> None:
    """S0.4: given two reasons, the driver ends the node for the first."""
    told: list[str] = []
    halt = NodeHalt(told.append)
    halt.halt("two leaders")
    halt.halt("because of that")
    assert told == ["two leaders"]
    assert halt.reason == "two leaders"


def test_elections_that_are_over_give_their_memory_back_now_and_then() -> None:
    """Given a channel that stands and one that does not, only the idle one is evicted, and neither
    is looked at again before the interval is over.
    """
    evicted: list[int] = []

    def elector(number: int, due_ms: int | None) -> Any:
        return SimpleNamespace(
            elector=SimpleNamespace(
                next_deadline_ms=lambda: due_ms, evict=lambda: evicted.append(number)
            )
        )

    channels = {
        channel_id(b"t" * 16, number): elector(number, due_ms)
        for number, due_ms in enumerate((None, 50))
    }
    idle = IdleElectors(channels)
    for now_ms in (0, 1, EVICT_INTERVAL_MS - 1):
        idle.on_timer(now_ms)
    assert evicted == [0]
    idle.on_timer(EVICT_INTERVAL_MS)
    assert evicted == [0, 0]


def test_message_that_may_leave_does_not_overtake_one_that_waits() -> None:
    """S0.5: given one that waits for the disk, what follows on its lane leaves behind it; while the
    disk hangs it may overtake, since the network promises no order.
    """
    sent: list[Message] = []
    log: Any = SimpleNamespace(durable_operation=lambda: 5, last_operation=lambda: 9)
    transport: Any = SimpleNamespace(send_control=lambda to, message: sent.append(message))
    transport.send = transport.send_control
    outbox = Outbox(log, transport)
    first, second, third = (TransferNow(channel_id(b"t" * 16, 0), Term(term)) for term in (1, 2, 3))
    outbox.send_control(PEER, first, after_operation=9)
    outbox.send_control(PEER, second, after_operation=3)
    outbox.release(8)
    assert sent == []
    outbox.is_stalled = True
    outbox.send_control(PEER, third, after_operation=5)
    outbox.send_control(PEER, first, after_operation=6)
    assert sent == [third]
    assert outbox.dropped == 1
    outbox.is_stalled = False
    outbox.release(7)
    assert sent == [third], "the second waits for as much as the first"
    outbox.release(9)
    assert sent == [third, first, second]


def test_writes_of_a_client_that_is_gone_are_counted_no_longer() -> None:
    """S12: given a write without an outcome, its bytes are free for others."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    assert leader.runner is not None
    payload = encode_rows([(b"k", seal(b"k", b"v"))])
    assert leader.runner.writes.begin(55, publish(cluster, leader, channel, 1, payload)) is None
    leader.runner.on_client_gone(55, leader.clock.now_ms())
    assert leader.runner.writes.held_bytes == 0


def led_channels(*roles: Role) -> tuple[Any, list[tuple[Any, ...]]]:
    """Channels with these roles of two voters each, and what they are asked."""
    asked: list[tuple[Any, ...]] = []

    def runner(channel: ChannelId, role: Role) -> Any:
        def hand_over(*of: Any, keeps_trying: bool) -> None:
            asked.append((channel, *of, keeps_trying))

        config = SimpleNamespace(voters=(PEER, NodeId("n1@00")))
        return SimpleNamespace(
            channel=channel,
            elector=SimpleNamespace(role=role),
            request_hand_over=hand_over,
            core=SimpleNamespace(config=lambda: config),
            config=config,
        )

    channels = [channel_id(b"t" * 16, number) for number in range(len(roles))]
    return {
        channel: runner(channel, role) for channel, role in zip(channels, roles, strict=True)
    }, asked


def test_node_that_stops_gives_away_what_it_leads_and_what_it_wins_later() -> None:
    """S9: one voter after another is asked; before that no leadership is touched."""
    channels, asked = led_channels(Role.LEADER, Role.FOLLOWER, Role.CANDIDATE)
    first, second, _ = channels
    active, clock = ActiveChannels(), Clock(lambda: 0)
    clock.now_ms = 70
    drain = Drain(channels, active, clock)
    before = (Term(1), Role.FOLLOWER, None)
    drain.leader_changed(channels[first], before, 70)
    assert asked == []
    drain.begin()
    given = (None, "node is stopping", 70, True)
    assert asked == [(first, *given)]
    assert list(active.take_touched()) == [first]
    drain.leader_changed(channels[second], before, 70)
    channels[second].elector.role = Role.LEADER
    drain.leader_changed(channels[second], before, 70)
    assert asked == [(first, *given), (second, *given)]
    assert list(active.take_touched()) == [second]


def test_node_has_stopped_leading_when_nobody_else_could_lead_what_it_leads() -> None:
    """S9: a channel with one voter ends with its node."""
    channels, _ = led_channels(Role.LEADER, Role.LEADER)
    first, second = channels.values()
    drain = Drain(channels, ActiveChannels(), Clock(lambda: 0))
    assert not drain.is_done()
    first.elector.role = Role.FOLLOWER
    assert not drain.is_done()
    second.config.voters = (PEER,)
    assert drain.is_done()
