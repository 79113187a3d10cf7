"""Beliefs of a node about the others, from heartbeats, lists of leaders and broken connections."""

from __future__ import annotations

import pytest

from raftstore.config import HeartbeatSettings
from raftstore.engine.peers.peer_watch import OPENING_CHANNEL_MS, OPENING_STEP_MS
from raftstore.policy.failover import LOST, REFUSED, UNCLAIMED
from raftstore.policy.leadership import LeadershipDigest
from raftstore.protocol.node import ChannelPosition, LagReport, LeadershipList, LeadershipRequest
from raftstore.protocol.replication import StaleTerm
from raftstore.types import NodeId, Role, Seq, Term
from tests.unit.engine.watch_bench import (
    BOOT,
    ELECTION,
    FAR,
    HEARTBEAT,
    JITTER_MS,
    ME,
    ONE,
    SILENT_MS,
    TRIO,
    TWO,
    WALL_MS,
    Channel,
    WatchBench,
)

STEP_MS = ELECTION.rank_step_ms
REQUEST = LeadershipRequest()


def report(channel: Channel, last_seq: int, commit_seq: int = 0) -> LagReport:
    """Where a replica of the channel is."""
    at = ChannelPosition(
        channel.channel, Term(1), False, Seq(0), Seq(commit_seq), Seq(last_seq), b""
    )
    return LagReport(WALL_MS, (at,))


def tell(bench: WatchBench, node: NodeId, said: LagReport, now_ms: int = 0) -> None:
    """A report of the node arrives."""
    assert bench.watch.on_message(node, said, now_ms, now_ms)


# --- who is there ---------------------------------------------------------------------------------


def test_node_is_no_peer_of_itself_and_a_peer_that_is_known_is_not_forgotten() -> None:
    """The catalog tells all nodes again and again, the own one with them."""
    bench = WatchBench()
    bench.beat(ONE, 100)
    for node in TRIO:
        bench.watch.add_peer(node, 200)
    assert list(bench.watch.peers) == [ONE, TWO]
    assert bench.watch.is_up(ONE)
    assert bench.watch.peers[ONE].boot_id == BOOT


def test_peer_that_is_discovered_later_is_believed_to_lead_what_it_led_before() -> None:
    """S1.8: its first heartbeat agrees with what is known of channels that it hosts, so nothing is
    asked; of channels that it does not host none of its heartbeats says anything."""
    bench = WatchBench()
    hosted = bench.open(0, FAR, members=(ME, ONE, FAR))
    bench.open(1, FAR)
    bench.open(2, members=(ME, ONE, FAR))
    mine = bench.open(3, ME, members=(ME, ONE, FAR))
    bench.watch.add_peer(FAR, 0)
    bench.watch.on_connected(FAR, 0)
    bench.beat(FAR, 100, hosted)
    assert bench.sent == []
    digest = LeadershipDigest()
    digest.add(mine.channel, mine.elector.term)
    assert bench.watch.heartbeat_content(bench.watch.peers[FAR]) == (digest.value, True)


def test_messages_of_unlisted_nodes_are_ignored() -> None:
    """Messages of a node that is not in the catalog change nothing: it is no peer."""
    bench = WatchBench()
    channel = bench.open(0, ONE)
    bench.beat(FAR, 100)
    bench.watch.on_connected(FAR, 100)
    bench.watch.on_lost(FAR, 200, refused=True)
    listed = LeadershipList(BOOT, ((channel.channel, Term(9)),))
    assert bench.watch.on_message(FAR, listed, 300, 300)
    assert (bench.sent, bench.events, bench.nodes_suspected) == ([], [], [])
    assert (channel.claims, channel.stands) == ([], [])
    assert not bench.watch.is_up(FAR)
    assert not bench.watch.is_routable(FAR, 300)


def test_messages_of_other_parts_are_left_to_them() -> None:
    """False is the answer that lets the node look elsewhere."""
    bench = WatchBench()
    for message in (REQUEST, LeadershipList(BOOT, ()), LagReport(0, ())):
        assert bench.watch.on_message(ONE, message, 0, 0)
    bench.sent.clear()
    other = StaleTerm(Channel(0, TRIO, 0).channel, Term(1))
    assert not bench.watch.on_message(ONE, other, 0, 0)
    assert bench.sent == []


