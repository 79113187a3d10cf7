"""Reports of a node about itself and the cluster: views, events, metrics (KLIP-33, N8, N14)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from raftstore.client.admin import merged_failovers
from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reports.events import EVENTS_MAX, EventRing
from raftstore.engine.reports.metrics_report import CHANNEL_LABELS_MAX
from raftstore.engine.reports.view_report import VIEW_KEPT_MS
from raftstore.protocol.admin import (
    ClusterView,
    ClusterViewAnswer,
    DropTable,
    EditTable,
    Events,
    EventsAnswer,
    Metrics,
    MetricsAnswer,
    StepDown,
)
from raftstore.protocol.message import Message
from raftstore.protocol.node import ChannelPosition, LagReport
from raftstore.protocol.payload import encode_mark, encode_rows
from raftstore.protocol.reads import Bounds, Get, GetAnswer
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, RecordKind, Seq, Term, channel_id, node_name
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run


def answered(cluster: SimCluster, node: SimNode, message: Message) -> Message:
    """The node's answer."""
    answers = ask(cluster, node, message)
    run(cluster, 300)
    [answer] = answers
    return answer


def view_of(cluster: SimCluster, node: SimNode) -> ClusterViewAnswer:
    """A node's viewpoint."""
    answer = answered(cluster, node, ClusterView(1))
    assert isinstance(answer, ClusterViewAnswer)
    return answer


def write(cluster: SimCluster, channel: ChannelId, counter: int) -> None:
    """One row, committed and applied everywhere."""
    leader = cluster.leaders()[channel]
    payload = encode_rows([(b"k", seal(b"k", b"%d" % counter))])
    ask(cluster, leader, publish(cluster, leader, channel, counter, payload))
    run(cluster, 1_500)


def test_klip_21_cluster_without_a_table_has_members_and_their_health() -> None:
    """KLIP-21: "If no KS streams are currently running, cluster membership is not performed": it
    is, and a node that dies is seen to be dead."""
    cluster = SimCluster(SimOptions(seed=1, evict_percent=0))
    cluster.start()
    run(cluster, 10_000)
    first, second, *_ = cluster.nodes.values()
    view = view_of(cluster, first)
    assert [node.node for node in view.nodes] == cluster.node_ids
    assert view.channels == ()
    assert {node.state for node in view.nodes} == {"up"}
    second.kill("killed")
    run(cluster, 3_000)
    states = {node.node: node.state for node in view_of(cluster, first).nodes}
    assert [node for node, state in states.items() if state == "down"] == [second.node]


def test_klip_33_every_node_tells_its_own_viewpoint() -> None:
    """KLIP-33: all agree on placement, leader and positions while everything is well."""
    cluster, channel = calm_cluster()
    write(cluster, channel, 1)
    views = [view_of(cluster, node) for node in cluster.nodes.values()]
    assert [view.viewpoint for view in views] == cluster.node_ids
    for view in views:
        [seen] = view.channels
        assert seen.channel == channel
        assert seen.leader == cluster.leaders()[channel].node
        assert [hint.node for hint in seen.replicas] == cluster.replicas(channel)
        assert {hint.lag for hint in seen.replicas} == {0}
        assert {hint.applied_seq for hint in seen.replicas} == {seen.end_seq}
        assert sorted(hint.role for hint in seen.replicas) == ["follower", "follower", "leader"]
        told = [hint.time_lag_ms for hint in seen.replicas]
        assert all(time_ms is not None and time_ms <= 2_500 for time_ms in told)
        assert {node.state for node in view.nodes} <= {"up", "unknown"}
        assert view.bounds.max_lag == 10_000
        assert view.age_ms is not None


def test_time_lag_is_the_age_of_the_leaders_word_counted_once() -> None:
    """S7.3: a replica that lacks nothing is as old as that word; where it is itself only grows."""
    cluster, channel = calm_cluster()
    write(cluster, channel, 1)
    leader = cluster.leaders()[channel]
    for node in cluster.nodes.values():
        if node is leader:
            continue
        assert node.runner is not None
        now_ms = node.clock.now_ms()
        heard_ms = node.runner.channels[channel].leader_info_heard_ms
        assert heard_ms is not None
        [seen] = node.runner.views._build(now_ms).channels
        assert {hint.time_lag_ms for hint in seen.replicas} == {now_ms - heard_ms}


