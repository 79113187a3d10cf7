"""Bits that flip in the logs of a majority: what has one intact copy left comes back (S0.3)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raftstore import connect
from raftstore.local_cluster import LocalCluster
from raftstore.storage.log.records import RecordPosition, decode_entries
from raftstore.types import ChannelId, channel_id
from tests.cluster.watching import equal_replicas, eventually, own_status
from tests.storage_helpers import flip_bit

pytestmark = pytest.mark.cluster
ROWS = 120


def records_of(data: Path, channel: ChannelId) -> list[tuple[Path, int, int]]:
    """(file, offset, length) of every record of a channel in a node's log."""
    return [
        (path, offset, length)
        for path in sorted((data / "log").iterdir())
        for offset, length, _, entry in decode_entries(path.read_bytes(), None)
        if isinstance(entry, RecordPosition) and entry.channel == channel
    ]


def damage(data: Path, *chosen: tuple[ChannelId, float, int]) -> None:
    """Flip one bit of each record that lies so far into a channel, so far from the record's end."""
    places = []
    for channel, part, back in chosen:
        found = records_of(data, channel)
        path, offset, length = found[int(part * len(found))]
        places.append((path, offset + length - back))
    for path, place in places:
        flip_bit(path, place)


def test_two_of_three_damaged_logs_lose_nothing(tmp_path: Path) -> None:
    """No replica is whole but the third; every record has two copies; nobody is asked."""
    with LocalCluster(nodes=3, directory=tmp_path) as cluster:
        names = sorted(cluster.running())
        with connect(cluster.endpoints) as client:
            client.create_table("orders", key="id", partitions=2)
            table = client.table("orders")
            for number in range(ROWS):
                table.put({"id": number, "text": f"row {number}"})
            assert equal_replicas(client, "orders", names) == ROWS
            orders = channel_id(client.table_info("orders").uuid, 0)
        for name in names:
            assert cluster.stop(name) == 0
        facts = json.loads((tmp_path / "n1" / "raftstore.json").read_text())
        metadata = channel_id(bytes.fromhex(facts["cluster_id"]), 0)
        # In payloads, and in what says what the payload is.
        damage(tmp_path / "n1", (orders, 0.3, 1), (orders, 0.8, 60), (metadata, 0.3, 1))
        damage(tmp_path / "n2", (orders, 0.6, 1), (metadata, 0.6, 1))
        for name in names:
            cluster.start(name)
        cluster.wait_until_ready()
        with connect(cluster.endpoints) as client:
            table = client.table("orders")
            wanted = {number: f"row {number}" for number in range(ROWS)}
            rows = eventually(lambda: list(table.scan()), lambda seen: len(seen) == ROWS)
            assert {row["id"]: row["text"] for row in rows} == wanted
            table.put({"id": ROWS, "text": "after"})
            assert equal_replicas(client, "orders", names) == ROWS + 1
            for name in names:
                modes = {own["mode"] for own in own_status(client, name)["channels"]}
                assert modes <= {"steady"}, (name, modes)
        logs = "".join((tmp_path / f"{name}.log").read_text() for name in ("n1", "n2"))
        assert logs.count('event="hole_filled"') >= 4
        assert "hole_given_up" not in logs
