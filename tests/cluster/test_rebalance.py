"""Rebalances on real nodes while rows are written (FIP-13 to FIP-23)."""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from raftstore.errors import ChangeDoneError
from raftstore.local_cluster import LocalCluster
from tests.cluster.under_load import rows_written, shell_json
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster


def test_tagged_node_is_emptied_under_load_and_a_second_plan_is_empty(tmp_path: Path) -> None:
    """By the shell, with a throttle: no acknowledged row is missing, and the node holds nothing."""
    with (
        LocalCluster(nodes=4, directory=tmp_path / "cluster", http=True) as cluster,
        cluster.connect(timeout=15.0) as client,
    ):
        client.create_table("orders", key="id", partitions=4, replicas=3)
        orders = client.table("orders")
        raftstore = partial(shell_json, cluster)

        def held() -> dict[str, int]:
            return {node.name: node.replicas for node in client.members()}

        with rows_written(orders) as acknowledged:
            eventually(lambda: len(acknowledged), lambda count: count > 50)
            assert raftstore("rebalance", "plan")["moves"] == []
            raftstore("cluster", "tag", "n4", "permanent_offline")
            raftstore("rebalance", "throttle", "20MiB")
            eventually(lambda: held()["n4"], lambda count: count == 3)
            plan = client.plan_rebalance()
            assert {move.sources for move in plan.moves} == {("n4",)}
            assert len(plan.moves) == 3
            started = raftstore("rebalance", "start", "--yes", "--reason", "n4 goes")
            assert started["moves"] == 3
            found = eventually(client.rebalance_status, lambda seen: not seen.is_open)
            assert (found.number, found.state) == (started["rebalance"], "COMPLETED")
            assert (found.throttle, found.tags) == (20 * 1024**2, {"n4": "permanent_offline"})
            before = len(acknowledged)
            eventually(lambda: len(acknowledged), lambda count: count > before + 20)
        assert held() == {"n1": 4, "n2": 4, "n3": 4, "n4": 0}
        assert raftstore("rebalance", "plan")["moves"] == []
        with pytest.raises(ChangeDoneError, match="no rebalance is open"):
            client.cancel_rebalance()
        rows = {row["id"] for row in orders.scan()}
        assert rows >= set(acknowledged)
        url = f"http://{cluster.http_by_node()['n1']}/v1/rebalance"
        with urllib.request.urlopen(url, timeout=10) as answer:
            shown = json.load(answer)
        assert shown["state"] == "COMPLETED"
        assert {move["state"] for move in shown["moves"]} == {"COMPLETED"}
