"""Logs of real node processes stay short under updates, and nodes start from what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftstore.client.blocking.client import Client
from raftstore.config import MIB
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import equal_replicas, eventually, own_status

pytestmark = pytest.mark.cluster
NAMES = ["n1", "n2", "n3"]
SHORT = {
    "RAFTSTORE_RETENTION_ENABLED": "true",
    "RAFTSTORE_RETENTION_CHANNEL_BYTES": "4MiB",
    "RAFTSTORE_RETENTION_LOG_BYTES": "64MiB",
    "RAFTSTORE_RETENTION_INTERVAL_MS": "100ms",
    "RAFTSTORE_STORAGE_SEGMENT_BYTES": "16MiB",
}


def logs(client: Client) -> list[tuple[int, int]]:
    """Of each node: bytes of its log, and where the log of the table begins."""
    found: list[tuple[int, int]] = []
    for name in NAMES:
        status: Any = own_status(client, name)
        [channel] = status["channels"]
        found.append((status["sizes"]["log_bytes"], channel["base_seq"]))
    return found


def segment_bytes(cluster: LocalCluster, name: str) -> int:
    """Bytes of the files of a node's log."""
    return sum(path.stat().st_size for path in (cluster.directory / name / "log").iterdir())


def test_log_stays_bounded_under_updates_and_all_nodes_start_from_it(tmp_path: Path) -> None:
    """A hundred megabytes of updates to ten rows; then all are killed and come back."""
    environment = dict.fromkeys(NAMES, SHORT)
    with (
        LocalCluster(nodes=3, directory=tmp_path / "cluster", environment=environment) as cluster,
        cluster.connect(timeout=15.0) as client,
    ):
        client.create_table("orders", key="id", partitions=1)
        orders = client.table("orders")
        for number in range(110):
            orders.put({"id": number % 10, "text": chr(97 + number % 26) * 950_000})
        before = list(orders.scan())
        assert len(before) == 10
        trimmed = eventually(
            lambda: logs(client), lambda found: all(size < 64 * MIB for size, _ in found)
        )
        # What is left of a hundred and ten megabytes are less than 64.
        assert all(base > 40 for _, base in trimmed)
        assert all(segment_bytes(cluster, name) < 70 * MIB for name in NAMES)
        cluster.kill_all(NAMES)
        for name in NAMES:
            cluster.start(name)
        cluster.wait_until_ready()
        with cluster.connect(timeout=15.0) as again:
            assert list(again.table("orders").scan()) == before
            again.table("orders").put({"id": 11, "text": "behind the base"})
            assert equal_replicas(again, "orders", NAMES) == 11
            assert all(base > 40 for _, base in logs(again))
