"""A campaign: what ended is kept, what was cut runs again, the page says what was reached."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from jepsen_like.campaign import loop
from jepsen_like.campaign import parts as units
from jepsen_like.campaign.combinations import COMBINATIONS
from jepsen_like.campaign.ledger import (
    LEDGER_NAME,
    Entry,
    Ledger,
    LedgerError,
    add_up,
    save_sums,
)
from jepsen_like.campaign.loop import furthest, run_campaign
from jepsen_like.campaign.parts import PARTS, Part, Settings, run_unit
from jepsen_like.campaign.summary import BEGIN, END, markdown, replace_section
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.plan import Plan
from jepsen_like.result import Result
from jepsen_like.target.base import NotRunError
from jepsen_like.workload.channelsets import NAME as CHANNELSETS
from jepsen_like.workload.registry import WORKLOADS


def part(name: str, goal: int) -> Part:
    """A part whose second unit finds a violation."""

    def run(index: int, _settings: Settings) -> Entry:
        failure = "lost a write" if index == 1 else ""
        figures = {"operations": 10, "faults": {"kill": index}}
        return Entry(name, str(index), not failure, figures, failure, f"replay {index}", "abc")

    return Part(name, "what it shows", goal, "units", is_parallel=False, key=str, run=run)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> tuple[Part, Part]:
    """A long part and a short one, in the place of the real ones."""
    both = (part("long", 4), part("short", 2))
    by_name = {each.name: each for each in both}
    monkeypatch.setattr(
        loop, "run_unit", lambda name, index, settings: by_name[name].run(index, settings)
    )
    return both


def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, 30.0, 1)


def test_campaign_goes_on_where_it_was_stopped(tmp_path: Path, parts: tuple[Part, Part]) -> None:
    """A unit that ended never runs again; all parts advance together; failures do not end it."""
    told: list[str] = []

    def stop_after_three(_part: Part, entry: Entry) -> None:
        told.append(f"{entry.part} {entry.key}")
        if len(told) == 3:
            raise KeyboardInterrupt

    later = time.monotonic() + 60
    with pytest.raises(KeyboardInterrupt):
        run_campaign(
            parts, Ledger(tmp_path), settings(tmp_path), jobs=1, until=later, tell=stop_after_three
        )
    run_campaign(
        parts, Ledger(tmp_path), settings(tmp_path), jobs=1, until=later, tell=stop_after_three
    )
    assert told == ["long 0", "short 0", "long 1", "long 2", "short 1", "long 3"]
    entries = Ledger(tmp_path).entries
    assert [f"{entry.part} {entry.key}" for entry in entries] == told
    assert [entry.passed for entry in entries] == [True, True, False, True, False, True]


def test_campaign_ends_when_its_time_is_over(tmp_path: Path, parts: tuple[Part, Part]) -> None:
    """Not before the unit under way has ended, and no later."""
    ledger = Ledger(tmp_path)
    run_campaign(parts, ledger, settings(tmp_path), jobs=1, until=0.0, tell=lambda *_: None)
    assert ledger.entries == []


def test_unit_that_could_not_take_place_is_told_and_left_for_another_time(
    tmp_path: Path, parts: tuple[Part, Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither passed nor violated; the others go on, and the campaign ends without it."""
    real = loop.run_unit

    def run(name: str, index: int, given: Settings) -> Entry:
        entry = real(name, index, given)
        is_out = (name, index) == ("long", 1)
        return Entry(name, entry.key, passed=False, not_run="no port") if is_out else entry

    monkeypatch.setattr(loop, "run_unit", run)
    told: list[str] = []
    ledger = Ledger(tmp_path)
    later = time.monotonic() + 60
    run_campaign(
        parts,
        ledger,
        settings(tmp_path),
        jobs=1,
        until=later,
        tell=lambda part, entry: told.append(f"{part.name} {entry.key} {entry.not_run}"),
    )
    assert told.count("long 1 no port") == 1
    assert not ledger.has("long", "1")
    assert ledger.count("long") == 3
    assert ledger.count("short") == 2


