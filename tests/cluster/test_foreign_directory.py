"""A data directory of another cluster whose members have the same names and addresses (S0.7)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftstore.local_cluster import ENDPOINTS_NAME, LocalCluster

pytestmark = pytest.mark.cluster
EXIT_CONFIG = 78
EXIT_STORAGE = 70


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[tuple[LocalCluster, Path]]:
    """A cluster without its n1, and the directory of the n1 of an older one in its place."""
    old, new = tmp_path / "old", tmp_path / "new"
    with LocalCluster(nodes=3, directory=old) as cluster:
        for name in cluster.running():
            assert cluster.stop(name) == 0
    new.mkdir()
    shutil.copy(old / ENDPOINTS_NAME, new / ENDPOINTS_NAME)
    with LocalCluster(nodes=3, directory=new) as cluster:
        cluster.kill("n1")
        yield cluster, old / "n1"


def start_n1(cluster: LocalCluster, directory: Path) -> subprocess.Popen[str]:
    """Start a node at n1's address with another directory."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "raftstore.cli.main", "node", "--id", "n1",
            "--data-dir", str(directory), "--listen", cluster.endpoints_by_node()["n1"],
        ],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def wait_for_start(process: subprocess.Popen[str]) -> None:
    """Return when the node says that it runs."""
    assert process.stderr is not None
    while 'event="started"' not in (line := process.stderr.readline()):
        assert line, "the node ended before it had started"


def end_of(process: subprocess.Popen[str]) -> str:
    """The last line of a node that must end by itself with the exit code of bad settings."""
    try:
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == EXIT_CONFIG, told
    return told.splitlines()[-1]


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file in a directory with its bytes and the time (ns) of its last change."""
    return {
        str(file.relative_to(directory)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


def cluster_id(directory: Path) -> str:
    """As the store's marker has it."""
    return str(json.loads((directory / "raftstore.json").read_text())["cluster_id"])


def check(line: str, cluster: LocalCluster, directory: Path) -> None:
    """One sentence: the directory, both clusters, the remedy."""
    assert line.startswith(f"error: data directory {directory} belongs to cluster"), line
    for word in (
        cluster_id(directory),
        cluster_id(cluster.directory / "n2"),
        f"n2 at {cluster.endpoints_by_node()['n2']}",
        "start this node with its directory of that cluster",
        "--initial-cluster",
    ):
        assert word in line, line


def test_directory_of_another_cluster_is_refused_untouched(
    foreign: tuple[LocalCluster, Path],
) -> None:
    """Not one byte of it changes, and the cluster goes on under the leaders that it has."""
    cluster, directory = foreign
    with cluster.connect(timeout=30.0) as client:
        client.create_table("mine", key="id", partitions=1)
        term = client.cluster_status().metadata_channel.term
        before = content(directory)
        check(end_of(start_n1(cluster, directory)), cluster, directory)
        assert content(directory) == before
        client.table("mine").put({"id": 1})
        assert client.cluster_status().metadata_channel.term == term
        cluster.start("n1")
        cluster.wait_until_ready()


def test_directory_of_another_cluster_is_refused_when_its_members_come_later(
    foreign: tuple[LocalCluster, Path],
) -> None:
    """Alone a node waits for its peers; when they prove to be another cluster's, it goes."""
    cluster, directory = foreign
    for name in ("n2", "n3"):
        cluster.kill(name)
    before = content(directory / "log")
    process = start_n1(cluster, directory)
    try:
        wait_for_start(process)
        for name in ("n2", "n3"):
            cluster.start(name)
        check(end_of(process), cluster, directory)
    finally:
        process.kill()
    assert content(directory / "log") == before
    cluster.start("n1")
    cluster.wait_until_ready()


def test_directory_that_is_moved_away_ends_the_node(tmp_path: Path) -> None:
    """S0.1: what it writes from then on would be lost, so it must not count for a quorum."""
    with LocalCluster(nodes=3, directory=tmp_path / "new") as cluster:
        cluster.kill("n1")
        data = tmp_path / "new" / "n1"
        process = start_n1(cluster, data)
        try:
            wait_for_start(process)
            files = [path for path in data.rglob("*") if path.name != "node.log"]
            assert len(files) > 10
            assert [path for path in files if path.stat().st_mode & 0o077] == []
            data.rename(tmp_path / "elsewhere")
            _, told = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == EXIT_STORAGE, told
        assert "is not what this node has open" in told.splitlines()[-1]
        assert not data.exists()


def test_damaged_mark_is_refused_for_good(tmp_path: Path) -> None:
    """S0.1: a supervisor must not start it again and again; the sentence has a true remedy."""
    with LocalCluster(nodes=3, directory=tmp_path / "new") as cluster:
        cluster.kill("n1")
        mark = tmp_path / "new" / "n1" / "mark"
        mark.write_bytes(mark.read_bytes()[:1000])
        told = end_of(start_n1(cluster, mark.parent))
    assert "put back what was there when the node stopped last" in told