def test_nodes_are_found_by_name_and_by_id() -> None:
    """Operators write names."""
    bench = WatchBench()
    long = NodeId("n7-0123456789abcdef")
    bench.watch.add_peer(long, 0)
    assert [bench.watch.peer_of(name) for name in ("n1", "n3", "n9")] == [ME, TWO, None]
    assert bench.watch.peer_of(long) == long


def test_connections_are_told_once_each_way() -> None:
    """A second loss of one connection makes no second event."""
    bench = WatchBench()
    bench.watch.on_connected(ONE, 50)
    assert bench.events == []
    for _ in range(2):
        bench.watch.on_lost(ONE, 100, refused=False)
    assert bench.events == [{"name": "peer_lost", "peer": "n2", "refused": False}]
    for _ in range(2):
        bench.watch.on_connected(ONE, 200)
    assert bench.events[1:] == [{"name": "peer_up", "peer": "n2"}]


def test_connection_counts_as_a_word_of_its_peer() -> None:
    """It was heard then; but what it leads it said at its first connection, later ones say
    nothing of it (S1.8)."""
    bench = WatchBench()
    channel = bench.open(0, ONE)
    assert bench.watch.heard_leader(bench.runner(channel), ONE) == 0
    bench.watch.on_lost(ONE, 800, refused=False)
    bench.watch.on_connected(ONE, 900)
    bench.check(1_000)
    assert bench.watch.is_up(ONE)
    assert bench.watch.heard_leader(bench.runner(channel), ONE) == 0
    bench.watch.on_lost(ONE, 1_100, refused=False)
    assert bench.nodes_suspected[-1] == (ONE, LOST, 900)
    late = bench.open(1, FAR)
    bench.watch.add_peer(FAR, 1_000)
    assert bench.watch.heard_leader(bench.runner(late), FAR) is None
    bench.watch.on_connected(FAR, 1_200)
    assert bench.watch.heard_leader(bench.runner(late), FAR) == 1_200


def test_peer_is_up_while_it_is_connected_and_heard() -> None:
    """KLIP-49: a broken connection ends it at once; a heartbeat that comes after all mends it."""
    bench = WatchBench()
    watch, peer = bench.watch, bench.watch.peers[ONE]
    assert watch.is_up(ME)
    bench.beat(ONE, 100)
    assert watch.is_up(ONE)
    assert watch.in_contact(peer)
    assert watch.heartbeat_content(peer) == (bytes(16), True)
    bench.watch.on_lost(ONE, 150, refused=False)
    assert not watch.is_up(ONE)
    assert not watch.in_contact(peer)
    assert watch.heartbeat_content(peer) == (bytes(16), False)
    watch.on_connected(ONE, 160)
    assert watch.is_up(ONE)
    assert not watch.in_contact(peer), "it has not said that it hears this node"
    bench.beat(ONE, 200, hears_me=False)
    assert not watch.in_contact(peer)
    bench.beat(ONE, 300)
    assert watch.in_contact(peer)
    watch.on_lost(ONE, 310, refused=False)
    bench.beat(ONE, 320)
    assert watch.is_up(ONE)
    assert peer.last_heard_ms == 320


def test_peer_that_is_silent_is_down_although_it_is_connected() -> None:
    """KLIP-27: nothing is wrong with the connection; nobody is behind it."""
    bench = WatchBench()
    bench.keep_alive(ONE, 1_000)
    bench.keep_alive(TWO, 1_000 + SILENT_MS + 50)
    bench.check(1_000 + SILENT_MS + 50)
    peer = bench.watch.peers[ONE]
    assert not bench.watch.is_up(ONE)
    assert not bench.watch.in_contact(peer)
    assert bench.watch.heartbeat_content(peer)[1] is False
    assert bench.watch.expected_heartbeats().keys() == set()
    [told] = [event for event in bench.events if event["name"] == "peer_health"]
    assert (told["peer"], told["up"]) == ("n2", False)
    assert bench.nodes_suspected == [(ONE, "3 heartbeats missed", 1_000)]
    bench.keep_alive(ONE, 1_700, from_ms=1_400)
    bench.keep_alive(TWO, 1_700, from_ms=1_400)
    bench.check(1_700)
    assert bench.watch.is_up(ONE)
    assert [event["up"] for event in bench.events if event["name"] == "peer_health"] == [
        False,
        True,
    ]
    assert len(bench.nodes_suspected) == 1, "who is up again is suspected by nobody"


