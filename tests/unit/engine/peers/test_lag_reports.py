"""Lag reports: which nodes get them, what they are used for, and the limits of a forged one
(KLIP-35).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from raftstore.config import HeartbeatSettings, LagSettings, NodeSettings
from raftstore.protocol.admin import ClusterInfo, ClusterInfoAnswer, SeenHeartbeat, SeenLags
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.node import ChannelPosition, LagReport
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, Role, Seq, Term, channel_id, node_name
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run, spy

SETTINGS = NodeSettings(name="", data_dir="")
FAR = Seq(1_000_000)


def five_nodes(settings: NodeSettings = SETTINGS) -> tuple[SimCluster, ChannelId]:
    """Five healthy nodes; the table's one partition is on three of them."""
    cluster = SimCluster(SimOptions(seed=3, nodes=5, partitions=1, evict_percent=0), settings)
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    assert cluster.every_channel_has_a_leader()
    return cluster, cluster.table_channels[0]


def outsider(cluster: SimCluster, channel: ChannelId) -> SimNode:
    """A node that does not host the channel."""
    hosts = cluster.replicas(channel)
    return next(node for node in cluster.nodes.values() if node.node not in hosts)


def follower(cluster: SimCluster, channel: ChannelId) -> SimNode:
    """A node that hosts the channel and does not lead it."""
    leader = cluster.leaders()[channel].node
    return next(cluster.nodes[node] for node in cluster.replicas(channel) if node != leader)


def lags_of(cluster: SimCluster, node: SimNode, channel: ChannelId) -> dict[str, int | None]:
    """Rows each replica is behind, as the node answers clients."""
    answers = ask(cluster, node, ClusterInfo(1, with_lags=True))
    run(cluster, 200)
    [answer] = answers
    assert isinstance(answer, ClusterInfoAnswer)
    [info] = [c for table in answer.tables for c in table.channels if c.channel == channel]
    return dict(zip(map(node_name, info.replicas), info.replica_lags, strict=True))


def test_klip_35_all_peers_hear_all_positions() -> None:
    """KLIP-35: every live node learns where every replica is, also of what it does not host.

    Shows KIP-23.
    """
    cluster, channel = five_nodes()
    node = outsider(cluster, channel)
    assert node.runner is not None
    assert set(node.runner.watch.positions[channel]) == set(cluster.replicas(channel))
    assert lags_of(cluster, node, channel) == {
        node_name(replica): 0 for replica in cluster.replicas(channel)
    }


def test_klip_07_08_positions_report_applied_and_highest_known_commit() -> None:
    """KLIP-07, KLIP-08: each replica reports both, of every channel of its node."""
    cluster, channel = five_nodes()
    leader = cluster.leaders()[channel]
    seen = spy(cluster, leader)
    write(cluster, leader, channel)
    run(cluster, 1_500)
    reports = [message for _, message in seen if isinstance(message, LagReport)]
    told = {position.channel: position for position in reports[-1].positions}
    assert leader.runner is not None
    assert set(told) == set(leader.runner.channels)
    end = leader.runner.channels[channel].core.commit_seq
    assert (told[channel].applied_seq, told[channel].commit_seq) == (end, end)
    assert [report.counter for report in reports] == sorted(report.counter for report in reports)


def write(cluster: SimCluster, leader: SimNode, channel: ChannelId, counter: int = 1) -> None:
    """One row, committed and applied everywhere."""
    payload = encode_rows([(b"k", seal(b"k", b"%d" % counter))])
    ask(cluster, leader, publish(cluster, leader, channel, counter, payload))
    run(cluster, 1_000)


