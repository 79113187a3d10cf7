"""Reports of a node: its status, metrics and view agree with its state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from raftstore.config import NodeSettings
from raftstore.core.replica import Replica
from raftstore.core.statistics import CatchUpView
from raftstore.engine.channel.catch_ups import CatchUps
from raftstore.engine.node_runner import NodeRunner
from raftstore.engine.reports import metrics_report
from raftstore.policy.status import STATUS_VERSION
from raftstore.protocol.admin import ClusterView, NodeView
from raftstore.protocol.node import Heartbeat, LagReport
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, FollowerMode, Role, Seq, StorageStall, node_name
from raftstore.version import VERSION
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

LABELS = tuple[tuple[str, str], ...]


def of(node: SimNode) -> NodeRunner:
    """The engine of a live node."""
    assert node.runner is not None
    return node.runner


@pytest.fixture
def world() -> tuple[SimCluster, ChannelId, SimNode, SimNode]:
    """A calm cluster with one row, the leader of its table and one of its followers."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    write(cluster, channel, 1)
    run(cluster, 1_500)
    return cluster, channel, leader, next(n for n in cluster.nodes.values() if n is not leader)


def write(cluster: SimCluster, channel: ChannelId, counter: int) -> None:
    """One row; it is not waited for."""
    payload = encode_rows([(b"k", seal(b"k", b"%d" % counter))])
    leader = cluster.leaders()[channel]
    ask(cluster, leader, publish(cluster, leader, channel, counter, payload))


def table_of(status: dict[str, Any]) -> dict[str, Any]:
    """The one channel of the table."""
    [channel] = status["channels"]
    assert isinstance(channel, dict)
    return channel


# --- status ---------------------------------------------------------------------------------------


def check_record(status: dict[str, Any], leader: SimNode, channel: ChannelId) -> None:
    """FIP-06: all followers of a calm channel are standbys in sync."""
    runner, record = of(leader), status.pop("record")
    assert status.pop("late_standbys") == {}
    assert status.pop("slow_machine") == ""
    members = [node_name(node) for node in runner.channels[channel].core.config().members]
    standbys = [name for name in members if name != leader.name]
    assert sorted(record.pop("isr")) == sorted(members)
    assert sorted(record.pop("iss")) == sorted(standbys)
    assert record == {
        "version": 2,
        "leader": leader.name,
        "leader_epoch": runner.channels[channel].elector.term,
        "replicas": members,
        "hot_standby_replicas": standbys,
        "coordinator_epoch": runner.controller.metadata.elector.term,
        "bucket_epoch": 0,
    }


