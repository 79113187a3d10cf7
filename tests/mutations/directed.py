"""Runs directed tests on mutations, in copies of the source tree, a few at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutations.mutation import Mutation
from tests.mutations.syntax import Edit, SourceTree, source_of
from tests.mutations.warm import PROFILE, Request

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("raftstore", "tests", "cli", "jepsen_like", "setup.cfg", "pyproject.toml")
SECONDS_MAX = 120
"""One mutation's tests; none of them needs a tenth of it."""
TESTS_FAILED = 1
"""pytest's exit code when tests ran and failed; others mean that they did not run."""


RunTests = Callable[[Sequence[str], float], tuple[int, str]]
"""Runs tests for so many seconds at most: pytest's exit code and output."""


class DirectedError(Exception):
    """The tests that must notice mutations fail without any, or do not run."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one mutation."""

    mutation: Mutation
    noticed: bool
    seconds: float
    detail: str


class Server:
    """A process that runs tests in forks of itself, with all ``collected`` tests imported or
    without anything of raftstore (see ``warm``); close it.
    """

    def __init__(self, path: Path, collected: Sequence[str]) -> None:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        environment["RAFTSTORE_TEST_PROFILE"] = PROFILE
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutations.warm"],
            cwd=path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._tell(list(collected))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def run(self, request: Request) -> tuple[int, str]:
        """Run its tests up to the first failure: pytest's exit code and output."""
        self._tell(asdict(request))
        assert self._process.stdout is not None
        if not (code := self._process.stdout.readline()):
            raise DirectedError("the process that runs the tests ended; see what it said above")
        if int(code) == -1:
            return -1, f"no end within {request.seconds:.0f} s"
        return int(code), Path(request.output).read_text(errors="replace")

    def _tell(self, told: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()


class Workplace:
    """A copy of the sources that mutations are applied to, one after the other; close it."""

    def __init__(self, path: Path, sources: SourceTree, tests: Sequence[str]) -> None:
        self.path = path
        self._sources = sources
        self._edited: list[str] = []
        self._collected = Server(path, tests)
        self._fresh: Server | None = None
        """Started for the first edit that needs it; few do."""

    def close(self) -> None:
        """End its processes."""
        self._collected.close()
        if self._fresh is not None:
            self._fresh.close()

    @contextmanager
    def edited(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Apply the edits, and put the files back afterwards."""
        patched = self._sources.patched(edits)
        try:
            for path, tree in patched.items():
                (self.path / path).write_text(source_of(tree), encoding="utf-8")
            self._edited = list(patched)
            yield
        finally:
            self._edited = []
            for path in patched:
                # With its time stamp, so that compiled modules of the original stay valid.
                shutil.copy2(self.path / "unedited" / path, self.path / path)

    def run_tests(self, tests: Sequence[str], seconds: float = SECONDS_MAX) -> tuple[int, str]:
        """Run exactly these tests up to the first failure: pytest's exit code and output.

        Edited functions are replaced in what is imported already; see ``run_fresh``.
        """
        return self._collected.run(self._request(tests, seconds))

    def run_fresh(self, tests: Sequence[str], seconds: float = SECONDS_MAX) -> tuple[int, str]:
        """The same where all of raftstore is imported from its edited sources: ten times slower."""
        if self._fresh is None:
            self._fresh = Server(self.path, ())
        return self._fresh.run(self._request(tests, seconds))

    def _request(self, tests: Sequence[str], seconds: float) -> Request:
        return Request(list(tests), self._edited, str(self.path / "output"), seconds)


def make_workplaces(base: Path, count: int, tests: Sequence[str]) -> list[Workplace]:
    """Copy the sources, as they are now, ``count`` times; all copies are equal.

    They are compiled before, and so are the ``tests`` in pytest's own way, which takes longer than
    most of them run: a run in a copy writes nothing (an edited module could pass for the original).
    """
    original = base / "original"
    _copy_sources(ROOT, original)
    files = sorted({test.partition("::")[0] for test in tests})
    collect = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    for arguments in (["-m", "compileall", "-q", "raftstore", "tests"], collect):
        subprocess.run(
            [sys.executable, *arguments], cwd=original, check=False, stdout=subprocess.DEVNULL
        )
    paths = [base / f"place{index}" for index in range(count)]
    for path in paths:
        shutil.copytree(original, path, symlinks=True)
        (path / "unedited").symlink_to(original)
    sources = SourceTree(original)
    return [Workplace(path, sources, tests) for path in paths]


def _copy_sources(source: Path, target: Path) -> None:
    target.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source / name, target / name)


def run_one(place: Workplace, mutation: Mutation) -> Result:
    """Whether a mutation is noticed: at once, or in both of two more tries.

    A test of sockets may pass without its rule when the machine is slow at the wrong moment. One
    that passes twice of three times guards nothing: it may have failed for no reason at all.
    """
    result = _try(place, mutation)
    if result.noticed:
        return result
    again = _try(place, mutation)
    return _try(place, mutation) if again.noticed else again


def _try(place: Workplace, mutation: Mutation) -> Result:
    started = time.perf_counter()
    with place.edited(mutation.edits):
        noticed, detail = _run_each(place.run_tests, mutation.tests)
    if not noticed:
        # What runs when a module is imported stayed as it was: the edit itself, or what an edited
        # function makes there.
        with place.edited(mutation.edits):
            noticed, detail = _run_each(place.run_fresh, mutation.tests)
        if noticed:
            check_unpatched(place.run_fresh, mutation.tests)
    return Result(mutation, noticed, time.perf_counter() - started, detail)


def _run_each(run: RunTests, tests: Sequence[str]) -> tuple[bool, str]:
    """Whether every test fails by itself, and what the first one said, or the one that did not."""
    details = []
    for test in tests:
        code, output = run([test], SECONDS_MAX)
        if code != TESTS_FAILED:
            return False, _detail(code, output, f"passes: {test}")
        details.append(_detail(code, output))
    return True, details[0]


def _detail(code: int, output: str, passes: str = "") -> str:
    """A run's output as one line; ``passes`` is said when it found nothing."""
    lines = [line for line in output.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("FAILED")] or lines[-1:]
    detail = (told or [""])[0]
    if code == 0:
        return passes or detail
    if code != TESTS_FAILED:
        # It did not run to its end: whatever that shows, it is not that the rule is guarded.
        return f"the run broke (exit code {code}): {detail}"
    return detail


def check_unpatched(run: RunTests, tests: Sequence[str]) -> None:
    """Everything that must fail later must pass now, or the failure would prove nothing.

    Twice at most: some use sockets, and a machine may give them no processor for a while.
    """
    if not tests:
        return
    for _ in range(2):
        code, output = run(tests, 10 * SECONDS_MAX)
        if code == 0:
            return
    raise DirectedError(f"the tests fail without any mutation:\n{output[-3000:]}")


def run_all(base: Path, mutations: Sequence[Mutation], jobs: int) -> Iterator[Result]:
    """Check without, then with each mutation; results come in the order of the table."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    places = make_workplaces(base, jobs, tests)
    free: SimpleQueue[Workplace] = SimpleQueue()
    for place in places:
        free.put(place)

    def work(mutation: Mutation) -> Result:
        place = free.get()
        try:
            return run_one(place, mutation)
        finally:
            free.put(place)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            share = -(-len(tests) // jobs)
            shares = [tests[n * share : (n + 1) * share] for n in range(jobs)]
            list(pool.map(check_unpatched, [place.run_tests for place in places], shares))
            yield from pool.map(work, mutations)
    finally:
        for place in places:
            place.close()