def test_queries_go_to_nodes_that_are_up_or_reported_alive() -> None:
    """BLOG-19: without ``heartbeat.enable`` a connection is enough; elections need
    more. A node that is not in the catalog is not asked, whatever is reported of it."""
    for enable in (True, False):
        bench = WatchBench(heartbeat=HeartbeatSettings(enable=enable))
        bench.keep_alive(TWO, 1_000)
        bench.check(1_000)
        assert bench.watch.is_routable(ME, 1_000)
        assert bench.watch.is_routable(TWO, 1_000)
        assert not bench.watch.is_up(ONE)
        assert bench.watch.is_routable(ONE, 1_000) is not enable
        bench.watch.on_lost(ONE, 1_050, refused=False)
        assert not bench.watch.is_routable(ONE, 1_060)
        bench.watch.http_reports.on_heartbeat(ONE, 1_100)
        assert bench.watch.is_routable(ONE, 1_100)
        assert not bench.watch.is_up(ONE)
        bench.watch.http_reports.on_heartbeat(FAR, 1_100)
        assert not bench.watch.is_routable(FAR, 1_100)


def test_clocks_are_compared_for_display() -> None:
    """KLIP-31: how far the peer's clock is ahead of this one's."""
    bench = WatchBench()
    bench.beat(ONE, 100, skew_ms=250)
    bench.beat(TWO, 100, skew_ms=-40)
    assert [bench.watch.health.skew_ms(node) for node in (ONE, TWO)] == [250, -40]


# --- who leads what -------------------------------------------------------------------------------


def test_list_of_leaders_is_asked_for_when_a_heartbeat_says_something_else() -> None:
    """S1.8: at most once in 100 ms, and from the one that said it."""
    bench = WatchBench()
    channel = bench.open(0, ONE)
    bench.beat(ONE, 100, channel)
    assert bench.sent == []
    for now_ms in (200, 299):
        bench.beat(ONE, now_ms)
    assert bench.sent == [(ONE, REQUEST)]
    bench.beat(ONE, 300)
    assert bench.sent == [(ONE, REQUEST)] * 2
    bench.beat(ONE, 399, channel)
    bench.beat(ONE, 400)
    assert bench.sent == [(ONE, REQUEST)] * 3


def test_list_of_leaders_is_asked_for_less_often_with_many_channels() -> None:
    """It names every one of them: a quarter of their number in milliseconds lies between two."""
    bench = WatchBench()
    for number in range(800):
        bench.open(number)
    led = bench.open(800, ONE)
    assert led.elector.leader == ONE
    for now_ms in (100, 299):
        bench.beat(ONE, now_ms)
    assert len(bench.sent) == 1
    bench.beat(ONE, 300)
    assert len(bench.sent) == 2


def test_list_names_what_is_led_here_and_hosted_there() -> None:
    """S1.8: nothing that somebody else leads, nothing that the asker has no replica of."""
    bench = WatchBench()
    led = bench.open(0, ME)
    bench.open(1, ME, members=(ME, TWO, FAR))
    bench.open(2, ONE)
    bench.open(3)
    also = bench.open(4, ME)
    assert bench.watch.on_message(ONE, REQUEST, 0, 0)
    told = tuple((channel.channel, channel.elector.term) for channel in (led, also))
    assert bench.sent == [(ONE, LeadershipList(bench.identity.boot_id, told))]


