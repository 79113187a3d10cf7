"""The process that runs broken code: ``python -m jepsen_like.planted.child BUG [SEED …]``.

Prints one JSON object per world or test run; its exit code says nothing. Nothing of raftstore is
imported before the patches are installed. ``-`` as BUG plants nothing but keeps the bug's options
(``-NAME``), to see that the world itself is sound.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import click

from jepsen_like.planted.bug import PlantedBug
from jepsen_like.planted.catalogue import bug_named
from jepsen_like.planted.source_patch import install

Tell = Callable[[dict[str, Any]], None]


def main(arguments: list[str]) -> None:
    """Plant the bug named first, then run the worlds of the seeds, or its directed tests."""
    name, *seeds = arguments
    bug = bug_named(name.removeprefix("-"))
    if not name.startswith("-"):
        install(bug.edits)
    if bug.is_directed:
        _run_tests(bug, _tell)
    else:
        _run_worlds(bug, [int(seed) for seed in seeds], _tell)


def _tell(result: dict[str, Any]) -> None:
    click.echo(json.dumps(result))


def _run_worlds(bug: PlantedBug, seeds: list[int], tell: Tell) -> None:
    """Worlds in turn until one violates a promise."""
    from raftstore.testing.campaign import run_seed

    for seed in seeds:
        verdict = run_seed(seed, dict(bug.options))
        tell({"seed": seed, "violation": verdict.violation})
        if verdict.violation is not None:
            return


def _run_tests(bug: PlantedBug, tell: Tell) -> None:
    """All its tests; what fails is the violation."""
    import pytest

    output = io.StringIO()
    plain = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly")
    with contextlib.redirect_stdout(output):
        code = int(pytest.main([*plain, *bug.tests]))
    lines = output.getvalue().splitlines()
    failed = [line.partition(" - ")[0] for line in lines if line.startswith("FAILED")]
    if code == int(pytest.ExitCode.TESTS_FAILED):
        tell({"seed": None, "violation": (failed or ["a test failed"])[0]})
    elif code == int(pytest.ExitCode.OK):
        tell({"seed": None, "violation": None})
    else:
        tell({"error": f"the tests did not run (pytest says {code}): {' '.join(lines[-3:])}"})


if __name__ == "__main__":
    main(sys.argv[1:])
