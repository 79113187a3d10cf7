"""Replicas that move between real nodes while rows are written (S8, M20 to M24)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from raftstore.client.blocking.client import Client
from raftstore.client.replicas import ReplicaChange
from raftstore.local_cluster import LocalCluster
from tests.cluster.under_load import bounded_reads, rows_written, shell_json
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster


def shown(client: Client) -> ReplicaChange:
    """The one channel of the table, with its orders."""
    (found,) = (each for each in client.replicas() if each.channel == "orders/0")
    return found


def test_replicas_move_from_three_nodes_to_others_under_load(tmp_path: Path) -> None:
    """[n1,n2,n3] -> [n2,n3,n4] and back, the second time by the shell: no acknowledged row is
    missing, every write and every bounded read ends well (FIP-02), and a node that lost its replica
    deletes what it held."""
    with (
        LocalCluster(nodes=4, directory=tmp_path / "cluster") as cluster,
        cluster.connect(timeout=15.0) as client,
    ):
        client.create_table("orders", key="id", partitions=1, replicas=3)
        orders, first = client.table("orders"), shown(client)
        (stranger,) = {"n1", "n2", "n3", "n4"} - set(first.voters)
        raftstore = partial(shell_json, cluster, "channel")
        orders.put({"id": -1})
        with rows_written(orders) as acknowledged, bounded_reads(orders, -1) as read:
            eventually(lambda: len(acknowledged), lambda count: count > 50)
            leaving = first.voters[0]
            wanted = (*first.voters[1:], stranger)
            change = client.order_replicas("orders/0", wanted)
            eventually(lambda: shown(client), lambda now: now.stage == "done")
            assert set(shown(client).voters) == set(wanted)
            moved = len(acknowledged)
            eventually(lambda: len(acknowledged), lambda count: count > moved + 50)
            eventually(lambda: cluster_hosts(client), lambda hosts: leaving not in hosts)
            back = raftstore("replace", "orders/0", stranger, leaving)
            assert back["change"] > change
            eventually(lambda: raftstore("members", "orders/0"), lambda row: row["stage"] == "done")
            assert set(shown(client).voters) == set(first.voters)
        assert raftstore("change", "ls") == []
        assert len(read) > 50
        rows = {row["id"] for row in orders.scan()}
        assert rows >= set(acknowledged)
        assert moved < len(acknowledged) <= len(rows)


def cluster_hosts(client: Client) -> set[str]:
    """Nodes that report a replica of the table themselves."""
    return {
        node.name
        for node in client.cluster_status().nodes
        if node.status is not None
        for channel in node.status["channels"]
        if channel["table"] == "orders"
    }
