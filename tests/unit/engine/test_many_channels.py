"""Many channels on one node: nothing that is done for all of them takes one long turn."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.catalog.controller import OPENED_AT_ONCE, CatalogController
from raftstore.engine.channel.candidacies import TOGETHER_MAX
from raftstore.engine.deadlines import NEVER_MS
from raftstore.protocol.admin import CreateTable, DropTable, StepDown
from raftstore.protocol.election import StepDownNotice
from raftstore.protocol.message import Done, Message
from raftstore.protocol.node import Heartbeat
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.types import ChannelId, Role, Seq, channel_id
from tests.unit.engine.engine_world import ask, calm_cluster, run

PARTITIONS = 100


def _create(name: str, partitions: int = 1) -> CreateTable:
    return CreateTable(1, name, ("k",), partitions, 3, "fsync", None, "", False, timeout_ms=9_000)


@pytest.mark.slow
def test_channels_of_a_large_table_are_opened_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heartbeats and other clients get their turns while a thousand channels are opened."""
    opened: list[int] = []
    open_some = CatalogController._open_some

    def counted(self: Any, now_ms: int) -> None:
        before = len(self._channels)
        open_some(self, now_ms)
        opened.append(len(self._channels) - before)

    monkeypatch.setattr(CatalogController, "_open_some", counted)
    cluster = SimCluster(SimOptions(seed=3, partitions=1, evict_percent=0))
    cluster.start()
    run(cluster, 3_000)
    leader = cluster.leaders()[channel_id(cluster.cluster_id, 0)]
    answers: list[Message] = ask(cluster, leader, _create("large", PARTITIONS))
    run(cluster, 9_000)
    assert isinstance(answers[0], Done)
    assert max(opened) == OPENED_AT_ONCE
    assert sum(opened) == 3 * PARTITIONS
    for node in cluster.nodes.values():
        assert node.runner is not None
        assert len(node.runner.channels) == PARTITIONS + 1


def test_table_that_is_dropped_while_it_is_opened_leaves_no_channel() -> None:
    """S0.8: what waits to be opened is looked up again when its turn comes."""
    cluster, _ = calm_cluster()
    node = next(iter(cluster.nodes.values()))
    assert node.runner is not None
    controller = node.runner.controller
    controller.opening.append(channel_id(b"g" * 16, 0))
    before = dict(node.runner.channels)
    node.runner.on_timer(node.clock.now_ms())
    assert node.runner.channels == before
    assert controller.deadlines.next_ms == NEVER_MS