def test_status_of_a_calm_node_tells_its_cluster_and_its_disk(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """Everybody is up, all is applied, and there is nothing to warn of."""
    cluster, channel, leader, _ = world
    runner, status = of(leader), of(leader).reports.status()
    assert status["version"] == STATUS_VERSION
    assert status["viewpoint"] == leader.name
    assert status["cluster_id"] == cluster.cluster_id.hex()
    assert status["catalog_version"] == runner.controller.catalog.version > 0
    assert status["sizes"] == {
        "log_bytes": leader.log.size_bytes(),
        "table_bytes": leader.tables.size_bytes(),
    }
    assert status["warnings"] == []
    assert (status["pid"], status["http"]) == (runner.identity.pid, runner.identity.http)
    assert status["draining"] is False
    metadata = runner.controller.metadata
    assert 0 <= status["metadata"].pop("age_ms") < 2_000
    assert status["metadata"] == {
        "role": metadata.elector.role.value,
        "term": metadata.elector.term,
        "leader": metadata.elector.leader,
    }
    told = table_of(status)
    core, floors = runner.channels[channel].core, told.pop("floors")
    assert [(each["name"], each["is_given_up"]) for each in floors] == [("slow_replica", False)] * 2
    assert told.pop("log_bytes") > 0
    assert (told.pop("gaps"), told.pop("end_seq")) == ([], core.last_seq)
    check_record(told, leader, channel)
    assert told.pop("replicas") == [
        {
            "node": node_name(node),
            "up": True,
            "is_leader": node == leader.node,
            "applied_seq": core.commit_seq,
            "lag": 0,
            "cannot_complete": False,
            "member": "voter",
        }
        for node in core.config().members
    ]
    assert told == {
        "channel": channel.hex(),
        "table": "t",
        "partition": 0,
        "role": "leader",
        "member": "voter",
        "term": runner.channels[channel].elector.term,
        "leader": leader.name,
        "mode": core.mode.value,
        "reason": "",
        "applied_seq": core.commit_seq,
        "commit_seq": core.commit_seq,
        "last_seq": core.last_seq,
        "base_seq": 0,
        "lag": 0,
        "leader_info_age_ms": 0,
        "catch_up": None,
        "flapping": False,
    }


def test_status_tells_each_node_as_it_is_seen(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """Oneself is always up and heard; of the others it is said when they were, and what their
    clocks show."""
    cluster, _, leader, _ = world
    runner, now_ms = of(leader), leader.clock.now_ms()
    others = [node for node in cluster.nodes.values() if node is not leader]
    for number, node in enumerate(others):
        peer = runner.watch.peers[node.node]
        skewed = int(leader._wall_ms()) + 100 * (number + 1)
        beat = Heartbeat(peer.boot_id, 99, skewed, peer.led_by_peer.value, True)
        runner.on_peer_message(node.node, beat, now_ms, now_ms)
    runner.clock.now_ms = now_ms + 70
    nodes = {told["id"]: told for told in runner.reports.status()["nodes"]}
    endpoints = runner.controller.endpoints()
    assert set(nodes) == set(cluster.node_ids)
    for node in cluster.node_ids:
        number = 0 if node == leader.node else 1 + [n.node for n in others].index(node)
        assert nodes[node] == {
            "id": node,
            "name": node_name(node),
            "endpoint": endpoints[node],
            "up": True,
            "state": "up",
            "last_heard_ms": 70 if number else 0,
            "clock_skew_ms": 100 * number,
            "failure_domain": "",
        }
    runner.clock.now_ms = now_ms - 70  # nothing is heard in the future
    assert {told["last_heard_ms"] for told in runner.reports.status()["nodes"]} == {0}


def test_status_tells_who_is_down_and_who_was_never_seen(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """With what is to be done."""
    cluster, _, leader, follower = world
    follower.kill("test")
    run(cluster, 1_000)
    runner = of(leader)
    nodes = {told["id"]: told for told in runner.reports.status()["nodes"]}
    told = nodes[follower.node]
    assert (told["up"], told["state"]) == (False, "down")
    [warning] = runner.reports.status()["warnings"]
    assert f"node {follower.name} at" in warning
    replicas = table_of(runner.reports.status())["replicas"]
    assert [told["up"] for told in replicas if told["node"] == follower.name] == [False]
    del runner.watch.health._peers[follower.node]
    nodes = {told["id"]: told for told in runner.reports.status()["nodes"]}
    told = nodes[follower.node]
    assert (told["state"], told["last_heard_ms"], told["clock_skew_ms"]) == ("unknown", None, None)


def test_status_of_a_replica_that_does_not_serve_says_why(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.3, S13: recovering, or stopped, which is worse and reported first."""
    _, channel, _, follower = world
    runner = of(follower)
    with monkeypatch.context() as patched:
        patched.setattr(Replica, "is_recovering", True)
        told = table_of(runner.reports.status())
        assert (told["mode"], "missing here" in told["reason"]) == ("recovering", True)
        patched.setattr(runner.channels[channel], "stopped_reason", "histories differ")
        told = table_of(runner.reports.status())
        assert (told["mode"], told["reason"]) == ("stopped", "histories differ")
        assert any(
            "t/0 is stopped: histories differ" in w for w in runner.reports.status()["warnings"]
        )
    monkeypatch.setattr(runner.channels[channel], "stopped_reason", None)
    assert (
        table_of(runner.reports.status())["mode"],
        table_of(runner.reports.status())["reason"],
    ) == (
        "steady",
        "",
    )


def test_status_tells_of_other_replicas_what_was_heard_last(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader gets acknowledgements, everybody reports; the furthest counts. Of one that was
    never heard of nothing is known."""
    cluster, channel, leader, follower = world
    runner = of(follower)
    third = next(n for n in cluster.nodes.values() if n not in (leader, follower))
    before = of(leader).channels[channel].core.commit_seq

    def told(of_runner: NodeRunner, node: SimNode) -> tuple[int | None, int | None]:
        replicas = {each["node"]: each for each in table_of(of_runner.reports.status())["replicas"]}
        return replicas[node.name]["applied_seq"], replicas[node.name]["lag"]

    position = runner.watch.positions[channel][third.node]
    behind = structs.replace(position, applied_seq=Seq(before - 1))
    runner.on_peer_message(
        third.node, LagReport(0, (behind,)), runner.clock.now_ms, runner.clock.now_ms
    )
    assert told(runner, third) == (before - 1, 1)
    own = of(leader)
    heard = own.channels[channel].core.progress()[third.node]

    def acknowledged(applied_seq: int, heard_ms: int | None) -> None:
        seen = heard._replace(applied_seq=Seq(applied_seq), heard_ms=heard_ms)
        monkeypatch.setattr(Replica, "progress", lambda _: {third.node: seen})

    acknowledged(before, 5)
    own.on_peer_message(third.node, LagReport(0, (behind,)), own.clock.now_ms, own.clock.now_ms)
    assert told(own, third) == (before, 0), "it has acknowledged more"
    acknowledged(before - 1, 5)
    own.on_peer_message(third.node, LagReport(0, (position,)), own.clock.now_ms, own.clock.now_ms)
    assert told(own, third) == (before, 0), "it has reported more"
    del own.watch.positions[channel][third.node]
    assert told(own, third) == (before - 1, 1)
    acknowledged(before, None)
    assert told(own, third) == (None, None)


def test_status_tells_a_lag_and_its_age(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """S7.3: of the own replica, and of the catalog."""
    cluster, channel, _, follower = world
    runner = of(follower)
    replica = runner.channels[channel]
    replica.leader_info_heard_ms = runner.clock.now_ms - 300
    told = table_of(runner.reports.status())
    assert (told["role"], told["lag"], told["leader_info_age_ms"]) == ("follower", 0, 300)
    node = next(n for n in cluster.nodes.values() if of(n).controller.metadata.elector.role is not
                Role.LEADER)  # fmt: skip
    of(node).controller.metadata.leader_info_heard_ms = of(node).clock.now_ms - 400
    assert of(node).reports.status()["metadata"]["age_ms"] == 400


def test_status_warns_where_no_table_can_be_created(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """The metadata channel has no leader known here."""
    cluster, *_ = world
    [metadata] = {of(node).metadata_channel for node in cluster.nodes.values()}
    leader = cluster.leaders()[metadata]
    for node in cluster.nodes.values():
        if node is not leader:
            node.crash("test")
    run(cluster, 5_000)
    status = of(leader).reports.status()
    assert any("tables cannot be created now" in warning for warning in status["warnings"])
    assert status["metadata"]["leader"] is None


def test_status_of_a_node_that_stops_says_so(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """S9: clients that wait for the hand-over look there. The driver's own fields come with it."""
    _, _, leader, _ = world
    of(leader).reports.ports = replace(of(leader).reports.ports, extra_status=lambda: {"more": 1})
    of(leader).begin_drain(leader.clock.now_ms())
    status = of(leader).reports.status()
    assert (status["draining"], status["more"]) == (True, 1)


# --- metrics --------------------------------------------------------------------------------------


def samples(node: SimNode) -> dict[tuple[str, LABELS], float]:
    """Values by name and labels; none is reported twice."""
    told = [((name, labels), value) for name, labels, value in of(node).reports.metrics()[0]]
    assert len(dict(told)) == len(told)
    return dict(told)


def plain(node: SimNode) -> dict[str, float]:
    """Those without labels."""
    return {name: value for (name, labels), value in samples(node).items() if not labels}


def test_metrics_of_a_calm_node_say_what_it_is_and_holds(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """Each gauge is read where it is."""
    _, _, leader, _ = world
    told, values = samples(leader), plain(leader)
    assert told["raftstore_build_info", (("version", VERSION),)] == 1
    assert told["raftstore_storage_bytes", (("kind", "log"),)] == leader.log.size_bytes() > 0
    tables = told["raftstore_storage_bytes", (("kind", "tables"),)]
    assert tables == leader.tables.size_bytes() != leader.log.size_bytes()
    assert values["raftstore_metadata_has_leader"] == 1
    assert values["raftstore_channels"] == 1, "the metadata channel is nobody's table"
    for name in (
        "storage_stalled_seconds",
        "unsynced_bytes",
        "stall_dropped_messages_total",
        "reads_waiting",
        "failovers_total",
        "writes_held_back_total",
        "scan_pins",
        "scans_under_way",
        "catchup_sessions",
        "catchup_rows_left",
        "catchup_rows_per_second",
        "catchup_bytes_per_second",
        "catchup_waiting",
        "replicas_slow",
        "replicas_flapping",
        "uncommitted_records",
        "dedupe_hits_total",
        "log_trims_total",
        "log_trimmed_rows_total",
        "log_bases_carried_total",
        "log_floors_given_up_total",
    ):
        assert values[f"raftstore_{name}"] == 0, name
    runner = of(leader)
    runner.guard.stall = lambda: StorageStall("fdatasync", "log", 2_500)
    assert plain(leader)["raftstore_storage_stalled_seconds"] == 2.5
    assert values["raftstore_log_floor_segment"] == 1
    assert values["raftstore_dedupe_sessions"] > 0
    assert values["raftstore_dedupe_outcomes"] > 0


def test_metrics_tell_each_peer(world: tuple[SimCluster, ChannelId, SimNode, SimNode]) -> None:
    """Up for queries, what it missed, and its clock, once that was reported."""
    cluster, _, leader, follower = world
    runner = of(leader)
    labels = (("peer", follower.name),)
    now_ms, peer = leader.clock.now_ms(), runner.watch.peers[follower.node]
    skewed = int(leader._wall_ms()) + 2_500
    beat = Heartbeat(peer.boot_id, 99, skewed, peer.led_by_peer.value, True)
    runner.on_peer_message(follower.node, beat, now_ms, now_ms)
    told = samples(leader)
    assert told["raftstore_node_up", labels] == 1
    assert told["raftstore_clock_skew_seconds", labels] == 2.5
    assert told["raftstore_heartbeats_missed_total", labels] == 0
    runner.watch.health._peers[follower.node].skew_ms = None
    runner.watch.health._peers[follower.node].missed = 4
    assert ("raftstore_clock_skew_seconds", labels) not in samples(leader)
    assert samples(leader)["raftstore_heartbeats_missed_total", labels] == 4
    follower.kill("test")
    run(cluster, 1_000)
    assert samples(leader)["raftstore_node_up", labels] == 0


def test_metrics_tell_each_channel(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """By table and partition, with its role and its lag; what is unknown is left out."""
    _, channel, _, follower = world
    runner = of(follower)
    replica = runner.channels[channel]
    labels = (("table", "t"), ("partition", "0"))
    replica.leader_info_heard_ms = runner.clock.now_ms - 1_500
    told = samples(follower)
    assert told["raftstore_has_leader", labels] == 1
    assert told["raftstore_end_seq", labels] == replica.core.last_seq
    assert told["raftstore_commit_seq", labels] == replica.core.commit_seq
    assert told["raftstore_applied_seq", labels] == replica.core.commit_seq > 0
    assert told["raftstore_lag_records", labels] == told["raftstore_lag_unknown", labels] == 0
    assert told["raftstore_leader_info_age_seconds", labels] == 1.5
    assert told["raftstore_channel_role", (*labels, ("role", "follower"))] == 1
    assert told["raftstore_term", labels] == replica.elector.term
    replica.leader_info_heard_ms = None
    told = samples(follower)
    assert told["raftstore_lag_unknown", labels] == 1
    assert ("raftstore_lag_records", labels) not in told
    assert ("raftstore_leader_info_age_seconds", labels) not in told


def test_metrics_of_many_channels_are_sums_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label for each would flood a monitor. The limit itself is not too many."""
    cluster = SimCluster(SimOptions(seed=1, partitions=4, evict_percent=0))
    cluster.start()
    cluster.create_table(4)
    run(cluster, 10_000)
    node = next(iter(cluster.nodes.values()))
    monkeypatch.setattr(metrics_report, "CHANNEL_LABELS_MAX", 4)
    single = samples(node)
    assert sum(name == "raftstore_term" for name, _ in single) == 4
    monkeypatch.setattr(metrics_report, "CHANNEL_LABELS_MAX", 3)
    told = samples(node)
    labels: LABELS = (("table", "t"),)
    for name in ("end_seq", "commit_seq", "applied_seq", "has_leader", "lag_unknown"):
        values = [v for (n, _), v in single.items() if n == f"raftstore_{name}"]
        assert told[f"raftstore_{name}", labels] == sum(values)
    led = sum(r.elector.role is Role.LEADER for c, r in of(node).channels.items()
              if c in cluster.table_channels)  # fmt: skip
    assert told["raftstore_channels_led", labels] == led
    assert not [name for name, _ in told if name in ("raftstore_term", "raftstore_channel_role")]


def test_metrics_count_what_catching_up_replicas_lack(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows known to be committed and not held yet; leaders catch up with nobody."""
    _, channel, leader, follower = world
    monkeypatch.setattr(Replica, "mode", FollowerMode.CATCHING_UP)
    runner = of(follower)
    led = sum(each.elector.role is Role.LEADER for each in runner.channels.values())
    ahead = runner.channels[channel].core.last_seq + 5
    position = runner.watch.positions[channel][leader.node]
    runner.watch.reports.keep(leader.node, structs.replace(position, commit_seq=Seq(ahead)))
    values = plain(follower)
    assert values["raftstore_catchup_sessions"] == 2 - led
    assert values["raftstore_catchup_rows_left"] == 5


VIEW = CatchUpView("restart", 1, Seq(2), Seq(3), Seq(9), 6, 60, 10, 11, 12, 3, None, False, True)


def test_replica_that_catches_up_is_told_in_status_and_metrics(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS-149: as its core sees it, and whether it waits for others; its leader reports a replica
    that said that it cannot catch up.
    """
    _, channel, leader, follower = world
    runner = of(follower)
    core = runner.channels[channel].core
    monkeypatch.setattr(Replica, "catch_up", lambda self: VIEW if self is core else None)
    monkeypatch.setattr(Replica, "mode", FollowerMode.CATCHING_UP)
    monkeypatch.setattr(Replica, "is_flapping", property(lambda self: self is core))
    monkeypatch.setattr(CatchUps, "waits", lambda _, one: one == channel)
    monkeypatch.setattr(CatchUps, "waiting", 4)
    told = table_of(runner.reports.status())
    assert told["catch_up"] == {**VIEW._asdict(), "waits": True}
    assert told["flapping"]
    values = plain(follower)
    names = ("catchup_rows_per_second", "catchup_bytes_per_second", "catchup_waiting")
    assert [values[f"raftstore_{name}"] for name in names] == [11, 12, 4]
    assert (values["raftstore_replicas_slow"], values["raftstore_replicas_flapping"]) == (1, 1)
    led = of(leader).channels[channel]
    said = {node: each._replace(cannot_complete=True) for node, each in led.core.progress().items()}
    monkeypatch.setattr(led.core, "progress", lambda: said)
    replicas = table_of(of(leader).reports.status())["replicas"]
    assert [each["cannot_complete"] for each in replicas] == [not r["is_leader"] for r in replicas]


def test_metrics_keep_counting_when_a_channel_is_closed(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """A total never falls: writes that came again are added to those of closed channels."""
    cluster, channel, leader, _ = world
    write(cluster, channel, 1)  # again
    run(cluster, 500)
    assert plain(leader)["raftstore_dedupe_hits_total"] == 1
    of(leader).registry.drop(channel, leader.clock.now_ms())
    assert plain(leader)["raftstore_dedupe_hits_total"] == 1


def test_metrics_tell_promised_ages_and_the_drivers_own(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """N14: only of tables that promise one."""
    _, _, leader, _ = world
    runner = of(leader)
    labels: LABELS = (("table", "t"),)
    assert ("raftstore_table_staleness_slo_seconds", labels) not in samples(leader)
    entry = runner.controller.catalog.tables["t"]
    runner.controller.catalog.tables["t"] = structs.replace(entry, max_staleness_ms=2_500)
    histogram = ("raftstore_extra_seconds", (), (), 0.0, 0)
    extra = ((("raftstore_extra", (), 7.0),), (histogram,))
    runner.reports.ports = replace(runner.reports.ports, extra_metrics=lambda: extra)
    told = samples(leader)
    assert told["raftstore_table_staleness_slo_seconds", labels] == 2.5
    assert told["raftstore_extra", ()] == 7
    assert histogram in runner.reports.metrics()[1]
    assert any(name.startswith("raftstore_failover") for name, *_ in runner.reports.metrics()[1])


def test_metrics_forget_tables_that_are_gone(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """Tables come and go for years; the labels of gone ones must not stay."""
    _, channel, leader, _ = world
    runner = of(leader)
    runner.meters.served_within(
        "t", runner.reader.served_at("leader", runner.channels[channel]), 1_000
    )

    def named() -> bool:
        return any(("table", "t") in labels for _, labels, _ in runner.meters.samples())

    writers = runner.batches.coordinator.meters
    writers.committed("t", "orders", 1, 1, 0, one_shot=False)
    samples(leader)
    assert named()
    assert list(writers.samples(0))
    del runner.controller.catalog.tables["t"]
    samples(leader)
    assert not named()
    assert not list(writers.samples(0))


# --- view -----------------------------------------------------------------------------------------


def test_view_tells_each_node_and_how_lately_it_was_heard(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """Oneself as up and just heard; the others as queries should take them (KLIP-33)."""
    _, _, leader, follower = world
    runner, now_ms = of(leader), leader.clock.now_ms() + 40
    peer = runner.watch.peers[follower.node]
    beat = Heartbeat(peer.boot_id, 99, int(leader._wall_ms()) + 80, peer.led_by_peer.value, True)
    runner.on_peer_message(follower.node, beat, now_ms - 30, now_ms)
    report = LagReport(0, (), counter=0, http="n9:80")
    runner.on_peer_message(follower.node, report, now_ms - 20, now_ms)
    endpoints = runner.controller.endpoints()
    runner.watch.reports.http_of[leader.node] = "n1:80"
    nodes = {view.node: view for view in runner.views._build(now_ms).nodes}
    assert nodes[leader.node] == NodeView(
        leader.node, endpoints[leader.node], "n1:80", "up", 0, 0, 0
    )
    assert nodes[follower.node] == NodeView(
        follower.node, endpoints[follower.node], "n9:80", "up", 30, 20, 80
    )


def test_view_takes_a_node_for_up_that_is_said_to_live(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """BLOG-19: down by its heartbeats here, and yet queries go there; suspect stays suspect."""
    cluster, _, leader, follower = world
    runner = of(leader)

    def state() -> str:
        nodes = {view.node: view for view in runner.views._build(runner.clock.now_ms).nodes}
        return nodes[follower.node].state

    follower.kill("test")
    run(cluster, 1_000)
    assert state() == "down"
    runner.watch.http_reports.on_heartbeat(follower.node, runner.clock.now_ms)
    assert state() == "up"
    third = next(n for n in cluster.nodes.values() if n not in (leader, follower))
    runner.on_peer_lost(third.node, runner.clock.now_ms, refused=False)
    runner.watch.peers[third.node].connected = True
    nodes = {view.node: view for view in runner.views._build(runner.clock.now_ms).nodes}
    assert nodes[third.node].state == "suspect"


def test_view_is_kept_for_a_moment_and_says_for_how_long(
    world: tuple[SimCluster, ChannelId, SimNode, SimNode],
) -> None:
    """Built once in 100 ms however many ask; a clock that goes back builds it anew."""
    _, channel, _, follower = world
    runner = of(follower)
    now_ms = runner.clock.now_ms + 1_000
    view = runner.views.answer(ClusterView(4, with_channels=True), now_ms)
    assert (view.request_id, view.built_ms_ago) == (4, 0)
    assert view.age_ms is not None
    assert [each.channel for each in view.channels] == [channel]
    assert view.viewpoint == follower.node
    assert view.cluster_id == runner.identity.cluster_id
    assert view.version == runner.controller.catalog.version
    assert view.bounds.max_lag == NodeSettings(name="", data_dir="").query.max_lag
    assert view.table_bounds == {}
    later = runner.views.answer(ClusterView(5, with_channels=False), now_ms + 99)
    assert (later.request_id, later.built_ms_ago, later.channels) == (5, 99, ())
    assert later.age_ms == view.age_ms + 99
    assert runner.views.answer(ClusterView(6), now_ms + 100).built_ms_ago == 0
    assert runner.views.answer(ClusterView(7), now_ms + 50).built_ms_ago == 0
    assert set(runner.views.channels(now_ms + 60)) == {channel}
