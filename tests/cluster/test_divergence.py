"""A node whose log and tables were changed while it was stopped: noticed, put aside, fetched anew,
and back in service, without anybody's doing (S13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftstore.client.blocking.client import Client
from raftstore.local_cluster import LocalCluster
from raftstore.rows.schema import TableSchema
from raftstore.types import ChannelId
from tests.cluster.edited import change_record, damage_row
from tests.cluster.watching import equal_replicas, eventually, own_status

pytestmark = pytest.mark.cluster
ROWS = 200
INTERVAL_MS = 300
HEALING = (
    "histories_differ",
    "replica_diverged",
    "replica_quarantined",
    "divergence_located",
    "replica_healed",
    "table_damaged",
    "table_healed",
)


def reported_by(client: Client, node: str) -> dict[str, dict[str, Any]]:
    """The events of healing that a node reports, the last of each type."""
    found = client.events(HEALING).events
    return {event["type"]: event for event in found if event["node"] == node}


def test_changed_log_and_damaged_table_heal_by_themselves(tmp_path: Path) -> None:
    """N5: its checksums, digests and chain are right; only the hash of its history is another."""
    often = {"n3": {"RAFTSTORE_SCRUB_INTERVAL_MS": f"{INTERVAL_MS}ms"}}
    with (
        LocalCluster(nodes=3, directory=tmp_path, environment=often) as cluster,
        cluster.connect(timeout=20.0) as client,
    ):
        names = sorted(cluster.running())
        channels: dict[str, ChannelId] = {}
        for name in ("orders", "pairs"):
            client.create_table(name, key="id", partitions=1)
            for number in range(0, ROWS, 20):
                rows = [{"id": number + at, "text": "x" * 50} for at in range(20)]
                client.table(name).put_many(rows)
            eventually(lambda name=name: equal_replicas(client, name, names), ROWS.__eq__)
            [placed] = client.table_info(name).channels
            channels[name] = placed.channel
        assert cluster.stop("n3") == 0
        seq = change_record(tmp_path / "n3", channels["orders"], 5)
        damage_row(tmp_path / "n3", channels["pairs"], TableSchema(("id",)).key_of(17))
        cluster.start("n3")
        cluster.wait_until_ready()  # a node that ended says why
        wanted = {"replica_diverged", "divergence_located", "replica_healed", "table_healed"}
        told = eventually(lambda: reported_by(client, "n3"), lambda seen: wanted <= set(seen))
        assert told["replica_diverged"]["replica"] == "n3"
        assert told["divergence_located"]["equal_to"] < seq
        assert told["divergence_located"]["differs_at"] >= seq
        assert told["replica_quarantined"]["channel"] == "orders/0"
        assert told["table_healed"]["channel"] == "pairs/0"
        for name in channels:
            compared = eventually(
                lambda name=name: client.compare_replicas(f"{name}/0"),
                lambda found: found.is_whole,
            )
            assert not compared.is_different, compared
            assert client.table(name).get(17, replica="n3", level="any") is not None
        modes = {own["mode"] for own in own_status(client, "n3")["channels"]}
        assert modes <= {"steady"}, modes
