"""A real node on a small disk: writes are refused before it is full, and go on by themselves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftstore.cli.check import troubled_disks
from raftstore.errors import NoSpaceError
from raftstore.local_cluster import LocalCluster
from raftstore.types import Outcome
from tests.cluster.watching import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={96 * MIB}", "tmpfs", str(place)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_gap_13_node_refuses_writes_before_its_disk_is_full_and_recovers(disk: Path) -> None:
    """Another file takes nearly all; the node refuses, is told by monitors, stays up and serves
    reads; it goes on once the file is gone."""
    marks = {
        "RAFTSTORE_STORAGE_MIN_FREE_BYTES": "32MiB",
        "RAFTSTORE_STORAGE_FREE_CHECK_MS": "100ms",
    }
    other = disk / "other"
    with (
        LocalCluster(1, directory=disk / "cluster", environment={"n1": marks}) as cluster,
        cluster.connect(timeout=10.0) as client,
    ):
        client.create_table("t", key="id", partitions=1, replicas=1)
        table = client.table("t")
        table.put({"id": 1})
        facts = os.statvfs(disk)
        free = facts.f_bavail * facts.f_frsize
        other.write_bytes(bytes(free - 24 * MIB))
        eventually(lambda: troubled_disks(client.cluster_status().nodes), bool)
        with pytest.raises(NoSpaceError, match=r"the disk of n1 has \d+ bytes free") as refused:
            table.put({"id": 2}, timeout=0.5)
        assert refused.value.outcome is Outcome.NOT_APPLIED
        assert [row["id"] for row in table.scan()] == [1]
        other.unlink()
        table.put({"id": 3})
        assert sorted(row["id"] for row in table.scan()) == [1, 3]
        assert troubled_disks(client.cluster_status().nodes) == []
