"""Channels are led one by one, and idle ones cost nothing (NATS-010, NATS-026, KLIP-23)."""

from __future__ import annotations

import pytest

from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.election import ElectionMessage
from raftstore.protocol.message import Message
from raftstore.protocol.node import Heartbeat
from raftstore.protocol.replication import ReplicationMessage
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from tests.unit.engine.engine_world import calm_cluster, run


@pytest.mark.slow
def test_three_channels_of_one_table_have_three_leaders() -> None:
    """NATS-010: a node leads one channel and follows in the others at the same time."""
    cluster = SimCluster(SimOptions(seed=1, partitions=3, evict_percent=0))
    cluster.start()
    cluster.create_table(3)
    run(cluster, 10_000)
    for channel, target in zip(cluster.table_channels, cluster.node_ids, strict=True):
        leader = cluster.leaders()[channel]
        if leader.node != target:
            runner = leader.runner.channels[channel]
            runner.request_hand_over(target, "test", leader.clock.now_ms())
    run(cluster, 5_000)
    leaders = [cluster.leaders()[channel].node for channel in cluster.table_channels]
    assert leaders == cluster.node_ids
    assert cluster.every_channel_has_a_leader()


def test_idle_channels_send_no_message_of_their_own() -> None:
    """NATS-026: whatever their number, only node heartbeats and lag reports travel."""
    cluster, _ = calm_cluster()
    seen: list[Message] = []
    send = cluster.network.send

    def recorded(sender: str, receiver: str, message: Message) -> None:
        seen.append(message)
        send(sender, receiver, message)

    cluster.network.send = recorded  # type: ignore[method-assign]
    run(cluster, 10_000)
    assert seen
    assert not [m for m in seen if isinstance(m, ElectionMessage | ReplicationMessage)]


def test_heartbeat_is_a_small_frame() -> None:
    """KLIP-23: at most 128 bytes, since one goes to every peer ten times a second."""
    heartbeat = Heartbeat(bytes(16), 2**40, 2**41, bytes(16), heard_receiver=True)
    assert len(encode_frame_of(heartbeat)) <= 128
