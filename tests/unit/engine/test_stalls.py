"""A node that stood still takes nothing that waited for it for fresh (S7.3).

While a process is stopped, or its machine asleep, bytes wait in the buffers of the system. Once it
goes on, they arrive as if they had been sent just now: what they say of the leader may be as old as
the stop was long.
"""

from __future__ import annotations

import pytest

from raftstore.protocol.admin import ClusterInfo
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Get
from raftstore.protocol.replication import FreshRequest, ReadIndexRequest
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, Seq, channel_id
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run, spy

STOP_MS = 20_000
"""Longer than the age up to which the leader's position counts (10 s)."""


def cut_off(cluster: SimCluster, node: SimNode) -> None:
    """Nothing passes between the node and its peers any more; clients still reach it."""
    others = [other for other in cluster.node_ids if other != node.node]
    cluster.network.cut_groups([node.node], others)


def write_rows(cluster: SimCluster, channel: ChannelId, rows: int) -> Seq:
    """Rows are written one by one at the leader; the commit seq after the last of them."""
    leader = next(
        node
        for node in cluster.nodes.values()
        if not node.is_paused and node is cluster.leaders()[channel]
    )
    cluster.add_client("writer", 778, lambda sender, message: None)
    for counter in range(1, rows + 1):
        payload = encode_rows([(b"k", seal(b"k", b"v%d" % counter))])
        cluster.network.send(
            "writer", leader.node, publish(cluster, leader, channel, counter, payload)
        )
        run(cluster, 20)
    assert leader.runner is not None
    return leader.runner.channels[channel].core.commit_seq


def bounded(channel: ChannelId, max_lag: int = 0, timeout_ms: int = 2_000) -> Get:
    """A read that tolerates so many rows of lag."""
    return Get(1, channel, (b"k",), "bounded", max_lag, Seq(0), timeout_ms)


def follower_of(cluster: SimCluster, channel: ChannelId) -> SimNode:
    """A replica that does not lead."""
    leader = cluster.leaders()[channel]
    return next(node for node in cluster.nodes.values() if node is not leader)


def codes(answers: list[Message]) -> list[str]:
    """Error codes; "rows" for an answer with rows."""
    return [answer.code if isinstance(answer, Failed) else "rows" for answer in answers]


def test_stopped_follower_does_not_take_buffered_positions_for_fresh() -> None:
    """S7.3: a report that waited 20 s in a buffer says nothing of now: no row is served by it."""
    cluster, channel = calm_cluster()
    sleeper = follower_of(cluster, channel)
    sleeper.pause()
    run(cluster, 2_000)  # the leader's reports arrive at the stopped process
    cut_off(cluster, sleeper)
    end = write_rows(cluster, channel, 5)
    run(cluster, STOP_MS)
    sleeper.resume()
    assert sleeper.tables.applied_seq(channel) < end
    answers = ask(cluster, sleeper, bounded(channel))
    run(cluster, 1_000)
    assert codes(answers) == ["lag_unknown"]


def test_stopped_leader_does_not_take_its_leadership_for_granted() -> None:
    """S7.3: who led before the stop may be deposed; it serves nothing as the leader's state."""
    cluster, channel = calm_cluster()
    sleeper = cluster.leaders()[channel]
    cut_off(cluster, sleeper)
    sleeper.pause()
    run(cluster, 5_000)
    assert cluster.leaders()[channel] is not sleeper
    end = write_rows(cluster, channel, 5)
    run(cluster, STOP_MS)
    sleeper.resume()
    assert sleeper.tables.applied_seq(channel) < end
    answers = ask(cluster, sleeper, bounded(channel))
    run(cluster, 1_000)
    assert codes(answers) == ["lag_unknown"]


@pytest.mark.slow
def test_stopped_leader_tells_nobody_a_position_before_it_is_confirmed() -> None:
    """S7.3: a follower of a leader that was stopped and deposed gets no proof."""
    options = SimOptions(seed=1, partitions=1, evict_percent=0, nodes=5, replicas=5)
    cluster = SimCluster(options)
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    [channel] = cluster.table_channels
    sleeper = cluster.leaders()[channel]
    loyal = follower_of(cluster, channel)
    pair = [sleeper.node, loyal.node]
    cluster.network.cut_groups(pair, [node for node in cluster.node_ids if node not in pair])
    sleeper.pause()
    run(cluster, 5_000)
    assert cluster.leaders()[channel] not in (sleeper, loyal)
    end = write_rows(cluster, channel, 5)
    run(cluster, STOP_MS)
    sleeper.resume()
    run(cluster, 500)
    assert loyal.tables.applied_seq(channel) < end
    answers = ask(cluster, loyal, bounded(channel))
    run(cluster, 1_000)
    assert codes(answers) == ["lag_unknown"]


def test_stopped_follower_serves_again_after_one_round_trip() -> None:
    """S7.3: a bounded read waits for the proof that it needs, and is answered by it."""
    cluster, channel = calm_cluster()
    sleeper = follower_of(cluster, channel)
    sleeper.pause()
    run(cluster, STOP_MS)
    answers = ask(cluster, sleeper, bounded(channel))
    run(cluster, 100)
    seen = spy(cluster, sleeper)
    sleeper.resume()
    assert not codes(answers)
    run(cluster, 100)
    assert codes(answers) == ["rows"]
    asked = [message for _, message in seen if isinstance(message, FreshRequest)]
    assert len([message for message in asked if message.channel == channel]) == 1


