"""A real node whose fdatasync does not return: others lead, nothing is lost, and it ends (S0.4)."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftstore.cli.check import troubled_disks
from raftstore.client.blocking.client import Client
from raftstore.errors import RaftstoreError
from raftstore.faults import VARIABLE
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import equal_replicas, eventually, leader_of, own_status

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
LIMIT_S = 3.0
SETTINGS = {
    "RAFTSTORE_STORAGE_STALL_HANDOVER_MS": "400ms",
    "RAFTSTORE_STORAGE_TABLES_STALL_HANDOVER_MS": "400ms",
    "RAFTSTORE_STORAGE_STALL_LIMIT_MS": f"{LIMIT_S:.0f}s",
    "RAFTSTORE_STORAGE_STALL_STOP_MS": "500ms",
    "RAFTSTORE_STORAGE_UNSYNCED_BYTES_MAX": "16MiB",
}
BIG = "x" * 65_536
GROWTH_KIB_MAX = 96 * 1024
"""Of a node that holds at most 16 MiB of log entries; Python keeps some copies for a moment."""


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """Where the nodes look for what shall hang."""
    return tmp_path


@pytest.fixture
def cluster(tmp_path: Path, control: Path) -> Iterator[LocalCluster]:
    """Three nodes with little patience."""
    names = ("n1", "n2", "n3")
    environment = {name: {VARIABLE: str(control / name), **SETTINGS} for name in names}
    with LocalCluster(3, directory=tmp_path / "cluster", environment=environment) as running:
        yield running


def order(control: Path, node: str, hang: str) -> None:
    """Let such operations of the node hang from now on; "": none."""
    aside = control / f"{node}.new"
    aside.write_text(json.dumps({"number": 1, "hang": hang}), encoding="utf-8")
    aside.rename(control / node)


def resident_kib(cluster: LocalCluster, node: str) -> int:
    """Memory of a node's process."""
    text = Path(f"/proc/{cluster.pid(node)}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1])


def write_on(client: Client, seconds: float, first: int) -> dict[int, str]:
    """Write rows one after another for a while; those that were acknowledged."""
    rows, acknowledged = client.table("orders"), {}
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end:
        try:
            rows.put({"id": number, "text": BIG}, timeout=5.0)
        except RaftstoreError:
            continue  # in doubt or refused: neither may count as written
        else:
            acknowledged[number] = BIG
        finally:
            number += 1
    return acknowledged


def test_leader_whose_disk_hangs_is_replaced_and_ends_with_the_cause(
    cluster: LocalCluster, control: Path
) -> None:
    """O6, O4: writes and linearizable reads go on elsewhere while its network is fine."""
    with cluster.connect(timeout=20.0) as client:
        client.create_table("orders", key="id", partitions=1)
        rows = client.table("orders")
        rows.put({"id": 0, "text": "first"})
        leader = leader_of(client, "orders")
        before = resident_kib(cluster, leader)
        order(control, leader, "sync")
        acknowledged = write_on(client, 1.5, 1)
        new = eventually(lambda: leader_of(client, "orders"), lambda name: name != leader)
        assert acknowledged
        assert rows.get(max(acknowledged), level="linearizable")["text"] == BIG
        stall = own_status(client, leader)["storage_stall"]
        assert stall["doing"] == "fdatasync"
        assert stall["for_ms"] >= 400
        assert len(troubled_disks(client.cluster_status().nodes)) == 1
        assert resident_kib(cluster, leader) - before < GROWTH_KIB_MAX
        acknowledged |= write_on(client, 0.5, 1_000_000)
        assert eventually(cluster.ended, lambda ended: leader in ended)[leader] == 70
        said = cluster.log_file(leader).read_text(encoding="utf-8")
        assert f"the disk of {leader} has not finished fdatasync on {cluster.directory}" in said
        assert "the node ends (storage.stall_limit_ms): look at the disk" in said

        order(control, leader, "")
        cluster.start(leader)
        count = equal_replicas(client, "orders", ["n1", "n2", "n3"])
        assert count >= len(acknowledged) + 1
        for number in acknowledged:
            assert rows.get(number, level="linearizable") is not None, number

        # An operator's word does not wait for the disk either, and nothing acknowledged is lost.
        order(control, new, "sync")
        acknowledged |= write_on(client, 0.2, 2_000_000)
        begun = time.monotonic()
        with contextlib.suppress(RaftstoreError):  # it may hand over by itself just now
            client.step_down("orders/0", timeout=5.0)
        eventually(lambda: leader_of(client, "orders"), lambda name: name not in (None, new))
        assert time.monotonic() - begun < LIMIT_S
        assert rows.get(max(acknowledged), level="linearizable")["text"] == BIG

        # SIGTERM of a node whose disk hangs: bounded, and no clean end.
        begun = time.monotonic()
        assert cluster.stop(new, timeout=20.0) == 70
        assert time.monotonic() - begun < 15.0
        assert "as it was asked to stop" in cluster.log_file(new).read_text(encoding="utf-8")


def test_leader_whose_tables_hang_is_replaced(cluster: LocalCluster, control: Path) -> None:
    """The apply thread hangs in LevelDB: what is committed could not be read there any more."""
    with cluster.connect(timeout=20.0) as client:
        client.create_table("orders", key="id", partitions=1)
        rows = client.table("orders")
        rows.put({"id": 0, "text": "first"})
        leader = leader_of(client, "orders")
        order(control, leader, "apply")
        acknowledged = write_on(client, 1.0, 1)
        assert acknowledged
        eventually(lambda: leader_of(client, "orders"), lambda name: name != leader)
        assert rows.get(max(acknowledged), level="linearizable")["text"] == BIG
        assert eventually(cluster.ended, lambda ended: leader in ended)[leader] == 70
        said = cluster.log_file(leader).read_text(encoding="utf-8")
        assert "has not finished a write of LevelDB" in said
