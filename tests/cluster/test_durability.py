"""Tables below ``fsync`` on real processes: kill -9 of one and of all three (S0.6, NATS-016)."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Self

import pytest

from raftstore.client.blocking.client import Client
from raftstore.errors import RequestError, StoreTooOldError
from raftstore.local_cluster import LocalCluster
from raftstore.types import DurabilityName
from tests.cluster.watching import eventually, leader_of
from tests.promises import promised

pytestmark = pytest.mark.cluster
NAMES = ["n1", "n2", "n3"]


class Load:
    """Puts one row after the other until it is stopped."""

    def __init__(self, client: Client, durability: DurabilityName) -> None:
        eventually(lambda: self._is_created(client, durability), bool)
        self._durability, self._table = durability, client.table(durability)
        self.acknowledged: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    @staticmethod
    def _is_created(client: Client, durability: DurabilityName) -> bool:
        """A cluster that was born a moment ago does not know the level of each node yet."""
        with suppress(StoreTooOldError):
            client.create_table(durability, key="id", partitions=1, durability=durability)
            return True
        return False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            with suppress(RequestError):
                ack = self._table.put({"id": number}, timeout=15.0)
                assert ack.durability == self._durability
                self.acknowledged.append(number)

    def await_more(self, count: int) -> None:
        """Until so many more writes are acknowledged."""
        wanted = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged), lambda found: found >= wanted)


def expect_all(cluster: LocalCluster, table: str, acknowledged: list[int]) -> None:
    """Every acknowledged row is there."""
    with cluster.connect(timeout=15.0) as again:
        rows = again.table(table).get_many(acknowledged, level="linearizable")
    gone = [number for number, row in zip(acknowledged, rows, strict=True) if row is None]
    promised(not gone, f"acknowledged rows of {table} are gone: {gone}")


def test_kill_9_of_one_loses_nothing_and_of_all_three_nothing_at_buffered(
    cluster: LocalCluster, client: Client
) -> None:
    """The system has what was acknowledged at buffered. At memory two others have it, or one has
    and is not outvoted; when all are killed, all are in doubt, all answer, and one leads."""
    with Load(client, "buffered") as buffered, Load(client, "memory") as memory:
        for load in (buffered, memory):
            load.await_more(100)
        victim = leader_of(client, "memory")
        cluster.kill(victim)
        memory.await_more(50)
        cluster.start(victim)
        cluster.wait_until_ready()
        memory.await_more(50)
        acknowledged = [*memory.acknowledged]
        expect_all(cluster, "memory", acknowledged)
        for name in NAMES:
            cluster.kill(name)
        for name in NAMES:
            cluster.start(name)
        cluster.wait_until_ready()
        for load in (buffered, memory):
            load.await_more(20)
    expect_all(cluster, "buffered", buffered.acknowledged)
    expect_all(cluster, "memory", acknowledged)
    expect_checkpoints(cluster, client, memory.acknowledged)


def expect_checkpoints(cluster: LocalCluster, client: Client, acknowledged: list[int]) -> None:
    """NATS-017: behind a checkpoint a kill of all nodes loses nothing at memory either."""
    found = client.checkpoint()
    assert sorted(found) == NAMES
    assert all(set(durable) == {"buffered/0", "memory/0"} for durable in found.values())
    before = len(client.events(("checkpoint",)).events)
    os.kill(cluster.pid("n1"), signal.SIGUSR1)
    eventually(lambda: len(client.events(("checkpoint",)).events), lambda now: now == before + 1)
    for name in NAMES:
        cluster.kill(name)
    for name in NAMES:
        cluster.start(name)
    cluster.wait_until_ready()
    expect_all(cluster, "memory", acknowledged)
