"""Planted bugs: they fit the sources, run where they are planted, and are told from sound code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jepsen_like.planted import catcher, command
from jepsen_like.planted.bug import PlantedBug, in_worlds
from jepsen_like.planted.catalogue import NOT_YET, PLANTED, UnknownBugError, bug_named
from jepsen_like.planted.catcher import Catch, CatchError, Result
from jepsen_like.planted.guard import Chaos, DirectedTests
from jepsen_like.planted.source_patch import Edit, PatchError, check, install, source_root
from jepsen_like.planted.table import BEGIN, END, TableError, as_markdown, write_table

HELP = ["-h", "--help"]
"""As the program shows it: a command keeps the help option of the first context it was in."""

SIX = {"S1.2", "S3.1", "S3.3", "S3.4", "S6.1"}
"""Rules that random chaos does not guard (S3.4 twice)."""
SINGLE = in_worlds("S4.4", "a-bug", "It breaks.", Edit("raftstore/types.py", "x", "y"))


def caught(bug: PlantedBug = SINGLE, seed: int | None = 3, seeds: int = 4) -> Catch:
    """A catch as recorded."""
    return Catch(bug.name, bug.guard.label, "O4", seed, seeds, 0.5, "O4: lost")


# --- the catalogue --------------------------------------------------------------------------------


def test_every_patch_fits_the_present_source() -> None:
    """A bug whose line was rewritten must be planted anew, not be forgotten."""
    for bug in PLANTED:
        check(source_root(), bug.edits)


def test_no_two_bugs_are_on_the_same_line() -> None:
    """Each bug breaks another place, so that their number means something.

    An assertion that would notice them first is no bug, and may have to go for several.
    """
    seen: dict[tuple[str, int], str] = {}
    for bug in PLANTED:
        lines = {
            (edit.path, line)
            for edit in bug.edits
            if edit.new or not edit.old.lstrip().startswith("assert ")
            for line in edit.lines((source_root() / edit.path).read_text())
        }
        assert lines, bug.name
        for place in sorted(lines):
            assert seen.setdefault(place, bug.name) == bug.name, place


def test_at_least_forty_bugs_are_caught_by_runs_drawn_from_seeds() -> None:
    """Directed tests come on top, for what random runs do not see."""
    assert sum(not bug.is_directed for bug in PLANTED) >= 40
    assert {bug.rule for bug in PLANTED if bug.is_directed} >= SIX


def test_directed_tests_say_why_random_runs_do_not_do() -> None:
    """A directed test is an exception that has a reason, and it exists."""
    for bug in PLANTED:
        if isinstance(bug.guard, DirectedTests):
            assert bug.guard.why
            for test in bug.guard.tests:
                path, _, name = test.partition("::")
                assert f"def {name}(" in (source_root() / path).read_text(), test


def test_names_and_texts_can_be_told_apart() -> None:
    """One name and one sentence per bug."""
    assert len({bug.name for bug in PLANTED}) == len({bug.text for bug in PLANTED}) == len(PLANTED)
    for bug in PLANTED:
        assert re.fullmatch(r"[a-z0-9-]+", bug.name)
        assert re.fullmatch(r"S\d+(\.\d+)?", bug.rule)
        assert re.fullmatch(r"[A-Z].*\.", bug.text)
        assert bug.edits


def test_what_cannot_be_planted_yet_names_the_feature_it_waits_for() -> None:
    """Nothing is left out in silence."""
    assert {feature for _, _, feature in NOT_YET} == {"snapshots", "membership"}


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    """A typo is told from a bug that was removed."""
    assert bug_named("no-barrier").rule == "S0.5"
    with pytest.raises(UnknownBugError, match=r"'no-barier' is planted; there are .*no-barrier"):
        bug_named("no-barier")


# --- patches --------------------------------------------------------------------------------------


def test_edit_must_fit_exactly_once() -> None:
    """Neither nothing nor two places may be broken by mistake."""
    edit = Edit("raftstore/a.py", "x = 1", "x = 2")
    assert edit.apply("x = 1\n") == "x = 2\n"
    assert edit.module == "raftstore.a"
    assert list(edit.lines("a\nx = 1\n")) == [2]
    for source in ("", "x = 1\nx = 1\n"):
        with pytest.raises(PatchError, match=r"raftstore/a\.py has [02] times, instead of once"):
            edit.apply(source)


def test_module_that_was_imported_cannot_be_patched_any_more() -> None:
    """A patch that comes too late would show that sound code is caught by nobody."""
    with pytest.raises(PatchError, match="imported already"):
        install((Edit("jepsen_like/planted/bug.py", "a", "b"),))


SCRIPT = """
from jepsen_like.planted.source_patch import Edit, PatchError, install
patches = install((Edit("raftstore/rows/partitioner.py", "{old}", "{new}"),))
try:
    patches.check_used()
