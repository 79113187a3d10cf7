"""Planned switches of a leader while rows are written and read (FIP-01): nobody fails by them."""

from __future__ import annotations

import pytest

from raftstore.client.blocking.client import Client
from raftstore.local_cluster import LocalCluster
from tests.cluster.under_load import bounded_reads, rows_written
from tests.cluster.watching import eventually, leader_of

pytestmark = pytest.mark.cluster
SWITCHES = 4
ROUND = 20
"""Puts and gets on either side of a switch."""


def test_fip_01_no_bounded_read_and_no_write_fails_by_a_planned_switch(
    cluster: LocalCluster, client: Client
) -> None:
    """Each node leads in turn; the row is found at every moment, no acknowledged one is lost."""
    client.create_table("orders", key="id", partitions=1)
    orders = client.table("orders")
    names = sorted(cluster.endpoints_by_node())
    with cluster.connect(timeout=15.0) as other:
        with rows_written(orders) as written, bounded_reads(other.table("orders"), 0) as read:

            def go_on() -> None:
                puts, gets = len(written) + ROUND, len(read) + ROUND
                eventually(lambda: len(written), lambda count: count >= puts)
                eventually(lambda: len(read), lambda count: count >= gets)

            go_on()
            first = next(number for number, row in enumerate(read) if row is not None)
            for _ in range(SWITCHES):
                leader = leader_of(client, "orders")
                target = names[(names.index(leader) + 1) % len(names)]
                client.step_down("orders/0", target=target)
                go_on()
                assert leader_of(client, "orders") == target
        assert all(row == {"id": 0} for row in read[first:])
        assert {row["id"] for row in orders.scan()} >= set(written)
