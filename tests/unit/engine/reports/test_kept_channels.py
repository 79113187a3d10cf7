"""A view keeps what it found of a channel until something happens to it (S7.3, P16).

Each test looks, lets one thing happen, and compares with a view made of nothing. Drawn histories of
all these things together are in ``tests/stateful/test_view_machine.py``.
"""

from __future__ import annotations

import pytest

from raftstore.engine.node_runner import NodeRunner
from raftstore.engine.reports.channel_views import CachedChannelView
from raftstore.protocol.admin import (
    ChannelView,
    ClusterView,
    ClusterViewAnswer,
    CreateTable,
    DropTable,
    SeenLags,
)
from raftstore.protocol.node import ChannelPosition, LagReport
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, Seq, Term
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run
from tests.unit.engine.view_oracle import channels_of


def five_nodes() -> tuple[SimCluster, ChannelId, SimNode]:
    """A table of one partition on three of five nodes, and a node that does not host it."""
    cluster = SimCluster(SimOptions(seed=3, nodes=5, partitions=1, evict_percent=0))
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    [channel] = cluster.table_channels
    hosts = cluster.replicas(channel)
    return cluster, channel, next(n for n in cluster.nodes.values() if n.node not in hosts)


def of(node: SimNode) -> NodeRunner:
    """The engine of a live node."""
    assert node.runner is not None
    return node.runner


def seen(node: SimNode, later_ms: int = 0) -> ChannelView:
    """The one channel as the node's kept view shows it, which is how it is."""
    runner, now_ms = of(node), node.clock.now_ms() + later_ms
    kept = runner.views._build(now_ms).channels
    assert kept == channels_of(runner, now_ms)
    [channel] = kept
    return channel


def write(cluster: SimCluster, channel: ChannelId, counter: int) -> None:
    """One row; it is not waited for."""
    payload = encode_rows([(b"k", seal(b"k", b"%d" % counter))])
    leader = cluster.leaders()[channel]
    ask(cluster, leader, publish(cluster, leader, channel, counter, payload))


def test_kept_view_follows_every_step_of_a_write() -> None:
    """Appended, acknowledged, committed, applied: at the leader and at its followers."""
    cluster, channel = calm_cluster()
    nodes = list(cluster.nodes.values())
    before = {node.node: seen(node).end_seq for node in nodes}
    write(cluster, channel, 1)
    for _ in range(400):
        run(cluster, 0.5)
        for node in nodes:
            seen(node)
    assert {node.node: seen(node).end_seq for node in nodes} == {
        node: end_seq + 1 for node, end_seq in before.items()
    }


@pytest.mark.slow
def test_kept_view_follows_reports_of_what_is_hosted_elsewhere() -> None:
    """KLIP-35: a node without a replica knows the channel from reports alone."""
    cluster, channel, outsider = five_nodes()
    before = seen(outsider)
    write(cluster, channel, 1)
    run(cluster, 1_500)
    after = seen(outsider)
    assert after.end_seq == before.end_seq + 1
    assert {hint.applied_seq for hint in after.replicas} == {after.end_seq}


def tell(
    node: SimNode,
    sender: NodeId,
    seqs: tuple[int, int],
    batches: tuple[int, int],
    *,
    leads: bool = False,
) -> None:
    """A report: how far the channel is committed and applied there, and the batches up to both."""
    [channel] = of(node).views.kept._kept
    commit_seq, applied_seq = map(Seq, seqs)
    position = ChannelPosition(
        channel, Term(9), leads, applied_seq, commit_seq, commit_seq, b"", *batches
    )
    now_ms = node.clock.now_ms()
    of(node).on_peer_message(sender, LagReport(0, (position,)), now_ms, now_ms)


def test_kept_view_has_the_furthest_reported_position() -> None:
    """KLIP-36, S7.3: a replica that was started again takes neither seqs nor batches back."""
    cluster, channel, outsider = five_nodes()
    seen(outsider)
    leader = cluster.leaders()[channel].node
    restarted, behind = (each for each in cluster.replicas(channel) if each != leader)
    of(outsider).watch.reports.forget(channel)
    for again in (False, True):
        tell(outsider, restarted, (0, 0) if again else (100, 100), (0, 0) if again else (5, 5))
        tell(outsider, leader, (100, 100), (5, 5), leads=True)
        tell(outsider, behind, (90, 90), (3, 3))
        view = seen(outsider)
        assert (view.end_seq, view.batches) == (100, 5)
        lacks = {hint.node: (hint.lag, hint.batches_behind) for hint in view.replicas}
        assert lacks[behind] == (10, 2)
        assert lacks[restarted] == ((100, 5) if again else (0, 0))


def test_kept_view_of_a_leader_that_tells_no_position_knows_no_lag() -> None:
    """S7.3: it stood still, so another may lead; what it reported before says nothing of now."""
    cluster, channel, outsider = five_nodes()
    seen(outsider)
    leader = cluster.leaders()[channel].node
    tell(outsider, leader, (100, 100), (5, 5), leads=True)
    assert seen(outsider).leader_info_age_ms == 0
    tell(outsider, leader, (0, 100), (0, 5), leads=True)
    view = seen(outsider)
    assert (view.end_seq, view.leader_info_age_ms) == (100, None)
    assert {hint.lag for hint in view.replicas} == {None}