def test_without_lag_reports_only_hosts_of_a_channel_hear_its_positions() -> None:
    """KLIP-38, S13: switched off for routing; comparing histories and candidacy still need them."""
    settings = replace(SETTINGS, lag=LagSettings(enable=False))
    cluster, channel = five_nodes(settings)
    node, leader = outsider(cluster, channel), cluster.leaders()[channel].node
    assert node.runner is not None
    assert set(node.runner.watch.positions[channel]) == {leader}
    host = follower(cluster, channel)
    assert host.runner is not None
    others = {replica for replica in cluster.replicas(channel) if replica != host.node}
    assert set(host.runner.watch.positions[channel]) == others


def test_positions_of_dropped_tables_are_forgotten() -> None:
    """Tables come and go for years; the positions of gone ones must not stay, wherever they are."""
    cluster, channel = five_nodes()
    node = outsider(cluster, channel)
    assert node.runner is not None
    watch, controller = node.runner.watch, node.runner.controller
    told = next(iter(watch.positions[channel].values()))
    gone = structs.replace(told, channel=channel_id(b"g" * 16, 0))
    now = node.clock.now_ms()
    watch.reports.on_report(cluster.replicas(channel)[0], LagReport(0, (gone,)), now, now)
    assert gone.channel not in watch.positions
    watch.http_reports.on_positions(cluster.replicas(channel)[0], [(channel, Seq(1), Seq(1))], now)
    controller.catalog.tables.clear()
    controller.catalog._by_uuid.clear()
    watch.forget_hints(node.runner.controller.exists)
    assert channel not in watch.positions
    assert watch.http_reports.position(channel, cluster.replicas(channel)[0]) is None


def test_report_that_comes_late_or_twice_takes_nothing_back() -> None:
    """S12, KLIP-36: what is committed stays committed, and a newer report stays the newest."""
    cluster, channel = calm_cluster()
    node = follower(cluster, channel)
    peer = cluster.leaders()[channel].node
    assert node.runner is not None
    watch, now = node.runner.watch, node.clock.now_ms()
    newest = watch.positions[channel][peer]
    at = watch.reports._newest[peer]
    ahead = structs.replace(newest, commit_seq=Seq(50), last_seq=Seq(50))
    watch.reports.on_report(peer, LagReport(0, (ahead,), at + 1), now, now)
    assert watch.positions[channel][peer] == ahead
    watch.reports.on_report(peer, LagReport(0, (newest,), at), now, now)
    assert watch.positions[channel][peer] == ahead
    watch.reports.on_report(peer, LagReport(0, (newest,), at + 2), now, now)
    assert watch.positions[channel][peer] == newest
    assert watch.known_commit(node.runner.channels[channel]) == 50


def test_sender_that_was_started_again_is_heard_at_once() -> None:
    """It counts from one again; its reports are not taken for late ones from before the restart."""
    cluster, channel = calm_cluster()
    run(cluster, 5_000)
    node = follower(cluster, channel)
    assert node.runner is not None
    restarted = next(n for n in cluster.nodes.values() if n is not node)
    before = node.runner.watch.reports._newest[restarted.node]
    restarted.crash("test")
    run(cluster, 500)
    restarted.boot()
    run(cluster, 2_500)
    assert 0 < node.runner.watch.reports._newest[restarted.node] < before
    ago = node.runner.watch.reports.updated_ms_ago(restarted.node, node.clock.now_ms())
    assert ago is not None
    assert ago <= 1_100


# --- what is said over HTTP -----------------------------------------------------------------------


def answered(cluster: SimCluster, node: SimNode, message: Message) -> Message:
    """The node's answer."""
    answers = ask(cluster, node, message)
    run(cluster, 100)
    [answer] = answers
    return answer


def table_name(node: SimNode) -> str:
    """The only table."""
    assert node.runner is not None
    [name] = node.runner.controller.catalog.tables
    return name


