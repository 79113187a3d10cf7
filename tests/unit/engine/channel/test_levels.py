"""Nodes of different levels in one cluster: what is refused until the last one is upgraded.

KIP-31: "version probing handles the migration".
"""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.config import LEVEL
from raftstore.protocol.admin import ClusterInfo, ClusterInfoAnswer, EditTable
from raftstore.protocol.message import Done, Failed
from raftstore.protocol.payload import encode_mark, encode_rows
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.rows.sealing import seal
from raftstore.state_machines.catalog import register_node_command
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, RecordKind, node_name
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

MARK = encode_mark("query", 7)
ROWS = encode_rows([(b"k", seal(b"k", b"v"))])


def controller(node: SimNode) -> Any:
    """The node's catalog."""
    assert node.runner is not None
    return node.runner.controller


def metadata_leader(cluster: SimCluster) -> SimNode:
    """The leader of the metadata channel: it takes commands on tables."""
    node = next(node for node in cluster.nodes.values() if node.runner is not None)
    assert node.runner is not None
    return cluster.leaders()[node.runner.metadata_channel]


def registered(cluster: SimCluster) -> list[dict[str, int]]:
    """The levels in every node's catalog."""
    return [
        {name: entry.level for name, entry in controller(node).catalog.nodes.items()}
        for node in cluster.nodes.values()
    ]


def follower_of_all(cluster: SimCluster, channel: ChannelId) -> SimNode:
    """A node that leads neither the table nor the metadata."""
    leaders = (cluster.leaders()[channel], metadata_leader(cluster))
    return next(node for node in cluster.nodes.values() if node not in leaders)


def reinstall(cluster: SimCluster, node: SimNode, level: int) -> None:
    """Restart a node with another version."""
    node.kill("another version")
    node.level = level
    node.boot()
    run(cluster, 5_000)
    assert cluster.every_channel_has_a_leader()


def write(cluster: SimCluster, channel: ChannelId, counter: int, kind: RecordKind) -> Any:
    """The answer to one write, after a while."""
    leader = cluster.leaders()[channel]
    payload = MARK if kind is RecordKind.BATCH_MARK else ROWS
    answers = ask(cluster, leader, publish(cluster, leader, channel, counter, payload, kind=kind))
    run(cluster, 2_000)
    (answer,) = answers
    return answer


def edit(cluster: SimCluster, channel: ChannelId, max_lag: int) -> Any:
    """The answer to an edit of the only table."""
    leader = metadata_leader(cluster)
    table = controller(leader).catalog.table_of(channel)
    request = EditTable(5, table.name, table.uuid, {"max_lag": max_lag}, 2_000)
    answers = ask(cluster, leader, request)
    run(cluster, 3_000)
    (answer,) = answers
    return answer


def test_every_node_tells_its_level_and_clients_hear_it() -> None:
    """The catalog of each node has them, and discovery reports them."""
    cluster, _ = calm_cluster()
    assert registered(cluster) == [dict.fromkeys(("n1", "n2", "n3"), LEVEL)] * 3
    (node, *_) = cluster.nodes.values()
    answers = ask(cluster, node, ClusterInfo(1))
    run(cluster, 500)
    (answer,) = answers
    assert isinstance(answer, ClusterInfoAnswer)
    assert [info.level for info in answer.nodes] == [LEVEL] * 3
    assert node.runner is not None
    assert node.runner.reports.status()["levels"] == dict.fromkeys(("n1", "n2", "n3"), LEVEL)


def test_what_an_older_node_cannot_read_is_refused_until_it_is_upgraded() -> None:
    """No seq is given, the text names the node; writes of the first version go on meanwhile."""
    cluster, channel = calm_cluster()
    old = follower_of_all(cluster, channel)
    reinstall(cluster, old, 0)
    runner = cluster.leaders()[channel].runner
    assert runner is not None
    end = runner.channels[channel].core.last_seq
    refused = write(cluster, channel, 1, RecordKind.BATCH_MARK)
    assert isinstance(refused, PubReject)
    assert refused.code == "store_too_old"
    assert f"but {old.name} is at level 0; upgrade these nodes" in refused.message
    assert runner.channels[channel].core.last_seq == end
    failed = edit(cluster, channel, 5)
    assert isinstance(failed, Failed)
    assert (failed.code, old.name in failed.message) == ("store_too_old", True)
    assert isinstance(write(cluster, channel, 2, RecordKind.ROWS), PubAck)

    reinstall(cluster, old, LEVEL)
    assert isinstance(write(cluster, channel, 3, RecordKind.BATCH_MARK), PubAck)
    assert isinstance(edit(cluster, channel, 5), Done)


