"""The number of replicas of a table, changed by the shell under load, and failure domains of real
nodes (NATS-001)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from raftstore.client.blocking.client import Client
from raftstore.local_cluster import LocalCluster
from raftstore.types import node_name
from tests.cluster.under_load import rows_written, shell_json
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster
RACKS = {"n1": "a", "n2": "a", "n3": "b", "n4": "c"}


def hosts(client: Client) -> list[set[str]]:
    """Per partition the nodes that have a replica, as the catalog has it."""
    channels = client.table_info("orders").channels
    return [{node_name(node) for node in each.replicas} for each in channels]


def test_replicas_come_and_go_by_failure_domains_while_rows_are_written(tmp_path: Path) -> None:
    """Three in different racks, four on all nodes, three in different racks again: no acknowledged
    row is missing, and what goes is one of the two in a rack."""
    environment = {name: {"RAFTSTORE_NODE_FAILURE_DOMAIN": rack} for name, rack in RACKS.items()}
    with (
        LocalCluster(nodes=4, directory=tmp_path / "cluster", environment=environment) as cluster,
        cluster.connect(timeout=15.0) as client,
    ):
        raftstore = partial(shell_json, cluster)
        eventually(
            lambda: {each.name: each.failure_domain for each in client.members()},
            lambda found: found == RACKS,
        )
        client.create_table("orders", key="id", partitions=2, replicas=3)
        assert all(found >= {"n3", "n4"} for found in hosts(client))
        orders = client.table("orders")
        with rows_written(orders) as acknowledged:
            edited = raftstore("table", "edit", "orders", "--replicas", "4")
            assert edited["replicas"] == 4
            eventually(lambda: client.table_info("orders").voters, lambda voters: voters == ())
            assert hosts(client) == [set(RACKS)] * 2
            client.alter_table("orders", replicas=3)
            eventually(lambda: client.table_info("orders").voters, lambda voters: voters == ())
            assert all(found >= {"n3", "n4"} and len(found) == 3 for found in hosts(client))
            written = len(acknowledged)
            eventually(lambda: len(acknowledged), lambda count: count > written + 50)
        assert {row["id"] for row in orders.scan()} >= set(acknowledged)
        assert raftstore("check", "cluster", is_check=True)["numbers"]["crowded"] == 0
