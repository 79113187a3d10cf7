"""Campaigns: what a seed must do to count, sums, and seeds in order from several processes."""

from __future__ import annotations

import pytest

from raftstore.testing.campaign import CampaignResult, describe, is_weak, run_campaign
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.testing.simulation import Verdict

SHORT = {"operations": "30", "faults": "1", "fault_phase_ms": "500"}


def verdict(
    *,
    seed: int = 1,
    operations: int = 450,
    reads: int = 50,
    refused: int = 0,
    faults: int = 10,
    elections: int = 1,
    violation: str | None = None,
) -> Verdict:
    """A verdict with these counts."""
    return Verdict(
        seed=seed,
        violation=violation,
        digest="",
        virtual_ms=2_000.0,
        cpu_seconds=0.5,
        steps=1,
        messages=1,
        outcomes=Outcomes(ok=operations, reads_ok=reads, reads_refused=refused),
        elections=elections,
        crashes=2,
        faults={"crash": faults},
    )


@pytest.mark.parametrize(
    ("counts", "weak"),
    [
        ({}, False),
        ({"operations": 449}, True),
        ({"operations": 50, "refused": 400}, False),
        ({"operations": 49, "refused": 500}, True),
        ({"reads": 49, "refused": 500}, True),
        ({"faults": 9}, True),
        ({"elections": 0}, True),
    ],
)
def test_seed_counts_only_if_enough_happened(counts: dict[str, int], weak: bool) -> None:
    """At least 500 operations, 50 of them writes and 50 reads that were answered, 10 faults and one
    election, or the seed proves nothing."""
    assert is_weak(verdict(**counts)) is weak


def test_campaign_adds_up_and_tells_failed_from_weak() -> None:
    """A violation is a failure whatever else the world did."""
    result = CampaignResult()
    result.add(verdict(seed=1))
    result.add(verdict(seed=2, operations=3))
    result.add(verdict(seed=3, operations=3, violation="O1: two leaders"))
    assert (result.seeds, result.failed, result.weak) == (3, [3], [2])
    assert result.operations == 606
    assert result.operations_per_second == pytest.approx(606 / 1.5)
    assert result.times_real_time == pytest.approx(4.0)


def test_empty_campaign_has_no_speed() -> None:
    """Nothing was run, nothing is divided by zero."""
    assert CampaignResult().operations_per_second == 0.0
    assert CampaignResult().times_real_time == 0.0


def test_description_names_what_differs_from_the_defaults() -> None:
    """One line that, with the seed, makes the same world again."""
    assert describe(SimOptions(seed=4, nodes=5)) == "seed 4 nodes=5"


@pytest.mark.slow
def test_campaign_tells_seeds_in_order_from_several_processes() -> None:
    """The output of a campaign does not depend on which process was faster."""
    one: list[tuple[int, str]] = []
    two: list[tuple[int, str]] = []
    seeds = (3, 1, 2)
    run_campaign(seeds, jobs=1, changes=SHORT, on_verdict=lambda v: one.append((v.seed, v.digest)))
    run_campaign(seeds, jobs=2, changes=SHORT, on_verdict=lambda v: two.append((v.seed, v.digest)))
    assert [seed for seed, _ in one] == list(seeds)
    assert one == two


@pytest.mark.slow
def test_trace_is_kept_for_failures_only() -> None:
    """A campaign of thousands of seeds must not keep their traces."""
    kept: list[Verdict] = []
    run_campaign((1,), jobs=1, changes=SHORT, on_verdict=kept.append)
    assert kept[0].violation is None
    assert kept[0].trace == []