def test_view_counts_micro_batches_and_tells_channels_without_any() -> None:
    """BLOG-32: nobody shows "unknown" for a table in which nobody marks them."""
    cluster, channel = calm_cluster()
    write(cluster, channel, 1)
    leader = cluster.leaders()[channel]
    [seen] = view_of(cluster, leader).channels
    assert seen.batches == 0
    assert {hint.batches_behind for hint in seen.replicas} == {0}
    gone = next(node for node in cluster.nodes.values() if node is not leader)
    gone.crash("test")
    for batch in (7, 8):
        payload = encode_mark("w", batch)
        mark = publish(cluster, leader, channel, batch, payload, kind=RecordKind.BATCH_MARK)
        ask(cluster, leader, mark)
        run(cluster, 1_500)
    [seen] = view_of(cluster, leader).channels
    assert seen.batches == 2
    assert {node_name(h.node): h.batches_behind for h in seen.replicas if h.batches_behind} == {
        gone.name: 2
    }


def test_view_tells_the_bounds_of_the_tables_that_have_some() -> None:
    """Readiness goes by them before the node's own, as reads do (BLOG-20)."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    assert leader.runner is not None
    [table] = leader.runner.controller.catalog.tables.values()
    had = view_of(cluster, leader).table_bounds.get(table.name, Bounds())
    metadata = cluster.leaders()[leader.runner.metadata_channel]
    answered(cluster, metadata, EditTable(4, table.name, table.uuid, {"max_lag": 7}, 2_000))
    run(cluster, 1_000)
    assert had.max_lag != 7
    assert view_of(cluster, leader).table_bounds[table.name].max_lag == 7


def test_view_of_a_node_that_died_says_so_and_keeps_its_last_position() -> None:
    """BLOG-25: it is down from here; where it was is shown with the age of that report
    (BLOG-28)."""
    cluster, channel = calm_cluster()
    write(cluster, channel, 1)
    leader = cluster.leaders()[channel]
    gone = next(node for node in cluster.nodes.values() if node is not leader)
    gone.crash("test")
    run(cluster, 3_000)
    write(cluster, channel, 2)
    view = view_of(cluster, leader)
    [node] = [each for each in view.nodes if each.node == gone.node]
    assert node.state == "down"
    assert node.last_heard_ms_ago is not None
    assert node.last_heard_ms_ago >= 3_000
    [hint] = [each for each in view.channels[0].replicas if each.node == gone.node]
    assert hint.lag == 1
    assert hint.update_ms_ago is not None
    assert hint.update_ms_ago >= 3_000


def test_klip_45_lags_of_a_channel_without_word_of_its_leader_are_unknown() -> None:
    """S7.3: old positions say nothing of the end; the view must not call them fresh."""
    cluster, channel = calm_cluster()
    node = next(n for n in cluster.nodes.values() if n is not cluster.leaders()[channel])
    assert node.runner is not None
    node.runner.channels[channel].leader_info_heard_ms = None
    view = node.runner.views.answer(ClusterView(1), node.clock.now_ms())
    assert {(hint.lag, hint.time_lag_ms) for hint in view.channels[0].replicas} == {(None, None)}


def test_view_is_built_once_however_many_ask() -> None:
    """P16: a hundred dashboards cost as much as one."""
    cluster, _ = calm_cluster()
    node = next(iter(cluster.nodes.values()))
    assert node.runner is not None
    views, now = node.runner.views, node.clock.now_ms()
    first = views.answer(ClusterView(1), now)
    again = views.answer(ClusterView(2), now + VIEW_KEPT_MS - 1)
    assert again.channels is first.channels
    assert (first.request_id, again.request_id) == (1, 2)
    assert views.answer(ClusterView(3, with_channels=False), now).channels == ()
    assert views.answer(ClusterView(4), now + VIEW_KEPT_MS).channels is not first.channels


@pytest.mark.slow
def test_klip_33_view_of_1000_channels_is_built_in_time() -> None:
    """/clusterStatus with 1,000 channels in 50 ms: the engine's part of it is under half."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    assert node.runner is not None
    controller, watch = node.runner.controller, node.runner.watch
    [table] = controller.catalog.tables.values()
    for number in range(1_000):
        uuid = number.to_bytes(16, "big")
        copy = type(table)(
            f"t{number}", uuid, ("k",), 1, 3, "fsync", None, "", (tuple(cluster.node_ids),)
        )
        controller.catalog.tables[copy.name] = copy
        at = channel_id(uuid, 0)
        for peer in cluster.node_ids:
            position = ChannelPosition(at, Term(1), peer == node.node, Seq(5), Seq(5), Seq(5), b"")
            watch.reports.keep(peer, position)
    best_s = min(_timed(lambda: node.runner.views._build(node.clock.now_ms())) for _ in range(7))  # type: ignore[union-attr]
    assert best_s < 0.05


