"""Rolling upgrades: nodes of an older version among newer ones, and back again."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.upgrades import run_upgrades
from raftstore.client.blocking.client import Client
from raftstore.config import LEVEL
from raftstore.errors import StoreTooOldError
from raftstore.faults import VARIABLE
from raftstore.local_cluster import LocalCluster
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster


def levels_at(client: Client, name: str) -> object:
    """A node's view of all levels; None while it does not answer."""
    node = client.cluster_status().node(name)
    return None if node is None or node.status is None else node.status["levels"]


def test_newer_records_wait_for_the_last_node_that_is_upgraded(tmp_path: Path) -> None:
    """Rows are taken all the time; marks and edits are refused first, and the node is named.

    Shows KIP-31.
    """
    control = tmp_path / "orders"
    control.write_text('{"level": 0}')
    with (
        LocalCluster(
            nodes=3,
            directory=tmp_path / "cluster",
            environment={"n2": {VARIABLE: str(control)}},
        ) as running,
        running.connect(timeout=15.0) as client,
    ):
        client.create_table("orders", key="id", partitions=1)
        table = client.table("orders")
        table.put({"id": 1})
        with pytest.raises(StoreTooOldError, match="n2 is at level 0; upgrade these nodes"):
            table.mark_batch("query", 1)
        with pytest.raises(StoreTooOldError, match="n2 is at level 0"):
            client.edit_table("orders", max_lag=5)

        running.stop("n2")
        control.write_text("{}")
        running.start("n2")
        table.put({"id": 2})

        for name in ("n1", "n2", "n3"):
            eventually(
                lambda name=name: levels_at(client, name),  # type: ignore[misc]
                lambda seen: seen == dict.fromkeys(("n1", "n2", "n3"), LEVEL),
            )
        table.mark_batch("query", 1)
        client.edit_table("orders", max_lag=5)


def test_nodes_roll_up_and_down_between_levels_while_clients_go_on(tmp_path: Path) -> None:
    """Up and down, one node at a time; older ones cannot read what is too new for them.

    Nothing that was acknowledged is lost, no read goes back, and no node is sent what it cannot
    read. Many rounds: ``make upgrades``.
    """
    outcome = run_upgrades(1, 3, tmp_path)
    assert outcome.faults == []
    assert outcome.restarts == 6
    assert outcome.refused > 0, "no micro-batch met a node of level 0"
    assert outcome.reads > 100, "too little was read to show anything"