def test_leader_is_heard_when_it_claims_its_channels() -> None:
    """S1.8: living is not leading. One that claims something else was heard when it last did not,
    one that disclaims the channel, or is gone, not at all."""
    bench = WatchBench()
    channel, other = bench.open(0, ONE), bench.open(1, ONE)

    def heard(of: Channel = channel) -> int | None:
        return bench.watch.heard_leader(bench.runner(of), NodeId(of.elector.leader))

    bench.beat(ONE, 100, channel, other)
    assert heard() == 100
    bench.beat(ONE, 200, other)
    assert heard() == 100
    listed = LeadershipList(BOOT, ((other.channel, other.elector.term),))
    assert bench.watch.on_message(ONE, listed, 240, 250)
    assert (heard(), heard(other)) == (None, 250)
    bench.beat(ONE, 300, channel, other)
    assert (heard(), heard(other)) == (300, 300)
    bench.watch.on_lost(ONE, 310, refused=False)
    assert (heard(), heard(other)) == (None, None)
    mine, strange = bench.open(2, ME), bench.open(3, FAR)
    assert (heard(mine), heard(strange)) == (None, None)


def test_channels_that_a_list_names_learn_their_leader() -> None:
    """S1.8: each in the term that is claimed; of channels that are not here nothing is learnt."""
    bench = WatchBench()
    channel, other = bench.open(0), bench.open(1)
    gone = Channel(7, TRIO, 0)
    listed = ((gone.channel, Term(3)), (other.channel, Term(5)), (channel.channel, Term(4)))
    assert bench.watch.on_message(ONE, LeadershipList(BOOT, listed), 90, 100)
    assert channel.claims == [(ONE, Term(4), 100)]
    assert other.claims == [(ONE, Term(5), 100)]
    assert channel.stands == other.stands == []


def test_leader_that_names_its_channel_no_more_is_suspected_after_a_while() -> None:
    """S1.8: a candidacy waits for as long as a silent node is waited for. What others lead, what
    this node leads and what is claimed in its term is left alone."""
    bench = WatchBench()
    bench.open(0, TWO)
    unnamed = bench.open(1, ONE)
    named = bench.open(2, ONE)
    of_another_term = bench.open(3, ONE)
    bench.open(4, ME)
    bench.keep_alive(ONE, 200)
    bench.keep_alive(TWO, 200)
    term = named.elector.term
    listed = ((named.channel, term), (of_another_term.channel, Term(term - 1)))
    assert bench.watch.on_message(ONE, LeadershipList(BOOT, listed), 200, 200)
    # The other replica of equal history comes later in the placement than this one.
    assert unnamed.stands == of_another_term.stands == [(200, SILENT_MS + JITTER_MS)]
    assert bench.leaders_suspected == [("t/1", UNCLAIMED), ("t/3", UNCLAIMED)]
    channels = list(bench.channels.values())
    assert [number for number, channel in enumerate(channels) if channel.stands] == [1, 3]


def test_list_that_names_a_channel_again_ends_the_doubt() -> None:
    """S1.8: its leader counts as heard from then on."""
    bench = WatchBench()
    channel = bench.open(0, ONE)
    term = channel.elector.term
    assert bench.watch.on_message(ONE, LeadershipList(BOOT, ()), 100, 100)
    assert bench.watch.peers[ONE].unclaimed
    assert bench.watch.expected_heartbeats() == {}
    named = LeadershipList(BOOT, ((channel.channel, term),))
    assert bench.watch.on_message(ONE, named, 200, 200)
    assert bench.watch.heard_leader(bench.runner(channel), ONE) == 200
    assert bench.watch.on_message(ONE, LeadershipList(BOOT, ()), 300, 300)
    assert bench.watch.heard_leader(bench.runner(channel), ONE) is None
    bench.led(channel, ONE)
    assert bench.watch.heard_leader(bench.runner(channel), ONE) == 300, "of its next term"


def test_peer_that_was_started_again_is_asked_whatever_its_heartbeat_says() -> None:
    """S1.8: after a peer's restart it is asked for its leaderships, and its reports count anew."""
    bench = WatchBench()
    channel = bench.open(0, ONE)
    bench.beat(ONE, 100, channel)
    first = LagReport(WALL_MS, (), counter=9)
    tell(bench, ONE, first, 120)
    bench.beat(ONE, 130, channel)
    tell(bench, ONE, first, 140)
    assert bench.watch.reports.heard_ms[ONE] == 120, "it came twice"
    bench.beat(ONE, 200, channel, boot_id=b"boot two")
    assert bench.sent == [(ONE, REQUEST)]
    assert bench.watch.heard_leader(bench.runner(channel), ONE) == 130
    tell(bench, ONE, first, 250)
    assert bench.watch.reports.heard_ms[ONE] == 250
    bench.beat(ONE, 300, channel, boot_id=b"boot two")
    assert bench.sent == [(ONE, REQUEST)]
    assert bench.watch.heard_leader(bench.runner(channel), ONE) == 300


