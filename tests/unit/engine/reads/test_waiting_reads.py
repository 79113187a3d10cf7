"""A read that waited is held to its bounds when it is answered, not when it came (S7, S13)."""

from __future__ import annotations

from raftstore.protocol.message import Failed, Message
from raftstore.protocol.node import ChannelPosition, LagReport
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.protocol.replication import StoreAck
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, Seq
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run


def waiting_read(level: str, max_lag: int | None) -> tuple[SimCluster, SimNode, list[Message]]:
    """A read at a replica of the table, for a position that the next write reaches."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    other = next(node for node in cluster.nodes.values() if node is not leader)
    asked = leader if level == "leader" else other
    seq = Seq(leader.runner.channels[channel].core.last_seq + 1)
    answers = ask(cluster, asked, Get(1, channel, (b"k",), level, max_lag, seq, 5_000))
    run(cluster, 200)
    assert not answers
    return cluster, asked, answers


def write(cluster: SimCluster, channel: ChannelId) -> None:
    """One row, applied everywhere soon."""
    payload = encode_rows([(b"k", seal(b"k", b"v"))])
    leader = cluster.leaders()[channel]
    cluster.network.send("operator", leader.node, publish(cluster, leader, channel, 1, payload))
    run(cluster, 1_000)


def test_waiting_read_that_finds_its_replica_too_far_behind_is_refused() -> None:
    """KLIP-39: within the bound when it came is not within the bound when it is answered."""
    cluster, node, answers = waiting_read("bounded", 5)
    [channel] = cluster.table_channels
    runner = node.runner.channels[channel]
    known = (node.node, runner.elector.leader)
    third = next(other for other in cluster.node_ids if other not in known)
    ahead = Seq(runner.core.commit_seq + 100)
    position = ChannelPosition(channel, runner.elector.term, False, ahead, ahead, ahead, b"")
    node.on_message(NodeId(third), LagReport(0, (position,)))
    write(cluster, channel)
    assert [answer.code for answer in answers if isinstance(answer, Failed)] == ["lag_exceeded"]


def test_waiting_read_at_a_leader_that_was_deposed_is_refused() -> None:
    """S7.4: level leader is the answer of the leader, not of a node that was one when asked."""
    cluster, node, answers = waiting_read("leader", None)
    [channel] = cluster.table_channels
    node.runner.channels[channel].step_down("test", node.clock.now_ms())
    run(cluster, 3_000)
    assert cluster.leaders()[channel] is not node
    write(cluster, channel)
    assert [answer.code for answer in answers if isinstance(answer, Failed)] == ["not_leader"]


def test_waiting_read_of_a_channel_that_stopped_serving_is_refused() -> None:
    """S13: histories differ: no read of the channel is answered any more, nor one that waits."""
    cluster, node, answers = waiting_read("any", None)
    [channel] = cluster.table_channels
    runner = node.runner.channels[channel]
    runner.on_broken("a quorum has another history", node.clock.now_ms())
    assert runner.stopped_reason is not None
    applied = node.tables.applied_seq(channel)
    node.tables.applied_seq = lambda of: Seq(applied + 1)  # type: ignore[method-assign]
    node.runner.reader.on_applied(runner, (), node.clock.now_ms())
    del node.tables.applied_seq
    run(cluster, 100)
    assert [answer.code for answer in answers if isinstance(answer, Failed)] == ["unavailable"]


def test_new_leader_serves_no_level_leader_before_it_committed_in_its_term() -> None:
    """S7.4: until then it does not know what is committed, and would miss acknowledged writes."""
    cluster, channel = calm_cluster()
    old = cluster.leaders()[channel]
    term = old.runner.channels[channel].elector.term
    send = cluster.network.send

    def without_acks(sender: str, receiver: str, message: Message) -> None:
        if not isinstance(message, StoreAck) or message.channel != channel or message.term == term:
            send(sender, receiver, message)

    cluster.network.send = without_acks  # type: ignore[method-assign]
    old.runner.channels[channel].request_hand_over(None, "test", old.runner.clock.now_ms)
    run(cluster, 1_000)
    new = cluster.leaders()[channel]
    assert new is not old
    assert not new.runner.channels[channel].core.leader_is_ready
    request = Get(1, channel, (b"k",), "leader", None, Seq(0), 300)
    early = ask(cluster, new, request)
    run(cluster, 500)
    assert [type(answer) for answer in early] == [Failed]
    cluster.network.send = send  # type: ignore[method-assign]
    run(cluster, 3_000)
    served = ask(cluster, cluster.leaders()[channel], request)
    run(cluster, 500)
    assert [type(answer) for answer in served] == [GetAnswer]
