"""The test plan of KLIP-12 on real nodes: to a standby, to the most caught-up one, to none.

A standby lags because its disk is slow: it receives everything, and applies nothing that it does
not hold durably.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.target.processes.target import ProcessTarget
from raftstore.client.blocking.client import Client
from raftstore.errors import NoReplicaAvailableError
from tests.cluster.watching import eventually, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ACCEPTABLE_LAG = 10
NEVER_MS = 120_000.0
"""A sync takes longer than the test."""


def lag_of(client: Client, node: str) -> int | None:
    """The node's own report of its lag."""
    lags = client.all_local_store_partition_lags(node)
    return lags["orders"][0].offset_lag


def test_klip_50_51_and_52_with_real_nodes(tmp_path: Path) -> None:
    """50, 51: with the active dead, the query goes to the standby that has everything, and never
    to the one that lags; 52: with both dead it fails, with a reason for each node."""
    with ProcessTarget(tmp_path / "klip") as target, target.cluster.connect(timeout=20.0) as client:
        client.create_table("orders", key="id", partitions=1)
        orders = client.table("orders")
        orders.put({"id": 1, "total": 0})
        active = leader_of(client, "orders")
        caught_up, lagging = (node for node in target.nodes if node != active)
        target.slow_disk(lagging, NEVER_MS)
        for number in range(1, 3 * ACCEPTABLE_LAG):
            written = orders.put({"id": 1, "total": number}, timeout=20.0).position
        orders.get(1, replica=caught_up, at_least=written)
        eventually(lambda: lag_of(client, lagging), lambda lag: (lag or 0) > ACCEPTABLE_LAG)
        newest = {"id": 1, "total": 3 * ACCEPTABLE_LAG - 1}

        target.kill([active])
        for _ in range(10):
            found = orders.get_result(1, max_lag=ACCEPTABLE_LAG)
            assert (found.value, found.node) == (newest, caught_up)

        target.kill([caught_up])
        with pytest.raises(NoReplicaAvailableError, match="exceed max allowed lag") as caught:
            orders.get(1, max_lag=ACCEPTABLE_LAG, timeout=2.0)
        assert set(caught.value.hosts) == set(target.nodes)
        assert f"> {ACCEPTABLE_LAG}" in caught.value.hosts[lagging]
        older = orders.get_result(1, max_lag=10 * ACCEPTABLE_LAG, timeout=2.0)
        assert older.node == lagging
        assert older.lag is not None
        assert older.lag > ACCEPTABLE_LAG
