"""Breaks the sources in processes of their own, one mutation at a time, and runs what a seed draws.

A mutation is *caught* by a guard when a run with it violates a promise. The seeds that caught are
recorded in ``caught.json``; a replay tries the recorded seed first and looks at others only when
that one catches no more, as after a change of the worlds. What catches a mutation is run once more
without it and must pass then.
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

from tests.mutations.guard import Drawn
from tests.mutations.mutation import Mutation
from tests.mutations.source_patch import source_root

RECORD = Path(__file__).with_name("caught.json")
"""Where the catches are recorded."""
BROKEN_PATCH = frozenset({"NameError", "UnboundLocalError", "ImportError"})
"""What a patch raises that no longer fits what is around it; such a catch shows nothing."""
SECONDS_MAX = 900
"""One process at most; a run takes a second or two."""
Key = tuple[str, str]
"""A mutation's name and the label of one of its guards."""


class CatchError(Exception):
    """A child did not do its work, or what catches a mutation fails without it, too."""


@dataclass(frozen=True, slots=True)
class Catch:
    """The catch of a mutation: what caught it, and after how many seeds."""

    mutation: str
    guard: str
    """What was run, as in the table."""
    by: str
    """Oracle, checker or rule that was violated, or the assertion that failed."""
    seed: int
    """First seed that caught it."""
    seeds: int
    """Seeds that had to be run until then."""
    seconds: float
    """Of that one run."""
    violation: str

    @property
    def key(self) -> Key:
        """The key that it is recorded under."""
        return self.mutation, self.guard


@dataclass(frozen=True, slots=True)
class Task:
    """One guard that is drawn from seeds, and the mutation that it must catch."""

    mutation: Mutation
    guard: Drawn

    @property
    def key(self) -> Key:
        """The key that its catch is recorded under."""
        return self.mutation.name, self.guard.label


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one task; ``catch`` is None when the mutation escaped."""

    task: Task
    catch: Catch | None
    seeds_run: int
    has_moved: bool = False
    """The recorded seed does not catch it any more; another one does."""
    failure: str | None = None
    """Why nothing was shown: a child failed, or what catches it fails without it, too."""


def run_child(task: Task, seeds: Sequence[int], *, sound: bool = False) -> list[dict[str, Any]]:
    """Run a child on the seeds; its reports, one per run. ``sound``: without the edits."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    name, label = task.key
    arguments = ["-m", "tests.mutations.child", *(["--sound"] if sound else []), name, label]
    try:
        done = subprocess.run(
            [sys.executable, *arguments, *map(str, seeds)],
            cwd=source_root(),
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CatchError(f"mutation {name}: no end within {SECONDS_MAX} s") from None
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = [entry["error"] for entry in told if "error" in entry]
    if done.returncode != 0 or errors or not told:
        last = (errors or done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CatchError(f"mutation {name}: the process failed: {last}")
    return told


def search(task: Task, seeds: Sequence[int]) -> Result:
    """Run the seeds on broken sources until one catches it."""
    told = run_child(task, seeds)
    last = told[-1]
    if last["violation"] is None:
        return Result(task, None, len(told))
    if last["by"] in BROKEN_PATCH:
        name = task.mutation.name
        raise CatchError(f"mutation {name}: the patch itself is wrong: {last['violation']}")
    caught = Catch(
        *task.key,
        by=str(last["by"]),
        seed=last["seed"],
        seeds=len(told),
        seconds=last["seconds"],
        violation=_short(str(last["violation"])),
    )
    return Result(task, caught, len(told))


def replay(task: Task, recorded: Catch | None, seeds: Sequence[int]) -> Result:
    """Try the recorded seed, then, only if it catches nothing any more, the others."""
    if recorded is None:
        return search(task, seeds)
    first = search(task, [recorded.seed])
    if first.catch is not None:
        # How many seeds a search needed is still what the record says.
        return replace(first, catch=replace(first.catch, seeds=recorded.seeds))
    again = search(task, seeds)
    return Result(task, again.catch, 1 + again.seeds_run, has_moved=again.catch is not None)


class SoundRuns:
    """Runs without any mutation: what catches one must pass then. Mutations that the same run
    catches share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._violations: dict[tuple[Drawn, int], Future[str | None]] = {}

    def check(self, task: Task, caught: Catch) -> None:
        """CatchError unless the run that caught it passes without the mutation."""
        violation = self._violation(task, caught.seed)
        if violation is not None:
            name = task.mutation.name
            raise CatchError(f"{name}: seed {caught.seed} fails without it, too: {violation}")

    def _violation(self, task: Task, seed: int) -> str | None:
        with self._lock:
            shared = self._violations.get((task.guard, seed))
            if shared is not None:
                mine = None
            else:
                shared = mine = self._violations[task.guard, seed] = Future()
        if mine is not None:
            try:
                mine.set_result(run_child(task, [seed], sound=True)[-1]["violation"])
            except CatchError as error:
                mine.set_exception(error)
        return shared.result()


def catch_all(
    tasks: Sequence[Task],
    *,
    jobs: int,
    recorded: Mapping[Key, Catch] | None,
    seeds: Sequence[int] | None = None,
) -> Iterator[Result]:
    """Results in the order of the tasks. ``recorded``: begin with these catches; None: search anew.
    ``seeds`` replace those of the guards. What catches must pass on sound code."""
    sound = SoundRuns()

    def work(task: Task) -> Result:
        known = None if recorded is None else recorded.get(task.key)
        try:
            result = replay(task, known, seeds or task.guard.seeds)
            if result.catch is not None:
                sound.check(task, result.catch)
        except CatchError as error:
            return Result(task, None, 0, failure=str(error))
        return result

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(work, task) for task in tasks]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _short(violation: str) -> str:
    return violation if len(violation) <= 160 else violation[:157] + "..."


# --- the record -----------------------------------------------------------------------------------


def load_record(path: Path = RECORD) -> dict[Key, Catch]:
    """Recorded catches; CatchError when the file is missing or damaged."""
    try:
        catches = [Catch(**entry) for entry in json.loads(path.read_text())]
        return {catch.key: catch for catch in catches}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CatchError(
            f"the recorded catches in {path.name} cannot be read ({error}); "
            "record them again with --record"
        ) from None


def save_record(results: Sequence[Result], path: Path = RECORD) -> None:
    """Merge the catches of these results into the record, in the order of the names.

    A mutation that escaped loses its entry; one of which nothing was shown keeps it.
    """
    try:
        kept = load_record(path)
    except CatchError:
        kept = {}
    for result in results:
        if result.failure is None:
            kept.pop(result.task.key, None)
        if result.catch is not None:
            kept[result.task.key] = result.catch
    entries = [asdict(kept[key]) for key in sorted(kept)]
    path.write_text(json.dumps(entries, indent=1) + "\n")


def median_seeds(catches: Sequence[Catch]) -> float:
    """Median number of seeds that a search needed; 0 without any."""
    return float(median(found.seeds for found in catches)) if catches else 0.0
