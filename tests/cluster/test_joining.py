"""Nodes that come and go on real processes: by a token, drained, in the place of a lost one."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import raftstore
from raftstore.config import LEVEL
from raftstore.errors import StillMemberError
from raftstore.local_cluster import LocalCluster

pytestmark = pytest.mark.cluster
EXIT_CONFIG = 78
WAIT_S = 60.0


class NewNode:
    """A node process that is no founder."""

    def __init__(self, name: str, directory: Path, *options: str, endpoint: str = "") -> None:
        self.name = name
        self.endpoint = endpoint or f"127.0.0.1:{_free_port()}"
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "raftstore.cli.main", "node", "--id", name,
                "--data-dir", str(directory / name), "--listen", self.endpoint, "--http", "",
                *options,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(self._process.stderr)

    def exit(self) -> tuple[int, str]:
        """The exit code of a node that ends by itself, and the last line that it wrote."""
        code = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code, self.lines[-1]

    def stop(self) -> None:
        """End it, however it is."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(WAIT_S)
        assert self._process.stderr is not None
        self._process.stderr.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[LocalCluster, raftstore.Client, list[NewNode]]]:
    """Three founders, a client, and the nodes that the test starts."""
    started: list[NewNode] = []
    try:
        with (
            LocalCluster(nodes=3, directory=tmp_path / "cluster") as cluster,
            cluster.connect(timeout=30.0) as client,
        ):
            _wait(
                lambda: all(member.level == LEVEL for member in client.members()),
                "the founders have not registered",
            )
            yield cluster, client, started
    finally:
        for node in started:
            node.stop()


def _free_port() -> int:
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _wait(holds: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.1)


def _members(client: raftstore.Client) -> dict[str, raftstore.ClusterMember]:
    return {member.name: member for member in client.members()}


def _is_up(client: raftstore.Client, name: str) -> bool:
    return name in _members(client) and _members(client)[name].up


def _leads_metadata(client: raftstore.Client, name: str) -> bool:
    leader = client.cluster_status().metadata_channel.leader
    return leader is not None and leader.partition("@")[0] == name


def test_node_that_was_away_comes_back_under_a_leader_that_it_does_not_know(
    world: tuple[LocalCluster, raftstore.Client, list[NewNode]],
) -> None:
    """S0.1, S0.7: two nodes joined meanwhile, and one of them leads the metadata channel: it alone
    could have the catalog say who it is, and was refused for it."""
    cluster, client, _ = world
    cluster.kill("n3")
    for name in ("n4", "n5"):
        cluster.join(name, client.join_token())
        _wait(lambda name=name: _is_up(client, name), f"{name} did not join")

    def newcomer_leads() -> bool:
        with contextlib.suppress(raftstore.RaftstoreError):
            client.step_down("_metadata/0", target="n5")
        return _leads_metadata(client, "n5")

    _wait(newcomer_leads, "n5 does not lead the metadata channel")
    log = cluster.log_file("n3")
    before = len(log.read_text())
    cluster.start("n3")
    steady = 'channel=_metadata/0 event="mode" mode=steady'
    _wait(lambda: steady in log.read_text()[before:], "n3 does not follow the metadata channel")
    assert _leads_metadata(client, "n5"), "else this shows nothing"
    _wait(lambda: all(member.up for member in client.members()), "not all are up")


def test_node_joins_hosts_a_table_and_leaves(
    world: tuple[LocalCluster, raftstore.Client, list[NewNode]], tmp_path: Path
) -> None:
    """M27, M28: from a token to a replica, and out again; others without a token are refused."""
    _, client, started = world
    token = client.join_token()
    started.append(n4 := NewNode("n4", tmp_path, "--join", token))
    _wait(lambda: _is_up(client, "n4"), "n4 did not join")
    for name, given, why in (
        ("n5", token, "was used by n4@"),
        ("n1", client.join_token(), "raftstore cluster token --replaces n1"),
        # The last one: another token that is made has the catalog forget what has expired.
        ("n6", client.join_token(lifetime=0.001), "the token has expired"),
    ):
        started.append(refused := NewNode(name, tmp_path, "--join", given))
        code, line = refused.exit()
        assert (code, why in line) == (EXIT_CONFIG, True), line
    client.create_table("wide", key="id", partitions=4, replicas=1)
    assert {member.replicas for member in client.members()} == {1}
    wide = client.table("wide")
    wide.put_many({"id": number} for number in range(40))
    assert wide.count().rows == 40
    client.drop_table("wide")
    with pytest.raises(StillMemberError, match="does not drain"):
        client.remove_node("n4")
    client.drain_node("n4")
    _wait(lambda: _removed(client, "n4"), "n4 could not leave")
    code, line = n4.exit()
    assert (code, "was retired from cluster" in line) == (EXIT_CONFIG, True), line
    assert sorted(_members(client)) == ["n1", "n2", "n3"]
    started.append(again := NewNode("n4", tmp_path, "--join", token))
    code, line = again.exit()
    assert (code, "was retired from cluster" in line) == (EXIT_CONFIG, True), line


def _removed(client: raftstore.Client, name: str) -> bool:
    try:
        client.remove_node(name)
    except StillMemberError:
        return False
    return True


def test_lost_disk_is_made_good_by_two_commands(
    world: tuple[LocalCluster, raftstore.Client, list[NewNode]], tmp_path: Path
) -> None:
    """M29: while clients write; the wiped node says itself which two."""
    cluster, client, started = world
    client.create_table("kept", key="id", partitions=4)
    table = client.table("kept")
    ends = threading.Event()
    written: list[int] = []

    def write() -> None:
        with cluster.connect(timeout=30.0) as writer:
            number = 0
            while not ends.is_set():
                writer.table("kept").put({"id": number})
                written.append(number)
                number += 1
                time.sleep(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        endpoint = cluster.endpoints_by_node()["n3"]
        founders = ",".join(f"{name}={at}" for name, at in cluster.endpoints_by_node().items())
        cluster.kill("n3")
        shutil.rmtree(cluster.directory / "n3")
        wiped = NewNode("n3", tmp_path, "--initial-cluster", founders, endpoint=endpoint)
        started.append(wiped)
        code, line = wiped.exit()
        assert code == EXIT_CONFIG
        assert "`raftstore cluster replace n3`" in line
        assert "`raftstore node --id n3 --join TOKEN`" in line
        _wait(lambda: not _is_up(client, "n3"), "n3 is not found down")
        token = client.join_token(replaces="n3")
        started.append(NewNode("n3", tmp_path, "--join", token, endpoint=endpoint))
        _wait(lambda: _is_whole(client), "the replicas of n3 are not whole")
    finally:
        ends.set()
        thread.join()
    assert written
    for number in written:
        assert table.get(number) == {"id": number}
    # Whole again: any one of the three may be lost now.
    cluster.kill("n1")
    ack = table.put({"id": -1})
    assert table.get(-1, replica="n3", at_least=ack.position) == {"id": -1}


def _is_whole(client: raftstore.Client) -> bool:
    """Whether every channel has three live replicas that are not behind, the catalog too."""
    members = _members(client)
    info = client.table_info("kept")
    hosts = [set(channel.replicas) for channel in info.channels]
    alive = {member.id for member in members.values() if member.up}
    voters = [member for member in members.values() if member.catalog == "voter" and member.up]
    is_hosted = all(len(replicas) == 3 and replicas <= alive for replicas in hosts)
    return is_hosted and len(voters) == 3
