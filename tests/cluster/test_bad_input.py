"""A node that cannot start says why in one sentence, exits with 78, and touches nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftstore.local_cluster import LocalCluster

pytestmark = pytest.mark.cluster
EXIT_CONFIG = 78


def start(*arguments: str, **variables: str) -> tuple[int, str]:
    """Run ``raftstore node`` until it ends; exit code and last line of stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "raftstore.cli.main", "node", *arguments],
        env={**os.environ, "RAFTSTORE_HTTP_LISTEN": "", **variables},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data directory of node n1 of a cluster that ran once."""
    directory = tmp_path_factory.mktemp("used")
    with LocalCluster(nodes=1, directory=directory) as cluster:
        assert cluster.stop("n1") == 0
    return directory / "n1"


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file in a directory with its bytes and the time (ns) of its last change."""
    return {
        str(file.relative_to(directory)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def taken() -> Iterator[str]:
    """An endpoint where somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


ALONE = "n1=127.0.0.1:4481"

REFUSALS = [
    pytest.param(
        ["--initial-cluster", ALONE, "--listen", "0.0.0.0:4481"],
        ["0.0.0.0:4481", "--insecure"],
        id="bind beyond loopback",
    ),
    pytest.param(
        ["--initial-cluster", "n2=127.0.0.1:4482,n3=127.0.0.1:4483"],
        ["initial_cluster lists n2", "not this node, 'n1'"],
        id="initial cluster without the node itself",
    ),
    pytest.param(
        ["--initial-cluster", "n1"], ["'n1'", "name=host:port"], id="member without an address"
    ),
    pytest.param(["--listen", "nowhere"], ["'nowhere'", "host:port"], id="no address"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSALS)
def test_node_refuses_settings_that_cannot_work(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    """The value and the remedy are in the sentence; no directory appears."""
    directory = tmp_path / "data"
    code, line = start("--id", "n1", "--data-dir", str(directory), *arguments)
    assert code == EXIT_CONFIG, line
    assert line.startswith("error: ")
    assert all(word in line for word in words), line
    assert not directory.exists()


def test_node_refuses_an_unknown_key_in_its_file(tmp_path: Path) -> None:
    """A setting that would be silently ignored is worse than no start."""
    file = tmp_path / "raftstore.toml"
    file.write_text('[node]\nname = "n1"\nlisten_adress = "127.0.0.1:1"\n')
    code, line = start("--config", str(file))
    assert code == EXIT_CONFIG
    assert "unknown setting node.listen_adress" in line
    assert "did you mean node.listen?" in line


def test_node_refuses_an_impossible_value_in_the_environment(tmp_path: Path) -> None:
    """The sentence names the variable it came from."""
    code, line = start(
        "--id", "n1", "--data-dir", str(tmp_path / "d"), RAFTSTORE_HEARTBEAT_WINDOW_MS="2 weeks"
    )
    assert code == EXIT_CONFIG
    assert "RAFTSTORE_HEARTBEAT_WINDOW_MS" in line
    assert "'2 weeks' is not a duration" in line


def test_node_refuses_to_wait_for_a_cluster_that_nobody_described(tmp_path: Path) -> None:
    """A new directory needs --initial-cluster."""
    code, line = start("--id", "n1", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0")
    assert code == EXIT_CONFIG
    assert "belongs to no cluster yet" in line
    assert "--initial-cluster" in line
    assert list(tmp_path.iterdir()) == []


def test_node_refuses_the_directory_of_another_node(used: Path) -> None:
    """Two nodes with one identity would vote twice."""
    before = content(used)
    code, line = start(
        "--id", "n2", "--data-dir", str(used), "--initial-cluster", "n2=127.0.0.1:4481"
    )
    assert code == EXIT_CONFIG
    assert "belongs to node 'n1', not to 'n2'" in line
    assert "--id n1" in line
    assert content(used) == before


def test_node_refuses_the_directory_of_another_cluster(used: Path) -> None:
    """The founding members of the configuration are compared with those of the birth."""
    before = content(used)
    members = "n1=127.0.0.1:4481,n7=127.0.0.1:4487,n8=127.0.0.1:4488"
    code, line = start(
        "--id", "n1", "--data-dir", str(used), "--listen", "127.0.0.1:0",
        "--initial-cluster", members,
    )  # fmt: skip
    assert code == EXIT_CONFIG
    assert "founded by n1, but --initial-cluster names n1, n7, n8" in line
    assert "--data-dir" in line
    assert content(used) == before


def test_node_refuses_a_port_in_use(used: Path, taken: str) -> None:
    """The error has the remedy, another port or stopping its user; the store is not opened."""
    before = content(used)
    code, line = start("--id", "n1", "--data-dir", str(used), "--listen", taken)
    assert code == EXIT_CONFIG
    assert f"cannot listen on {taken}: the port is in use" in line
    assert "--listen" in line
    assert content(used) == before


@pytest.mark.parametrize("parent", ["", "deeper/"])
def test_first_start_on_a_port_in_use_leaves_nothing_behind(
    tmp_path: Path, taken: str, parent: str
) -> None:
    """A store nobody owns must not appear, nor a directory on the way to it."""
    code, line = start(
        "--id", "n1", "--data-dir", str(tmp_path / f"{parent}n1"), "--listen", taken,
        "--initial-cluster", f"n1={taken}",
    )  # fmt: skip
    assert code == EXIT_CONFIG
    assert f"cannot listen on {taken}: the port is in use; stop the other process" in line
    assert "--listen" in line
    assert list(tmp_path.iterdir()) == []


def test_second_process_on_a_directory_is_refused(tmp_path: Path) -> None:
    """The directory of a running node is locked."""
    with LocalCluster(nodes=1, directory=tmp_path) as cluster:
        code, line = start(
            "--id", "n1", "--data-dir", str(tmp_path / "n1"), "--listen", "127.0.0.1:0"
        )
        assert code == EXIT_CONFIG, line
        assert str(tmp_path / "n1") in line
        assert cluster.running() == ["n1"]
