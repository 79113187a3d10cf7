"""Snapshots of a table while batches are committed, on real node processes."""

from __future__ import annotations

import threading

import pytest

from raftstore.client.blocking.client import Client
from raftstore.errors import PageExpiredError
from raftstore.local_cluster import LocalCluster
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from tests.cluster.watching import leader_of
from tests.promises import promised

pytestmark = pytest.mark.cluster
PARTITIONS = 4
KEYS = [
    next(key for key in range(1_000) if partition_of(encode_key((key,)), PARTITIONS) == partition)
    for partition in range(PARTITIONS)
]
"""One key of each partition."""


def batch(batch_id: int) -> list[dict[str, int]]:
    """One row in every partition that says of which batch it is."""
    return [{"id": key, "batch": batch_id} for key in KEYS]


def test_snapshot_holds_what_was_acknowledged_and_stays_as_it_is(
    cluster: LocalCluster, client: Client
) -> None:
    """Rows of before, of batches, and the state after one batch while others follow."""
    client.create_table("t", key="id", partitions=PARTITIONS)
    table = client.table("t")
    table.put_many({"id": number, "batch": -1} for number in range(2_000, 2_500))
    with table.snapshot() as before, cluster.connect(timeout=15.0) as other:
        assert (before.n, before.count()) == (0, 500)
        first = table.write_batch(batch(0), writer="w", batch_id=0)
        second = table.write_batch(batch(1), writer="w", batch_id=1)
        elsewhere = other.table("t")
        with elsewhere.snapshot(prefer="any_in_bound") as newest:
            assert newest.n == second.n
            assert [row["batch"] for row in newest.get_many(KEYS) if row] == [1] * PARTITIONS
            assert newest.count() == len(list(newest.scan())) == 504
            pages = [page for number in range(PARTITIONS) for page in newest.pages(number)]
            assert sum(map(len, pages)) == 504
        with elsewhere.snapshot(at_batch=first) as older:
            assert [row["batch"] for row in older.get_many(KEYS) if row] == [0] * PARTITIONS
        assert before.count() == 500
        again = elsewhere.read_snapshot(before.token)
        assert [row["batch"] for row in again.scan(limit=3)] == [-1] * 3


class Watcher(threading.Thread):
    """Takes one snapshot after the other, at any replica, and notes what it sees."""

    def __init__(self, cluster: LocalCluster, level: str) -> None:
        super().__init__()
        self.level = level
        self.done = threading.Event()
        self.seen: list[int | None] = []
        self.torn: list[object] = []
        self.failure: Exception | None = None
        self._cluster = cluster

    def run(self) -> None:
        try:
            with self._cluster.connect(timeout=20.0) as reader:
                while not self.done.is_set():
                    self._look(reader)
        except Exception as error:  # noqa: BLE001 - the test reports it
            self.failure = error

    def _look(self, reader: Client) -> None:
        with reader.table("t").snapshot(level=self.level, prefer="any_in_bound") as snapshot:
            try:
                rows = snapshot.get_many(KEYS)
            except PageExpiredError:  # its node was killed
                return
            numbers = {None if row is None else row["batch"] for row in rows}
            if len(numbers) != 1:
                self.torn.append((snapshot.token, rows))
            self.seen += numbers


@pytest.mark.slow
def test_snapshots_see_one_batch_everywhere_and_never_fall_while_a_node_is_killed(
    cluster: LocalCluster, client: Client
) -> None:
    """Every batch writes its number into one row of every partition; readers at any replica see
    one number in all of them, and never a lower one than before."""
    client.create_table("t", key="id", partitions=PARTITIONS)
    table = client.table("t")
    table.write_batch(batch(0), writer="w", batch_id=0, timeout=30)
    watchers = [Watcher(cluster, level) for level in ("any", "linearizable")]
    for watcher in watchers:
        watcher.start()
    try:
        for batch_id in range(1, 25):
            if batch_id == 8:
                victim = leader_of(client, "t")
                cluster.kill(victim)
            if batch_id == 16:
                cluster.start(victim)
            table.write_batch(batch(batch_id), writer="w", batch_id=batch_id, timeout=60)
    finally:
        for watcher in watchers:
            watcher.done.set()
            watcher.join()
    for watcher in watchers:
        promised(not watcher.torn, f"half of a batch was seen: {watcher.torn}")
        assert watcher.failure is None
        promised(watcher.seen == sorted(watcher.seen), "a snapshot went back")  # type: ignore[type-var]
        assert len(set(watcher.seen)) > 3