def test_downgrade_is_believed_before_the_catalog_says_it() -> None:
    """A node that has just come back older must not meet what was written a moment later."""
    cluster, channel = calm_cluster()
    leader, old = cluster.leaders()[channel], follower_of_all(cluster, channel)
    assert leader.runner is not None
    leader.runner.on_peer_connected(old.node, "", 0, leader.clock.now_ms())
    assert controller(leader).catalog.nodes[old.name].level == LEVEL
    assert controller(leader).levels()[old.node] == 0
    message = publish(cluster, leader, channel, 1, MARK, kind=RecordKind.BATCH_MARK)
    answers = ask(cluster, leader, message)
    run(cluster, 100)
    assert [answer.code for answer in answers if isinstance(answer, PubReject)] == ["store_too_old"]


def test_mark_that_was_written_before_a_downgrade_keeps_its_outcome() -> None:
    """S4.5: a retry learns what became of the first copy."""
    cluster, channel = calm_cluster()
    first = write(cluster, channel, 1, RecordKind.BATCH_MARK)
    assert isinstance(first, PubAck)
    reinstall(cluster, follower_of_all(cluster, channel), 0)
    again = write(cluster, channel, 1, RecordKind.BATCH_MARK)
    assert isinstance(again, PubAck)
    assert again.last_seq == first.last_seq


@pytest.mark.slow
def test_level_is_registered_once_a_change_and_never_without_one() -> None:
    """An idle cluster writes nothing, nor does a restart; an upgrade is one command."""
    cluster, channel = calm_cluster()
    node = follower_of_all(cluster, channel)

    def version() -> int:
        return int(controller(metadata_leader(cluster)).catalog.version)

    before = version()
    run(cluster, 60_000)
    reinstall(cluster, node, LEVEL)
    assert version() == before
    reinstall(cluster, node, 0)
    run(cluster, 30_000)
    assert version() == before + 1
    reinstall(cluster, node, LEVEL)
    run(cluster, 30_000)
    assert version() == before + 2
    assert registered(cluster) == [dict.fromkeys(("n1", "n2", "n3"), LEVEL)] * 3


def test_level_is_proposed_once_while_its_command_is_under_way() -> None:
    """No storm: however many timers go by without an outcome, there is one command."""
    cluster, channel = calm_cluster()
    leader, old = metadata_leader(cluster), follower_of_all(cluster, channel)
    assert leader.runner is not None
    asked: list[bytes] = []
    controller(leader).proposals.propose = lambda _runner, payload, *_, **__: asked.append(payload)
    leader.runner.on_peer_connected(old.node, "", 0, leader.clock.now_ms())
    run(cluster, 5_000)
    assert asked == [register_node_command(old.node, old.name, 0)]


@pytest.mark.slow
def test_new_metadata_leader_keeps_the_level_of_a_node_that_is_away() -> None:
    """It reported nothing to this leader yet; that is no reason to enter it as an old one."""
    cluster, channel = calm_cluster()
    away = follower_of_all(cluster, channel)
    away.kill("away")
    leader = metadata_leader(cluster)
    leader.kill("restart")
    leader.boot()
    run(cluster, 5_000)
    assert controller(metadata_leader(cluster)).catalog.nodes[away.name].level == LEVEL


def test_entry_that_an_older_leader_wrote_gets_its_level_back_once() -> None:
    """A leader without levels enters addresses without them; the next newer one mends it."""
    cluster, channel = calm_cluster()
    leader, node = metadata_leader(cluster), follower_of_all(cluster, channel)
    assert leader.runner is not None
    command = register_node_command(NodeId(node.node), node_name(node.node), 0)
    told: list[Any] = []
    controller(leader).proposals.propose(
        controller(leader).metadata,
        command,
        lambda answer, _: told.append(answer),
        leader.clock.now_ms(),
    )
    run(cluster, 1_000)
    assert [type(answer) for answer in told] == [PubAck]
    assert [levels[node.name] for levels in registered(cluster)] == [0] * 3
    written = int(controller(leader).catalog.version)
    leader.kill("the older version ends")
    run(cluster, 5_000)
    leader.boot()
    run(cluster, 10_000)
    assert registered(cluster) == [dict.fromkeys(("n1", "n2", "n3"), LEVEL)] * 3
    terms = 1  # the new leader's first record
    assert controller(leader).catalog.version == written + terms + 1
