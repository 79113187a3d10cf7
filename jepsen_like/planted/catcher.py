"""Plants bugs one by one in processes of their own and sees who catches them.

A bug is *caught* when a world with it violates a promise, or a directed test fails. The seeds that
caught are recorded in ``caught.json``; a replay tries the recorded seed first and looks at others
only when that one catches no more, as after a change of the worlds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jepsen_like.planted.bug import PlantedBug
from jepsen_like.planted.source_patch import PatchError, source_root

RECORD = Path(__file__).with_name("caught.json")
"""Where the catches are recorded."""
SECONDS_MAX = 900
"""One process at most; a world takes about a second."""
_ORACLE = re.compile(r"\b(O[1-6]|S\d+)\b")


class CatchError(Exception):
    """A child did not do its work, or a world is unsound without any bug."""


@dataclass(frozen=True, slots=True)
class Catch:
    """Who caught a bug, and after how many seeds."""

    bug: str
    by: str
    """Oracle that was violated, "assertion", or the test that failed."""
    seed: int | None
    """First seed that caught it; None for a directed test."""
    seeds: int
    """Seeds that had to be run until then; 0 for a directed test."""
    violation: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one bug; ``catch`` is None when it escaped."""

    bug: PlantedBug
    catch: Catch | None
    seeds_run: int
    has_moved: bool = False
    """The recorded seed does not catch it any more; another one does."""


def run_child(name: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Run a child on the seeds; what it told, one entry per world or test run."""
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
    violation = str(last["violation"])
    seeds_run = 0 if bug.is_directed else len(told)
    caught = Catch(bug.name, _judge(violation), last["seed"], seeds_run, _short(violation))
    return Result(bug, caught, len(told))


def replay(bug: PlantedBug, recorded: Catch | None, seeds: Sequence[int]) -> Result:
    """Try the recorded seed, then, only if it catches nothing any more, the others."""
    if bug.is_directed or recorded is None or recorded.seed is None:
        return search(bug, seeds)
    first = search(bug, [recorded.seed])
    if first.catch is not None:
        return first
    again = search(bug, seeds)
    return Result(bug, again.catch, 1 + again.seeds_run, has_moved=again.catch is not None)


def check_sound(bug: PlantedBug, caught: Catch) -> None:
    """CatchError unless the same world, or test, passes without the bug."""
    told = run_child(f"-{bug.name}", [] if caught.seed is None else [caught.seed])
    if told[-1]["violation"] is not None:
        what = "its tests fail" if caught.seed is None else f"seed {caught.seed} fails"
        raise CatchError(f"{bug.name}: {what} without the bug, too: {told[-1]['violation']}")


def catch_all(
    bugs: Sequence[PlantedBug],
    seeds: Sequence[int],
    *,
    jobs: int,
    recorded: Mapping[str, Catch] | None,
) -> Iterator[Result]:
    """Results in the order of the bugs. ``recorded``: replay these catches; None: search anew, and
    see that what catches a bug passes without it."""

    def work(bug: PlantedBug) -> Result:
        if recorded is not None:
            return replay(bug, recorded.get(bug.name), seeds)
        result = search(bug, seeds)
        if result.catch is not None:
            check_sound(bug, result.catch)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(work, bug) for bug in bugs]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _judge(violation: str) -> str:
    if violation.startswith("FAILED"):
        return violation.rpartition("::")[2]
    if "in the code under test" in violation:
        return violation.partition(" in the code under test")[0]
    found = _ORACLE.search(violation)
    return found.group(1) if found is not None else "?"


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
    """Merge the catches of these results into the record, in the order of the results."""
    try:
        kept = load_record(path)
    except CatchError:
        kept = {}
    for result in results:
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
