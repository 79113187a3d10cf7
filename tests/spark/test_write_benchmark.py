"""The benchmark of Spark's writes runs against real nodes, and its figures are complete."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = 1_000


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_write_benchmark_measures_every_sink_that_is_installed(tmp_path):
    """In a process of its own, since it has a session of its own; rates are not judged."""
    command = [sys.executable, "-m", "benchmarks", "--only", "spark_write", "--tiny"]
    command += ["--rows", str(ROWS), "--json", str(tmp_path / "figures")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])

    told = json.loads((tmp_path / "figures").read_text())["spark_write"]
    both = "raftstore append (atomic), raftstore isolation=row"
    assert told["rows read back after the first round"] == both
    assert float(told["P15 raftstore append (atomic) : counting + P3 (goal 1.3)"]) > 0
    wall = {row["part"]: row["s"] for row in told["where the time of an append goes"]}
    assert wall["commit, until every partition applied it"] > 0
    used = {row["part"]: row["s"] for row in told["where its processor time goes"]}
    assert used["nodes: main loops (receive, check, replicate)"] > 0
    for peer in ("Redis everysec", "Redis always", "etcd"):
        name = f"foreachPartition, {peer}"
        measured = [label for label in told if label.startswith(f"{name}, rows/s")]
        assert bool(measured) != told.get(name, "").startswith("not installed")