def test_klip_35_forged_report_moves_no_bound_and_no_election() -> None:
    """S7.3, S12: it orders replicas; commits, lags of reads and candidacy never look at it."""
    cluster, channel = calm_cluster()
    leader, node = cluster.leaders()[channel], follower(cluster, channel)
    write(cluster, leader, channel)
    assert node.runner is not None
    runner, watch = node.runner.channels[channel], node.runner.watch
    other = next(n for n in cluster.node_ids if n not in (leader.node, node.node))
    heard_ms = watch.reports.heard_ms[other]
    while watch.reports.heard_ms[other] == heard_ms:
        run(cluster, 10)  # what is said counts until the node's next report
    known, delays = watch.known_commit(runner), watch.candidacy_delay_ms(runner)
    forged = SeenLags(7, node_name(other), 0, ((table_name(node), 0, FAR, FAR),))
    assert isinstance(answered(cluster, node, forged), Done)
    assert watch.known_commit(runner) == known
    assert abs(watch.candidacy_delay_ms(runner) - delays) <= SETTINGS.election.jitter_ms
    assert watch.http_reports.position(channel, other) is not None
    read = Get(8, channel, (b"k",), "bounded", 0, Seq(0), 1_000)
    answer = answered(cluster, node, read)
    assert isinstance(answer, GetAnswer)
    assert answer.served.lag == 0
    behind = SeenLags(9, node_name(other), 0, ((table_name(node), 0, Seq(0), FAR),))
    assert isinstance(answered(cluster, node, behind), Done)
    assert lags_of(cluster, node, channel)[node_name(other)] == known


@pytest.mark.parametrize(
    ("name", "partition", "current", "code"),
    [
        ("nobody", 0, 0, "schema"),
        ("n1", 1, 0, "unknown_table"),
        ("n1", -1, 0, "unknown_table"),
        ("n1", 0, -1, "schema"),
        ("n1", 0, 2**63, "schema"),
    ],
)
def test_report_over_http_that_makes_no_sense_is_refused_whole(
    name: str, partition: int, current: int, code: str
) -> None:
    """KLIP-35: unlisted nodes, unknown partitions and positions that no log has are refused."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    table = table_name(node)
    lags = ((table, 0, Seq(1), Seq(1)), (table, partition, Seq(current), Seq(1)))
    answer = answered(cluster, node, SeenLags(1, name, 0, lags))
    assert isinstance(answer, Failed)
    assert answer.code == code
    assert node.runner is not None
    assert node.runner.watch.http_reports.position(channel, cluster.node_ids[0]) is None


def test_klip_19_heartbeat_over_http_routes_again_and_connects_nobody() -> None:
    """KLIP-19, S12: a node that is cut off from here may be asked; it is in no contact for it."""
    cluster, channel = calm_cluster()
    node = follower(cluster, channel)
    gone = cluster.leaders()[channel]
    gone.crash("test")
    run(cluster, 3_000)
    assert node.runner is not None
    watch, now = node.runner.watch, node.clock.now_ms
    peer = watch.peers[gone.node]
    assert not watch.is_routable(gone.node, now())
    assert isinstance(answered(cluster, node, SeenHeartbeat(1, gone.name, 0)), Done)
    assert watch.is_routable(gone.node, now())
    assert not watch.is_up(gone.node)
    assert not watch.in_contact(peer)
    assert not peer.connected
    run(cluster, 1_000)
    assert not watch.is_routable(gone.node, now())
    refused = answered(cluster, node, SeenHeartbeat(2, "unlisted", 0))
    assert isinstance(refused, Failed)
    assert refused.code == "schema"


def test_beats_said_over_http_do_not_keep_a_dead_leader_in_office() -> None:
    """S1.8: silence on the peer connection is what elects, whatever anybody posts."""
    cluster, channel = calm_cluster()
    old = cluster.leaders()[channel]
    others = [node for node in cluster.node_ids if node != old.node]
    cluster.network.cut_groups([old.node], others)
    for _ in range(15):
        for node in others:
            ask(cluster, cluster.nodes[node], SeenHeartbeat(1, old.name, 0))
        run(cluster, 100)
    roles = [
        runner.channels[channel].elector.role
        for node in others
        if (runner := cluster.nodes[node].runner) is not None
    ]
    assert Role.LEADER in roles


@pytest.mark.slow
def test_without_heartbeats_for_routing_silence_holds_nobody_down() -> None:
    """BLOG-19: a silent node that is still connected is asked; elections go on without it."""
    quiet = replace(SETTINGS, heartbeat=HeartbeatSettings(enable=False))
    cluster = SimCluster(SimOptions(seed=1, partitions=1, evict_percent=0), quiet)
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    channel = cluster.table_channels[0]
    old = cluster.leaders()[channel]
    others = [node for node in cluster.node_ids if node != old.node]
    cluster.network.cut_groups([old.node], others)
    run(cluster, 1_500)
    node = cluster.nodes[others[0]]
    assert node.runner is not None
    watch, now = node.runner.watch, node.clock.now_ms()
    assert not watch.is_up(old.node)
    assert watch.is_routable(old.node, now)
    assert node.runner.channels[channel].elector.leader not in (None, old.node)
    node.runner.on_peer_lost(old.node, now, refused=False)
    assert not watch.is_routable(old.node, now)


def test_klip_20_peers_come_from_the_catalog_and_the_seed_list() -> None:
    """KLIP-20: whichever of the two names a node first, it is watched after one interval; that it
    was connected names it to nobody (S0.1)."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    assert node.runner is not None
    controller, watch = node.runner.controller, node.runner.watch
    assert set(watch.peers) == set(cluster.node_ids) - {node.node}
    seed, seen = NodeId("n8@08"), NodeId("n9@09")
    controller._seen[seed] = "seed:1"
    controller.on_introduced(seen, "seen:1", 0)
    controller.on_timer(node.clock.now_ms() + SETTINGS.heartbeat.discover_interval_ms)
    assert seed in watch.peers
    assert seen not in watch.peers


