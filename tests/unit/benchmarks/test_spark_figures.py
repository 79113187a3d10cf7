"""The figures of spark_write, from measurements that are known."""

import pytest

from benchmarks.processor_time import JVM, OURSELVES, WORKERS
from benchmarks.spark_figures import (
    BATCH,
    COUNTING,
    NODES,
    ROW,
    Nodes,
    Run,
    Staged,
    breakdown,
    rates,
    ratios,
)
from benchmarks.spark_floor import Floor

SPARK_S = {JVM: 2.0, WORKERS: 4.0, OURSELVES: 0.5}
RUNS = {
    COUNTING: [Run(1_000, 1.0, {JVM: 1.0, WORKERS: 1.0, OURSELVES: 0.0})],
    BATCH: [Run(1_000, 6.0, SPARK_S | {NODES: 3.5})],
    ROW: [Run(1_000, 3.0, SPARK_S | {NODES: 3.0})],
    "foreachPartition, etcd": [Run(100, 2.0, SPARK_S | {"server": 1.0})],
}
FLOORS = [Floor(rows_per_s=2_000.0, cpu_us=1_000.0)]


def test_ratio_of_p15_is_of_the_whole_time_to_counting_and_the_store_alone():
    """1 s of counting, and 2 s in which the store takes 1,000 rows at 500 rows/s."""
    told = ratios(RUNS, FLOORS, [500.0], 1_000)

    assert told[f"P15 {BATCH} : counting + P3 (goal 1.3)"] == "2.00"
    assert told[f"P15 {ROW} : counting + P3 (goal 1.3)"] == "1.00"


def test_ratio_to_a_peer_is_of_rates_when_it_got_fewer_rows():
    """167 rows/s against 50 rows/s of 100 rows; the label says of how many."""
    told = ratios(RUNS, FLOORS, [500.0], 1_000) | rates(RUNS, 1_000)

    assert told[f"{BATCH} : foreachPartition, etcd"] == "3.33"
    assert told["foreachPartition, etcd, rows/s (of 100 rows)"] == "50"
    assert told[f"{BATCH}, us of processors a row"][NODES] == 3_500.0


def test_ratios_of_several_rounds_are_taken_round_by_round():
    """A machine that was slow in one round was so for both sides of that round's ratio."""
    runs = {name: [run, run._replace(wall_s=4 * run.wall_s)] for (name, (run,)) in RUNS.items()}

    told = ratios(runs, FLOORS * 2, [500.0, 125.0], 1_000)

    assert told[f"P15 {BATCH} : counting + P3 (goal 1.3)"] == "2.00 (2.00 to 2.00)"


def test_tables_account_for_all_of_the_time():
    """By the wall and of processors, nothing is counted twice and nothing is left out."""
    staged = Staged(
        run=RUNS[BATCH][0],
        wall={"spark": 2.0, "encode": 4.0, "store": 1.0, "total": 7.0},
        cpu={"spark": 0.5, "encode": 2.0, "store": 0.25, "client": 0.25, "total": 2.75},
        commit_s=1.5,
        nodes=Nodes(loop_s=1.25, syncs=7, sync_s=0.75, disk_bytes=3_000_000),
    )

    told = breakdown(staged, RUNS, FLOORS)

    wall = {row["part"]: row["s"] for row in told["where the time of an append goes"]}
    assert sum(wall.values()) == pytest.approx(6.0)
    assert wall["encoding in the task"] == 2.0
    used = {row["part"]: row for row in told["where its processor time goes"]}
    of_it = [row["s"] for row in used.values() if row["share"]]
    assert sum(of_it) == pytest.approx(10.0)
    assert used["workers: begin, plan, commit"]["s"] == 1.0
    assert used["nodes: log, tables, LevelDB"]["s"] == 2.25
    assert used["- of it LevelDB writing the rows"]["s"] == 1.0
    assert used["- of it in the counting job"]["us a row"] == 1_000.0
