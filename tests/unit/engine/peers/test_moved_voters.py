"""A leader that was cut off while its channel moved to other nodes, simulated (NATS-035, S7.3)."""

from __future__ import annotations

import pytest

from raftstore.config import ElectionSettings, NodeSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.protocol.message import Done
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import Get
from raftstore.protocol.replica_orders import OrderReplicas
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.types import Role, Seq, node_name
from tests.unit.engine.engine_world import ask, publish, run

CONTACT_MS = 20_000
"""A leader is patient: as long as that it takes a cut for one that ends."""


def leads(runner: ChannelRunner) -> bool:
    """Whether it takes itself for the leader."""
    return runner.elector.role is Role.LEADER


@pytest.mark.slow
def test_leader_whose_channel_moved_away_gives_up_and_serves_no_bounded_read() -> None:
    """Its voters' nodes are in contact again, and host nothing: so nobody reports a later term, and
    nodes that could are cut off from it. What it knows of its own position is worth nothing."""
    settings = NodeSettings(
        name="", data_dir="", election=ElectionSettings(quorum_contact_ms=CONTACT_MS)
    )
    cluster = SimCluster(SimOptions(seed=3, nodes=6, partitions=1, evict_percent=0), settings)
    cluster.start()
    cluster.create_table(1)
    run(cluster, 10_000)
    (channel,) = cluster.table_channels
    old = cluster.leaders()[channel]
    members = cluster.replicas(channel)
    rest = [node for node in members if node != old.node]
    strangers = [node for node in cluster.node_ids if node not in members]
    assert old.runner is not None
    planner = cluster.leaders()[old.runner.metadata_channel]
    assert planner.node in strangers
    network = cluster.network
    network.cut_groups([old.node], [*rest, *strangers])
    run(cluster, 2_000)
    names = tuple(map(node_name, strangers))
    order = OrderReplicas(1, channel, names, b"o" * 16, "test", 5_000)
    answers = ask(cluster, planner, order)
    run(cluster, 15_000)
    assert [type(answer) for answer in answers] == [Done]
    assert set(cluster.replicas(channel)) == {old.node, *strangers}
    leader = cluster.leaders()[channel]
    row = encode_rows([(b"k", seal(b"k", b"v"))])
    written = ask(cluster, leader, publish(cluster, leader, channel, 1, row))
    run(cluster, 1_000)
    assert [type(answer) for answer in written] == [PubAck]
    network.heal_partitions()
    network.cut_groups([old.node], [*strangers])
    stale = old.runner.channels[channel]
    read = Get(1, channel, (b"k",), "bounded", 0, Seq(0), 2_000)
    run(cluster, 2_000)
    for node in rest:
        assert old.runner.watch.in_contact(old.runner.watch.peers[node])
    assert leads(stale)
    assert stale.core.config().members == tuple(members)
    run(cluster, CONTACT_MS)
    assert not leads(stale)
    answers = ask(cluster, old, read)
    run(cluster, 3_000)
    assert [getattr(answer, "code", "rows") for answer in answers] == ["lag_unknown"]
