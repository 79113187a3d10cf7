"""``raftstore simulate``: options first, a line per seed, how to replay a failure, exit codes."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner, Result

from raftstore.cli.common import Context
from raftstore.cli.simulate import simulate
from raftstore.testing import campaign
from raftstore.testing.options import SimOptions, draw_options
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.testing.simulation import Verdict


def fake_world(options: SimOptions) -> Verdict:
    """Seed 2 breaks a promise, seed 3 does too little, the others are fine."""
    return Verdict(
        seed=options.seed,
        violation="O1: two leaders in term 4" if options.seed == 2 else None,
        digest="0123456789abcdef",
        virtual_ms=20_000.0,
        cpu_seconds=2.0,
        steps=1,
        messages=1,
        outcomes=Outcomes(ok=100) if options.seed == 3 else Outcomes(ok=300, reads_ok=300),
        elections=9,
        crashes=3,
        faults={"crash": 12},
        trace=["  1.00 role node=n1"],
    )


@pytest.fixture(autouse=True)
def _fake_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "simulate", fake_world)


def invoke(*arguments: str, output: str = "table") -> Result:
    """The command with its global options; the exit code is what it returns."""

    # A command keeps the help option of the first context it was in.
    @click.command(context_settings={"help_option_names": ["-h", "--help"]})
    @click.pass_context
    def program(context: click.Context) -> None:
        context.obj = Context(output=output)
        command = simulate.make_context("simulate", list(arguments), parent=context)
        with command:
            context.exit(simulate.invoke(command))

    return CliRunner().invoke(program)


def test_options_of_a_world_come_before_its_result() -> None:
    """A run that hangs can be replayed too."""
    result = invoke("--seed", "1", "--set", "nodes=5")
    first, second, last = result.output.splitlines()
    assert first.startswith("seed 1 nodes=5 ")
    assert second.startswith("seed 1: ok, 600 operations, 12 faults, 9 elections, 300 operations/s")
    assert last.startswith("1 seeds: 0 failed, 0 weak; 600 operations (300/s per process)")
    assert last.endswith("10 x real time")
    assert result.exit_code == 0


def test_failing_seed_names_the_command_that_replays_it() -> None:
    """With the changes that were made, and exit code 7."""
    result = invoke("--seeds", "1..2", "--jobs", "1", "--set", "keys=3")
    assert "O1: two leaders in term 4" in result.output
    assert "replay: raftstore simulate --seed 2 --set keys=3 --trace" in result.output
    assert "role node=n1" not in result.output
    assert result.exit_code == 7


def test_trace_is_shown_when_asked_for() -> None:
    """The end of it, for the failing seed only."""
    result = invoke("--seed", "2", "--trace")
    assert "role node=n1" in result.output


def test_weak_seed_is_no_success() -> None:
    """A world that did too little proves nothing."""
    result = invoke("--seed", "3")
    assert "seed 3: weak, 100 operations" in result.output
    assert result.exit_code == 7


def test_json_holds_everything_of_every_seed() -> None:
    """One document: options, counts, and what failed."""
    result = invoke("--seeds", "1..3", "--jobs", "1", output="json")
    shown = json.loads(result.stdout)
    assert shown["failed"] == [2]
    assert shown["weak"] == [3]
    assert [world["seed"] for world in shown["seeds"]] == [1, 2, 3]
    assert shown["seeds"][0]["options"]["nodes"] == 3
    assert shown["seeds"][1]["replay"] == "raftstore simulate --seed 2 --trace"
    assert result.exit_code == 7


def test_only_worlds_with_an_option_run_when_it_is_asked_for() -> None:
    """Each keeps its seed, so that it is replayed by that alone; several options hold together."""
    wanted = [seed for seed in range(51, 121) if draw_options(seed).member_changes]
    result = invoke("--seeds", "51..120", "--jobs", "1", "--only", "member_changes")
    ran = [int(line.split()[1][:-1]) for line in result.output.splitlines() if ": ok" in line]
    assert ran == wanted
    assert f"{len(wanted)} worlds, all with member_changes" in result.output.splitlines()[0]
    both = ("--only", "member_changes", "--only", "retention")
    result = invoke("--seeds", "51..120", "--jobs", "1", *both)
    fewer = [seed for seed in wanted if draw_options(seed).retention]
    assert f"{len(fewer)} seeds: 0 failed" in result.output
    assert 0 < len(fewer) < len(wanted)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give --seed N or --seeds A..B"),
        (("--seed", "1", "--seeds", "1..2"), "give --seed N or --seeds A..B"),
        (("--seeds", "9..1"), "'9..1' is no range"),
        (("--seed", "1", "--set", "nodes"), "'nodes' is no option"),
        (("--seed", "1", "--set", "nods=5"), "unknown simulation option 'nods'"),
        (("--seed", "1", "--set", "nodes=x"), "nodes='x' is no int"),
        (("--seed", "1", "--set", "nodes=0"), "nodes=0 is out of range; allowed are 3 to 32"),
        (("--seed", "1", "--set", "writers=0"), "writers=0 proves nothing; allowed are 1 to 64"),
        (("--seed", "1", "--set", "loss_percent=nan"), "loss_percent=nan is out of range"),
        (("--seed", "1", "--set", "durability=x"), "durability=x is none; give one of fsync"),
        (("--seeds", "1..9", "--set", "sync_max_ms=0.1"), "is above sync_max_ms=0.1; give both"),
        (("--seed", "1", "--jobs", "0"), "--jobs"),
        (("--seed", "1", "--only", "members"), "--only: unknown simulation option 'members'"),
        (("--seeds", "1..9", "--only", "member_changes"), "leaves none of 9 worlds; give more"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...], told: str) -> None:
    """Nothing runs before the whole command is understood."""
    result = invoke(*arguments)
    assert told in result.output
    assert result.exit_code == 2


def test_range_of_more_seeds_than_anybody_runs_is_refused() -> None:
    """It would be held in memory as a whole."""
    result = invoke("--seeds", "1..99999999999999999999")
    assert result.exit_code == 2
    assert "more than 1000000 seeds; give a shorter range" in result.output
