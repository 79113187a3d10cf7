"""Atomic micro-batches on real node processes."""

from __future__ import annotations

import threading

import pytest

from raftstore.client.blocking.client import Client
from raftstore.errors import (
    ArgumentError,
    BatchIncompleteError,
    BatchRegressionError,
    WriterFencedError,
)
from raftstore.local_cluster import LocalCluster
from raftstore.protocol.payload import encode_rows
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from tests.cluster.watching import equal_replicas, leader_of
from tests.promises import promised

pytestmark = pytest.mark.cluster
NAMES = ["n1", "n2", "n3"]
PARTITIONS = 4


def rows_of(client: Client, table: str = "t") -> dict[int, int]:
    """The table, as id -> batch."""
    return {row["id"]: row["batch"] for row in client.table(table).scan()}


def batch(batch_id: int, count: int = 200) -> list[dict[str, int]]:
    """Rows that say which batch they are of."""
    return [{"id": number, "batch": batch_id} for number in range(count)]


def chunks_of(rows: list[dict[str, int]]) -> list[tuple[int, bytes, int]]:
    """A chunk for each partition: (partition, payload, rows)."""
    schema = TableSchema(("id",))
    pairs: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for row in rows:
        key, value = schema.row_to_key_value(row)
        pairs.setdefault(partition_of(key, PARTITIONS), []).append((key, seal(key, value)))
    return [(partition, encode_rows(found), len(found)) for partition, found in pairs.items()]


def test_commit_of_what_another_attempt_staged_is_refused_and_stops_nothing(
    cluster: LocalCluster, client: Client
) -> None:
    """Given a commit that lists another attempt's rows, it is refused, and the same writer and
    table go on.
    """
    client.create_table("t", key="id", partitions=PARTITIONS)
    table = client.table("t")
    staged = []
    for number in range(2):
        ticket = table.begin_batch("w", number, uuid=bytes(15) + bytes((number,)), lineage="c")
        with table.stager(ticket, 0, 0) as stager:
            for partition, payload, rows in chunks_of(batch(number, 40 * (number + 1))):
                stager.add(partition, payload, rows)
        staged.append(stager.staged)
    with pytest.raises(BatchIncompleteError, match="nothing was decided"):
        table.commit_batch(ticket, [staged[0]])
    assert rows_of(client) == {}
    assert table.commit_batch(ticket, [staged[1]]).n == 1
    assert rows_of(client) == {row["id"]: row["batch"] for row in batch(1, 80)}
    assert table.write_batch(batch(2, 10), writer="w", batch_id=2, lineage="c").n == 2
    equal_replicas(client, "t", NAMES)


def test_batches_are_visible_at_once_in_every_partition(
    cluster: LocalCluster, client: Client
) -> None:
    """Staged rows are seen by nobody; a commit that returned is seen by every read by key; a batch
    that is repeated changes nothing; overwrite leaves nothing of before."""
    client.create_table("t", key="id", partitions=PARTITIONS)
    table = client.table("t")
    table.put_many(batch(-1, 300))
    ticket = table.begin_batch("w", 0, lineage="c")
    with table.stager(ticket, 0, 0) as stager:
        for partition, payload, rows in chunks_of(batch(0)):
            stager.add(partition, payload, rows)
    assert set(rows_of(client).values()) == {-1}
    result = table.commit_batch(ticket, [stager.staged])
    assert (result.n, result.rows, result.vector) == (1, 200, (1,) * PARTITIONS)
    assert {table.get(number)["batch"] for number in range(200)} == {0}  # type: ignore[index]
    again = table.write_batch(batch(77), writer="w", batch_id=0, lineage="c")
    assert (again.n, again.already) == (1, True)
    with pytest.raises(BatchRegressionError, match="of another checkpoint"):
        table.write_batch(batch(77), writer="w", batch_id=1, lineage="other")
    replaced = table.write_batch(batch(1, 5), writer="w", batch_id=1, lineage="c", mode="overwrite")
    assert replaced.vector == (2,) * PARTITIONS
    assert rows_of(client) == dict.fromkeys(range(5), 1)
    told = table.writers()
    assert (told.outbox, told.applied_everywhere) == (0, 2)
    assert [(view.writer, view.last_batch) for view in told.writers] == [("w", 1)]
    assert equal_replicas(client, "t", NAMES) == 5


def test_task_attempt_may_be_staged_again_with_other_rows(
    cluster: LocalCluster, client: Client
) -> None:
    """Given a task attempt that is staged again with other rows, the commit with the second parts
    has exactly those: no channel finds a chunk of the first under a committed name.
    """
    client.create_table("t", key="id", partitions=PARTITIONS)
    table = client.table("t")
    ticket = table.begin_batch("w", 0)
    for number, count in ((0, 200), (1, 100)):
        with table.stager(ticket, 3, 7) as stager:
            for partition, payload, rows in chunks_of(batch(number, count)):
                stager.add(partition, payload, rows)
    assert table.commit_batch(ticket, [stager.staged]).rows == 100
    assert rows_of(client) == dict.fromkeys(range(100), 1)
    table.write_batch(batch(2, 10), writer="w", batch_id=1)
    assert equal_replicas(client, "t", NAMES) == 100
    with pytest.raises(ArgumentError, match="task_attempt_id=-1 is no whole number from 0 on"):
        table.stager(ticket, 0, -1)


def test_second_driver_fences_the_first(cluster: LocalCluster, client: Client) -> None:
    """The first driver may have everything staged by then."""
    client.create_table("t", key="id", partitions=2)
    table = client.table("t")
    old = table.begin_batch("w", 0)
    assert table.write_batch(batch(0, 10), writer="w", batch_id=0).n == 1
    with pytest.raises(WriterFencedError):
        table.commit_batch(old, [])
    client.adopt_writer("t", "w", lineage="new")
    assert table.write_batch(batch(5, 10), writer="w", batch_id=0, lineage="new").n == 2
    client.remove_writer("t", "w")
    assert table.writers().writers == ()
    assert rows_of(client) == dict.fromkeys(range(10), 5)


@pytest.mark.slow
def test_batches_are_written_once_through_the_death_of_the_coordinator(
    cluster: LocalCluster, client: Client
) -> None:
    """The leader of partition 0 is killed again and again: each batch is in the table once, whole,
    and a reader by key never sees the batches go back."""
    client.create_table("t", key="id", partitions=PARTITIONS)
    table = client.table("t")
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        with cluster.connect(timeout=15.0) as reader:
            while not done.is_set():
                row = reader.table("t").get(7, timeout=15.0)
                seen.append(-1 if row is None else row["batch"])

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for batch_id in range(12):
            if batch_id % 4 == 2:
                victim = leader_of(client, "t")
                cluster.kill(victim)
            result = table.write_batch(batch(batch_id), writer="w", batch_id=batch_id, timeout=60)
            assert (result.n, result.rows) == (batch_id + 1, 200)
            assert {row["batch"] for row in table.get_many(range(200), timeout=30) if row} == {
                batch_id
            }
            if batch_id % 4 == 2:
                cluster.start(victim)
    finally:
        done.set()
        thread.join()
    promised(seen == sorted(seen), f"readers went back in time: {seen}")
    cluster.wait_until_ready()
    assert equal_replicas(client, "t", NAMES) == 200
