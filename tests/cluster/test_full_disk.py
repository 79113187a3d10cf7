"""Real nodes on small disks: writes are refused before these are full, and go on by themselves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from raftstore.cli.check import troubled_disks
from raftstore.client.blocking.client import Client, Table
from raftstore.errors import ConnectionInDoubtError, NoSpaceError
from raftstore.local_cluster import LocalCluster
from raftstore.types import Outcome
from tests.cluster.watching import equal_replicas, eventually, leader_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]
MIB = 1 << 20
KEEPS_ITS_LOG = {
    "RAFTSTORE_STORAGE_FREE_CHECK_MS": "100ms",
    "RAFTSTORE_STORAGE_SEGMENT_BYTES": "16MiB",
    "RAFTSTORE_STORAGE_WRITE_BUFFER_BYTES": "1MiB",
    "RAFTSTORE_RETENTION_CHANNEL_BYTES": "256MiB",
    "RAFTSTORE_RETENTION_SINGLE_REPLICA": "true",
    "RAFTSTORE_RETENTION_INTERVAL_MS": "100ms",
}
"""A node that trims its log only where it has to, and looks often whether it has to."""


def fill(disk: Path, *, but: int = 0) -> None:
    """Another file takes what is free, all but so many bytes."""
    facts = os.statvfs(disk)
    free = facts.f_bavail * facts.f_frsize
    with (disk / "other").open("ab") as other:
        other.write(bytes(free - but))


@contextmanager
def node_with_a_log(disk: Path, **storage: str) -> Iterator[tuple[LocalCluster, Client, Table]]:
    """One node on the disk, a client, and a table of three rows behind 48 MiB of log."""
    settings = KEEPS_ITS_LOG | {
        f"RAFTSTORE_STORAGE_{name}": value for name, value in storage.items()
    }
    with (
        LocalCluster(1, directory=disk / "cluster", environment={"n1": settings}) as cluster,
        cluster.connect(timeout=10.0) as client,
    ):
        client.create_table("t", key="id", partitions=1, replicas=1)
        table = client.table("t")
        for number in range(48):
            table.put({"id": number % 3, "text": "x" * (MIB - 100)})
        yield cluster, client, table


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of 96 MiB."""
    place.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={96 * MIB}", "tmpfs", str(place)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own."""
    with small_disk(tmp_path / "disk") as place:
        yield place


def test_gap_13_node_refuses_writes_before_its_disk_is_full_and_recovers(disk: Path) -> None:
    """Another file takes nearly all; the node refuses, is noticed by monitors, stays up and serves
    reads; it goes on once the file is gone."""
    marks = {
        "RAFTSTORE_STORAGE_MIN_FREE_BYTES": "32MiB",
        "RAFTSTORE_STORAGE_FREE_CHECK_MS": "100ms",
    }
    with (
        LocalCluster(1, directory=disk / "cluster", environment={"n1": marks}) as cluster,
        cluster.connect(timeout=10.0) as client,
    ):
        client.create_table("t", key="id", partitions=1, replicas=1)
        table = client.table("t")
        table.put({"id": 1})
        fill(disk, but=24 * MIB)
        eventually(lambda: troubled_disks(client.cluster_status().nodes), bool)
        with pytest.raises(NoSpaceError, match=r"the disk of n1 has \d+ bytes free") as refused:
            table.put({"id": 2}, timeout=0.5)
        assert refused.value.outcome is Outcome.NOT_APPLIED
        assert [row["id"] for row in table.scan()] == [1]
        (disk / "other").unlink()
        table.put({"id": 3})
        assert sorted(row["id"] for row in table.scan()) == [1, 3]
        assert troubled_disks(client.cluster_status().nodes) == []