except PatchError as error:
    print(error)
import raftstore.rows.partitioner
patches.check_used()
"""


def run_script(old: str, new: str) -> subprocess.CompletedProcess[str]:
    """Patch a module in a fresh process, then import it."""
    text = SCRIPT.format(old=old, new=new)
    command_line = [sys.executable, "-c", text]
    return subprocess.run(
        command_line, cwd=source_root(), capture_output=True, text=True, check=False
    )


def test_patched_text_is_what_runs_and_only_in_that_process() -> None:
    """The line that was put in is executed; the file stays as it is."""
    before = (source_root() / "raftstore/rows/partitioner.py").read_bytes()
    old = "from __future__ import annotations"
    done = run_script(old, old + "\\nprint('the patched line ran')")
    assert done.returncode == 0
    assert "never imported, so that the run shows nothing" in done.stdout
    assert done.stdout.endswith("the patched line ran\n")
    assert (source_root() / "raftstore/rows/partitioner.py").read_bytes() == before


def test_patch_that_does_not_fit_ends_the_process() -> None:
    """A child with a stale patch never counts as one that caught nothing."""
    done = run_script("no such text", "x")
    assert done.returncode != 0
    assert "does not fit the source" in done.stderr


# --- children -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_child_catches_a_bug_and_passes_without_it() -> None:
    """What is caught is the bug: the same world is sound without it."""
    bug = bug_named("two-votes-in-a-term")
    result = catcher.search(bug, range(1, 20))
    assert result.catch is not None
    assert result.catch.seed is not None
    assert result.catch.guard == bug.guard.label
    catcher.SoundRuns().check(bug, result.catch)


@pytest.mark.slow
def test_child_runs_directed_tests_on_broken_code() -> None:
    """The test that fails is named, and it passes without the bug."""
    bug = bug_named("old-term-committed-by-counting")
    result = catcher.search(bug, ())
    assert result.catch is not None
    assert result.catch.by.startswith("test_figure_8")
    assert (result.catch.seed, result.catch.seeds) == (None, 0)
    catcher.SoundRuns().check(bug, result.catch)


@pytest.mark.slow
def test_child_that_fails_is_an_error() -> None:
    """Whatever happens to a child, it is never taken for a bug that escaped."""
    with pytest.raises(CatchError, match=r"nobody: the process failed: .*no bug named 'nobody'"):
        catcher.run_child("nobody", [1])


# --- replay and record ----------------------------------------------------------------------------


class FakeChildren:
    """Stands for processes: says which seeds catch with and without the bug."""

    def __init__(
        self, *, catching: Sequence[int], failing: Sequence[int] = (), by: str = "O4"
    ) -> None:
        self.runs: list[tuple[str, tuple[int, ...]]] = []
        self._catching, self._failing, self._by = catching, failing, by

    def __call__(self, name: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
        self.runs.append((name, tuple(seeds)))
        wrong = self._failing if name.startswith("-") else self._catching
        told: list[dict[str, Any]] = []
        for seed in seeds:
            violation = "O4: lost" if seed in wrong else None
            told.append({"seed": seed, "violation": violation, "by": self._by, "seconds": 0.5})
            if violation is not None:
                break
        return told


def run_fakes(
    monkeypatch: pytest.MonkeyPatch, fakes: FakeChildren, recorded: dict[str, Catch] | None
) -> Result:
    """Catch the sample bug with seeds 1 to 5."""
    monkeypatch.setattr(catcher, "run_child", fakes)
    (result,) = catcher.catch_all([SINGLE], range(1, 6), jobs=1, recorded=recorded)
    return result


def test_search_counts_the_seeds_it_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says after how many seeds a bug was caught."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[4]), None)
    assert result.catch is not None
    assert (result.catch.seed, result.catch.seeds) == (4, 4)


def test_patch_that_raises_what_only_wrong_code_raises_is_no_catch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sources moved on under it: it broke them in another way than it says."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[2], by="UnboundLocalError"), None)
    assert result.catch is None
    assert result.failure == "planted bug a-bug: the patch itself is wrong: O4: lost"


@pytest.mark.parametrize("failing", [[], [2]])
def test_bugs_that_one_run_catches_share_the_run_without_them(
    monkeypatch: pytest.MonkeyPatch, failing: list[int]
) -> None:
    """The run is the same without either, and so is what it says about both."""
    fakes = FakeChildren(catching=[2], failing=failing)
    monkeypatch.setattr(catcher, "run_child", fakes)
    bugs = [SINGLE, replace(SINGLE, name="another-bug")]
    results = list(catcher.catch_all(bugs, range(1, 6), jobs=2, recorded=None))
    assert len([name for name, _ in fakes.runs if name.startswith("-")]) == 1
    assert [result.catch is not None for result in results] == [not failing] * 2


def test_replay_needs_one_seed_while_it_still_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded seed is tried first, and once without the bug."""
    fakes = FakeChildren(catching=[3])
    result = run_fakes(monkeypatch, fakes, {SINGLE.name: caught()})
    assert result.catch is not None
    assert fakes.runs == [("a-bug", (3,)), ("-a-bug", (3,))]
    assert result.catch.seeds == caught().seeds
    assert not result.has_moved


