"""Reads of level leader: a client sees what was acknowledged to it, and no leader too young."""

from __future__ import annotations

import pytest

from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import Count, CountAnswer, Get, GetAnswer, Scan, ScanAnswer
from raftstore.rows.sealing import seal, unseal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.types import ChannelId, NodeId, Seq
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

WRITES = 20
REQUESTS = {
    "get": lambda channel: Get(0, channel, (b"k",), "leader", None, Seq(0), 5_000),
    "multi_get": lambda channel: Get(0, channel, (b"absent", b"k"), "leader", None, Seq(0), 5_000),
    "page": lambda channel: Scan(0, channel, b"", b"", 10, "leader", None, Seq(0), 5_000),
    "long_scan": lambda channel: Scan(0, channel, b"", b"", 500, "leader", None, Seq(0), 5_000),
    "count": lambda channel: Count(0, channel, b"", b"", "leader", None, Seq(0), 5_000),
}


def slow_cluster() -> tuple[SimCluster, ChannelId]:
    """Healthy nodes that apply much later than they commit."""
    options = SimOptions(seed=1, partitions=1, evict_percent=0, apply_max_ms=80.0)
    cluster = SimCluster(options)
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    return cluster, cluster.table_channels[0]


@pytest.mark.parametrize("kind", REQUESTS)
def test_s7_0_leader_read_shows_what_its_client_was_told_is_written(kind: str) -> None:
    """Acknowledged at commit, applied later: the read waits for what was committed."""
    cluster, channel = slow_cluster()
    leader = cluster.leaders()[channel]
    seen: list[tuple[Seq, Message]] = []
    acked: list[PubAck] = []

    def write() -> None:
        number = len(acked) + 1
        value = seal(b"k", b"%d" % number)
        rows = encode_rows([(b"k", value)])
        cluster.network.send("c", leader.node, publish(cluster, leader, channel, number, rows))

    def on_message(sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            acked.append(message)
            cluster.network.send("c", sender, REQUESTS[kind](channel))
        else:
            seen.append((acked[-1].last_seq, message))
            if len(acked) < WRITES:
                write()

    cluster.add_client("c", 778, on_message)
    write()
    run(cluster, 20_000)
    assert len(seen) == WRITES
    for number, (seq, answer) in enumerate(seen, 1):
        assert isinstance(answer, GetAnswer | ScanAnswer | CountAnswer), answer
        assert answer.served.applied_seq >= seq
        if isinstance(answer, GetAnswer):
            assert answer.values[-1] is not None
            assert unseal(b"k", answer.values[-1]) == b"%d" % number


def test_s7_1_leader_answers_no_read_before_a_commit_of_its_own_term() -> None:
    """Its table may lack what its predecessor acknowledged, and it does not know how much."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    core = leader.runner.channels[channel].core
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(core), "leader_is_ready", property(lambda _core: False))
        answers = ask(cluster, leader, *(made(channel) for made in REQUESTS.values()))
        run(cluster, 100)
    assert len(answers) == len(REQUESTS)
    for refused in answers:
        assert isinstance(refused, Failed)
        assert refused.code == "no_leader"


def test_s7_0_leader_read_that_waits_in_vain_is_refused_at_its_deadline() -> None:
    """A leader that stopped applying says what it waits for, and never an older state."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    runner = leader.runner.channels[channel]
    leader._applying = True  # the thread that applies does not come back
    rows = encode_rows([(b"k", seal(b"k", b"v"))])
    written = ask(cluster, leader, publish(cluster, leader, channel, 1, rows))
    run(cluster, 100)
    assert [type(answer) for answer in written] == [PubAck]
    commit = runner.core.commit_seq
    answers = ask(cluster, leader, Get(1, channel, (b"k",), "leader", None, Seq(0), 50))
    run(cluster, 20)
    assert answers == []
    run(cluster, 100)
    [refused] = answers
    assert isinstance(refused, Failed)
    assert f"has not reached {commit} within 50 ms" in refused.message