def test_stopped_leader_serves_again_after_one_round_trip() -> None:
    """S7.3: nobody was elected meanwhile, and a quorum says so."""
    cluster, channel = calm_cluster()
    sleeper = cluster.leaders()[channel]
    for node in cluster.nodes.values():
        node.pause()
    run(cluster, STOP_MS)
    answers = ask(cluster, sleeper, bounded(channel))
    run(cluster, 100)
    for node in cluster.nodes.values():
        node.resume()
    assert not codes(answers)
    run(cluster, 200)
    assert cluster.leaders()[channel] is sleeper
    assert codes(answers) == ["rows"]


def test_machine_that_slept_is_a_node_that_stood_still() -> None:
    """S7.2: the clock counts the sleep although no process saw it."""
    cluster, channel = calm_cluster()
    sleeper = follower_of(cluster, channel)
    assert sleeper.runner is not None
    runner = sleeper.runner.channels[channel]
    cut_off(cluster, sleeper)
    sleeper.shift_clock(jump_ms=1_000, rate=1.0)
    run(cluster, 1)
    assert not runner.core.is_trusting
    assert sleeper.runner.reader.lag(runner, sleeper.clock.now_ms())[0] is None


def test_short_stop_changes_nothing() -> None:
    """Every long turn would cost a round trip otherwise."""
    cluster, channel = calm_cluster()
    sleeper = follower_of(cluster, channel)
    seen = spy(cluster, sleeper)
    sleeper.pause()
    run(cluster, 200)
    sleeper.resume()
    run(cluster, 2_000)
    assert sleeper.runner is not None
    assert sleeper.runner.channels[channel].core.is_trusting
    assert not [message for _, message in seen if isinstance(message, FreshRequest)]


def test_node_that_never_stood_still_asks_nothing() -> None:
    """An idle channel costs no message, and neither does a bounded read of it."""
    cluster, channel = calm_cluster()
    seen = [spy(cluster, node) for node in cluster.nodes.values()]
    follower = follower_of(cluster, channel)
    answers = ask(cluster, follower, bounded(channel))
    run(cluster, 60_000)
    assert codes(answers) == ["rows"]
    kinds = (FreshRequest, ReadIndexRequest)
    assert not [message for each in seen for _, message in each if isinstance(message, kinds)]


def test_standby_that_stood_still_long_ago_serves_at_once_when_its_leader_dies() -> None:
    """The leader's next report is asked for its proof: nobody has to read before the failover."""
    cluster, channel = calm_cluster()
    sleeper = follower_of(cluster, channel)
    sleeper.pause()
    run(cluster, 3_000)
    sleeper.resume()
    run(cluster, 1_500)
    cluster.leaders()[channel].crash("test")
    answers = ask(cluster, sleeper, bounded(channel))
    run(cluster, 30)
    assert codes(answers) == ["rows"]


def test_read_without_proof_is_refused_after_the_wait_that_is_allowed() -> None:
    """Given a node that stood still and cannot prove its freshness, a bounded read is refused after
    the allowed wait: the caller has time left for another replica.
    """
    cluster, channel = calm_cluster()
    sleeper = follower_of(cluster, channel)
    wait_ms = sleeper.settings.read.freshness_wait_ms
    sleeper.pause()
    cut_off(cluster, sleeper)
    run(cluster, STOP_MS)
    sleeper.resume()
    answers = ask(cluster, sleeper, bounded(channel, timeout_ms=5_000))
    run(cluster, wait_ms - 50)
    assert not answers
    run(cluster, 100)
    assert codes(answers) == ["lag_unknown"]
    assert isinstance(answers[0], Failed)
    assert "this node was paused" in answers[0].message


def test_read_that_waited_for_a_position_over_a_stop_waits_for_the_proof_too() -> None:
    """S7.3: the bound holds for the moment of the answer, whatever happened while it waited."""
    cluster, channel = calm_cluster()
    sleeper = follower_of(cluster, channel)
    assert sleeper.runner is not None
    runner = sleeper.runner.channels[channel]
    floor = Seq(runner.core.last_seq + 1)
    answers = ask(cluster, sleeper, Get(1, channel, (b"k",), "bounded", 0, floor, 60_000))
    run(cluster, 100)
    sleeper.pause()
    run(cluster, 2_000)
    write_rows(cluster, channel, 1)
    run(cluster, 2_000)
    sleeper.resume()
    assert not answers
    run(cluster, 200)
    assert codes(answers) == ["rows"]


def test_copy_of_the_catalog_has_no_age_after_a_stop_until_it_is_proven() -> None:
    """S1.9: tables may have been created and dropped while the node stood still."""
    cluster, _ = calm_cluster()
    metadata = channel_id(cluster.cluster_id, 0)
    sleeper = follower_of(cluster, metadata)
    assert sleeper.runner is not None
    cluster_info = sleeper.runner.reports.cluster_info
    sleeper.pause()
    run(cluster, STOP_MS)
    sleeper.resume()
    assert cluster_info.answer(ClusterInfo(1), sleeper.clock.now_ms()).age_ms is None
    run(cluster, 1_500)
    assert cluster_info.answer(ClusterInfo(1), sleeper.clock.now_ms()).age_ms is not None
