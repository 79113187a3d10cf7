"""A witness and a read replica on real nodes, ordered by the shell (W1 to W7)."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_witness_keeps_a_channel_writing_and_a_reader_serves_it(tmp_path: Path) -> None:
    """Two nodes have the rows, a third votes, a fourth reads: any of the first three may die."""
    with (
        LocalCluster(nodes=4, directory=tmp_path / "cluster") as cluster,
        cluster.connect(timeout=15.0) as client,
    ):

        def raftstore(*words: str) -> Any:
            command = [sys.executable, "-m", "raftstore.cli.main", "-o", "json", "--endpoints"]
            command += [",".join(cluster.endpoints), "channel", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        client.create_table("orders", key="id", partitions=1, replicas=3)
        orders, (one, two, reader) = client.table("orders"), shown(client).voters
        (witness,) = {"n1", "n2", "n3", "n4"} - {one, two, reader}
        for number in range(50):
            orders.put({"id": number})
        raftstore("members", "orders/0", f"{one},{two},{witness}", "--witnesses", witness)
        eventually(lambda: shown(client), lambda now: now.stage == "done")
        raftstore("add-replica", "orders/0", reader, "--role", "reader")
        eventually(lambda: shown(client), lambda now: now.stage == "done" and now.learners)
        found = shown(client)
        roles = {name: found.role_of(name) for name in ("n1", "n2", "n3", "n4")}
        assert roles == {one: "voter", two: "voter", witness: "witness", reader: "reader"}
        members = {row["node"]: row for row in raftstore("info", "orders/0")["replicas"]}
        assert {name: row["member"] for name, row in members.items()} == roles

        orders.put({"id": 50})
        held = eventually(
            lambda: orders.get(50, level="any", replica=reader), lambda row: row is not None
        )
        assert held is not None
        gone = raftstore("info", "orders/0")["leader"]
        assert gone in (one, two)
        cluster.kill(gone)
        orders.put({"id": 51})
        left = two if gone == one else one
        eventually(lambda: raftstore("info", "orders/0")["leader"], lambda name: name == left)
        assert {row["id"] for row in orders.scan()} == set(range(52))
