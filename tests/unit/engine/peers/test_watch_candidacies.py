"""Candidacies that a watch of peers arms: when a replica stands, and for whom it waits."""

from __future__ import annotations

import pytest

from raftstore.engine.peers.peer_watch import OPENING_CHANNEL_MS, OPENING_STEP_MS
from raftstore.policy.failover import LOST, REFUSED
from raftstore.types import ChannelConfig, ReplicaNumber, Role
from tests.unit.engine.watch_bench import (
    ELECTION,
    JITTER_MS,
    ME,
    ONE,
    TWO,
    Channel,
    WatchBench,
    report,
    tell,
)

STEP_MS = ELECTION.rank_step_ms


def delay(bench: WatchBench, channel: Channel) -> int:
    """How long its candidacy waits, without what is drawn."""
    return bench.watch.candidacy_delay_ms(bench.runner(channel)) - JITTER_MS


def test_candidacy_waits_a_step_for_each_live_voter_that_is_ahead() -> None:
    """A candidate waits one step for each live voter that has more records, or as many and an
    earlier place. It does not wait for the suspected leader, nor for nodes that are down or never
    heard of.
    """
    bench = WatchBench()
    channel = bench.open(0, members=(ONE, ME, TWO))
    assert delay(bench, channel) == STEP_MS, "the first of the placement is taken for an equal"
    tell(bench, ONE, report(channel, 9))
    assert delay(bench, channel) == 0
    tell(bench, TWO, report(channel, 10))
    assert delay(bench, channel) == 0, "an equal that comes later"
    tell(bench, TWO, report(channel, 11))
    assert delay(bench, channel) == STEP_MS
    tell(bench, ONE, report(channel, 10))
    assert delay(bench, channel) == 2 * STEP_MS
    bench.led(channel, ONE)
    assert delay(bench, channel) == STEP_MS
    bench.led(channel, None)
    bench.watch.on_lost(ONE, 100, refused=False)
    assert delay(bench, channel) == STEP_MS
    bench.watch.on_lost(TWO, 100, refused=False)
    assert delay(bench, channel) == 0


def test_position_of_another_life_of_a_replica_delays_nobody() -> None:
    """M4: its node hosts the channel again, and the report is of the replica that was removed."""
    bench = WatchBench()
    channel = bench.open(0, members=(ME, ONE, TWO))
    again = ChannelConfig(((ME, ONE, TWO),), (), {ONE: ReplicaNumber(40)})
    channel.core.config = lambda: again
    for node in (ONE, TWO):
        tell(bench, node, report(channel, 11))
    assert delay(bench, channel) == STEP_MS, "for the one that is named so"


def test_voters_behind_one_that_is_down_are_looked_at_too() -> None:
    """Voters behind one that is down are waited for too, in any order of the placement."""
    bench = WatchBench()
    channel = bench.open(0, members=(ONE, TWO, ME))
    assert delay(bench, channel) == 2 * STEP_MS
    bench.watch.on_lost(ONE, 100, refused=False)
    assert delay(bench, channel) == STEP_MS


def test_replica_that_is_no_voter_stands_behind_all_voters() -> None:
    """A place in the order it has none."""
    bench = WatchBench()
    channel = bench.open(0, members=(ONE, TWO))
    assert delay(bench, channel) == 2 * STEP_MS


def test_what_is_drawn_is_added_once() -> None:
    """From 0 up to ``election.jitter_ms``, that included."""
    bench = WatchBench()
    channel = bench.open(0)
    drawn: list[int] = []

    def below(limit: int) -> int:
        drawn.append(limit)
        return 4

    bench.ids.below = below
    assert bench.watch.candidacy_delay_ms(bench.runner(channel)) == 4
    assert drawn == [JITTER_MS + 1]


