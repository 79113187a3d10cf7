"""Runs drawn from seeds: broken where the mutation says, compared with sound code, recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.mutations import __main__ as command
from tests.mutations import drawn
from tests.mutations.catalogue import mutation_named
from tests.mutations.drawn import Catch, CatchError, Result, Task
from tests.mutations.guard import Chaos, Directed, Worlds, directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.source_patch import PatchError, install, source_root
from tests.mutations.syntax import Edit, SourceTree
from tests.mutations.table import as_markdown

BROKEN = mutation("S4.4-a", "It breaks.", Edit("x", "1", "2"), worlds())
SINGLE = Task(BROKEN, BROKEN.drawn[0])


def caught(task: Task = SINGLE, seed: int = 3, seeds: int = 4) -> Catch:
    """A catch as recorded."""
    return Catch(*task.key, "O4", seed, seeds, 0.5, "O4: lost")


def task_named(name: str) -> Task:
    """The only guard of a mutation that is drawn from seeds."""
    found = mutation_named(name)
    (guard,) = found.drawn
    return Task(found, guard)


# --- patches --------------------------------------------------------------------------------------


def test_module_that_was_imported_cannot_be_patched_any_more() -> None:
    """A patch that comes too late would show that sound code is caught by nobody."""
    with pytest.raises(PatchError, match="imported already"):
        install((Edit("PINNED_SEEDS_MAX", "30", "31"),))


SCRIPT = """
from tests.mutations.source_patch import PatchError, install
from tests.mutations.syntax import Edit
patches = install((Edit("HASH_ID", {old!r}, {new!r}),))
try:
    patches.check_used()
except PatchError as error:
    print(error)
from raftstore.rows.partitioner import HASH_ID
patches.check_used()
print(HASH_ID)
"""


def run_script(old: str, new: str) -> subprocess.CompletedProcess[str]:
    """Patch a module in a fresh process, then import it."""
    command_line = [sys.executable, "-c", SCRIPT.format(old=old, new=new)]
    return subprocess.run(
        command_line, cwd=source_root(), capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_patched_code_is_what_runs_and_only_in_that_process() -> None:
    """Given a patch, the process runs the patched code, and the file on disk stays as it is."""
    path = source_root() / SourceTree(source_root()).path_of(Edit("HASH_ID", '"crc32m-1"', "0"))
    before = path.read_bytes()
    done = run_script('"crc32m-1"', '"crc32m-patched"')
    assert done.returncode == 0, done.stderr
    assert "never imported, so that the run shows nothing" in done.stdout
    assert done.stdout.endswith("crc32m-patched\n")
    assert path.read_bytes() == before


def test_patch_that_does_not_fit_ends_the_process() -> None:
    """A child with a stale patch never counts as one that caught nothing."""
    done = run_script('"no such text"', '"x"')
    assert done.returncode != 0
    assert "no place, instead of one, has in HASH_ID" in done.stderr


# --- children -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_child_catches_a_mutation_and_passes_without_it() -> None:
    """A child catches the mutation; without the mutation the same world is sound."""
    task = task_named("S1.3-two-votes-in-a-term")
    result = drawn.search(task, range(1, 20))
    assert result.catch is not None
    assert result.catch.guard == task.guard.label
    drawn.SoundRuns().check(task, result.catch)


@pytest.mark.slow
def test_child_that_fails_is_an_error() -> None:
    """Given a child that fails, it is an error, never a mutation that escaped."""
    nobody = replace(SINGLE, mutation=replace(BROKEN, name="S4.4-nobody"))
    with pytest.raises(CatchError, match=r"the process failed: .*no mutation is named 'S4.4-nob"):
        drawn.run_child(nobody, [1])


# --- replay and record ----------------------------------------------------------------------------


class FakeChildren:
    """Stands for processes: says which seeds catch with and without the mutation."""

    def __init__(
        self, *, catching: Sequence[int], failing: Sequence[int] = (), by: str = "O4"
    ) -> None:
        self.runs: list[tuple[bool, tuple[int, ...]]] = []
        self._catching, self._failing, self._by = catching, failing, by

    def __call__(
        self, task: Task, seeds: Sequence[int], *, sound: bool = False
    ) -> list[dict[str, Any]]:
        del task
        self.runs.append((sound, tuple(seeds)))
        wrong = self._failing if sound else self._catching
        told: list[dict[str, Any]] = []
        for seed in seeds:
            violation = "O4: lost" if seed in wrong else None
            told.append({"seed": seed, "violation": violation, "by": self._by, "seconds": 0.5})
            if violation is not None:
                break
        return told


def run_fakes(
    monkeypatch: pytest.MonkeyPatch,
    fakes: FakeChildren,
    recorded: dict[drawn.Key, Catch] | None,
    seeds: Sequence[int] | None = range(1, 6),
) -> Result:
    """Catch the sample with seeds 1 to 5."""
    monkeypatch.setattr(drawn, "run_child", fakes)
    (result,) = drawn.catch_all([SINGLE], seeds=seeds, jobs=1, recorded=recorded)
    return result


def test_search_counts_the_seeds_it_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says after how many seeds a mutation was caught."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[4]), None)
    assert result.catch is not None
    assert (result.catch.seed, result.catch.seeds) == (4, 4)


def test_guard_says_which_seeds_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard with few worlds must notice in those."""
    fakes = FakeChildren(catching=[51])
    assert run_fakes(monkeypatch, fakes, None, seeds=None).seeds_run == 50
    assert fakes.runs == [(False, tuple(range(1, 51)))]


