"""The live audit on real nodes: no false alarm, and what is found is shown and stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raftstore
from raftstore.audit.observation import Action, Observation, hash_of_key, hash_of_row
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster
ALL_KEYS = {"RAFTSTORE_AUDIT_KEYS_PER_MILLION": "1000000"}
NAMES = ("n1", "n2", "n3")
KEYS = 40


def shell(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``raftstore`` as a user does."""
    at = ",".join(cluster.endpoints)
    command = [sys.executable, "-m", "raftstore.cli.main", "--endpoints", at]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def used(client: raftstore.Client, turns: int) -> None:
    """Puts, deletes and reads of few keys at every level."""
    orders = client.table("orders")
    for turn in range(turns):
        ack = orders.put({"id": turn % KEYS, "v": turn})
        orders.get(turn % KEYS)
        orders.get(turn % 7, max_lag=1_000, prefer="any_in_bound")
        orders.get(turn % 5, max_staleness=1.0, prefer="any_in_bound")
        orders.get(turn % 3, at_least=ack.position)
        if turn % 10 == 9:
            orders.delete(turn % KEYS)
            orders.put_many([{"id": key, "v": -turn} for key in range(0, KEYS, 3)])
            orders.get_many(range(KEYS), level="leader")


def stale_for_once(audit: raftstore.Audit, client: raftstore.Client) -> None:
    """Note an answer as a deposed leader would have given it."""
    info = client.table("orders").definition()
    now_ms, key = audit.now_ms(), hash_of_key(b"key")
    stale = Observation(
        Action.GET, key, now_ms, now_ms + 1, 1, 1, hash_of_row(b"old"), level="linearizable"
    )
    for partition in range(info.partitions):
        audit.observe(info.channels[partition].channel, f"orders/{partition}", stale)


def test_audit_of_all_keys_over_a_kill_and_what_it_finds_stays(tmp_path: Path) -> None:
    """N7: no false alarm at clients or nodes; a violation is an event of a node, on its disk."""
    audit = raftstore.Audit(1.0, checks=100)
    environment = dict.fromkeys(NAMES, ALL_KEYS)
    with LocalCluster(directory=tmp_path / "cluster", environment=environment) as cluster:
        with raftstore.connect(cluster.endpoints, timeout=20.0, audit=audit) as client:
            client.create_table("orders", key="id", partitions=2)
            used(client, 80)
            cluster.kill("n1")
            used(client, 40)
            cluster.start("n1")
            cluster.wait_until_ready()
            used(client, 40)
            assert audit.findings == ()
            eventually(lambda: audit.counts().checks, lambda checks: checks > 20)
            assert audit.counts().operations > 300
            found = shell(cluster, "-o", "json", "audit")
            assert (found.returncode, json.loads(found.stdout)["violations"]) == (0, [])
            judged: list[dict[str, Any]] = json.loads(found.stdout)["nodes"]
            assert sum(node["operations"] for node in judged) > 300
            assert "an audit found" not in shell(cluster, "check", "cluster").stdout
            stale_for_once(audit, client)
            eventually(audit.counts, lambda counts: counts.reported > 0)
        for name in NAMES:
            cluster.stop(name)
            cluster.start(name)
        cluster.wait_until_ready()
        found = shell(cluster, "audit", "--evidence")
        assert found.returncode == 7, found.stderr
        assert "kind=stale_read" in found.stdout
        assert "source=client" in found.stdout
        checked = shell(cluster, "check", "cluster")
        assert checked.returncode == 2
        assert "an audit found a wrong answer 0 min ago" in checked.stdout
        assert shell(cluster, "audit", "--key", "orders", "7").stdout.strip() != ""
