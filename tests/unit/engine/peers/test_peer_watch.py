"""Beliefs of a node about the others, from heartbeats and broken connections, and its reports."""

from __future__ import annotations

from raftstore.config import HeartbeatSettings
from raftstore.policy.failover import LOST
from raftstore.policy.leadership import LeadershipDigest
from raftstore.protocol.node import LagReport, LeadershipList, LeadershipRequest
from raftstore.protocol.replication import StaleTerm
from raftstore.types import NodeId, Seq, Term
from tests.unit.engine.watch_bench import (
    BOOT,
    FAR,
    ME,
    ONE,
    SILENT_MS,
    TRIO,
    TWO,
    Channel,
    WatchBench,
    report,
    tell,
)

REQUEST = LeadershipRequest()


# --- who is there ---------------------------------------------------------------------------------


def test_node_is_no_peer_of_itself_and_a_peer_that_is_known_is_not_forgotten() -> None:
    """The catalog names all nodes again and again, the own one with them."""
    bench = WatchBench()
    bench.beat(ONE, 100)
    for node in TRIO:
        bench.watch.add_peer(node, 200)
    assert list(bench.watch.peers) == [ONE, TWO]
    assert bench.watch.is_up(ONE)
    assert bench.watch.peers[ONE].boot_id == BOOT


def test_peer_that_is_discovered_later_is_believed_to_lead_what_it_led_before() -> None:
    """S1.8: its first heartbeat agrees with what is known of channels that it leads, so nothing is
    asked, whether the configuration that is known here names it or not (M17)."""
    bench = WatchBench()
    hosted = bench.open(0, FAR, members=(ME, ONE, FAR))
    left = bench.open(1, FAR)
    bench.open(2, members=(ME, ONE, FAR))
    mine = bench.open(3, ME, members=(ME, ONE, FAR))
    bench.watch.add_peer(FAR, 0)
    bench.watch.on_connected(FAR, 0)
    bench.beat(FAR, 100, hosted, left)
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


# --- timers and notifications --------------------------------------------------------------------


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
    bench.watch.reports.moved(channels[1].channel)
    assert told(2_000) == [10, 11]
    bench.watch.reports.all_moved()
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
