"""A few random worlds: every promise holds under faults, and each world was worth running."""

from __future__ import annotations

import pytest

from raftstore.testing.campaign import is_weak, run_seed

SEEDS = (1, 2, 3, 4)
"""``raftstore simulate --seeds 1..200`` runs many more."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_world_with_all_bounds_holds_every_promise(seed: int) -> None:
    """S7.3: reads bounded by time and by micro-batches, judged by when records were committed."""
    verdict = run_seed(seed, {"many_bounds": "yes"})
    assert verdict.violation is None, (
        f"{verdict.violation}; replay: raftstore simulate --seed {seed} --set many_bounds=yes"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_world_whose_disks_hang_holds_every_promise(seed: int) -> None:
    """S0.4: a disk hangs among the other faults: for a moment, past a hand-over, until the end."""
    verdict = run_seed(seed, {"hang_percent": "40"})
    assert verdict.violation is None, (
        f"{verdict.violation}; replay: raftstore simulate --seed {seed} --set hang_percent=40"
    )
    assert verdict.faults["disk_hang"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_world_whose_logs_get_holes_holds_every_promise(seed: int) -> None:
    """S0.3: records in the middle of logs are damaged among the other faults, and given back by
    whichever node held the same."""
    changes = {"flip_percent": "40", "damage_percent": "0", "fault_interval_ms": "300"}
    verdict = run_seed(seed, changes)
    assert verdict.violation is None, (
        f"{verdict.violation}; replay: raftstore simulate --seed {seed} --set flip_percent=40 "
        "--set damage_percent=0 --set fault_interval_ms=300"
    )
    assert verdict.faults["flip"] >= 5, "too little was damaged to show anything"


ROTTING = {
    "retention": "yes",
    "scrub": "yes",
    "jobs": "1",
    "live_flip_percent": "30",
    "failpoint_percent": "20",
    "damage_percent": "0",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 16])
def test_world_whose_files_rot_while_nodes_run_holds_every_promise(seed: int) -> None:
    """S0.3, S6.4, S6.5: bits of logs and tables flip under running nodes that read all of it back,
    logs are trimmed, and nodes die in the middle of copies: all is found and made good."""
    verdict = run_seed(seed, ROTTING)
    options = " ".join(f"--set {name}={value}" for name, value in ROTTING.items())
    assert verdict.violation is None, (
        f"{verdict.violation}; replay: raftstore simulate --seed {seed} {options}"
    )
    assert verdict.faults["live_flip"] >= 3
    assert verdict.faults["failpoint"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_world_whose_nodes_have_long_turns_holds_every_promise(seed: int) -> None:
    """Given turns of up to 6 ms, in which messages of many channels leave together, a world holds
    every promise.
    """
    verdict = run_seed(seed, {"turn_max_ms": "6", "encode_messages": "yes"})
    assert verdict.violation is None, (
        f"{verdict.violation}; replay: raftstore simulate --seed {seed} --set turn_max_ms=6 "
        "--set encode_messages=yes"
    )


ROLLING = {"rolling_upgrades": "yes", "turn_max_ms": "3", "partitions": "3"}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "jobs"), [(1, 1), (2, 1), (3, 0), (4, 0)])
def test_world_that_rolls_between_levels_holds_every_promise(seed: int, jobs: int) -> None:
    """KIP-31: nodes are restarted as newer and older versions, one after the other, up and down
    twice, among the other faults; none is sent a message or a record that it cannot read."""
    verdict = run_seed(seed, {**ROLLING, "jobs": str(jobs)})
    assert verdict.violation is None, (
        f"{verdict.violation}; replay: raftstore simulate --seed {seed} --set rolling_upgrades=yes "
        f"--set turn_max_ms=3 --set partitions=3 --set jobs={jobs}"
    )
    assert verdict.faults["upgrade"] >= 6
    assert verdict.faults["downgrade"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_world_holds_every_promise(seed: int) -> None:
    """O1-O6 hold in a world of at least 500 operations, 10 faults and an election."""
    verdict = run_seed(seed)
    assert verdict.violation is None, (
        f"{verdict.violation}; replay: raftstore simulate --seed {seed} --trace"
    )
    assert not is_weak(verdict)
    assert verdict.leader_after_ms is not None
    assert verdict.converged_after_ms is not None
