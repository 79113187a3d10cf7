"""Where the other nodes are: configured, seen, in the catalog, and where they were at the birth."""

from __future__ import annotations

from raftstore.config import LEVEL
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import NodeId, node_name
from tests.unit.engine.engine_world import calm_cluster, run

MOVED = "moved:4481"


def moved_node() -> tuple[SimCluster, SimNode, NodeId]:
    """A cluster whose catalog has a node's new address; a follower restarts without the others."""
    cluster, _ = calm_cluster()
    metadata = cluster.nodes[cluster.node_ids[0]].runner.metadata_channel
    leader = cluster.leaders()[metadata]
    moved, other = (node for node in cluster.node_ids if node != leader.node)
    leader.runner.on_peer_connected(moved, MOVED, LEVEL, leader.clock.now_ms())
    run(cluster, 3_000)
    follower = cluster.nodes[other]
    assert follower.runner.controller.catalog.nodes[node_name(moved)].endpoint == MOVED
    follower.kill("restart")
    cluster.node_connected = lambda back: None  # type: ignore[method-assign]
    follower.boot()
    return cluster, follower, moved


def test_catalog_knows_better_than_the_founding_where_a_node_is() -> None:
    """S0.7: after a restart a node goes where the catalog says, not where the others once were."""
    _, follower, moved = moved_node()
    assert follower.runner.controller.endpoints()[moved] == MOVED


def test_new_leader_of_the_catalog_keeps_the_address_of_a_node_that_moved() -> None:
    """A node that was restarted meanwhile must not enter the address of the founding again."""
    cluster, follower, moved = moved_node()
    leader = cluster.leaders()[follower.runner.metadata_channel]
    metadata = leader.runner.channels[leader.runner.metadata_channel]
    for node in cluster.nodes.values():
        if node is not follower:
            node.runner.controller.on_introduced = lambda *seen: None  # type: ignore[method-assign]
    run(cluster, 2_000)
    metadata.request_hand_over(follower.node, "test", leader.clock.now_ms())
    run(cluster, 5_000)
    assert cluster.leaders()[follower.runner.metadata_channel] is follower
    assert follower.runner.controller.catalog.nodes[node_name(moved)].endpoint == MOVED