def test_real_unit_whose_machine_refused_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the runs on processes: their other failures are violations."""

    def refuse(*_: object) -> None:
        raise NotRunError("another program took a port of n2; run it again")

    monkeypatch.setattr(units, "run_plan", refuse)
    assert run_unit("processes", 0, settings(tmp_path)).not_run.startswith("another program")


def test_part_furthest_from_its_goal_is_next(tmp_path: Path, parts: tuple[Part, Part]) -> None:
    """When all goals are reached, no part is next."""
    ledger = Ledger(tmp_path)
    for key in "01":
        ledger.add(Entry("short", key, passed=True))
    chosen = furthest(parts, ledger)
    assert chosen is not None
    assert chosen.name == "long"
    for key in "0123":
        ledger.add(Entry("long", key, passed=True))
    assert furthest(parts, ledger) is None


def test_second_campaign_of_a_directory_is_refused(tmp_path: Path) -> None:
    """Two would run in each other's clusters, and call the other's doings violations."""
    with (
        Ledger(tmp_path).claimed(),
        pytest.raises(LedgerError, match=r"another campaign runs in .*--out"),
        Ledger(tmp_path).claimed(),
    ):
        pytest.fail("both claimed it")
    with Ledger(tmp_path).claimed():
        pass


def test_line_cut_by_a_crash_is_dropped_and_its_unit_runs_again(tmp_path: Path) -> None:
    """Given half a line that a crash left, it is dropped: its unit runs again, and later lines are
    not glued to it.
    """
    ledger = Ledger(tmp_path)
    ledger.add(Entry("long", "0", passed=True, figures={"operations": 7}))
    with (tmp_path / LEDGER_NAME).open("a") as file:
        file.write('{"part": "long", "key": "1", "pas')
    again = Ledger(tmp_path)
    assert not again.has("long", "1")
    again.add(Entry("long", "1", passed=True))
    lines = (tmp_path / LEDGER_NAME).read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["0", "1"]


def test_campaign_goes_on_elsewhere_from_the_sums_of_a_ledger(
    tmp_path: Path, parts: tuple[Part, Part]
) -> None:
    """Given the sums of a ledger, a campaign elsewhere does not repeat their units, and its page is
    the same as with all units in one place.
    """
    sums, here, there = tmp_path / "sums", tmp_path / "here", tmp_path / "there"
    told: list[str] = []

    def run(ledger: Ledger, goal: int) -> None:
        some = [part(each.name, min(goal, each.goal)) for each in parts]
        later = time.monotonic() + 60
        run_campaign(some, ledger, settings(tmp_path), jobs=1, until=later, tell=tell)

    def tell(_part: Part, entry: Entry) -> None:
        told.append(f"{entry.part} {entry.key}")

    run(Ledger(here), 3)
    save_sums(sums, Ledger(here).entries)
    lines = [json.loads(line) for line in sums.read_text().splitlines()]
    assert [line.get("keys") for line in lines] == [["0", "2"], ["0"], None, None]
    run(Ledger(there, sums), 9)
    assert told[-1] == "long 3"
    assert len(told) == len(set(told)) == 6
    elsewhere = Ledger(there, sums)
    assert (elsewhere.count("long"), elsewhere.count("short")) == (4, 2)
    run(Ledger(here), 9)
    everything = markdown(parts, Ledger(here).entries, "a machine")
    assert sorted(markdown(parts, elsewhere.entries, "a machine")) == sorted(everything)
    save_sums(sums, elsewhere.entries)
    assert Ledger(there, sums).count("long") == 4, "the ledger's own are in these sums, too"
    assert add_up(Ledger(there, sums).entries) == add_up(Ledger(here).entries)
    assert '"0..3"' in _sums_of_numbers(tmp_path)


def _sums_of_numbers(tmp_path: Path) -> str:
    entries = [Entry("long", str(number), passed=True) for number in (2, 0, 3, 1)]
    save_sums(tmp_path / "numbers", entries)
    assert Ledger(tmp_path / "numbered", tmp_path / "numbers").has("long", "2")
    return (tmp_path / "numbers").read_text()


def test_damaged_line_is_named_with_what_to_do(tmp_path: Path) -> None:
    """A ledger of hours is not thrown away because of one line."""
    (tmp_path / LEDGER_NAME).write_text('{"part": "long", "key": "0", "passed": true}\nnonsense\n')
    with pytest.raises(LedgerError, match=rf"{LEDGER_NAME}:2 is no line .* remove that line"):
        Ledger(tmp_path)


def test_page_shows_reached_and_goal_sums_and_every_violation() -> None:
    """Somebody who reads only the page knows what was proven and what was not."""
    parts = (part("long", 4), part("short", 2))
    entries = [parts[0].run(index, Settings(Path(), 1.0, 1)) for index in range(3)]
    assert add_up(entries) == {"operations": 30, "faults": {"kill": 3}}
    page = markdown(parts, entries, "a machine")
    assert "| long | what it shows | 3 units | 4 | 1 |" in page
    assert "| short | what it shows | 0 units | 2 | 0 |" in page
    assert "30 operations" in page
    assert "state of the code they ran on: abc 3." in page
    assert "- `replay 1`: lost a write" in page
    old = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replace_section(old, page) == f"before\n{page}\nafter\n"
    with pytest.raises(ValueError, match="no section"):
        replace_section("nothing", page)


def test_combinations_name_what_exists_and_leave_no_workload_out() -> None:
    """A combination with a typo would end the campaign after hours."""
    assert {workload for workload, _ in COMBINATIONS} == {*WORKLOADS, CHANNELSETS}
    for _, nemeses in COMBINATIONS:
        assert {name for name in nemeses.split(",") if name != "all"} <= set(CATALOGUE)
    assert set(units.RARE_WORKLOADS) <= set(WORKLOADS)
    assert set(units.RARE_KINDS) | set(",".join(units.RARE_BESIDE).split(",")) <= set(CATALOGUE)
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["worlds", "rare", "corruption"])
def test_real_unit_ends_with_figures_and_the_command_that_repeats_it(
    tmp_path: Path, name: str
) -> None:
    """An entry of a real unit has the figures for the page and the command for its replay."""
    entry = run_unit(name, 0, settings(tmp_path))
    assert entry.passed, entry.failure
    assert entry.figures
    assert entry.replay.startswith("raftstore chaos ")
    assert len(entry.code) == 12


def test_a_campaign_runs_the_shipped_state_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Channel sets have no workload by name: their plan names the machines."""
    plans: list[Plan] = []

    def run(plan: Plan, on_progress: object) -> Result:
        del on_progress
        plans.append(plan)
        raise NotRunError("not here")

    monkeypatch.setattr(units, "run_plan", run)
    for index in range(len(COMBINATIONS)):
        run_unit("processes", index, Settings(tmp_path, 1.0, 1))
    named = [plan for plan in plans if plan.machines]
    assert [(plan.workload, plan.machines) for plan in named] == [(CHANNELSETS, ("recipes",))]
    assert len(plans) == len(COMBINATIONS)
