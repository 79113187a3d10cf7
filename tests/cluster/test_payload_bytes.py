"""Rows go from publisher to replicas once: the leader sends metadata only (NATS-050)."""

from __future__ import annotations

import pytest

from raftstore.client.blocking.client import Client
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import equal_replicas, leader_of, own_status

pytestmark = pytest.mark.cluster
NAMES = ["n1", "n2", "n3"]
MIB = 1024 * 1024
REPAIRS = ("PayloadRelay", "MsgSync")


def test_leader_sends_no_rows_to_healthy_replicas(cluster: LocalCluster, client: Client) -> None:
    """While 1 MiB is written, no payload leaves any node for another, only metadata does.

    Shows NATS-004.
    """
    client.create_table("events", key="id", partitions=1)
    events = client.table("events")
    events.put({"id": 0, "text": "connected"})
    leader = leader_of(client, "events")
    # Replicas of a young table may still repair its first records; wait until they are level.
    equal_replicas(client, "events", NAMES)
    before = own_status(client, leader)["traffic"]
    for batch in range(16):
        events.put_many([{"id": 64 * batch + row, "text": "x" * 1024} for row in range(1, 65)])
    equal_replicas(client, "events", NAMES)
    assert leader_of(client, "events") == leader
    after = own_status(client, leader)["traffic"]
    assert _grown(before, after, "StoreRequest", "frames") > 0
    for kind in sorted(after):
        assert _grown(before, after, kind, "payload_bytes") == 0, kind
    for kind in REPAIRS:
        assert _grown(before, after, kind, "frames") == 0, kind
    # All metadata of 1 MiB in 16 or more records, to two followers, is a small part of it.
    assert sum(_grown(before, after, kind, "bytes") for kind in after) < MIB // 4


def _grown(before: dict, after: dict, kind: str, what: str) -> int:
    """How much a counter of the leader grew."""
    return int(after.get(kind, {}).get(what, 0)) - int(before.get(kind, {}).get(what, 0))
