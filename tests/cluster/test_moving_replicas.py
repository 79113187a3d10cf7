"""Replicas that move between real nodes while rows are written (S8, M20 to M24)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from raftstore.client.blocking.client import Client
from raftstore.client.replicas import ReplicaChange
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster


def shown(client: Client) -> ReplicaChange:
    """The one channel of the table, with its orders."""
    (found,) = (each for each in client.replicas() if each.channel == "orders/0")
    return found


def test_replicas_move_from_three_nodes_to_others_under_load(tmp_path: Path) -> None:
    """[n1,n2,n3] -> [n2,n3,n4] and back, the second time by the shell: no acknowledged row is
    missing, every write ends well, and a node that lost its replica deletes what it held."""
    with (
        LocalCluster(nodes=4, directory=tmp_path / "cluster") as cluster,
        cluster.connect(timeout=15.0) as client,
    ):
        client.create_table("orders", key="id", partitions=1, replicas=3)
        orders, first = client.table("orders"), shown(client)
        (stranger,) = {"n1", "n2", "n3", "n4"} - set(first.voters)
        acknowledged: list[int] = []
        is_over = threading.Event()

        def write() -> None:
            number = 0
            while not is_over.is_set():
                orders.put({"id": number})
                acknowledged.append(number)
                number += 1

        def raftstore(*words: str) -> Any:
            command = [sys.executable, "-m", "raftstore.cli.main", "-o", "json", "--endpoints"]
            command += [",".join(cluster.endpoints), "channel", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        writer = threading.Thread(target=write)
        writer.start()
        try:
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
        finally:
            is_over.set()
            writer.join()
        assert raftstore("change", "ls") == []
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