def test_replay_looks_further_when_the_recorded_seed_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change of the worlds changes what a seed means, not what is caught."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[5]), {SINGLE.name: caught()})
    assert result.has_moved
    assert result.catch is not None
    assert result.catch.seed == 5


def test_bug_nobody_sees_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told after how many seeds."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[]), None)
    assert (result.catch, result.seeds_run, result.failure) == (None, 5, None)


def test_what_fails_without_the_bug_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that fails on sound code is a finding of its own, not a catch."""
    result = run_fakes(monkeypatch, FakeChildren(catching=[2], failing=[2]), None)
    assert result.catch is None
    assert result.failure == "a-bug: seed 2 fails without the bug, too: O4: lost"


def test_record_keeps_what_was_not_run_again(tmp_path: Path) -> None:
    """--only with --record changes one entry; an escaped bug loses its own."""
    path = tmp_path / "caught.json"
    other = in_worlds("S1", "another", "It breaks, too.")
    catcher.save_record([Result(SINGLE, caught(), 4), Result(other, caught(other), 4)], path)
    catcher.save_record([Result(SINGLE, caught(seed=9), 9)], path)
    found = catcher.load_record(path)
    assert (found["a-bug"].seed, found["another"].seed) == (9, 3)
    catcher.save_record([Result(SINGLE, None, 50)], path)
    assert list(catcher.load_record(path)) == ["another"]


def test_damaged_record_is_told_with_its_remedy(tmp_path: Path) -> None:
    """A replay that has nothing to replay must not look like one that passed."""
    path = tmp_path / "caught.json"
    for content in (None, "[", '[{"bug": "x"}]'):
        if content is not None:
            path.write_text(content)
        with pytest.raises(CatchError, match=r"cannot be read .*record them again with --record"):
            catcher.load_record(path)


def test_recorded_catches_name_what_is_planted_today() -> None:
    """Nothing is recorded that is not planted any more; every random catch has a seed."""
    for name, catch in catcher.load_record().items():
        bug = bug_named(name)
        assert catch.guard == bug.guard.label, name
        assert (catch.seed is None) == bug.is_directed


# --- the command ----------------------------------------------------------------------------------


def invoke(*arguments: str) -> Any:
    """Run the command; its exit code is what it returns."""
    return CliRunner().invoke(
        command.planted, arguments, standalone_mode=False, help_option_names=HELP
    )


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Nobody is caught but by what the test says; tells what was asked for."""
    asked: dict[str, Any] = {"catches": {}, "saved": []}

    def catch_all(
        bugs: Sequence[PlantedBug], seeds: Sequence[int], **options: Any
    ) -> Iterator[Result]:
        asked.update(seeds=list(seeds), **options)
        for bug in bugs:
            yield Result(bug, asked["catches"].get(bug.name), len(seeds))

    monkeypatch.setattr(command, "catch_all", catch_all)
    monkeypatch.setattr(command, "save_record", asked["saved"].extend)
    return asked


