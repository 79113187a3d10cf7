"""Birth, restart, kill -9, SIGTERM and SIGSTOP of real node processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from raftstore.client.blocking.client import Client, connect
from raftstore.errors import RaftstoreError, RequestError
from raftstore.local_cluster import ENDPOINTS_NAME, LocalCluster
from raftstore.types import node_name
from tests.cluster.watching import equal_replicas, eventually, leader_of, own_status
from tests.promises import promised

pytestmark = pytest.mark.cluster
NAMES = ["n1", "n2", "n3"]


def test_cluster_serves_again_when_all_nodes_were_killed(
    cluster: LocalCluster, client: Client
) -> None:
    """Born once, the same cluster comes back from its directories with every row."""
    client.create_table("orders", key="id", partitions=2)
    orders = client.table("orders")
    orders.put_many([{"id": number, "text": "x" * number} for number in range(200)])
    born = client.cluster_status().cluster_id
    for name in NAMES:
        cluster.kill(name)
    for name in NAMES:
        cluster.start(name)
    cluster.wait_until_ready()
    with cluster.connect(timeout=15.0) as again:
        assert again.cluster_status().cluster_id == born
        rows = list(again.table("orders").scan())
        assert rows == [{"id": number, "text": "x" * number} for number in range(200)]
        assert equal_replicas(again, "orders", NAMES) == 200


def test_no_acknowledged_write_is_lost_when_the_leader_is_killed(
    cluster: LocalCluster, client: Client
) -> None:
    """A writer goes on through a kill -9; all that was acknowledged to it is at every replica
    afterwards."""
    client.create_table("events", key="id", partitions=1)
    victim = leader_of(client, "events")
    acknowledged: list[int] = []
    enough, stop = threading.Event(), threading.Event()

    def write() -> None:
        events = client.table("events")
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(RequestError):
                events.put({"id": number, "half": number / 2}, timeout=10.0)
                acknowledged.append(number)
            if len(acknowledged) >= 100:
                enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert enough.wait(20)
        cluster.kill(victim)
        killed_at = len(acknowledged)
        eventually(lambda: len(acknowledged), lambda count: count > killed_at + 100)
    finally:
        stop.set()
        writer.join()
    successor = leader_of(client, "events")
    assert successor != victim
    cluster.start(victim)
    cluster.wait_until_ready()
    equal_replicas(client, "events", NAMES)
    events = client.table("events")
    for name in NAMES:
        rows = events.get_many(acknowledged, level="any", replica=name)
        expected = [{"id": number, "half": number / 2} for number in acknowledged]
        promised(all(row in rows for row in expected), f"acknowledged rows are gone: {name}")
        assert rows == expected, name

    # N8: the failover is reported by who saw it after who led it died, and after all were
    # restarted.
    cluster.kill(successor)
    eventually(lambda: failovers(client), lambda told: (victim, successor) in told)
    for name in NAMES:
        if name != successor:
            cluster.kill(name)
    for name in NAMES:
        cluster.start(name)
    cluster.wait_until_ready()
    with cluster.connect(timeout=15.0) as again:
        eventually(lambda: failovers(again), lambda told: (victim, successor) in told)


def failovers(client: Client) -> set[tuple[str, str]]:
    """Old and new leader of each failover of the table, as the nodes report now."""
    return {
        (node_name(event["old_leader"]), node_name(event["new_leader"]))
        for event in client.events("failover").events
        if event["channel"] == "events/0" and event["old_leader"] is not None
    }


def test_node_catches_up_when_it_missed_writes(cluster: LocalCluster, client: Client) -> None:
    """Given writes while a node was down, it has them after its start.

    Shows FIP-03, FIP-26, NATS-006.
    """
    client.create_table("orders", key="id", partitions=2)
    orders = client.table("orders")
    cluster.kill("n3")
    rows = [{"id": number, "text": "y" * 100} for number in range(5_000)]
    ack = orders.put_many(rows, timeout=20.0)
    cluster.start("n3")
    cluster.wait_until_ready()
    found = orders.get(4_999, level="any", replica="n3", at_least=ack.position, timeout=10.0)
    assert found == rows[-1]
    assert equal_replicas(client, "orders", NAMES) == 5_000


def test_paused_leader_does_not_answer_with_the_old_value_when_it_wakes_up(
    cluster: LocalCluster, client: Client
) -> None:
    """A leader that slept through an election and a write refuses or answers the new value."""
    client.create_table("orders", key="id", partitions=1)
    orders = client.table("orders")
    orders.put({"id": 1, "text": "old"})
    sleeper = leader_of(client, "orders")
    cluster.pause(sleeper)
    others = [at for name, at in cluster.endpoints_by_node().items() if name != sleeper]
    with connect(others, timeout=15.0) as awake:
        awake.table("orders").put({"id": 1, "text": "new"}, timeout=15.0)
    answers: list[object] = []

    def ask() -> None:
        with suppress(RaftstoreError):
            answers.append(orders.get(1, replica=sleeper, timeout=5.0))

    # The questions wait in the sleeper's socket and are the first thing it sees.
    readers = [threading.Thread(target=ask) for _ in range(8)]
    for reader in readers:
        reader.start()
    cluster.resume(sleeper)
    for reader in readers:
        reader.join()
    assert all(answer == {"id": 1, "text": "new"} for answer in answers), answers
    assert orders.get(1, timeout=15.0) == {"id": 1, "text": "new"}


def test_sigterm_hands_leadership_over_and_exits_0(cluster: LocalCluster, client: Client) -> None:
    """A planned stop costs no election timeout: another node leads before the process is gone."""
    client.create_table("orders", key="id", partitions=4)
    orders = client.table("orders")
    leaving = leader_of(client, "orders")
    orders.put_many([{"id": number} for number in range(100)])
    assert cluster.stop(leaving) == 0
    log = cluster.log_file(leaving).read_text()
    assert 'event="stopped" exit_code=0' in log
    assert "panic" not in log
    orders.put({"id": 100})
    assert leader_of(client, "orders") != leaving
    assert len(list(orders.scan())) == 101


def test_leader_sends_no_payload_to_healthy_replicas(client: Client) -> None:
    """Publishers bring the payload to every replica; the leader sends metadata only."""
    client.create_table("orders", key="id", partitions=1)
    orders = client.table("orders")
    orders.put({"id": 0, "text": ""})
    leader = leader_of(client, "orders")

    def sent() -> dict[str, int]:
        traffic = own_status(client, leader)["traffic"]
        return {
            "payload": sum(count["payload_bytes"] for count in traffic.values()),
            "bytes": sum(count["bytes"] for count in traffic.values()),
        }

    before = sent()
    for round_number in range(20):
        orders.put_many([{"id": n, "text": "z" * 200} for n in range(round_number, 100)])
    written = sum(200 * (100 - round_number) for round_number in range(20))
    after = sent()
    assert after["payload"] == before["payload"]
    assert after["bytes"] - before["bytes"] < written / 10


def test_node_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    """No node outlives a program that used LocalCluster, however that program ended."""
    program = (
        "import sys, time, raftstore\n"
        f"cluster = raftstore.LocalCluster(nodes=1, directory={str(tmp_path)!r}).__enter__()\n"
        "print(cluster.pid('n1'), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    node = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: is_running(node), lambda running: not running)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_cluster_finds_itself_when_every_address_changed_at_once(tmp_path: Path) -> None:
    """S0.7: the new --initial-cluster says where; who answers there is checked by its identity."""
    with (
        LocalCluster(nodes=3, directory=tmp_path) as before,
        before.connect(timeout=15.0) as client,
    ):
        client.create_table("t", key="id", partitions=2)
        client.table("t").put({"id": 1, "v": "kept"})
        old = before.endpoints
    (tmp_path / ENDPOINTS_NAME).unlink()  # as after a move to another network
    with LocalCluster(nodes=3, directory=tmp_path) as after, after.connect(timeout=15.0) as client:
        assert set(after.endpoints).isdisjoint(old)
        assert client.table("t").get(1) == {"id": 1, "v": "kept"}
        client.table("t").put({"id": 2, "v": "new"})
        assert sorted(row["id"] for row in client.table("t").scan()) == [1, 2]


def test_refused_first_start_leaves_nothing_behind(tmp_path: Path) -> None:
    """A forgotten --initial-cluster must not leave a store that belongs to nobody."""
    directory = tmp_path / "n1"
    arguments = ["node", "--id", "n1", "--data-dir", str(directory), "--listen", "127.0.0.1:0"]
    arguments += ["--http", ""]
    done = subprocess.run(
        [sys.executable, "-m", "raftstore.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 78
    assert "--initial-cluster" in done.stderr
    assert not directory.exists()
