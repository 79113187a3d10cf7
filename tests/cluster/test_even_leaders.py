"""Leaders of real nodes: even after a table was made and after a restart, by themselves and by
command (NATS-001)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from math import ceil
from pathlib import Path

import pytest

from raftstore.client.blocking.client import Client
from raftstore.local_cluster import LocalCluster
from raftstore.types import node_name
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster
NAMES = ["n1", "n2", "n3"]
PARTITIONS = 24
EVEN_S = 60.0


def led(client: Client) -> dict[str, int]:
    """Partitions that each node leads; empty while some has no leader."""
    leaders = [channel.leader for channel in client.cluster_view().channels]
    if None in leaders or len(leaders) != PARTITIONS:
        return {}
    counts = Counter(node_name(leader) for leader in leaders if leader is not None)
    return {name: counts[name] for name in NAMES}


def is_even(counts: dict[str, int]) -> bool:
    """No node leads more than its share, and one more."""
    return bool(counts) and max(counts.values()) <= ceil(PARTITIONS / len(NAMES)) + 1


def started(tmp_path: Path, setting: str) -> LocalCluster:
    """Three nodes with one setting of ``[rebalance]``."""
    config = tmp_path / "node.toml"
    config.write_text(f"[rebalance]\n{setting}\n")
    extra = ("--config", str(config))
    return LocalCluster(nodes=3, directory=tmp_path / "cluster", extra=extra)


def test_leaders_are_even_after_a_table_was_made_and_after_a_restart(tmp_path: Path) -> None:
    """A node that was killed and started again leads its share before long, and writes go on."""
    with started(tmp_path, "calm_ms = '1s'") as cluster, cluster.connect(timeout=15.0) as client:
        client.create_table("orders", key="id", partitions=PARTITIONS)
        orders = client.table("orders")
        orders.put_many([{"id": number} for number in range(100)])
        eventually(lambda: led(client), is_even)
        cluster.kill("n1")
        eventually(lambda: led(client), lambda counts: counts.get("n1", 1) == 0)
        cluster.start("n1")
        cluster.wait_until_ready()
        orders.put({"id": 100})
        # A node that has just been started may refuse at first, and is asked again after a pause.
        eventually(
            lambda: led(client), lambda counts: is_even(counts) and counts["n1"] >= 7, EVEN_S
        )
        assert orders.count().rows == 101


def test_command_makes_leaders_even_where_it_is_not_done_by_itself(tmp_path: Path) -> None:
    """The plan first, then the moves that it has."""
    with started(tmp_path, "leaders = false") as cluster, cluster.connect(timeout=15.0) as client:
        client.create_table("orders", key="id", partitions=PARTITIONS)
        eventually(lambda: led(client), bool)
        cluster.stop("n2")
        eventually(lambda: led(client), lambda counts: counts.get("n2", 1) == 0)
        cluster.start("n2")
        cluster.wait_until_ready()

        def rebalance(*options: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "raftstore.cli.main", "-o", "json", "--endpoints"]
            command += [",".join(cluster.endpoints), "rebalance", "leaders", *options]
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

        planned = json.loads(rebalance("--dry-run").stdout)
        assert led(client)["n2"] == 0
        assert planned["after"] == {"n1": 8, "n2": 8, "n3": 8}
        done = rebalance()
        assert done.returncode == 0, done.stderr
        assert {row["result"] for row in json.loads(done.stdout)["moves"]} == {"moved"}
        eventually(lambda: led(client), lambda counts: set(counts.values()) == {8})
