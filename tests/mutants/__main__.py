"""Change the program at random and see whether the tests notice.

    python -m tests.mutants [--seed 2026-11-22] [--count 60] [--rooms core engine/catalog]
    python -m tests.mutants --only "raftstore/core/leader.py::Leader.on_timer"
    python -m tests.mutants --only raftstore/core/quorum.py --tests tests/unit/core/test_quorum.py

Mutants are drawn by the seed, the same number from each room; the date is the seed of a day. Those
that nobody notices are printed as a diff with the tests that reached them, unless
``equivalent.toml`` says why no test can. Exit code 1 when fewer are noticed than ``--at-least``.

Known tools do not fit. mutmut writes all mutants of a file into a copy of it, takes the tests that
reach a function and not the line, and draws none by a seed. cosmic-ray edits the checkout, runs one
command for every mutant, from the start of Python on, and knows neither which tests reach a line
nor a list of equivalent mutants that outlives a refactoring. Here most take a tenth of a second.
"""

from __future__ import annotations

import argparse
import datetime as dt
import difflib
import os
import random
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest

from tests.mutants import forks
from tests.mutants.forks import End, Forks, NotPatchableError, Ran
from tests.mutants.mutator import ROOT, Mutant, mutants_of, source_of
from tests.mutants.reach import LEFT_OUT, MARKERS, QUICK, TEST_PLACES, Reach, load
from tests.mutants.recorder import ROOMS, files_of

EQUIVALENT = Path(__file__).parent / "equivalent.toml"
FIRST_SECONDS = 2.0
"""Of tests in the first run of a mutant; each run after it has three times as many."""
REACHED_BY_MAX = 5
"""Tests named with a survivor: the fastest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one mutant."""

    mutant: Mutant
    noticed: bool
    detail: str


@cache
def all_mutants(room: str) -> tuple[Mutant, ...]:
    """Every mutant of a room, or of a place in one."""
    return tuple(mutant for path in files_of(room) for mutant in mutants_of(path, source_of(path)))


def chosen_mutants(seed: str, count: int, rooms: list[str], only: list[str]) -> list[Mutant]:
    """The mutants of a seed: as many of each room as the others have."""
    chosen: list[Mutant] = []
    for number, room in enumerate(rooms):
        found = all_mutants(room)
        if only:
            chosen += [mutant for mutant in found if mutant.name.startswith(tuple(only))]
            continue
        share = count // len(rooms) + (number < count % len(rooms))
        # First the place, then what is done there: else a line of numbers outweighs all others.
        places: dict[tuple[str, int], list[Mutant]] = {}
        for mutant in found:
            places.setdefault((mutant.path, mutant.start), []).append(mutant)
        draw = random.Random(f"{seed} {room}")
        for place in draw.sample(sorted(places), min(share, len(places))):
            chosen.append(draw.choice(places[place]))
    return chosen


def known_equivalent() -> dict[str, str]:
    """Names of mutants that no test can notice, with the reason."""
    told = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return {entry["mutant"]: entry["reason"] for entry in told["equivalent"]}


def stale_names(rooms: list[str]) -> list[str]:
    """Mutants judged equivalent that the sources have no more."""
    existing = {mutant.name for room in rooms for mutant in all_mutants(room)}
    places = tuple(f"{path}::" for room in rooms for path in files_of(room))
    return [name for name in known_equivalent() if name.startswith(places) and name not in existing]


def as_room(text: str) -> str:
    """A room, or a package or module below ``raftstore`` that is in one."""
    if text not in ROOMS:
        reached = {path for room in ROOMS for path in files_of(room)}
        if not (ROOT / "raftstore" / text).exists() or not reached.issuperset(files_of(text)):
            message = f"{text!r} is none of {', '.join(ROOMS)}, and no package or module in them"
            raise argparse.ArgumentTypeError(message)
    return text


def try_one(runner: Forks, reach: Reach | None, mutant: Mutant, seconds_max: float) -> Verdict:
    """Run what reaches it, the fastest tests first, until one fails or all have passed."""
    tests = runner.tests
    if reach is not None:
        collected = frozenset(tests)
        tests = [test for test in reach.tests_of(mutant) if test in collected]
    if not tests:
        return Verdict(mutant, noticed=False, detail="no test reaches it")
    share = FIRST_SECONDS
    done, spent = 0, 0.0
    while done < len(tests) and spent < seconds_max:
        part, needed = [], 0.0
        for test in tests[done:]:
            seconds = 0.0 if reach is None else reach.seconds[test]
            if part and needed + seconds > share:
                break
            part.append(test)
            needed += seconds
        ran = runner.run(mutant, part, needed)
        if ran.end is End.STUCK and runner.run(None, part, needed).end is not End.PASSED:
            ran = Ran(End.PASSED, "")  # so it was not the mutant
        if ran.end is not End.PASSED:
            return Verdict(mutant, noticed=True, detail=f"{ran.end.value}: {ran.detail}")
        done += len(part)
        spent += needed
        share *= 3
    fastest = ", ".join(tests[:REACHED_BY_MAX])
    left = f", {len(tests) - done} more were not run" if done < len(tests) else ""
    detail = f"{done} tests reach it{left}: {fastest}"
    return Verdict(mutant, noticed=False, detail=detail)