def test_heartbeats_claim_each_leadership_until_it_ends() -> None:
    """S1.8: in its present term, to those that host the channel; it goes with the channel."""
    bench = WatchBench()
    first, second = bench.open(0, ME), bench.open(1, ME, members=(ME, TWO, FAR))

    def claimed(node: NodeId, *channels: Channel) -> bool:
        digest = LeadershipDigest()
        for channel in channels:
            digest.add(channel.channel, channel.elector.term)
        return bench.watch.heartbeat_content(bench.watch.peers[node])[0] == digest.value

    assert claimed(ONE, first)
    assert claimed(TWO, first, second)
    bench.led(first, ME)  # of the next term
    assert claimed(ONE, first)
    assert claimed(TWO, first, second)
    bench.led(first, TWO)
    assert claimed(ONE)
    assert claimed(TWO, second)
    bench.beat(TWO, 100, first)
    bench.led(first, None)
    bench.beat(ONE, 100)
    assert bench.sent == []
    bench.beat(TWO, 200)
    assert bench.sent == []
    bench.watch.channel_closed(bench.runner(second))
    assert claimed(TWO)


def test_what_is_known_of_a_dropped_table_goes_with_it() -> None:
    """S0.8: the next heartbeat of its leader names it no more, and nothing is asked; no timer
    comes back to it."""
    bench = WatchBench()
    mine, led, lost = bench.open(0, ME), bench.open(1, ONE), bench.open(2)
    kept = bench.open(3, ONE)
    tell(bench, TWO, report(led, 10, 10))
    bench.keep_alive(ONE, 2_000, led, kept)
    bench.keep_alive(TWO, 2_000)
    bench.check(2_000)
    listed = LeadershipList(BOOT, ((kept.channel, kept.elector.term),))
    assert bench.watch.on_message(ONE, listed, 2_000, 2_000)
    assert set(bench.watch.expected_heartbeats()) == {TWO}
    for channel in (mine, led, lost):
        del bench.channels[channel.channel]
        bench.watch.channel_closed(bench.runner(channel))
        channel.due_ms = None
        channel.stands.clear()
    assert bench.watch.positions == {}
    assert set(bench.watch.expected_heartbeats()) == {ONE, TWO}
    bench.sent.clear()
    bench.beat(ONE, 2_050, kept)
    assert bench.sent == []
    for now_ms in range(2_050, 5_000, 50):
        bench.check(now_ms)
    assert (mine.gave_up, mine.stands, led.stands, lost.stands) == ([], [], [], [])


def test_hints_of_channels_that_live_elsewhere_go_with_their_table() -> None:
    """They come and go for years."""
    bench = WatchBench()
    elsewhere = Channel(5, (ONE, TWO, FAR), 0)
    tell(bench, ONE, report(elsewhere, 10))
    bench.watch.http_reports.on_positions(TWO, [(elsewhere.channel, Seq(1), Seq(1))], 0)
    bench.watch.forget_hints(lambda _: True)
    assert elsewhere.channel in bench.watch.positions
    bench.watch.forget_hints(lambda _: False)
    assert bench.watch.positions == {}
    assert list(bench.watch.http_reports.channels()) == []


# --- when a replica stands ------------------------------------------------------------------------


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
    """KLIP-49: at once, and no others; the cause is told with when it was last heard."""
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


# --- a leader without a quorum --------------------------------------------------------------------


def until_given_up(bench: WatchBench, channel: Channel, from_ms: int, to_ms: int) -> int | None:
    """Check by check, nothing else is heard: when it gave up its role."""
    for now_ms in range(from_ms, to_ms + 1, HEARTBEAT.check_interval_ms):
        bench.check(now_ms)
        if channel.gave_up:
            assert channel.gave_up == [("no contact to a quorum", now_ms)]
            return now_ms
    return None