def test_patch_that_raises_what_only_wrong_code_raises_is_no_catch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sources moved on under it: it broke them in another way than it says."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[2], by="UnboundLocalError"), None)
    assert result.catch is None
    assert result.failure == "mutation S4.4-a: the patch itself is wrong: O4: lost"


@pytest.mark.parametrize("failing", [[], [2]])
def test_mutations_that_one_run_catches_share_the_run_without_them(
    monkeypatch: pytest.MonkeyPatch, failing: list[int]
) -> None:
    """The run is the same without either, and so is what it says about both."""
    fakes = FakeChildren(catching=[2], failing=failing)
    monkeypatch.setattr(drawn, "run_child", fakes)
    tasks = [SINGLE, replace(SINGLE, mutation=replace(BROKEN, name="S4.4-b"))]
    results = list(drawn.catch_all(tasks, seeds=range(1, 6), jobs=2, recorded=None))
    assert len([sound for sound, _ in fakes.runs if sound]) == 1
    assert [result.catch is not None for result in results] == [not failing] * 2


def test_replay_needs_one_seed_while_it_still_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded seed is tried first, and once without the mutation."""
    fakes = FakeChildren(catching=[3])
    result = run_fakes(monkeypatch, fakes, {SINGLE.key: caught()})
    assert result.catch is not None
    assert fakes.runs == [(False, (3,)), (True, (3,))]
    assert result.catch.seeds == caught().seeds
    assert not result.has_moved


def test_replay_looks_further_when_the_recorded_seed_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change of the worlds changes what a seed means, not what is caught."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[5]), {SINGLE.key: caught()})
    assert result.has_moved
    assert result.catch is not None
    assert result.catch.seed == 5


def test_mutation_nobody_sees_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported after how many seeds."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[]), None)
    assert (result.catch, result.seeds_run, result.failure) == (None, 5, None)


def test_what_fails_without_the_mutation_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that fails on sound code is a finding of its own, not a catch."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[2], failing=[2]), None)
    assert result.catch is None
    assert result.failure == "S4.4-a: seed 2 fails without it, too: O4: lost"


def test_record_keeps_what_was_not_run_again(tmp_path: Path) -> None:
    """--only with --record changes one entry; a mutation that escaped loses its own."""
    path = tmp_path / "caught.json"
    other = replace(SINGLE, mutation=replace(BROKEN, name="S1-b"))
    drawn.save_record([Result(SINGLE, caught(), 4), Result(other, caught(other), 4)], path)
    drawn.save_record([Result(SINGLE, caught(seed=9), 9)], path)
    found = drawn.load_record(path)
    assert (found[SINGLE.key].seed, found[other.key].seed) == (9, 3)
    drawn.save_record([Result(SINGLE, None, 50)], path)
    assert list(drawn.load_record(path)) == [other.key]


def test_damaged_record_is_told_with_its_remedy(tmp_path: Path) -> None:
    """A replay that has nothing to replay must not look like one that passed."""
    path = tmp_path / "caught.json"
    for content in (None, "[", '[{"mutation": "x"}]'):
        if content is not None:
            path.write_text(content)
        with pytest.raises(CatchError, match=r"cannot be read .*record them again with --record"):
            drawn.load_record(path)


def test_record_is_readable_by_people() -> None:
    """One entry per guard, in the order of names, with all that is needed to run it again."""
    entries = json.loads(drawn.RECORD.read_text())
    keys = [(entry["mutation"], entry["guard"]) for entry in entries]
    assert keys == sorted(keys)
    assert all(entry["violation"] for entry in entries)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Nothing is caught but by what the test says; says what was asked for."""
    asked: dict[str, Any] = {"catches": {}, "saved": []}

    def catch_all(tasks: Sequence[Task], **options: Any) -> Iterator[Result]:
        asked.update(tasks=tasks, **options)
        for task in tasks:
            yield Result(task, asked["catches"].get(task.mutation.name), 3)

    monkeypatch.setattr(command.SourceTree, "check", lambda *_: None)  # test_table.py does
    monkeypatch.setattr(command, "catch_all", catch_all)
    monkeypatch.setattr(command, "save_record", asked["saved"].extend)
    return asked


