"""``raftstore chaos run --cluster``: the kit's clients on a cluster that somebody else runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.checker.verdict import Validity
from jepsen_like.plan import Plan
from jepsen_like.session import run_plan
from raftstore.client.blocking.client import Client
from raftstore.local_cluster import LocalCluster
from tests.promises import promised

pytestmark = pytest.mark.cluster


def test_clients_run_on_a_cluster_that_runs_already_and_leave_nothing_in_it(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    """The owner strikes while the clients run; they are judged; only the owner's table is left."""
    client.create_table("mine", key="id", partitions=1)

    def strike(line: str) -> None:
        if line == "healing":
            cluster.start("n2")
        elif "to go" in line and "n2" in cluster.running():
            cluster.kill("n2")

    plan = Plan(
        workload="register",
        nemeses=(),
        target="cluster",
        seconds=7.0,
        seed=1,
        clients=3,
        directory=tmp_path / "run",
        endpoints=tuple(cluster.endpoints),
    )
    result = run_plan(plan, strike)
    assert [table.name for table in client.tables()] == ["mine"]
    promised(result.validity is not Validity.INVALID, str(result.verdicts))
    assert result.validity is Validity.VALID, result.verdicts
    assert "n2" in cluster.running()
    assert result.replay.startswith("raftstore chaos run --cluster 127.0.0.1:")
