"""Beliefs of a node about who leads what, from heartbeats and lists of leaders; and the end of a
leadership without contact to a quorum.
"""

from __future__ import annotations

import pytest

from raftstore.core.effects import ConfigCommitted
from raftstore.policy.failover import UNCLAIMED
from raftstore.policy.leadership import LeadershipDigest
from raftstore.protocol.node import LagReport, LeadershipList, LeadershipRequest
from raftstore.types import ChannelConfig, NodeId, Seq, Term
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
    report,
    tell,
)

REQUEST = LeadershipRequest()


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


def test_heartbeats_claim_leaderships_to_the_members_of_the_newest_configuration() -> None:
    """S1.8: a node that hosts the channel since compares the same as this one; else it would ask
    for the whole list at every heartbeat, and so would one that hosts it no more."""
    bench = WatchBench()
    bench.watch.add_peer(FAR, 0)
    channel = bench.open(0, ME)
    digest = LeadershipDigest()
    digest.add(channel.channel, channel.elector.term)

    def claimed(node: NodeId) -> bool:
        return bench.watch.heartbeat_content(bench.watch.peers[node])[0] == digest.value

    assert (claimed(ONE), claimed(FAR)) == (True, False)
    moved = ChannelConfig(((ME, TWO, FAR),))
    channel.core.config = lambda: moved
    committed = ConfigCommitted(Seq(5), Term(1), moved)
    bench.watch.config_committed(bench.runner(channel), committed)
    assert (claimed(ONE), claimed(TWO), claimed(FAR)) == (False, True, True)
    bench.led(channel, TWO)
    nothing = bytes(len(digest.value))
    claims = [bench.watch.heartbeat_content(bench.watch.peers[n])[0] for n in (ONE, TWO, FAR)]
    assert claims == [nothing] * 3


@pytest.mark.parametrize("known", ["committed", "not_committed"])
def test_leader_that_left_the_channel_and_gave_up_unheard_is_suspected(known: str) -> None:
    """S1.8, M17: it leads until the configuration without it is committed. A replica that misses
    its notice of that learns it from its heartbeats, which claim the channel no more; found as
    world 21729 with changes of members."""
    bench = WatchBench()
    channel = bench.open(0, ONE, members=(ME, TWO) if known == "not_committed" else TRIO)
    moved = ChannelConfig(((ME, TWO),))
    channel.core.config = lambda: moved
    if known == "committed":
        bench.watch.config_committed(bench.runner(channel), ConfigCommitted(Seq(5), Term(1), moved))
    bench.beat(ONE, 100, channel)
    assert bench.sent == [], "it claims what it is believed to lead"
    bench.beat(ONE, 200)
    assert bench.sent == [(ONE, REQUEST)]


def test_replica_that_left_the_channel_asks_no_more_for_its_leader() -> None:
    """Its own configuration says that nobody claims the channel to it."""
    bench = WatchBench()
    channel = bench.open(0, ONE)
    moved = ChannelConfig(((ONE, TWO),))
    channel.core.config = lambda: moved
    bench.watch.config_committed(bench.runner(channel), ConfigCommitted(Seq(5), Term(1), moved))
    bench.beat(ONE, 200)
    assert bench.sent == []


def test_claim_ends_with_the_channel_for_a_peer_that_was_left_out_too() -> None:
    """A configuration that is not committed left the peer out, and then the channel was closed: a
    claim that stayed would have the peer ask for the list at every heartbeat, for ever."""
    bench = WatchBench()
    channel = bench.open(0, ME)
    channel.core.config = lambda: ChannelConfig(((ME, TWO),))
    bench.watch.channel_closed(bench.runner(channel))
    nothing = bytes(len(LeadershipDigest().value))
    claims = [bench.watch.heartbeat_content(bench.watch.peers[node])[0] for node in (ONE, TWO)]
    assert claims == [nothing] * 2