def test_channel_position_of_an_unlisted_node_is_no_leader_for_its_age() -> None:
    """S7.3: of what is not hosted the end counts as known only while its leader reports it."""
    cluster, channel = five_nodes()
    node = outsider(cluster, channel)
    assert node.runner is not None
    reports = node.runner.watch.reports
    leader = cluster.leaders()[channel].node
    assert reports.reporting_leader(channel) == leader
    told = reports.positions[channel][leader]
    silent = ChannelPosition(channel, Term(told.term), True, Seq(0), Seq(0), Seq(0), b"")
    reports.positions[channel] = {leader: silent}
    assert reports.reporting_leader(channel) is None


@pytest.mark.slow
def test_leader_that_was_deposed_and_does_not_know_it_is_no_hint() -> None:
    """S7.4: it reports on beside its successor, and routing does not go to and fro each second."""
    cluster, channel = five_nodes()
    node = outsider(cluster, channel)
    assert node.runner is not None
    watch, now = node.runner.watch, node.clock.now_ms()
    old, new = cluster.replicas(channel)[:2]
    for sender, term in ((old, 7), (new, 8), (old, 7), (new, 8), (old, 7)):
        position = ChannelPosition(channel, Term(term), True, Seq(1), Seq(1), Seq(1), b"")
        watch.reports.on_report(sender, LagReport(0, (position,)), now, now)
    assert node.runner.controller.leader_of(channel) == (new, Term(8))


def test_address_of_the_http_interface_comes_with_the_report() -> None:
    """Others name it in their status, and know by it who posts a heartbeat."""
    cluster, channel = five_nodes()
    node = outsider(cluster, channel)
    assert node.runner is not None
    watch, peer = node.runner.watch, cluster.replicas(channel)[0]
    assert watch.reports.http_of[node.node] == ""
    now = node.clock.now_ms()
    watch.reports.on_report(peer, LagReport(0, (), http="127.0.0.1:4480"), now, now)
    info = node.runner.reports.cluster_info.answer(ClusterInfo(1), now)
    assert {told.node: told.http for told in info.nodes}[peer] == "127.0.0.1:4480"
