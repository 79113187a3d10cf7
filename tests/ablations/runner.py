"""Runs ablations in copies of the source tree, a few at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.ablations.ablation import Ablation, Edit

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("raftstore", "tests", "cli", "setup.cfg", "pyproject.toml")
SECONDS_MAX = 180
"""One ablation's tests, or its worlds; none of them needs a tenth of it."""
TESTS_FAILED = 1
"""pytest's exit code when tests ran and failed; others mean that they did not run."""
WORLD_FAILED = 7
"""Exit code of ``run_seeds`` when a world violates a promise."""

RUN_SEEDS = """
import sys
from raftstore.testing.campaign import run_seed
changes = dict(pair.split("=", 1) for pair in sys.argv[2:])
for seed in map(int, sys.argv[1].split(",")):
    verdict = run_seed(seed, changes)
    if verdict.violation is not None:
        print(f"seed {seed}: {verdict.violation}")
        sys.exit(7)
"""


class AblationError(Exception):
    """The table does not fit the sources, or the tests fail without any ablation."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one ablation."""

    ablation: Ablation
    noticed: bool
    seconds: float
    detail: str


@dataclass(frozen=True, slots=True)
class Workplace:
    """A copy of the sources that ablations are applied to, one after the other."""

    path: Path

    @contextmanager
    def edited(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Apply the edits, and put the files back afterwards."""
        try:
            for edit in edits:
                target = self.path / edit.path
                target.write_text(target.read_text().replace(edit.old, edit.new))
            yield
        finally:
            for edit in edits:
                # With its time stamp, so that compiled modules of the original stay valid.
                shutil.copy2(self.path / "unedited" / edit.path, self.path / edit.path)

    def run(self, arguments: Sequence[str], seconds: float = SECONDS_MAX) -> tuple[int, str]:
        """Run Python in the copy: its exit code, and the last words of its output."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        environment["RAFTSTORE_TEST_PROFILE"] = "ci"
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=self.path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AblationError(f"no end within {seconds:.0f} s: {' '.join(arguments)}") from None
        return done.returncode, done.stdout + done.stderr


def pytest_arguments(tests: Sequence[str]) -> list[str]:
    """Arguments of Python that run exactly these tests and stop at the first failure."""
    return ["-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]


def seeds_arguments(ablation: Ablation) -> list[str]:
    """Arguments of Python that run the ablation's worlds until one violates a promise."""
    changes = [f"{name}={value}" for name, value in ablation.options]
    return ["-c", RUN_SEEDS, ",".join(map(str, ablation.seeds)), *changes]


def make_workplaces(base: Path, count: int) -> list[Workplace]:
    """Copy the sources, as they are now, ``count`` times; all copies are equal."""
    original = base / "original"
    _copy_sources(ROOT, original)
    for package in ("raftstore", "tests"):
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", package], cwd=original, check=False
        )
    places = []
    for index in range(count):
        place = base / f"place{index}"
        shutil.copytree(original, place, symlinks=True)
        (place / "unedited").symlink_to(original)
        places.append(Workplace(place))
    return places


def _copy_sources(source: Path, target: Path) -> None:
    target.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source / name, target / name)


def check_edits(root: Path, ablations: Sequence[Ablation]) -> None:
    """Every text to edit occurs exactly once, and every test named exists as a file."""
    for ablation in ablations:
        for edit in ablation.edits:
            if (count := (root / edit.path).read_text().count(edit.old)) != 1:
                raise AblationError(
                    f"{ablation.name}: {edit.path} has {count} times, instead of once: {edit.old!r}"
                )
        for test in ablation.tests:
            path, _, name = test.partition("::")
            if f"def {name.partition('[')[0]}(" not in (root / path).read_text():
                raise AblationError(f"{ablation.name}: {path} has no {name}")


def run_one(place: Workplace, ablation: Ablation) -> Result:
    """Switch one rule off and see whether it is noticed."""
    started = time.perf_counter()
    expected = TESTS_FAILED if ablation.tests else WORLD_FAILED
    with place.edited(ablation.edits):
        try:
            if ablation.tests:
                code, output = place.run(pytest_arguments(ablation.tests))
            else:
                code, output = place.run(seeds_arguments(ablation))
        except AblationError as error:
            code, output = -1, str(error)
    lines = [line for line in output.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("FAILED", "seed"))] or lines[-1:]
    detail = (told or [""])[0]
    if code not in (0, expected):
        # It did not run to its end: whatever that shows, it is not that the rule is guarded.
        detail = f"the run broke (exit code {code}): {detail}"
    seconds = time.perf_counter() - started
    return Result(ablation, noticed=code == expected, seconds=seconds, detail=detail)


def check_unpatched(place: Workplace, ablations: Sequence[Ablation]) -> None:
    """Everything that must fail later must pass now, or the failure would prove nothing."""
    tests = list(dict.fromkeys(test for a in ablations for test in a.tests))
    if tests:
        code, output = place.run(pytest_arguments(tests), seconds=10 * SECONDS_MAX)
        if code != 0:
            raise AblationError(f"the tests fail without any ablation:\n{output[-3000:]}")


def check_worlds(place: Workplace, ablations: Sequence[Ablation]) -> None:
    """The worlds that must fail later hold every promise now."""
    commands = dict.fromkeys(tuple(seeds_arguments(a)) for a in ablations if a.seeds)
    for command in commands:
        code, output = place.run(command, seconds=3 * SECONDS_MAX)
        if code != 0:
            raise AblationError(f"a world fails without any ablation:\n{output[-3000:]}")


def run_all(base: Path, ablations: Sequence[Ablation], jobs: int) -> Iterator[Result]:
    """Check without, then with each ablation; results come in the order of the table."""
    places = make_workplaces(base, jobs)
    check_edits(places[0].path, ablations)
    free: SimpleQueue[Workplace] = SimpleQueue()
    for place in places:
        free.put(place)

    def work(ablation: Ablation) -> Result:
        place = free.get()
        try:
            return run_one(place, ablation)
        finally:
            free.put(place)

    with ThreadPoolExecutor(jobs) as pool:
        baselines = [pool.submit(check_unpatched, places[0], ablations)]
        baselines.append(pool.submit(check_worlds, places[-1], ablations))
        for baseline in baselines:
            baseline.result()
        yield from pool.map(work, ablations)
