"""Rows of the NATS document that whole nodes show, on simulated networks and disks."""

from __future__ import annotations

import pytest

from raftstore.config import ReplicationSettings
from raftstore.protocol.election import PreVote, RequestVote
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.replication import MsgSync
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.types import FollowerMode
from tests.far_scene import Scene
from tests.unit.engine.engine_world import ask, publish, run


@pytest.mark.parametrize("which", [0, 1])
def test_nats_029_replica_with_the_highest_history_leads_also_if_it_stands_late(which: int) -> None:
    """Each follower in turn lacks a record of the leader that dies, and stands alone for a while:
    the other one, whose own candidacies are lost, votes, and not for it.
    """
    scene = Scene()
    leader = scene.leader
    behind, whole = scene.followers()[which], scene.followers()[1 - which]
    scene.cut_off(behind)
    scene.put(3)
    end = scene.core(whole).last_seq
    assert scene.core(behind).last_seq < end
    leader.kill("test")
    asked = [0]

    def loses(to: str, message: Message) -> bool:
        is_standing = isinstance(message, PreVote | RequestVote)
        asked[0] += is_standing and to == whole.node
        return is_standing and to == behind.node

    scene.loses = loses
    scene.cluster.network.heal()
    scene.cluster.reconnect_all()
    run(scene.cluster, 5_000)
    assert asked[0] > 1, "it stood"
    assert not scene.has_leader()
    scene.loses = lambda to, message: False
    scene.until(scene.has_leader)
    assert scene.leader is whole
    scene.settle()
    assert scene.core(behind)._state.lineage.holds(*scene.core(whole).history())


def test_nats_133_channel_that_catches_up_holds_up_no_other_of_its_node() -> None:
    """The answers for one channel are lost: the other one is steady, acknowledges and applies."""
    cluster = SimCluster(SimOptions(seed=1, partitions=2, evict_percent=0))
    cluster.start()
    cluster.create_table(2)
    run(cluster, 10_000)
    stuck, free = cluster.table_channels
    node = next(each for each in cluster.nodes.values() if each not in cluster.leaders().values())
    counter = 0

    def put(channel: bytes) -> None:
        nonlocal counter
        counter += 1
        payload = encode_rows([(b"k%d" % counter, seal(b"k%d" % counter, b"value"))])
        leader = cluster.leaders()[channel]
        [answer] = _answers(cluster, leader, publish(cluster, leader, channel, counter, payload))
        assert isinstance(answer, PubAck)

    node.kill("test")
    for channel in (stuck, free):
        put(channel)
    send = cluster.network.send

    def lossy(sender: str, receiver: str, message: Message) -> None:
        is_lost = isinstance(message, MsgSync) and message.channel == stuck
        if not (is_lost and receiver == node.node):
            send(sender, receiver, message)

    cluster.network.send = lossy  # type: ignore[method-assign]
    assert node.boot()
    run(cluster, 3_000)
    put(free)
    assert node.runner is not None
    cores = {channel: node.runner.channels[channel].core for channel in (stuck, free)}
    led = cluster.leaders()[free].runner.channels[free].core
    assert cores[stuck].mode is FollowerMode.CATCHING_UP
    assert cores[free].mode is FollowerMode.STEADY
    assert led.progress()[node.node].match_seq == led.last_seq
    assert node.tables.applied_seq(free) == led.last_seq
    cluster.network.send = send  # type: ignore[method-assign]
    run(cluster, 3_000)
    assert cores[stuck].mode is FollowerMode.STEADY


def _answers(cluster: SimCluster, node: object, message: Message) -> list[Message]:
    answers = ask(cluster, node, message)  # type: ignore[arg-type]
    run(cluster, 500)
    return answers


def test_nats_149_distance_of_a_replica_is_shown_in_status_and_metrics() -> None:
    """After its first answer of two records, with the rest under way."""
    scene = Scene(ReplicationSettings(sync_batch_records_max=2))
    away = scene.followers()[0]
    away.kill("away")
    for _ in range(9):
        scene.put()
    let_pass = 0

    def loses(to: str, message: Message) -> bool:
        nonlocal let_pass
        if not isinstance(message, MsgSync) or message.channel != scene.channel:
            return False
        let_pass -= 1
        return let_pass < 0

    scene.loses = loses
    assert away.boot()
    run(scene.cluster, 500)  # all are connected
    let_pass = 1
    scene.until(lambda: let_pass < 0)
    run(scene.cluster, 200)
    core, led = scene.core(away), scene.core(scene.leader)
    assert away.runner is not None
    [channel] = away.runner.reports.status()["channels"]
    assert core.mode is FollowerMode.CATCHING_UP
    assert channel["catch_up"]["rows_left"] == led.last_seq - core.verified_seq == 7
    metrics = {name: value for name, _, value in away.runner.reports.metrics()[0]}
    assert metrics["raftstore_catchup_rows_left"] == 7
    assert metrics["raftstore_catchup_sessions"] == 1
    scene.loses = lambda to, message: False
    scene.settle()