def test_command_exits_with_seven_when_a_bug_escapes(no_children: dict[str, Any]) -> None:
    """A campaign fails by it."""
    done = invoke("--only", "no-barrier", "--seeds", "1..3")
    assert done.return_value == command.EXIT_ESCAPED == 7
    assert "ESCAPED after 3 seeds" in done.output
    assert "escaped: no-barrier" in done.output
    assert no_children["recorded"] is None


def test_command_tells_who_caught_a_bug_and_records_it(no_children: dict[str, Any]) -> None:
    """Oracle, seeds and guard on one line."""
    bug = bug_named("no-barrier")
    no_children["catches"]["no-barrier"] = caught(bug)
    done = invoke("--only", "no-barrier", "--record")
    assert done.return_value == 0
    assert re.search(r"O4 +after 4 seeds \(seed 3\), by worlds slow_disk=1", done.output)
    assert "1 of 1 planted bugs caught, median 4 seeds" in done.output
    assert [result.bug for result in no_children["saved"]] == [bug]
    assert no_children["seeds"] == list(range(1, 51))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--only", "nothing"), "no bug named 'nothing' is planted"),
        (("--seeds", "5..1"), "--seeds '5..1' is no range; write A..B"),
        (("--seeds", "x"), "--seeds 'x' is no range; write A..B"),
    ],
)
def test_command_refuses_what_it_cannot_run(arguments: tuple[str, ...], text: str) -> None:
    """One sentence that names the value."""
    done = CliRunner().invoke(command.planted, arguments, help_option_names=HELP)
    assert done.exit_code != 0
    assert text in done.output


# --- the table ------------------------------------------------------------------------------------


def test_table_tells_rule_guard_oracle_and_seeds() -> None:
    """What is not caught is said to be so; what needs another feature is listed."""
    chaos = PlantedBug("S7.3", "b", "It lags.", (), Chaos("bounded_reads", ("loss", "kill-all")))
    directed = PlantedBug("S3.1", "c", "It counts.", (), DirectedTests(("t.py::test_c",), "rare"))
    catches = {
        "a-bug": caught(),
        "c": Catch("c", "directed test", "test_c", None, 0, 0.1, "FAILED"),
    }
    lines = as_markdown([SINGLE, chaos, directed], catches).splitlines()
    assert lines[0].startswith("2 of 3 planted bugs are caught: 2 by runs drawn from a seed")
    assert "| S4.4 | a-bug: It breaks. | worlds | `O4` | 4 (seed 3) |" in lines
    assert "| S7.3 | b: It lags. | bounded_reads under loss, kill-all | nobody |  |" in lines
    assert "| S3.1 | c: It counts. | directed test | `test_c` | - |" in lines
    assert "* c: rare." in lines
    assert any("with snapshots" in line for line in lines)


def test_table_goes_between_the_markers_of_a_page(tmp_path: Path) -> None:
    """What people wrote around it stays; a page without a place is refused."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_table(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(TableError, match="needs one line"):
        write_table(page, "new")


def test_page_shows_the_recorded_table() -> None:
    """The documentation says what the record says; `raftstore chaos planted --write` does it."""
    page = (source_root() / "docs/testing.md").read_text()
    table = as_markdown(PLANTED, catcher.load_record())
    assert f"{BEGIN}\n{table}\n{END}" in page


def test_record_is_readable_by_people() -> None:
    """One entry per bug, in the order of names, with all that is needed to run it again."""
    entries = json.loads(catcher.RECORD.read_text())
    assert [entry["bug"] for entry in entries] == sorted(entry["bug"] for entry in entries)
    assert all(entry["violation"] for entry in entries)