def test_gap_13_leader_refuses_what_followers_with_full_disks_would_not_store(
    tmp_path: Path,
) -> None:
    """Two of three disks are so full that their nodes take no records: the third leads, names them
    in what it refuses, and serves reads; writes go on, everywhere, once there is space."""
    marks = {
        "RAFTSTORE_STORAGE_MIN_FREE_BYTES": "32MiB",
        "RAFTSTORE_STORAGE_FREE_CHECK_MS": "100ms",
    }
    environment = dict.fromkeys(("n2", "n3"), marks)
    full = r"the disks of n2, n3 have no room for "
    with ExitStack() as stack:
        disks = [stack.enter_context(small_disk(tmp_path / name)) for name in ("n2", "n3")]
        cluster = stack.enter_context(LocalCluster(directory=tmp_path, environment=environment))
        client = stack.enter_context(cluster.connect(timeout=10.0))
        client.create_table("t", key="id", partitions=2)
        table = client.table("t")
        for number in range(8):
            table.put({"id": number})
        for disk in disks:
            fill(disk, but=24 * MIB)
        eventually(lambda: {leader_of(client, "t", number) for number in range(2)}, {"n1"}.__eq__)
        table.put({"id": 0, "text": "followers take it still"})
        for disk in disks:
            fill(disk, but=4 * MIB)
        # Before the leader knows of it, the outcome of a write is unknown.
        eventually(lambda: refused_with(table), bool)
        assert takes_records(client) == ["n1"]
        for number in range(3):
            with pytest.raises(NoSpaceError, match=full + "records") as refused:
                table.put({"id": number, "text": "more"}, timeout=0.5)
            assert refused.value.outcome is Outcome.NOT_APPLIED
        with pytest.raises(NoSpaceError, match="the disks of n2, n3 have no room for"):
            client.create_table("another", key="id", timeout=0.5)
        assert table.get(3, level="linearizable") == {"id": 3}
        for disk in disks:
            (disk / "other").unlink()
        for number in range(8):
            table.put({"id": number, "text": "there is room again"})
        assert equal_replicas(client, "t", ["n1", "n2", "n3"]) == 8
        assert troubled_disks(client.cluster_status().nodes) == []


def test_gap_13_node_at_its_mark_trims_its_log_and_so_frees_itself(disk: Path) -> None:
    """Another file takes the rest and stays: what goes is the log, which was kept for readers and
    replicas; no write of the node fails, and clients write again."""
    with node_with_a_log(disk, MIN_FREE_BYTES="32MiB") as (_, client, table):
        log = disk / "cluster" / "n1" / "log"
        assert sum(path.stat().st_size for path in log.iterdir()) > 44 * MIB
        fill(disk, but=24 * MIB)
        eventually(lambda: troubled_disks(client.cluster_status().nodes), bool)
        table.put({"id": 3, "text": "there is room again"})
        assert sum(path.stat().st_size for path in log.iterdir()) < 34 * MIB
        assert sorted(row["id"] for row in table.scan()) == [0, 1, 2, 3]
        assert troubled_disks(client.cluster_status().nodes) == []


def test_gap_13_node_starts_on_a_full_disk_by_its_reserve_and_trims(disk: Path) -> None:
    """Another program took the last byte while the node was down: the node removes its reserve,
    opens, says so, trims its log, which makes room for writes; with space it has a reserve again.
    """
    subprocess.run(["mount", "-o", f"remount,size={192 * MIB}", str(disk)], check=True)
    node = node_with_a_log(disk, RESERVE_BYTES="40MiB", MIN_FREE_BYTES="48MiB")
    with node as (cluster, client, table):
        reserve = disk / "cluster" / "n1" / "reserve"
        eventually(reserve.exists, bool)
        cluster.kill("n1")
        fill(disk)
        cluster.start("n1")
        cluster.wait_until_ready()
        assert "the reserve of 41943040 bytes was removed" in cluster.log_file("n1").read_text()
        table.put({"id": 3, "text": "there is room again"})
        assert sorted(row["id"] for row in table.scan()) == [0, 1, 2, 3]
        (disk / "other").unlink()
        eventually(lambda: reserve_bytes(client), lambda size: size == 40 * MIB)
        assert reserve.stat().st_size == 40 * MIB


def refused_with(table: Table) -> str:
    """The reason why a put was refused; empty: its outcome is unknown."""
    with suppress(ConnectionInDoubtError):
        try:
            table.put({"id": 1, "text": "perhaps"}, timeout=0.5)
        except NoSpaceError as error:
            return str(error)
    return ""


def takes_records(client: Client) -> list[str]:
    """Nodes that store records, by their status."""
    nodes = client.cluster_status().nodes
    return [node.name for node in nodes if node.status and node.status["disk"]["takes_records"]]


def reserve_bytes(client: Client) -> int:
    """Size of the reserve, by the node's status."""
    (node,) = client.cluster_status().nodes
    assert node.status is not None
    return int(node.status["disk"]["reserve_bytes"])
