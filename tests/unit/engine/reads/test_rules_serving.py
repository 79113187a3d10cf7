"""Replicas that may not answer, and others that go on: S0.3, S0.6, S1.9, S13, in the engine."""

from __future__ import annotations

from raftstore.protocol.admin import ContentHash
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, History, Seq, Term
from tests.unit.engine.engine_world import ask, calm_cluster, run


def follower_of(cluster: SimCluster, channel: ChannelId) -> SimNode:
    """A replica that does not lead."""
    leader = cluster.leaders()[channel]
    return next(node for node in cluster.nodes.values() if node is not leader)


def read_any(cluster: SimCluster, node: SimNode, channel: ChannelId) -> Message:
    """The node's answer to a read of level any."""
    answers = ask(cluster, node, Get(9, channel, (b"k",), "any", None, Seq(0), 1_000))
    run(cluster, 500)
    (answer,) = answers
    return answer


def test_recovering_replica_serves_nothing() -> None:
    """S0.3: not even a read at level any, since what it acknowledged may be missing."""
    cluster, channel = calm_cluster()
    node = follower_of(cluster, channel)
    assert isinstance(read_any(cluster, node, channel), GetAnswer)
    core = node.runner.channels[channel].core
    core._state.recovering = History(Term(99), Seq(99))
    answer = read_any(cluster, node, channel)
    assert isinstance(answer, Failed)
    assert (answer.code, "is recovering" in answer.message) == ("unavailable", True)


def test_replica_that_stopped_serving_answers_nothing() -> None:
    """S13: where two histories differ nobody knows which of them is the committed one."""
    cluster, channel = calm_cluster()
    node = follower_of(cluster, channel)
    node.runner.channels[channel].stopped_reason = "two histories"
    answer = read_any(cluster, node, channel)
    assert isinstance(answer, Failed)
    assert (answer.code, "stopped serving" in answer.message) == ("unavailable", True)


def test_channel_that_a_stop_left_in_pieces_serves_nothing() -> None:
    """S10: some rows of a batch are there and others are not, until all were applied again."""
    cluster, channel = calm_cluster()
    node = follower_of(cluster, channel)
    runner = node.runner.channels[channel]
    runner.unserved_until = Seq(99)
    answer = read_any(cluster, node, channel)
    assert isinstance(answer, Failed)
    assert (answer.code, "repeats an apply" in answer.message) == ("unavailable", True)
    answers = ask(cluster, node, ContentHash(9, channel))
    run(cluster, 500)
    (refused,) = answers
    assert isinstance(refused, Failed)
    assert (refused.code, "repeats an apply" in refused.message) == ("unavailable", True)
    runner.feed._outstanding += 1
    runner.on_applied(node.tables.applied_seq(channel), (), 0)
    assert runner.unserved_until == 0


def test_runner_of_a_broken_channel_stops_serving() -> None:
    """I1: the feed finds that what was decided is not here; the node itself goes on."""
    cluster, channel = calm_cluster()
    node = follower_of(cluster, channel)
    runner = node.runner.channels[channel]
    runner.feed._on_broken("commit 7 lists 2 chunks")
    answer = read_any(cluster, node, channel)
    assert isinstance(answer, Failed)
    assert "stopped serving: commit 7 lists 2 chunks" in answer.message


def test_restarted_node_serves_its_tables_without_the_metadata_channel() -> None:
    """S1.9: its last committed catalog says what it hosts; nobody need lead the catalog for it."""
    cluster, channel = calm_cluster()
    node = follower_of(cluster, channel)
    for other in cluster.nodes.values():
        other.kill("all at once")
    node.boot()
    run(cluster, 100)
    assert channel in node.runner.channels
    assert isinstance(read_any(cluster, node, channel), GetAnswer)