def _timed(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


# --- events and failovers -------------------------------------------------------------------------


def failovers(cluster: SimCluster) -> list[dict[str, object]]:
    """Failover events of all nodes that live."""
    found: list[dict[str, object]] = []
    for node in cluster.nodes.values():
        if node.is_up:
            answer = answered(cluster, node, Events(1, types=("failover",)))
            assert isinstance(answer, EventsAnswer)
            found += answer.events
    return found


def test_n8_a_killed_leader_makes_one_event_with_every_duration_and_its_cause() -> None:
    """N8, KLIP-05: an operator reads one event instead of three logs."""
    cluster, channel = calm_cluster()
    old = cluster.leaders()[channel]
    assert failovers(cluster) == []
    old.crash("test")
    run(cluster, 2_000)
    new = cluster.leaders()[channel]
    write(cluster, channel, 1)
    answered(cluster, new, Get(9, channel, (b"k",), "linearizable", None, Seq(0), 1_000))
    events = [event for event in failovers(cluster) if event["channel"] != "_metadata/0"]
    [event] = events
    assert (event["old_leader"], event["new_leader"]) == (old.name, new.name)
    assert event["cause"] in ("connection refused", "connection lost")
    assert event["term"] == new.runner.channels[channel].elector.term  # type: ignore[union-attr]
    assert 0 < event["total_ms"] < 2_000  # type: ignore[operator]
    assert event["total_ms"] == sum(event[name] for name in ("detect_ms", "vote_ms", "ready_ms"))  # type: ignore[misc]
    assert event["first_write_ms"] >= event["total_ms"]  # type: ignore[operator]
    assert event["first_read_ms"] >= event["first_write_ms"]  # type: ignore[operator]
    assert new.runner is not None
    assert event in new.runner.reports.status()["failovers"]


def test_n8_failover_is_still_told_when_the_node_that_led_it_died() -> None:
    """The last replica alive reports both failovers, as it saw them, and keeps them for later."""
    cluster, channel = calm_cluster()
    kept: list[dict[str, Any]] = []
    for node in cluster.nodes.values():
        node.runner.ring.keep = kept.append
    first = cluster.leaders()[channel]
    first.crash("test")
    run(cluster, 7_000)  # nobody reads, so the new leader reports it after five seconds
    second = cluster.leaders()[channel]
    term = second.runner.channels[channel].elector.term
    second.crash("test")
    run(cluster, 500)
    [last] = [node for node in cluster.nodes.values() if node.is_up]
    answer = answered(cluster, last, Events(1, types=("failover", "failover_seen")))
    assert isinstance(answer, EventsAnswer)
    found = merged_failovers({"node": last.name, **event} for event in answer.events)
    [event] = [each for each in found if each["term"] == term and each["channel"] != "_metadata/0"]
    assert (event["type"], event["old_leader"], event["new_leader"]) == (
        "failover", first.name, second.name,
    )  # fmt: skip
    assert 0 < event["vote_ms"] < 7_000
    assert {each["type"] for each in kept} == {"failover", "failover_seen"}
    ring = EventRing()
    ring.restore(kept)
    assert ring.since(0, (), 100)[0] == len(kept)


def test_n8_one_failover_is_reported_once_by_its_own_leader_if_alive() -> None:
    """A failover that its own leader reported appears once; what other nodes saw of it is used only
    if that leader's report is missing.
    """
    seen = {"type": "failover_seen", "channel": "t/0", "term": 2}
    own = {"type": "failover", "channel": "t/0", "term": 2, "ready_ms": 3}
    other = {"type": "role", "channel": "t/0", "term": 2}
    assert merged_failovers([seen, other, own, {**seen}]) == [other, own]
    assert merged_failovers([seen, {**seen}]) == [{**seen, "type": "failover"}]
    assert merged_failovers([own, {**own, "term": 3}]) == [own, {**own, "term": 3}]


def test_n8_hand_over_and_silence_are_told_as_causes() -> None:
    """A planned hand-over is no accident, and silence is not a broken connection."""
    cluster, channel = calm_cluster()
    answered(cluster, cluster.leaders()[channel], StepDown(3, channel))
    run(cluster, 8_000)
    assert {event["cause"] for event in failovers(cluster)} == {"hand-over"}
    cluster, channel = calm_cluster()
    old = cluster.leaders()[channel]
    others = [node for node in cluster.node_ids if node != old.node]
    cluster.network.cut_groups([old.node], others)
    run(cluster, 8_000)
    causes = {
        event["cause"]
        for node in others
        for event in cluster.nodes[node].runner.ring.since(0, ("failover",), 10)[1]  # type: ignore[union-attr]
    }
    assert causes == {"3 heartbeats missed"}


def test_watching_a_failover_makes_no_node_look_late() -> None:
    """S7.3: a deadline in the past would be taken for a stop of the node, and stop its reads."""
    cluster, channel = calm_cluster()
    old = cluster.leaders()[channel]
    old.crash("test")
    run(cluster, 20_000)
    for node in cluster.nodes.values():
        if node.runner is not None:
            assert node.runner.ring.since(0, ("stalled",), 10)[1] == ()
            assert node.runner.failovers.deadlines.next_ms == NEVER_MS


def test_events_are_numbered_and_the_oldest_go_first() -> None:
    """Memory is bounded; a client that follows goes on from the number of the last answer."""
    ring = EventRing()
    for number in range(EVENTS_MAX + 5):
        ring.add("role" if number % 2 else "mode", {"n": number, "odd": object()}, 7)
    ring.add("put", {}, 7)
    at, found = ring.since(0, (), 3)
    assert [event["number"] for event in found] == [6, 7, 8]
    assert at == 8
    assert found[0] == {"number": 6, "type": "role", "at_wall_ms": 7, "n": 5}
    at, found = ring.since(at, ("mode",), 10_000)
    assert len(found) == (EVENTS_MAX - 3) // 2 + 1
    assert ring.since(at, (), 10) == (at, ())


def test_number_from_before_a_restart_begins_anew() -> None:
    """A node that was started again counts from one; a follower must not wait for 4,096 events."""
    ring = EventRing()
    ring.add("role", {}, 1)
    at, found = ring.since(4_000, (), 10)
    assert (at, len(found)) == (1, 1)


# --- metrics --------------------------------------------------------------------------------------


def samples(cluster: SimCluster, node: SimNode) -> dict[tuple[str, ...], float]:
    """All samples by name and label values."""
    answer = answered(cluster, node, Metrics(2))
    assert isinstance(answer, MetricsAnswer)
    found = {(name, *(v for _, v in labels)): value for name, labels, value in answer.samples}
    assert len(found) == len(answer.samples)
    for name, labels, buckets, _, count in answer.histograms:
        assert buckets[-1] == (float("inf"), count), (name, labels)
        assert [n for _, n in buckets] == sorted(n for _, n in buckets)
        found[f"{name}_count", *(v for _, v in labels)] = count
    return found


def test_metrics_tell_reads_writes_positions_and_peers() -> None:
    """4.2: totals grow with what happens, gauges are of now."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    write(cluster, channel, 1)
    answered(cluster, leader, Get(9, channel, (b"k",), "linearizable", None, Seq(0), 1_000))
    answered(cluster, leader, Get(9, channel, (b"k",), "bounded", -1, Seq(0), 1_000))
    found = samples(cluster, leader)
    assert leader.runner is not None
    [table] = leader.runner.controller.catalog.tables
    assert found["raftstore_writes_total", "committed"] == 1
    assert found["raftstore_reads_total", "linearizable", "ok"] == 1
    assert found["raftstore_reads_total", "bounded", "schema"] == 1
    assert found["raftstore_read_duration_seconds_count", "linearizable"] == 1
    assert found["raftstore_write_duration_seconds_count",] == 1
    assert found["raftstore_lag_records", table, "0"] == 0
    assert found["raftstore_channel_role", table, "0", "leader"] == 1
    assert found["raftstore_applied_seq", table, "0"] == found["raftstore_end_seq", table, "0"] > 0
    assert found["raftstore_has_leader", table, "0"] == 1
    peers = [node_name(node) for node in cluster.node_ids if node != leader.node]
    assert [found["raftstore_node_up", peer] for peer in peers] == [1, 1]
    assert found["raftstore_failovers_total",] == 0
    assert not leader.runner.meters._reads
    assert not leader.runner.meters._writes


def test_metrics_have_no_labels_that_clients_make_up() -> None:
    """A client that asks for unknown levels must not fill the node's memory."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    for level in ("newest", "newer"):
        answered(cluster, leader, Get(9, channel, (b"k",), level, None, Seq(0), 1_000))
    found = samples(cluster, leader)
    assert found["raftstore_reads_total", "other", "schema"] == 2
    assert not any("newest" in name for name in found)


def test_metrics_count_writes_for_a_channel_that_is_not_there() -> None:
    """A table may be dropped while writes are on their way: they end, too."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    write_of_a_row = publish(cluster, leader, channel, 1, encode_rows([(b"k", seal(b"k", b"v"))]))
    elsewhere = structs.replace(write_of_a_row, channel=ChannelId(b"x" * len(channel)))
    answered(cluster, leader, elsewhere)
    assert samples(cluster, leader)["raftstore_writes_total", "unknown_channel"] == 1
    assert leader.runner is not None
    assert not leader.runner.meters._writes


def test_totals_do_not_go_down_when_a_table_is_dropped() -> None:
    """A monitor takes a total that went down for a restart of the node."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    write(cluster, channel, 1)
    write(cluster, channel, 1)
    assert samples(cluster, leader)["raftstore_dedupe_hits_total",] == 1
    assert leader.runner is not None
    [table] = leader.runner.controller.catalog.tables.values()
    metadata = cluster.leaders()[leader.runner.metadata_channel]
    ask(cluster, metadata, DropTable(4, table.name, 2_000, uuid=table.uuid))
    run(cluster, 5_000)
    assert channel not in leader.runner.channels
    assert samples(cluster, leader)["raftstore_dedupe_hits_total",] == 1


def test_n8_times_of_failovers_are_counted_by_phase() -> None:
    """N8: how long nobody served is what an operator promises, so it is a histogram."""
    cluster, channel = calm_cluster()
    old = cluster.leaders()[channel]
    old.crash("test")
    for _ in range(100):
        run(cluster, 100)
        leader = cluster.leaders().get(channel, old)
        if leader is not old and leader.runner and leader.runner.failovers.under_way:
            break
    assert leader.runner is not None
    write(cluster, channel, 1)
    answered(cluster, leader, Get(9, channel, (b"k",), "linearizable", None, Seq(0), 1_000))
    run(cluster, 20_000)
    events = leader.runner.ring.since(0, ("failover",), 100)[1]
    [event] = [event for event in events if event["table"]]
    failed_over = samples(cluster, leader)["raftstore_failovers_total",]
    told = {labels: found for name, labels, *found in leader.runner.failovers.histograms()}
    for phase in ("detect", "vote"):
        assert told[(("phase", phase),)][-1] == failed_over
    _, seconds, count = told[(("phase", "first_read"),)]
    assert (seconds, count) == (event["first_read_ms"] / 1000, 1)


def test_metrics_of_many_channels_are_sums_per_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label for each of 4,096 channels would flood the monitor that collects them."""
    monkeypatch.setattr("raftstore.engine.reports.metrics_report.CHANNEL_LABELS_MAX", 0)
    assert CHANNEL_LABELS_MAX == 256
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    assert leader.runner is not None
    [table] = leader.runner.controller.catalog.tables
    found = samples(cluster, leader)
    assert found["raftstore_channels_led", table] == 1
    assert found["raftstore_has_leader", table] == 1
    assert not any(name[0] == "raftstore_channel_role" for name in found)


def test_n14_served_staleness_is_counted_against_what_the_table_promises() -> None:
    """N14: a read staler than its table promises, or of unknown staleness, spends the budget."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    assert leader.runner is not None
    [table] = leader.runner.controller.catalog.tables.values()
    metadata = cluster.leaders()[leader.runner.metadata_channel]
    edit = EditTable(4, table.name, table.uuid, {"max_staleness_ms": 0}, 2_000)
    answered(cluster, metadata, edit)
    run(cluster, 1_000)
    told: list[int | None] = []
    for _ in range(3):
        answer = answered(cluster, leader, Get(9, channel, (b"k",), "any", None, Seq(0), 1_000))
        assert isinstance(answer, GetAnswer)
        told.append(answer.served.staleness_ms)
    # Nothing was asked of the followers since the start: how fresh the state is, is long unproven.
    assert all(staleness is not None and staleness > 1_000 for staleness in told)
    found = samples(cluster, leader)
    assert found["raftstore_table_staleness_slo_seconds", table.name] == 0
    assert found["raftstore_table_staleness_slo_reads_total", table.name] == 3
    assert found["raftstore_table_staleness_slo_breaches_total", table.name] == 3
    leader.runner.controller.catalog.tables.clear()
    leader.runner.meters.forget_tables([])
    assert not any("slo" in name for name, _ in leader.runner.meters._totals)


def test_positions_and_http_address_travel_with_the_report() -> None:
    """A node that serves HTTP says where; everybody else passes it on (a hint, S7.4)."""
    cluster, _ = calm_cluster()
    node, peer = cluster.nodes[cluster.node_ids[0]], cluster.node_ids[1]
    assert node.runner is not None
    now = node.clock.now_ms()
    node.runner.watch.reports.on_report(peer, LagReport(0, (), 0, "host:4480"), now, now)
    view = node.runner.views._build(node.clock.now_ms())
    assert [each.http for each in view.nodes if each.node == peer] == ["host:4480"]
