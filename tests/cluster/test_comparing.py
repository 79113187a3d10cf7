"""`raftstore channel verify --deep` against real nodes, of which one has another table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
from click.testing import CliRunner

from raftstore.cli.errors import EXIT_DIFFERENCE, EXIT_NOT_COMPARED
from raftstore.cli.main import cli, global_options_first
from raftstore.client.blocking.client import Client
from raftstore.client.comparing.results import ComparisonProgress
from raftstore.local_cluster import LocalCluster
from raftstore.rows.schema import TableSchema
from raftstore.types import ChannelId
from tests.cluster.edited import add_row, change_row, remove_row, table_directory
from tests.cluster.watching import equal_replicas, eventually

pytestmark = pytest.mark.cluster
ROWS = 6_000


@contextmanager
def writes(client: Client) -> Iterator[list[int]]:
    """Rows are written as fast as they are acknowledged; how many were."""
    done, written = Event(), [0]

    def write() -> None:
        orders = client.table("orders")
        while not done.is_set():
            first = ROWS + written[0] % 1_000
            orders.put_many([{"id": first + number, "text": "more"} for number in range(20)])
            written[0] += 20

    thread = Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        done.set()
        thread.join()


def shell(cluster: LocalCluster, *arguments: str) -> tuple[int, Any]:
    """Exit code and output of a command."""
    endpoints = ",".join(cluster.endpoints)
    options = ["--endpoints", endpoints, "--timeout", "20s", "-o", "json"]
    arguments = tuple(global_options_first([*options, *arguments]))
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, json.loads(result.stdout)


def test_differences_are_named_while_writes_go_on(cluster: LocalCluster, client: Client) -> None:
    """Changed, missing and added rows of one replica, and nothing else."""
    client.create_table("orders", key="id", partitions=1)
    rows = [{"id": number, "text": f"row {number}"} for number in range(ROWS)]
    client.table("orders").put_many(rows)
    names = sorted(cluster.running())
    eventually(lambda: equal_replicas(client, "orders", names), lambda rows: rows == ROWS)
    told: list[ComparisonProgress] = []
    with writes(client) as written:
        found = client.compare_replicas("orders/0", progress=told.append, timeout=20.0)
        before = written[0]
        assert not found.is_different
        assert found.is_whole, found
        assert found.entries >= ROWS
    assert written[0] > before or before > 0
    assert {at.part for at in told} == {"history", "contents"}
    assert {replica.chain_hash for replica in found.replicas} != {""}
    [channel] = [ChannelId(each.channel) for each in client.table_info("orders").channels]
    schema = TableSchema(("id",))
    data = cluster.directory / "n3"
    cluster.stop("n3")
    code, [one] = shell(cluster, "channel", "verify", "orders", "--deep")
    assert code == EXIT_NOT_COMPARED
    assert [replica["not_compared"] != "" for replica in one["replicas"]].count(True) == 1
    change_row(data, channel, schema.key_of(17), b"\x81\xa4text\xa5wrong")
    remove_row(data, channel, schema.key_of(4_321))
    add_row(data, channel, schema.key_of(999_999), like=schema.key_of(18))
    cluster.start("n3")
    cluster.wait_until_ready()
    with writes(client):
        code, [one] = shell(cluster, "channel", "verify", "orders/0", "--deep")
    assert code == EXIT_DIFFERENCE
    assert one["verdict"] == "different"
    assert one["histories"] == one["ranges"] == []
    assert [(each["kind"], each["key"]) for each in one["keys"]] == [
        ("row", {"id": 17}),
        ("row", {"id": 4_321}),
        ("row", {"id": 999_999}),
    ]
    changed, removed, added = (each["digests"] for each in one["keys"])
    assert changed["n1"] == changed["n2"] != changed["n3"]
    assert (removed["n3"], removed["n1"] is None) == (None, False)
    assert (added["n1"], added["n2"]) == (None, None)
    wrong = {replica["node"] for replica in one["replicas"] if replica["differs"]}
    assert wrong == {"n3"}
    # What docs/operations.md says makes it whole.
    cluster.stop("n3")
    shutil.rmtree(table_directory(data, channel))
    cluster.start("n3")
    cluster.wait_until_ready()
    code, [one] = shell(cluster, "channel", "verify", "orders/0", "--deep")
    assert (code, one["verdict"]) == (0, "equal")
