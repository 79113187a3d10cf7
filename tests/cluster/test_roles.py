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
from raftstore.config import MIB
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import eventually, leader_of

pytestmark = pytest.mark.cluster
SHORT = {
    "RAFTSTORE_RETENTION_CHANNEL_BYTES": "4MiB",
    "RAFTSTORE_RETENTION_LOG_BYTES": "64MiB",
    "RAFTSTORE_RETENTION_INTERVAL_MS": "100ms",
    "RAFTSTORE_STORAGE_SEGMENT_BYTES": "16MiB",
}


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


def test_log_of_a_witness_is_trimmed_and_it_votes_on_what_is_left(tmp_path: Path) -> None:
    """W6: it keeps a record until the voters with rows have it, not longer; it starts from what is
    left, without a table, and its vote counts again."""
    with (
        LocalCluster(
            nodes=4,
            directory=tmp_path / "cluster",
            environment=dict.fromkeys(("n1", "n2", "n3", "n4"), SHORT),
        ) as cluster,
        cluster.connect(timeout=15.0) as client,
    ):
        client.create_table("orders", key="id", partitions=1, replicas=3)
        orders, (one, two, gone) = client.table("orders"), shown(client).voters
        (witness,) = {"n1", "n2", "n3", "n4"} - {one, two, gone}
        client.order_replicas("orders/0", (one, two, witness), witnesses=(witness,))
        eventually(lambda: shown(client), lambda now: now.stage == "done")
        for number in range(85):
            orders.put({"id": number % 10, "text": chr(97 + number % 26) * 950_000})

        def log_of_witness() -> tuple[int, int]:
            node = client.cluster_status().node(witness)
            if node is None or node.status is None:
                return 0, 0  # it starts, and the client has not found it yet
            (channel,) = node.status["channels"]
            return channel["base_seq"], node.status["sizes"]["log_bytes"]

        base, _ = eventually(log_of_witness, lambda now: now[0] > 40 and now[1] < 64 * MIB)
        tables = cluster.directory / witness / "tables"
        held = sum(path.stat().st_size for path in tables.rglob("*") if path.is_file())
        assert held < MIB, "a witness has rows"
        cluster.kill(witness)
        orders.put({"id": 10, "text": "without the witness"})
        cluster.start(witness)
        cluster.wait_until_ready()
        assert eventually(log_of_witness, lambda now: now[0] >= base)
        cluster.kill(two if leader_of(client, "orders") == one else one)
        orders.put({"id": 11, "text": "by its vote"})
        assert {row["id"] for row in orders.scan()} == set(range(12))
