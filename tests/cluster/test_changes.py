"""The changes of a table on real node processes: each once, at any replica and through crashes."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from click.testing import CliRunner

from raftstore.cli.main import cli
from raftstore.client.blocking.client import Client
from raftstore.client.changes.change_feed import Change
from raftstore.errors import ArgumentError, ConflictError, DataLossError, PositionError
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import leader_of

pytestmark = pytest.mark.cluster
PARTITIONS = 3


def fold(changes: list[Change], table: dict[int, dict[int, object]]) -> None:
    """Apply changes to what was known, by partition."""
    for change in changes:
        rows = table.setdefault(change.partition, {})
        if change.kind == "truncate":
            rows.clear()
        else:
            assert change.row is not None
            if change.kind == "upsert":
                rows[change.row["id"]] = change.row
            else:
                rows.pop(change.row["id"], None)


def test_changes_are_told_once_in_order_and_from_any_position(
    cluster: LocalCluster, client: Client
) -> None:
    """Rows, deletes, conditions, batches; resumed after each change, and under another leader."""
    client.create_table("t", key="id", partitions=PARTITIONS)
    table = client.table("t")
    table.put_many({"id": number, "v": 0} for number in range(300))
    with pytest.raises(ConflictError):
        table.put({"id": 1, "v": -1}, if_absent=True)
    table.delete(2)
    since = table.snapshot(keep=False).position
    table.write_batch([{"id": n, "v": 1} for n in range(50)], writer="w", batch_id=7, deletes=[60])

    told = list(table.changes())

    known: dict[int, dict[int, object]] = {}
    fold(told, known)
    rows = {row["id"]: row for row in table.scan()}
    assert {k: v for part in known.values() for k, v in part.items()} == rows
    assert len(told) == 300 + 1 + 51
    assert sum(change.batch_id == 7 and change.writer == "w" for change in told) == 51
    assert [c.row for c in told if c.kind == "delete" and c.writer is None] == [{"id": 2}]
    assert len(list(table.changes(since))) == 51
    for number in (0, 150, 301, 340, len(told) - 1):
        assert list(table.changes(str(told[number].position))) == told[number + 1 :]
    assert list(table.changes("latest")) == list(table.changes("earliest", "earliest")) == []

    # Another leader, and a client that knew none of this.
    cluster.kill(leader_of(client, "t"))
    with cluster.connect(timeout=30.0) as other:
        again = other.table("t")
        again.write_batch([{"id": 5, "v": 2}], writer="w", batch_id=8, mode="overwrite")
        later = list(again.changes(told[-1].position))
        assert [c.kind for c in later] == [*["truncate"] * PARTITIONS, "upsert"] or sorted(
            c.kind for c in later
        ) == ["truncate"] * PARTITIONS + ["upsert"]
        fold(later, known)
        assert {k: v for part in known.values() for k, v in part.items()} == {5: {"id": 5, "v": 2}}
        follower = again.changes(later[-1].position, follow=True)
        again.put({"id": 9, "v": 3})
        assert next(follower).row == {"id": 9, "v": 3}
        follower.close()
        shown = CliRunner().invoke(
            cli,
            ["--endpoints", ",".join(cluster.endpoints), "--output", "json", "changes", "t"],
        )
        lines = [json.loads(line) for line in shown.output.splitlines()]
        assert len(lines) == len(told) + len(later) + 1, shown.output
        assert lines[0]["row"] == told[0].row


def test_positions_of_others_and_of_the_future_are_refused(client: Client) -> None:
    """Never rows of another table, and no silence where there is nothing."""
    client.create_table("t", key="id", partitions=1)
    client.create_table("u", key="id", partitions=1)
    table = client.table("t")
    table.put_many({"id": n, "v": 0} for n in range(100))
    client.table("u").put({"id": 1, "v": 1})
    position = next(islice(client.table("u").changes(), 1)).position
    with pytest.raises(PositionError, match="another table"):
        next(table.changes(position))
    with pytest.raises(PositionError, match="not a position"):
        next(table.changes("c1.nonsense"))
    newest = list(table.changes())[-1].position
    future = type(newest)(newest.table_uuid, (newest.places[0]._replace(after=10_000),))
    with pytest.raises(DataLossError, match="the position is 10000"):
        next(table.changes(future))
    with pytest.raises(ArgumentError, match="never ends"):
        next(table.changes(stop="latest", follow=True))
    client.drop_table("t")
    client.create_table("t", key="id", partitions=1)
    with pytest.raises(PositionError, match="another table"):
        next(table.changes(newest))
