"""Backups of real nodes: taken while they are written to, restored into another cluster."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raftstore import backup
from raftstore.backup.manifest import TableBackup
from raftstore.client.blocking.client import Client, Table
from raftstore.client.results import WriteAck
from raftstore.local_cluster import LocalCluster
from raftstore.types import node_name
from tests.cluster.watching import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "backup.md").read_text(encoding="utf-8")
KEYS = 40
"""Keys of each sort: those of batches and those of single writes."""
SINGLE = 1_000
"""Single writes have keys from here on."""
ACKED_FIRST = 60


class Load:
    """Two writers: batches that all write the same keys, and puts whose positions are kept."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._stop = threading.Event()
        self.puts: list[tuple[int, int, WriteAck]] = []
        """Key, value and position of each."""
        self.batches = 0
        self.errors: list[BaseException] = []
        self.busy = threading.Event()
        """Set when there is something of both."""
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in self._works()]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write meanwhile."""
        for thread in self._threads:
            thread.start()
        try:
            assert self.busy.wait(30)
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        assert self.errors == []

    def _works(self) -> tuple[Any, Any]:
        return self._batch, self._put

    def _run(self, work: Any) -> None:
        try:
            number = 0
            while not self._stop.is_set():
                work(number)
                number += 1
                if self.batches and len(self.puts) >= ACKED_FIRST:
                    self.busy.set()
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            self.errors.append(error)

    def _batch(self, number: int) -> None:
        rows = [{"id": key, "n": number} for key in range(KEYS)]
        self._table.write_batch(rows, writer="stream", batch_id=number, lineage="ck", timeout=30)
        self.batches = number + 1

    def _put(self, number: int) -> None:
        key = SINGLE + number % KEYS
        self.puts.append((key, number, self._table.put({"id": key, "n": number}, timeout=30)))


def expected_singles(load: Load, taken: TableBackup) -> dict[int, int]:
    """Every key of single writes with its value at the positions that the backup names."""
    return {
        key: value
        for key, value, ack in load.puts
        if ack.seq <= taken.partitions[ack.partition].seq
    }


def rows_of(client: Client, name: str) -> dict[int, int]:
    return {row["id"]: row["n"] for row in client.table(name).scan()}


def assert_one_membership(client: Client, names: list[str]) -> None:
    """The catalog, the channels' logs and the nodes themselves agree on who has replicas (S8)."""
    for name in names:
        of_catalog = {
            f"{name}/{number}": {*map(node_name, channel.replicas)}
            for number, channel in enumerate(client.table_info(name).channels)
        }
        ordered = {each.channel: each for each in client.replicas() if each.channel in of_catalog}
        assert {each: set(ordered[each].voters) for each in of_catalog} == of_catalog
        assert not any(each.learners or each.change for each in ordered.values())
        for channel, voters in of_catalog.items():
            eventually(lambda channel=channel: hosts_of(client, channel), voters.__eq__)


def hosts_of(client: Client, channel: str) -> set[str]:
    """Nodes that report a replica of the channel themselves."""
    return {
        node.name
        for node in client.cluster_status().nodes
        if node.status is not None
        for each in node.status["channels"]
        if f"{each['table']}/{each['partition']}" == channel
    }


@pytest.mark.cluster
@pytest.mark.slow
def test_gap_12_backup_under_load_comes_back_row_by_row_at_the_positions_it_names(
    tmp_path: Path,
) -> None:
    """Each micro-batch is in it as a whole with its writer's number, each single write if and only
    if its position is covered; a node of the other cluster is killed while it is restored, and the
    writer goes on there behind its last batch."""
    place = str(tmp_path / "backups")
    with LocalCluster(nodes=3, directory=tmp_path / "a") as source, source.connect() as client:
        client.create_table("t", key="id", schema="id long, n long", partitions=4)
        load = Load(client.table("t"))
        with load.running():
            acked = list(load.puts)
            begun = load.batches - 1
            first = backup.create_backup(client, place)
            second = backup.create_backup(client, place)
    assert second.base == first.id
    assert backup.verify_backup(place, first.id).problems == ()
    assert backup.verify_backup(place, second.id).problems == ()
    with LocalCluster(nodes=3, directory=tmp_path / "b") as target, target.connect() as client:
        victims = ["n2"]

        def kill_one(_: backup.Progress) -> None:
            if victims:
                target.kill(victims.pop())

        backup.restore_backup(client, place, first.id, tables={"t": "one"}, progress=kill_one)
        assert victims == []
        backup.restore_backup(client, place, second.id, tables={"t": "two"})
        for made, name in ((first, "one"), (second, "two")):
            (taken,) = made.tables
            (writer,) = taken.writers
            rows = rows_of(client, name)
            batched = {key: value for key, value in rows.items() if key < SINGLE}
            assert batched == dict.fromkeys(range(KEYS), writer.batch_id)
            singles = {key: value for key, value in rows.items() if key >= SINGLE}
            assert singles == expected_singles(load, taken)
            assert writer.batch_id >= begun
            table = client.table(name)
            assert table.begin_batch("stream", writer.batch_id, lineage="ck").is_already_written
            rest = [{"id": key, "n": -1} for key in range(KEYS)]
            again = table.write_batch(
                rest, writer="stream", batch_id=writer.batch_id + 1, lineage="ck"
            )
            assert not again.already
            assert rows_of(client, name)[0] == -1
        target.start("n2")
        target.wait_until_ready()
        assert_one_membership(client, ["one", "two"])
        newest = {key: value for key, value, _ in acked}
        for key, value in expected_singles(load, first.tables[0]).items():
            assert value >= newest[key], "everything acknowledged before is in it"


@pytest.mark.cluster
@pytest.mark.slow
def test_python_of_the_page_runs() -> None:
    """The page on backups keeps its word."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
