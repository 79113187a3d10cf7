"""The swarm: worlds from seeds, what counts, equal traces, and failing worlds made small."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.runner import SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.schedule import (
    FaultEvent,
    ScheduleError,
    draw_schedule,
    read_schedule,
    with_lone_fault,
    write_schedule,
)
from jepsen_like.swarm.campaign import Totals, WorldVerdict, judge, run_twice
from jepsen_like.swarm.command import simulate, summary
from jepsen_like.swarm.draw import draw_scene
from jepsen_like.swarm.shrink import NothingToShrinkError, minimal, shrink
from jepsen_like.workload.registry import WORKLOADS
from raftstore.config import ReadSettings

HELP = ["-h", "--help"]
"""As the program shows it: a command keeps the help option of the first context it was in."""

GOOD = WorldVerdict(
    seed=1, workload="register", violation=None, undecided=None, operations=500, answered=200,
    elections=1, fired={"loss": 10}, not_run={"wipe": 1}, virtual_seconds=60.0, cpu_seconds=0.5,
    steps=1, digest="d",
)  # fmt: skip


def short(seed: int) -> Scene:
    """A world of four seconds."""
    scene = draw_scene(seed)
    return replace(
        scene, seconds=4.0, seconds_max=4.0, think_ms=(1.0, 60.0), operations_min=0,
        answered_min=0, faults_min=0,
    )  # fmt: skip


# --- seeds ----------------------------------------------------------------------------------------


@pytest.mark.slow
# 152: a client died of what it sent, was at a micro-batch at once, and an old timer came to it.
# 23: a clock that a fault slows down counts fewer milliseconds than its node calls an age.
@pytest.mark.parametrize("seed", [3, 5, 23, 152])
def test_world_of_a_seed_passes_and_counts(seed: int) -> None:
    """No checker complains, and enough happened for that to mean something."""
    verdict = judge(draw_scene(seed))
    assert verdict.violation is None, f"replay: raftstore chaos simulate --seed {seed}"
    assert verdict.too_quiet is None


def test_seed_draws_the_same_world_always() -> None:
    """A seed is all that is needed to see a world again."""
    assert draw_scene(17) == draw_scene(17)
    assert draw_scene(17) != draw_scene(18)


@pytest.mark.slow
def test_seeds_draw_every_workload_every_fault_and_both_sizes() -> None:
    """A swarm that never drew something would never test it."""
    scenes = [draw_scene(seed) for seed in range(400)]
    assert {scene.workload for scene in scenes} == set(WORKLOADS)
    assert {event.kind for scene in scenes for event in scene.schedule} == set(CATALOGUE)
    sizes = {(scene.options.nodes, scene.options.replicas) for scene in scenes}
    assert sizes == {(3, 3), (5, 3), (5, 5)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"operations": 499}, "499 operations"),
        ({"answered": 199}, "199 operations answered"),
        ({"fired": {"loss": 9}}, "9 faults"),
        ({"elections": 0}, "no election"),
        ({"undecided": "set: nothing was read"}, "undecided"),
    ],
)
def test_world_in_which_too_little_happened_says_so(change: dict[str, object], why: str) -> None:
    """Faults that were not run do not count, nor do reads that nobody answered."""
    assert GOOD.too_quiet is None
    assert why in (replace(GOOD, **change).too_quiet or "")  # type: ignore[arg-type]


def test_totals_add_up_and_name_seeds() -> None:
    """The totals at the end of a campaign add up and name the seeds of failures."""
    totals = Totals()
    totals.add(GOOD)
    totals.add(replace(GOOD, seed=2, violation="set: lost"))
    totals.add(replace(GOOD, seed=3, elections=0))
    assert (totals.failed, totals.quiet) == ([2], [3])
    assert totals.times_real_time == pytest.approx(120.0)
    assert totals.operations_per_second == pytest.approx(1_000.0)
    text = "\n".join(summary(totals))
    assert "3 worlds: 1 failed, 1 too quiet, 1,500 operations" in text
    assert "fired: loss 30" in text
    assert "not run: wipe 3" in text
    assert "failed seeds: 2" in text
    assert Totals().times_real_time == 0.0


# --- traces ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_world_has_the_same_trace_whatever_the_hash_seed() -> None:
    """Every event, delivered message, operation and answer is equal in two processes."""
    scenes = [short(1), short(7)]
    pairs = list(run_twice(scenes, jobs=2))
    assert [first.digest == second.digest for first, second in pairs] == [True, True]
    assert pairs[0][0].digest != pairs[1][0].digest
    assert [first.seed for first, _ in pairs] == [1, 7]


# --- faults from a file ---------------------------------------------------------------------------


def test_schedule_is_written_and_read_back(tmp_path: Path) -> None:
    """A file replays exactly what was drawn."""
    events = draw_schedule(random.Random(1), ["loss", "kill-all"], until_ms=9_000, pause_ms=500)
    assert len(events) > 5
    write_schedule(tmp_path / "f", events)
    assert read_schedule(tmp_path / "f") == events


def test_lone_fault_is_overlapped_by_none() -> None:
    """Another partition that ends would end it, too; what was before and after stays."""
    rng = random.Random(1)
    events = draw_schedule(rng, ["loss", "kill-all"], until_ms=60_000, pause_ms=500)
    changed = with_lone_fault(rng, events, "isolate-leader", at_ms=20_000.0, lasts_ms=12_000.0)
    (lone,) = (each for each in changed if each.kind == "isolate-leader")
    others = [each for each in changed if each is not lone]
    assert set(others) < set(events)
    assert all(each.at_ms + each.lasts_ms < 20_000 or each.at_ms > 32_000 for each in others)
    assert others[0] == events[0]
    assert others[-1] == events[-1]


def test_few_worlds_have_a_fault_that_outlasts_the_trust_in_a_leader() -> None:
    """S7.3: a replica that gets nothing for ten seconds is reached, and most worlds stay quick."""
    age_max_ms = ReadSettings().leader_info_age_max_ms
    longest = [max(each.lasts_ms for each in draw_scene(seed).schedule) for seed in range(200)]
    share = sum(lasts_ms > age_max_ms for lasts_ms in longest) / len(longest)
    assert 0.05 < share < 0.25


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no json", "line 1 is no fault"),
        ('{"at_ms": 1}', "line 1 is no fault"),
        ('{"at_ms": 1, "kind": "meteor", "lasts_ms": 1, "draw": 1}', "names the fault 'meteor'"),
        ('{"at_ms": -1, "kind": "loss", "lasts_ms": 1, "draw": 1}', "below zero"),
    ],
)
def test_schedule_with_a_wrong_line_is_refused(tmp_path: Path, line: str, said: str) -> None:
    """The sentence names the line and the remedy."""
    path = tmp_path / "f"
    path.write_text(line + "\n")
    with pytest.raises(ScheduleError, match=said):
        read_schedule(path)


def test_missing_schedule_is_refused(tmp_path: Path) -> None:
    """Not a stack trace."""
    with pytest.raises(ScheduleError, match="cannot be read"):
        read_schedule(tmp_path / "none")


@pytest.mark.slow
def test_fault_that_cannot_be_injected_is_not_run() -> None:
    """It is in the result with its reason, and it does not count as fired."""
    twice = tuple(FaultEvent(at, "kill-all", 2_000.0, 1) for at in (500.0, 900.0))
    world = SimulatedRun(replace(short(1), schedule=twice), lambda _: None)
    result = world.run()
    assert [fault["fired"] for fault in result.faults] == [True, False]
    assert "did not run when the fault came" in result.faults[1]["reason"]


@pytest.mark.slow
def test_fault_that_comes_and_goes_does_so_while_it_lasts() -> None:
    """A flapping leader is cut off every half second, and a storm resets again and again."""
    events = (FaultEvent(500.0, "flapping", 2_000.0, 1),)
    world = SimulatedRun(replace(short(1), schedule=events), lambda _: None)
    world.run()
    names = [event.name for event in world.target.cluster.events.kept]
    assert 4 <= names.count("cut") <= 5
    assert names.count("uncut") >= 4


# --- shrinking ------------------------------------------------------------------------------------


def event(number: int) -> FaultEvent:
    """A fault distinguished from others by its draw."""
    return FaultEvent(float(number), "loss", 1.0, number)


@given(st.sets(st.integers(0, 30), min_size=1), st.integers(0, 2**32))
def test_minimal_finds_exactly_what_is_needed(needed: set[int], seed: int) -> None:
    """Given any set of faults that is needed together, the minimal schedule is exactly this set."""
    del seed
    everything = tuple(event(number) for number in range(31))
    found, is_minimal = minimal(
        everything, lambda tried: needed <= {one.draw for one in tried}, lambda: False
    )
    assert {one.draw for one in found} == needed
    assert is_minimal


def test_minimal_of_a_world_that_needs_no_fault_is_empty() -> None:
    """A bug that shows in a calm run is shown in a calm run."""
    assert minimal((event(1), event(2)), lambda _: True, lambda: False) == ((), True)


def test_minimal_says_when_its_runs_are_over() -> None:
    """The best found so far is returned, and not called minimal."""
    runs = 0

    def fails(tried: tuple[FaultEvent, ...]) -> bool:
        nonlocal runs
        runs += 1
        return {3, 17} <= {one.draw for one in tried}

    found, is_minimal = minimal(tuple(event(n) for n in range(31)), fails, lambda: runs >= 6)
    assert not is_minimal
    assert {3, 17} <= {one.draw for one in found}
    assert len(found) < 31


@pytest.mark.slow
def test_world_that_passes_is_not_shrunk() -> None:
    """There is nothing to look for."""
    with pytest.raises(NothingToShrinkError, match="breaks no promise"):
        shrink(short(1), lambda _: None)


SHRUNK_SEED = "1"
BROKEN = """
import sys
from tests.mutations.catalogue import mutation_named
from tests.mutations.source_patch import install
install(mutation_named("S0.5-sync-forgotten").edits)
from raftstore.cli.main import main
sys.argv = ["raftstore", "chaos", "simulate", "--jobs", "1", *sys.argv[1:]]
main()
"""


def run_broken(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process whose logs complete group commits before the sync (S0.5)."""
    return subprocess.run(
        [sys.executable, "-c", BROKEN, *arguments, "--out", str(directory)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_failing_world_is_shrunk_kept_and_replayed_from_its_file(tmp_path: Path) -> None:
    """A mutation: exit code 7, few faults, a script that marks them, a file that replays."""
    kinds = ("duplicates", "power-loss-all", "step-down", "power-loss-all", "kill-follower",
             "power-loss-all", "reset", "power-loss-all")  # fmt: skip
    many = tmp_path / "many.jsonl"
    write_schedule(
        many, [FaultEvent(1_500.0 + 1_700.0 * n, kinds[n % 8], 500.0, n) for n in range(16)]
    )
    world = ("--seed", SHRUNK_SEED, "--workload", "publish_log", "--set", "sync_max_ms=300",
             "--set", "sync_min_ms=100")  # fmt: skip
    first = run_broken(tmp_path / "one", *world, "--faults", str(many), "--shrink")
    assert first.returncode == 7, first.stderr
    assert (
        f"replay: raftstore chaos simulate --seed {SHRUNK_SEED} --workload publish_log --set"
        in first.stdout
    )
    assert "faults are enough (minimal)" in first.stdout
    assert f"failed seeds: {SHRUNK_SEED}" in first.stdout
    few = tmp_path / "one" / "faults.jsonl"
    left = [json.loads(line)["kind"] for line in few.read_text().splitlines()]
    assert "power-loss-all" in left
    assert len(left) <= 5
    script = (tmp_path / "one" / "script.txt").read_text()
    assert script.startswith(f"# seed {SHRUNK_SEED}, workload publish_log")
    assert "oracle: INVALID: S0.3" in script
    marked = [line for line in script.splitlines() if line.startswith("> ")]
    assert [kind for kind in left if not any(f"kind={kind}" in line for line in marked)] == []
    assert any(" kill " in line or " crash " in line for line in marked)
    again = run_broken(tmp_path / "two", *world, "--faults", str(few))
    assert again.returncode == 7, again.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --seed N or --seeds A..B"),
        (["--seeds", "9..3"], "is no range"),
        (["--seed", "1", "--set", "nodes"], "is no option"),
        (["--seed", "1", "--set", "moons=2"], "unknown simulation option 'moons'"),
        (["--seed", "1", "--workload", "golf"], "golf"),
    ],
)
def test_command_refuses_what_it_does_not_know(arguments: list[str], said: str) -> None:
    """A clear sentence before anything runs."""
    told = CliRunner().invoke(simulate, arguments, help_option_names=HELP)
    assert told.exit_code == 2
    assert said in told.output