DRAWN = ("--guard", "worlds", "chaos", "client_worlds", "disk")


def test_command_exits_with_seven_when_a_mutation_escapes(
    no_children: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The stage fails by it."""
    assert command.main([*DRAWN, "--only", "S0.5-world", "--seeds", "1..3"]) == 7
    told = capsys.readouterr().out
    assert "escaped after 3 seeds" in told
    assert "UNNOTICED: S0.5-world" in told
    assert no_children["recorded"] is None
    assert no_children["seeds"] == [1, 2, 3]


def test_command_tells_who_caught_a_mutation_and_records_it(
    no_children: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle, seeds and guard on one line."""
    task = task_named("S0.5-world")
    no_children["catches"]["S0.5-world"] = caught(task)
    assert command.main([*DRAWN, "--only", "S0.5-world", "--record"]) == 0
    told = capsys.readouterr().out
    assert "after 4 seeds (seed 3), by worlds slow_disk=1" in told
    assert "1 of 1 caught, median 4 seeds" in told
    assert [result.task for result in no_children["saved"]] == [task]
    assert no_children["seeds"] is None


def test_command_chooses_guards_and_parts(
    no_children: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every guard is in exactly one part, and of the kind that was asked for."""
    chosen = []
    for part in ("1/3", "2/3", "3/3"):
        command.main(["--guard", "worlds", "--part", part])
        chosen += no_children["tasks"]
    assert {task.guard.kind for task in chosen} == {"worlds"}
    command.main(["--guard", "worlds", "--replay"])
    assert sorted(task.key for task in chosen) == sorted(t.key for t in no_children["tasks"])
    assert no_children["recorded"] == drawn.load_record()
    capsys.readouterr()
    assert command.main(["--guard", "disk", "--only", "S0.5-world"]) == 2
    assert "nothing to run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--seeds", "5..1"), "'5..1' is no range; write A..B"),
        (("--part", "3/2"), "'3/2' is no part; write N/M"),
        (("--guard", "worlds", "luck"), "invalid choice: 'luck'"),
    ],
)
def test_command_refuses_what_it_cannot_run(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str
) -> None:
    """One sentence that names the value."""
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert text in capsys.readouterr().err


# --- the table ------------------------------------------------------------------------------------


def test_table_tells_rule_guards_oracle_and_seeds() -> None:
    """The table has each mutation's rule, guards, oracle and seeds; a guard without a catch is
    marked.
    """
    chaos = Mutation("S7.3-b", "It lags.", (), (Chaos("bounded_reads", ("loss", "kill-all")),))
    both = Mutation(
        "S3.1-c",
        "It counts.",
        (),
        (Directed(("a/t.py::test_c",), "rare"), Worlds()),
        also=("S3.2",),
    )
    catches = {SINGLE.key: caught()}
    lines = as_markdown([BROKEN, chaos, both], catches).splitlines()
    assert lines[0].startswith("3 mutations: 1 are noticed by directed tests; 1 of 3 guards")
    assert "| S4.4 | a: It breaks. | worlds: `O4`, 4 (seed 3) |" in lines
    assert "| S7.3 | b: It lags. | bounded_reads under loss, kill-all (nobody yet) |" in lines
    assert "| S3.1, S3.2 | c: It counts. | t.py :: test_c; worlds (nobody yet) |" in lines
    assert "* S3.1-c: rare." in lines


def test_tests_are_told_without_their_folders() -> None:
    """A row of the table stays short."""
    assert directed("tests/a/test_x.py::test_y").label == "test_x.py :: test_y"