def as_diff(mutant: Mutant) -> str:
    """The mutant as a diff."""
    source = source_of(mutant.path)
    lines = difflib.unified_diff(
        source.splitlines(), mutant.apply(source).splitlines(), mutant.path, mutant.path, "", "", 1
    )
    return "\n".join(line.rstrip("\n") for line in lines)


class Campaign:
    """One run over the mutants of a seed."""

    def __init__(
        self, mutants: list[Mutant], rooms: list[str], reach: Reach | None, seconds_max: float
    ) -> None:
        self._mutants = mutants
        self._rooms = rooms
        self._reach = reach
        self._seconds_max = seconds_max
        self._equivalent = known_equivalent()
        self.counts: dict[str, Counter[str]] = {}

    def work(self, runner: Forks) -> None:
        """Try all of them and print each."""
        if self._reach is None:
            ran = runner.run(None, runner.tests, FIRST_SECONDS)
            if ran.end is not End.PASSED:
                raise click.ClickException(f"the tests fail without any mutant: {ran.detail}")
        rooms = {path: room for room in self._rooms for path in files_of(room)}
        for mutant in self._mutants:
            verdict = self._judge(runner, mutant)
            room = rooms[mutant.path]
            self.counts.setdefault(room, Counter())[verdict] += 1

    def _judge(self, runner: Forks, mutant: Mutant) -> str:
        if mutant.name in self._equivalent:
            click.echo(f"equivalent  {mutant.name}")
            return "equivalent"
        try:
            verdict = try_one(runner, self._reach, mutant, self._seconds_max)
        except NotPatchableError as error:
            click.echo(f"not tried   {mutant.name}: {error}")
            return "not tried"
        if verdict.noticed:
            click.echo(f"noticed     {mutant.name}  ({verdict.detail[:160]!r})")
            return "noticed"
        click.echo(f"UNNOTICED   {mutant.name}\n{as_diff(mutant)}\n    {verdict.detail}")
        return "unnoticed"

    def summary(self) -> float:
        """Print the figures of each room; the percentage noticed of all that are not equivalent."""
        total: Counter[str] = Counter()
        for room, counts in [*self.counts.items(), ("all", total)]:
            total.update(counts if room != "all" else {})
            click.echo(
                f"{room:24} {counts['noticed']:4} noticed, {counts['unnoticed']:3} not, "
                f"{counts['equivalent']:3} equivalent, {counts['not tried']:2} not tried: "
                f"{_percent(counts):.1f} %"
            )
        return _percent(total)


def _percent(counts: Counter[str]) -> float:
    tried = counts["noticed"] + counts["unnoticed"]
    return 100.0 * counts["noticed"] / tried if tried else 100.0


def main() -> int:
    """Draw mutants, try them, print what became of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    parser.add_argument("--seed", default=today, help="which mutants (default: the date)")
    parser.add_argument("--count", type=int, default=60, help="how many")
    parser.add_argument("--rooms", nargs="+", type=as_room, default=list(ROOMS))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="begins of names")
    parser.add_argument(
        "--tests", nargs="+", metavar="FILE", help="only these, whatever they reach"
    )
    parser.add_argument("--quick", action="store_true", help="without the slow tests")
    parser.add_argument("--list", action="store_true", help="name them and end")
    parser.add_argument("--record", action="store_true", help="record again what reaches what")
    parser.add_argument("--seconds-max", type=float, default=60.0, help="of tests per mutant")
    parser.add_argument("--at-least", type=float, default=92.0, help="per cent that are noticed")
    arguments = parser.parse_args()
    mutants = chosen_mutants(arguments.seed, arguments.count, arguments.rooms, arguments.only)
    if arguments.list:
        click.echo("\n".join(mutant.name for mutant in mutants))
        return 0
    for name in stale_names(arguments.rooms):
        click.echo(f"judged equivalent, and there is no such mutant any more: {name}")
    markers = QUICK if arguments.quick else MARKERS
    reach = None if arguments.tests else load(markers, anew=arguments.record)
    click.echo(f"seed {arguments.seed}: {len(mutants)} mutants")
    forks.register_profile()
    os.environ["RAFTSTORE_TEST_PROFILE"] = forks.PROFILE
    forks.import_rooms(arguments.rooms)
    campaign = Campaign(mutants, arguments.rooms, reach, arguments.seconds_max)
    ignored = [f"--ignore={place}" for place in LEFT_OUT]
    options = ["-q", "-s", "--no-header", "--tb=line", "-pno:cacheprovider", "-m", markers]
    options += ["--override-ini=addopts=--strict-markers --import-mode=importlib"]
    # Imported before pytest could rewrite them.
    options += ["-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    pytest.main(
        [*options, *ignored, *(arguments.tests or TEST_PLACES)], plugins=[Forks(campaign.work)]
    )
    return 0 if campaign.summary() >= arguments.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