def test_channel_is_armed_when_it_is_opened() -> None:
    """S1.8: of a new table the preferred replica is left the more time, the more channels wait
    for their first leader; of one with records nobody is waited for so long."""
    bench = WatchBench()
    for number in (0, 1, 2):
        new = Channel(number, (ONE, ME, TWO), 0)
        bench.channels[new.channel] = new
        bench.watch.channel_opened(bench.runner(new), 1_000)
        waits = STEP_MS + OPENING_STEP_MS + (number + 1) * OPENING_CHANNEL_MS
        assert new.stands == [(1_000, waits + JITTER_MS)]
    old = Channel(3, (ONE, ME, TWO), 10)
    bench.watch.channel_opened(bench.runner(old), 1_000)
    assert old.stands == [(1_000, STEP_MS + JITTER_MS)]
    led = next(iter(bench.channels.values()))
    bench.led(led, ONE)
    late = Channel(4, (ONE, ME, TWO), 0)
    bench.watch.channel_opened(bench.runner(late), 1_000)
    waits = STEP_MS + OPENING_STEP_MS + 4 * OPENING_CHANNEL_MS
    assert late.stands == [(1_000, waits + JITTER_MS)], "one of them waits no more"


@pytest.mark.parametrize("refused", [True, False])
def test_lost_connection_lets_the_channels_of_that_peer_stand(refused: bool) -> None:
    """KLIP-49: at once, and no others; the cause is reported with when it was last heard."""
    bench = WatchBench()
    led, others, nobodys, own = (bench.open(n, at) for n, at in enumerate((ONE, TWO, None, ME)))
    last = bench.open(4, ONE)
    bench.beat(ONE, 90, led, last)
    bench.watch.on_lost(ONE, 100, refused=refused)
    assert led.stands == last.stands == [(100, JITTER_MS)]
    assert others.stands == nobodys.stands == own.stands == []
    assert bench.nodes_suspected == [(ONE, REFUSED if refused else LOST, 90)]
    told = [event["reason"] for event in bench.events if event["name"] == "peer_health"]
    assert told == (["connection refused"] if refused else [])


def test_channels_of_a_silent_peer_stand() -> None:
    """S1.8: heartbeats that stop are enough, and are looked for at each check."""
    bench = WatchBench()
    led, others = bench.open(0, ONE), bench.open(1, TWO)
    bench.keep_alive(ONE, 1_000, led)
    bench.keep_alive(TWO, 1_500, others)
    bench.check(1_000)
    assert led.stands == []
    bench.check(1_350)
    assert led.stands == [(1_350, JITTER_MS)]
    assert others.stands == []


def test_suspicion_that_was_stilled_comes_back_while_the_peer_is_gone() -> None:
    """S1.8: a word that was still on its way stills it for a moment; one that is armed is left."""
    bench = WatchBench()
    first, second, third = bench.open(0, ONE), bench.open(1, ONE), bench.open(2, ONE)
    bench.keep_alive(TWO, 1_000)
    bench.watch.on_lost(ONE, 1_000, refused=True)
    for channel in (first, second, third):
        channel.stands.clear()
    second.due_ms = third.due_ms = None
    del bench.channels[second.channel]  # closed, and its claim not yet
    bench.check(1_000)
    assert (first.stands, second.stands, third.stands) == ([], [], [(1_000, JITTER_MS)])


def test_suspicion_of_a_later_peer_comes_back_although_an_earlier_one_is_well() -> None:
    """Every peer is looked at."""
    bench = WatchBench()
    led = bench.open(0, TWO)
    bench.keep_alive(ONE, 1_000)
    bench.watch.on_lost(TWO, 1_000, refused=True)
    led.due_ms = None
    bench.check(1_000)
    assert led.stands == [(1_000, JITTER_MS)] * 2


def test_channel_without_a_leader_stands_when_nothing_else_is_armed() -> None:
    """S1.8: nobody claims it. A candidate, a leader and an armed one go their own way."""
    bench = WatchBench()
    idle, armed, candidate, led = (bench.open(number) for number in range(4))
    bench.led(led, ONE)
    for channel in (idle, candidate):
        channel.due_ms = None
    candidate.elector.role = Role.CANDIDATE
    armed.due_ms = 7_000
    bench.check(0)
    assert idle.stands == [(0, JITTER_MS)]
    assert armed.stands == candidate.stands == led.stands == []
    bench.led(led, None)
    bench.check(50)
    assert led.stands == [(50, JITTER_MS)]
