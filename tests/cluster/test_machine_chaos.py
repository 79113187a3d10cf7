"""State machines on real node processes under faults: one that is right, and one that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jepsen_like.checker.verdict import Validity
from jepsen_like.plan import Plan
from jepsen_like.session import run_plan

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
WRONG = "tests.machines.broken:ProcessCounter=jepsen_like.workload.recipe_clients:additions"


def test_machines_of_one_cluster_are_judged_each_by_itself(tmp_path: Path) -> None:
    """The recipe and the machine in memory are valid after a kill; results that are not those of a
    sequential run are invalid, with the command that shows it."""
    plan = Plan(
        "channelsets", ("kill-leader",), "processes", seconds=5.0, seed=1, clients=4,
        directory=tmp_path / "run", fault_pause_s=1.0, paths=(ROOT,),
        machines=(
            "raftstore.recipes.lock:Lock",
            "tests.machines.broken:MemoryCounter=jepsen_like.workload.recipe_clients:additions",
            WRONG,
        ),
    )  # fmt: skip
    result = run_plan(plan, lambda _: None)
    result.save(plan.directory)
    found = {verdict.checker: verdict for verdict in result.verdicts}
    wrong = found.pop("channelset process_counter")
    assert wrong.validity is Validity.INVALID
    assert "a sequential run gives" in wrong.summary
    assert wrong.culprit in result.history
    assert {name: each.summary for name, each in found.items() if not each.is_valid} == {}
    lock, memory = found["channelset lock"], found["channelset memory_counter"]
    assert lock.figures["states"] == 9
    assert min(lock.figures["in_log"], memory.figures["in_log"]) > 20
    assert memory.figures["queries"] > 10
    saved = json.loads((plan.directory / "run.json").read_text())
    assert saved["validity"] == "INVALID"
    assert saved["replay"].count("--machine") == 3