def test_catalog_reads_only_the_rows_that_changed() -> None:
    """The cost of one more table does not grow with the schemas of all others."""
    cluster, _ = calm_cluster()
    node = next(iter(cluster.nodes.values()))
    assert node.runner is not None
    page = node.tables.scan(node.runner.metadata_channel, b"", b"", 1_000)
    rows = [(row.key, row.value, row.seq) for row in page.rows]
    before = Catalog.from_rows(rows, page.applied_seq)
    again = Catalog.from_rows(rows, page.applied_seq, before=before)
    assert again.tables["t"] is before.tables["t"]
    assert again == before
    assert again.changed_since(before) == ((), False)
    key = CatalogMachine.table_key("t")
    edited = [(k, v, Seq(seq + (k == key))) for k, v, seq in rows]
    newer = Catalog.from_rows(edited, page.applied_seq + 1, before=before)
    assert newer.changed_since(before) == ((newer.tables["t"],), False)
    gone = Catalog.from_rows([row for row in rows if row[0] != key], page.applied_seq + 1)
    assert gone.changed_since(before) == ((), True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_new_table_is_led_by_its_preferred_replicas(seed: int) -> None:
    """The first replica of each placement leads, whichever node learns of the table first."""
    cluster = SimCluster(SimOptions(seed=seed, partitions=1, evict_percent=0))
    cluster.start()
    run(cluster, 8_000)
    metadata = channel_id(cluster.cluster_id, 0)
    leader = cluster.leaders()[metadata]
    answers: list[Message] = ask(cluster, leader, _create("spread", 24))
    run(cluster, 5_000)
    assert isinstance(answers[0], Done)
    assert leader.runner is not None
    entry = leader.runner.controller.catalog.tables["spread"]
    leaders = cluster.leaders()
    led = [leaders[channel_id(entry.uuid, number)].node for number in range(24)]
    assert led == [replicas[0] for replicas in entry.placement]
    assert sorted(led.count(node.node) for node in cluster.nodes.values()) == [8, 8, 8]


@pytest.mark.slow
def test_new_table_is_led_soon_where_its_preferred_replica_is_down() -> None:
    """S1.8: who is known to be down is waited for by nobody."""
    cluster, _ = calm_cluster()
    leader = cluster.leaders()[channel_id(cluster.cluster_id, 0)]
    victim = next(node for node in cluster.nodes.values() if node is not leader)
    victim.kill("lost")
    run(cluster, 2_000)
    answers: list[Message] = ask(cluster, leader, _create("spread", 24))
    run(cluster, 200)
    assert isinstance(answers[0], Done)
    assert victim not in cluster.leaders().values()


@pytest.mark.slow
def test_all_channels_of_a_lost_node_are_led_again_soon() -> None:
    """P12, S1.8: elections in turns take not much longer than all of them at once."""
    cluster, _ = calm_cluster()
    leader = cluster.leaders()[channel_id(cluster.cluster_id, 0)]
    answers: list[Message] = ask(cluster, leader, _create("large", 4 * PARTITIONS))
    run(cluster, 9_000)
    assert isinstance(answers[0], Done)
    led = list(cluster.leaders().values())
    victim = max(cluster.nodes.values(), key=led.count)
    lost = [channel for channel, node in cluster.leaders().items() if node is victim]
    assert len(lost) > TOGETHER_MAX
    victim.kill("lost")
    run(cluster, 2_000)
    leaders = cluster.leaders()
    assert all(leaders[ChannelId(channel)] is not victim for channel in lost)


def test_word_of_a_lost_node_that_arrives_late_does_not_still_the_suspicion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S1.8: a heartbeat was on its way when the connection broke; nothing follows it."""
    cluster, channel = calm_cluster()
    victim = cluster.leaders()[channel]
    survivors = [node for node in cluster.nodes.values() if node is not victim]
    monkeypatch.setattr(cluster, "node_gone", lambda _: None)
    victim.kill("lost")
    for node in survivors:
        node.on_peer_lost(victim.node, refused=True)
    for node in survivors:
        assert node.runner is not None
        peer = node.runner.watch.peers[victim.node]
        late = Heartbeat(peer.boot_id, 9_999, 0, peer.led_by_peer.value, True)
        node.clock.shift(jump_ms=1.0, rate=1.0)
        node.on_message(victim.node, late)
    run(cluster, 3_000)
    assert cluster.leaders()[channel] in survivors


def test_contact_is_asked_for_the_channels_that_are_led_and_no_others() -> None:
    """P12, NATS-035: with a node away all leaders are looked at 20 times a second, once each."""
    cluster, channel = calm_cluster()

    def looked_at() -> list[set[ChannelId]]:
        runners = [node.runner for node in cluster.nodes.values() if node.runner is not None]
        for runner in runners:
            leading = {c for c, r in runner.channels.items() if r.elector.role is Role.LEADER}
            assert set(runner.watch._contact._led) == leading
        return [set(runner.watch._contact._led) for runner in runners]

    assert channel in set().union(*looked_at())
    victim = cluster.leaders()[channel]
    victim.crash("for a while")
    run(cluster, 2_000)
    assert channel in set().union(*looked_at())
    victim.boot()
    run(cluster, 2_000)
    ask(cluster, cluster.leaders()[channel], StepDown(2, channel))
    run(cluster, 2_000)
    assert channel in set().union(*looked_at())
    metadata = cluster.leaders()[channel_id(cluster.cluster_id, 0)]
    ask(cluster, metadata, DropTable(3, "t", 2_000))
    run(cluster, 2_000)
    assert channel not in set().union(*looked_at())


def test_heartbeats_are_expected_to_say_what_their_senders_say_while_all_is_well() -> None:
    """P12, S1.8: what differs, and all that comes of a peer that is not well, is sent at once."""
    cluster, channel = calm_cluster()
    runners = [node.runner for node in cluster.nodes.values() if node.runner is not None]
    for runner in runners:
        said = {other.me: (other.identity.boot_id, *other.watch.heartbeats()[runner.me])
                for other in runners if other is not runner}  # fmt: skip
        assert runner.watch.expected_heartbeats() == said
    watch, now = runners[0].watch, next(iter(cluster.nodes.values())).clock.now_ms()
    one, other = runners[1].me, runners[2].me
    watch.peers[one].unclaimed[channel] = None
    assert set(watch.expected_heartbeats()) == {other}
    runners[0].on_peer_lost(other, now, refused=False)
    runners[0].on_peer_connected(other, "", 0, now)
    assert watch.peers[other].connected
    assert watch.expected_heartbeats() == {}


def test_connection_alone_claims_no_leadership() -> None:
    """S1.8: a leader that was started again connects before it has said what it leads: nothing."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    node = next(node for node in cluster.nodes.values() if node is not leader)
    assert node.runner is not None
    watch, runner, now = node.runner.watch, node.runner.channels[channel], node.clock.now_ms()
    claimed_ms = watch.heard_leader(runner, leader.node)
    assert claimed_ms is not None
    node.runner.on_peer_lost(leader.node, now, refused=False)
    assert watch.heard_leader(runner, leader.node) is None
    node.runner.on_peer_connected(leader.node, "", leader.level, now + 50)
    assert watch.heard_leader(runner, leader.node) == claimed_ms
    assert watch.peers[leader.node].last_heard_ms == now + 50


def test_refused_connection_is_told_as_the_end_of_health() -> None:
    """A refused connection ends the peer's health: the events have its end with this reason before
    its return.
    """
    cluster, _ = calm_cluster()
    node, peer = list(cluster.nodes.values())[:2]
    assert node.runner is not None
    node.runner.on_peer_lost(peer.node, node.clock.now_ms(), refused=True)
    run(cluster, 2_000)
    _, events = node.runner.ring.since(0, ("peer_health",), 100)
    told = [(event["up"], event["reason"]) for event in events if event["peer"] == peer.name]
    assert told == [(False, "connection refused"), (True, "2 heartbeats in a row")]


@pytest.mark.parametrize("is_told", [True, False], ids=["one hears of it", "nobody hears of it"])
def test_leader_that_steps_down_and_cannot_be_asked_is_replaced(is_told: bool) -> None:
    """S1.8: nothing reaches the leader, so it gives up; its heartbeats still reach everybody.

    They claim the channel no more, but the list that would say so cannot be asked for.
    """
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    one, other = (node for node in cluster.nodes.values() if node is not leader)
    for node in (one, other):
        cluster.network.cut(node.node, leader.node)
    send = cluster.network.send

    def losing_the_notice(sender: str, receiver: str, message: Message) -> None:
        is_lost = isinstance(message, StepDownNotice) and message.channel == channel
        if not is_lost or (is_told and receiver == one.node):
            send(sender, receiver, message)

    cluster.network.send = losing_the_notice  # type: ignore[method-assign]
    run(cluster, 5_000)
    assert cluster.leaders().get(channel) in (one, other)
