"""A node that is killed at each place of its way into a cluster joins when it is started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jepsen_like.members_chaos import JOINS, Fault, Nodes
from raftstore.errors import ConfigError
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster


def test_m28_node_that_dies_at_each_place_of_a_join_joins_all_the_same(tmp_path: Path) -> None:
    """With one token and one id, whatever the cluster has noted of it; and it can be forgotten."""
    orders = tmp_path / "orders"
    with LocalCluster(1, directory=tmp_path / "nodes") as cluster, cluster.connect(30.0) as client:
        nodes = Nodes(cluster, orders)
        places = list(JOINS)
        nodes.arm("n2", places[0])
        nodes.join("n2", client.join_token())
        for following in (*places[1:], ""):
            eventually(cluster.ended, lambda ended: "n2" in ended)
            nodes.look()  # it is started again, and is to die at the next place
            nodes.arm("n2", following)
        up = eventually(
            client.members, lambda found: {m.name for m in found if m.up} == {"n1", "n2"}
        )
        assert [member.catalog for member in up] == ["voter", "voter"] or len(up) == 2
        assert sum(nodes.died_at.values()) == len(JOINS)
        assert set(nodes.died_at) == set(JOINS)
        fired = (orders / "n2.fired").read_text().splitlines()
        assert [line.partition(" ")[2] for line in fired] == list(JOINS)
        assert json.loads((orders / "n2").read_text())["crash_at"] == ""
        with pytest.raises(ConfigError, match="there is a node 'n2' already"):
            cluster.join("n2", "x")
        nodes.forget("n2")
        assert cluster.running() == ["n1"]
        assert not (cluster.directory / "n2").exists()


def test_node_that_ends_by_itself_is_a_fault(tmp_path: Path) -> None:
    """Its last words are in the message."""
    with LocalCluster(1, directory=tmp_path / "nodes") as cluster:
        nodes = Nodes(cluster, tmp_path / "orders")
        nodes.join("n2", "no token")
        eventually(cluster.ended, lambda ended: "n2" in ended)
        with pytest.raises(Fault, match=r"n2 ended with 78.*--join takes a token"):
            nodes.look()
