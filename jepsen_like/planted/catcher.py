"""Plants bugs one by one in processes of their own and sees who catches them.

A bug is *caught* when a world with it violates a promise, or a directed test fails. The seeds that
caught are recorded in ``caught.json``; a replay tries the recorded seed first and looks at others
only when that one catches no more, as after a change of the worlds. What catches a bug is run once
more without the bug and must pass then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from jepsen_like.planted.bug import PlantedBug
from jepsen_like.planted.guard import Guard
from jepsen_like.planted.source_patch import PatchError, source_root

RECORD = Path(__file__).with_name("caught.json")
"""Where the catches are recorded."""
BROKEN_PATCH = frozenset({"NameError", "UnboundLocalError", "ImportError"})
"""What a patch raises that no longer fits what is around it; such a catch shows nothing."""
SECONDS_MAX = 900
"""One process at most; a run takes a second or two."""


class CatchError(Exception):
    """A child did not do its work, or what catches a bug fails without it, too."""


@dataclass(frozen=True, slots=True)
class Catch:
    """Who caught a bug, and after how many seeds."""

    bug: str
    guard: str
    """What was run, as in the table."""
    by: str
    """Oracle, checker or rule that was violated, the assertion, or the test that failed."""
    seed: int | None
    """First seed that caught it; None for a directed test."""
    seeds: int
    """Seeds that had to be run until then; 0 for a directed test."""
    seconds: float
    """Of that one run."""
    violation: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one bug; ``catch`` is None when it escaped."""

    bug: PlantedBug
    catch: Catch | None
    seeds_run: int
    has_moved: bool = False
    """The recorded seed does not catch it any more; another one does."""
    failure: str | None = None
    """Why nothing was shown: a child failed, or what catches the bug fails without it, too."""


def run_child(name: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Run a child on the seeds; what it told, one entry per run."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = ["-m", "jepsen_like.planted.child", name, *map(str, seeds)]
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=source_root(),
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CatchError(f"planted bug {name}: no end within {SECONDS_MAX} s") from None
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = [entry["error"] for entry in told if "error" in entry]
    if done.returncode != 0 or errors or not told:
        last = (errors or done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CatchError(f"planted bug {name}: the process failed: {last}")
    return told


def search(bug: PlantedBug, seeds: Sequence[int]) -> Result:
    """Plant the bug and run the seeds until one catches it; or its directed tests."""
    told = run_child(bug.name, () if bug.is_directed else seeds)
    last = told[-1]
    if last["violation"] is None:
        return Result(bug, None, len(told))
    if last["by"] in BROKEN_PATCH:
        raise CatchError(f"planted bug {bug.name}: the patch itself is wrong: {last['violation']}")
    caught = Catch(
        bug=bug.name,
        guard=bug.guard.label,
        by=str(last["by"]),
        seed=None if bug.is_directed else last["seed"],
        seeds=0 if bug.is_directed else len(told),
        seconds=last["seconds"],
        violation=_short(str(last["violation"])),
    )
    return Result(bug, caught, len(told))


def replay(bug: PlantedBug, recorded: Catch | None, seeds: Sequence[int]) -> Result:
    """Try the recorded seed, then, only if it catches nothing any more, the others."""
    if bug.is_directed or recorded is None or recorded.seed is None:
        return search(bug, seeds)
    first = search(bug, [recorded.seed])
    if first.catch is not None:
        # How many seeds a search needed is still what the record says.
        return replace(first, catch=replace(first.catch, seeds=recorded.seeds))
    again = search(bug, seeds)
    return Result(bug, again.catch, 1 + again.seeds_run, has_moved=again.catch is not None)


class SoundRuns:
    """Runs without any bug: what catches a bug must pass then. Bugs that the same run catches
    share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._violations: dict[tuple[Guard, int | None], Future[str | None]] = {}

    def check(self, bug: PlantedBug, caught: Catch) -> None:
        """CatchError unless the run that caught it passes without the bug."""
        violation = self._violation(bug, caught.seed)
        if violation is not None:
            what = "its tests fail" if caught.seed is None else f"seed {caught.seed} fails"
            raise CatchError(f"{bug.name}: {what} without the bug, too: {violation}")

    def _violation(self, bug: PlantedBug, seed: int | None) -> str | None:
        with self._lock:
            shared = self._violations.get((bug.guard, seed))
            if shared is not None:
                mine = None
            else:
                shared = mine = self._violations[bug.guard, seed] = Future()
        if mine is not None:
            try:
                told = run_child(f"-{bug.name}", [] if seed is None else [seed])
                mine.set_result(told[-1]["violation"])
            except CatchError as error:
                mine.set_exception(error)
        return shared.result()


def catch_all(
    bugs: Sequence[PlantedBug],
    seeds: Sequence[int],
    *,
    jobs: int,
    recorded: Mapping[str, Catch] | None,
) -> Iterator[Result]:
    """Results in the order of the bugs. ``recorded``: begin with these catches; None: search anew.
    Whatever catches a bug must pass without it: else nothing was shown."""
    sound = SoundRuns()

    def work(bug: PlantedBug) -> Result:
        known = None if recorded is None else recorded.get(bug.name)
        try:
            result = replay(bug, known, seeds)
            # That directed tests pass on sound code is shown wherever the tests run.
            if result.catch is not None and not (bug.is_directed and recorded is not None):
                sound.check(bug, result.catch)
        except CatchError as error:
            return Result(bug, None, 0, failure=str(error))
        return result

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(work, bug) for bug in bugs]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _short(violation: str) -> str:
    return violation if len(violation) <= 160 else violation[:157] + "..."


# --- the record -----------------------------------------------------------------------------------


def load_record(path: Path = RECORD) -> dict[str, Catch]:
    """Recorded catches by bug; CatchError when the file is missing or damaged."""
    try:
        entries = json.loads(path.read_text())
        return {entry["bug"]: Catch(**entry) for entry in entries}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CatchError(
            f"the recorded catches in {path.name} cannot be read ({error}); "
            "record them again with --record"
        ) from None


def save_record(results: Sequence[Result], path: Path = RECORD) -> None:
    """Merge the catches of these results into the record, in the order of the names.

    A bug that escaped loses its entry; one of which nothing was shown keeps it.
    """
    try:
        kept = load_record(path)
    except CatchError:
        kept = {}
    for result in results:
        if result.failure is None:
            kept.pop(result.bug.name, None)
        if result.catch is not None:
            kept[result.bug.name] = result.catch
    entries = [asdict(kept[name]) for name in sorted(kept)]
    path.write_text(json.dumps(entries, indent=1) + "\n")


def median_seeds(catches: Sequence[Catch]) -> float:
    """Median number of seeds over the bugs that worlds catch; 0 without any."""
    numbers = [found.seeds for found in catches if found.seed is not None]
    return float(median(numbers)) if numbers else 0.0


__all__ = [
    "Catch",
    "CatchError",
    "PatchError",
    "Result",
    "catch_all",
    "load_record",
    "median_seeds",
    "save_record",
]