def test_leader_gives_up_when_it_has_had_no_contact_for_long_enough() -> None:
    """NATS-035: counted from when the contact was lost, as the check found it."""
    bench = WatchBench()
    channel = bench.open(0, ME)
    for node in (ONE, TWO):
        bench.beat(node, 100)
        bench.watch.on_lost(node, 120, refused=True)
    assert until_given_up(bench, channel, 150, 5_000) == 150 + ELECTION.quorum_contact_ms


def test_one_peer_in_contact_holds_a_leader_of_three() -> None:
    """It and the peer are a quorum; a channel with other voters is judged by these."""
    bench = WatchBench()
    far = bench.open(0, ME, members=(ME, TWO, FAR))
    held = bench.open(1, ME)
    same = bench.open(2, ME, members=(ME, TWO, FAR))
    bench.watch.on_lost(TWO, 100, refused=True)
    gave_up_ms = 100 + ELECTION.quorum_contact_ms
    for now_ms in range(100, 3_000, 50):
        bench.beat(ONE, now_ms)
        bench.check(now_ms)
        if far.gave_up:
            break
    assert far.gave_up == same.gave_up == [("no contact to a quorum", gave_up_ms)]
    assert held.gave_up == []


def test_contact_in_between_counts_the_time_anew() -> None:
    """NATS-035: with one peer, and with all of them."""
    for back in ((ONE,), (ONE, TWO)):
        bench = WatchBench()
        channel = bench.open(0, ME)
        for node in (ONE, TWO):
            bench.watch.on_lost(node, 0, refused=True)
        assert until_given_up(bench, channel, 0, 1_400) is None
        # It was down, so two heartbeats make it up again.
        for node in back:
            bench.beat(node, 1_300)
            bench.beat(node, 1_400)
            bench.beat(node, 1_449)
        bench.check(1_450)
        for node in back:
            assert bench.watch.in_contact(bench.watch.peers[node])
            bench.watch.on_lost(node, 1_480, refused=True)
        assert until_given_up(bench, channel, 1_500, 9_000) == 1_500 + ELECTION.quorum_contact_ms


def test_leadership_that_ended_counts_no_time_for_the_next_one() -> None:
    """NATS-035: a leader of a later term has its own time, also where the channel was opened
    again meanwhile."""
    bench = WatchBench()
    channel = bench.open(0, ME)
    for node in (ONE, TWO):
        bench.watch.on_lost(node, 0, refused=True)
    assert until_given_up(bench, channel, 0, 1_000) is None
    bench.led(channel, None)
    bench.led(channel, ME)
    assert until_given_up(bench, channel, 1_050, 2_000) is None
    bench.watch.channel_closed(bench.runner(channel))
    channel = bench.open(0, ME)
    assert until_given_up(bench, channel, 2_050, 9_000) == 2_050 + ELECTION.quorum_contact_ms


def test_follower_gives_nothing_up() -> None:
    """It led once; who leads now has a quorum of its own."""
    bench = WatchBench()
    channel = bench.open(0, ME)
    bench.led(channel, TWO)
    for node in (ONE, TWO):
        bench.watch.on_lost(node, 0, refused=True)
    assert until_given_up(bench, channel, 0, 3_000) is None


def test_leader_that_stays_although_it_was_told_is_told_again_after_as_long() -> None:
    """Not at each check."""
    bench = WatchBench()
    channel = bench.open(0, ME)
    for node in (ONE, TWO):
        bench.watch.on_lost(node, 0, refused=True)
    for now_ms in range(0, 3_001 + 50, 50):
        bench.check(now_ms)
    assert [at for _, at in channel.gave_up] == [1_500, 3_050]


# --- timers and what is told ----------------------------------------------------------------------


def test_timer_checks_and_reports_at_their_own_pace() -> None:
    """Both are done at the first call; then each comes when its time has come, not before."""
    bench = WatchBench()
    bench.watch.on_lost(TWO, 0, refused=False)
    bench.open(0)
    bench.watch.on_timer(0)
    assert bench.watch.due_ms == 50
    assert [(to, type(message)) for to, message in bench.sent] == [(ONE, LagReport)]
    for now_ms in range(50, 1_000, 50):
        bench.check(now_ms)
        assert bench.watch.due_ms == now_ms + 50
    assert len(bench.sent) == 1
    bench.check(1_000)
    assert len(bench.sent) == 2