def test_kept_view_tells_the_newer_of_what_is_said_and_what_is_reported() -> None:
    """KLIP-35: a posted position counts until the replica's node reports again."""
    cluster, channel, outsider = five_nodes()
    about = cluster.replicas(channel)[0]
    told = seen(outsider).end_seq
    lags = (("t", 0, Seq(99), Seq(99)),)
    of(outsider).on_client_message(5, SeenLags(1, about, 1, lags), outsider.clock.now_ms())
    hint = next(hint for hint in seen(outsider, 1).replicas if hint.node == about)
    assert (hint.applied_seq, hint.update_ms_ago) == (Seq(99), 1)
    run(cluster, 1_500)
    hint = next(hint for hint in seen(outsider).replicas if hint.node == about)
    assert hint.applied_seq == told


def test_what_was_said_of_a_replica_costs_nothing_once_it_reported_itself() -> None:
    """KLIP-35, P16: one posted report does not make every later view look at its channels again."""
    cluster, channel, outsider = five_nodes()
    about = cluster.replicas(channel)[0]
    runner = of(outsider)
    runner.on_client_message(
        5, SeenLags(1, about, 1, (("t", 0, Seq(99), Seq(99)),)), outsider.clock.now_ms()
    )
    assert list(runner.watch.http_reports.channels()) == [channel]
    run(cluster, 1_500)
    assert not list(runner.watch.http_reports.channels())
    seen(outsider)
    kept: CachedChannelView = runner.views.kept._kept[channel]
    found = kept._found
    run(cluster, 5_000)
    seen(outsider)
    assert kept._found is found


def test_kept_view_tells_what_is_applied_before_the_engine_hears_of_it() -> None:
    """S10: readers see what the apply thread has written, and the view says what they see."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    before = seen(node)
    applied_seq = node.tables.applied_seq
    node.tables.applied_seq = lambda which: Seq(applied_seq(which) + 1)  # type: ignore[method-assign]
    hints = {hint.node: hint.applied_seq for hint in seen(node).replicas}
    assert hints[node.node] == before.end_seq + 1


def test_first_view_after_a_stop_knows_no_position() -> None:
    """S7.3: a leader that stood still does not answer with its beliefs from before."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    assert seen(node).leader_info_age_ms == 0
    answers: list[ClusterViewAnswer] = []
    of(node).ports.transport.reply = lambda _client, message: answers.append(message)  # type: ignore[assignment,method-assign,arg-type]
    of(node).on_client_message(5, ClusterView(1), node.clock.now_ms() + 5_000)
    [channel_view] = answers[0].channels
    assert channel_view.leader_info_age_ms is None
    assert {hint.lag for hint in channel_view.replicas} == {None}


def test_kept_view_forgets_what_is_known_when_the_leaders_word_is_too_old() -> None:
    """S7.3: nothing happens, and yet a lag is known no more."""
    cluster, channel = calm_cluster()
    node = next(n for n in cluster.nodes.values() if n is not cluster.leaders()[channel])
    age_ms = seen(node).leader_info_age_ms
    assert age_ms is not None
    limit_ms = of(node).parts.settings.read.leader_info_age_max_ms
    assert {hint.lag for hint in seen(node, limit_ms - age_ms).replicas} == {0}
    assert {hint.lag for hint in seen(node, limit_ms - age_ms + 1).replicas} == {None}


def test_kept_view_is_of_the_tables_that_exist() -> None:
    """S0.8: a table that was made anew under its name has other channels."""
    cluster, channel = calm_cluster()
    node = next(iter(cluster.nodes.values()))
    assert seen(node).channel == channel
    metadata = cluster.leaders()[cluster.expected_channels()[0]]
    ask(cluster, metadata, DropTable(1, "t", 2_000))
    run(cluster, 1_500)
    now_ms = node.clock.now_ms()
    assert of(node).views._build(now_ms).channels == ()
    again = CreateTable(2, "t", ("k",), 1, 3, "fsync", None, "", True, 2_000)
    ask(cluster, metadata, again)
    run(cluster, 3_000)
    assert seen(node).channel != channel


def test_report_that_says_the_same_costs_no_look() -> None:
    """P14, P16: an idle channel is looked at once, however often it is reported and asked for."""
    cluster, channel, outsider = five_nodes()
    views = of(outsider).views
    seen(outsider)
    kept: CachedChannelView = views.kept._kept[channel]
    found = kept._found
    run(cluster, 5_000)
    seen(outsider)
    assert kept._found is found
    reported: dict[str, ChannelPosition] = dict(of(outsider).watch.positions[channel])
    node, position = next(iter(reported.items()))
    report = LagReport(1, (position,), 10_000)
    of(outsider).on_peer_message(cluster.nodes[node].node, report, 1, outsider.clock.now_ms())  # type: ignore[index]
    assert not kept.is_stale