def test_check_between_two_moments_waits_for_its_own() -> None:
    """A report that is due takes no check with it, nor the other way round."""
    bench = WatchBench(report_interval_ms=70)
    bench.watch.on_timer(0)
    channel = bench.open(0)
    channel.due_ms = None
    bench.check(50)
    assert len(channel.stands) == 1
    assert bench.watch.due_ms == 70
    channel.due_ms = None
    sent = len(bench.sent)
    bench.check(70)
    assert len(channel.stands) == 1
    assert len(bench.sent) == sent + 2
    assert bench.watch.due_ms == 100
    bench.check(100)
    assert len(channel.stands) == 2
    assert len(bench.sent) == sent + 2


def test_report_tells_what_has_moved_since() -> None:
    """KLIP-35: of one channel, and of all of them after a stop."""
    bench = WatchBench()
    channels = [bench.open(number) for number in range(2)]

    def told(now_ms: int) -> list[int]:
        bench.sent.clear()
        bench.check(now_ms)
        message = bench.sent[0][1]
        assert isinstance(message, LagReport)
        return [position.last_seq for position in message.positions]

    assert told(0) == [10, 10]
    for channel in channels:
        channel.core.last_seq = Seq(11)
    assert told(1_000) == [10, 10]
    bench.watch.moved(channels[1].channel)
    assert told(2_000) == [10, 11]
    bench.watch.all_moved()
    assert told(3_000) == [11, 11]


def test_reports_age_from_their_arrival() -> None:
    """S7.3: one may have waited for its turn here."""
    bench = WatchBench()
    channel = bench.open(0)
    assert bench.watch.on_message(ONE, report(channel, 5, 5), 100, 900)
    assert bench.watch.reports.updated_ms_ago(ONE, 1_000) == 900
    assert bench.watch.positions[channel.channel].keys() == {ONE}


def test_known_commit_is_the_furthest_of_what_was_told() -> None:
    """KLIP-36: by reports of any replica, or by the leader to the core."""
    bench = WatchBench()
    channel = bench.open(0)
    tell(bench, ONE, report(channel, 8, 8))
    assert bench.watch.known_commit(bench.runner(channel)) == 8
    channel.core.known_leader_commit_seq = Seq(9)
    assert bench.watch.known_commit(bench.runner(channel)) == 9


def test_heartbeats_to_expect_are_those_of_peers_with_which_all_is_well() -> None:
    """P12: who is not connected, not found up yet or in doubt is not expected."""
    bench = WatchBench()
    channel = bench.open(0, ONE)
    assert bench.watch.expected_heartbeats() == {}, "they were discovered just now"
    bench.keep_alive(ONE, 2_000, channel)
    bench.keep_alive(TWO, 2_000)
    bench.check(2_000)
    digest = LeadershipDigest()
    digest.add(channel.channel, channel.elector.term)
    expected = {ONE: (BOOT, digest.value, True), TWO: (BOOT, bytes(16), True)}
    assert bench.watch.expected_heartbeats() == expected
    bench.watch.on_lost(TWO, 2_010, refused=False)
    assert set(bench.watch.expected_heartbeats()) == {ONE}
    bench.watch.peers[ONE].unclaimed[channel.channel] = None
    assert bench.watch.expected_heartbeats() == {}


def test_peer_that_is_heard_again_and_lost_again_is_not_expected() -> None:
    """Heartbeats of before make it up at the next check; its connection is gone all the same."""
    bench = WatchBench()
    bench.check(400)
    assert not bench.watch.health.is_up(ONE)
    bench.keep_alive(ONE, 600, from_ms=450)
    bench.watch.on_lost(ONE, 640, refused=False)
    bench.check(650)
    assert bench.watch.health.is_up(ONE)
    assert not bench.watch.is_up(ONE)
    assert bench.watch.expected_heartbeats() == {}
