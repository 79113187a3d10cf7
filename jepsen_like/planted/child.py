"""The process that runs broken code: ``python -m jepsen_like.planted.child BUG [SEED …]``.

Prints one JSON object per run; its exit code says nothing. Nothing of raftstore is imported before
the patches are installed. ``-NAME`` as BUG plants nothing but runs the bug's guard, to see that it
passes without the bug.
"""

from __future__ import annotations

import json
import sys
import time

import click

from jepsen_like.planted.catalogue import bug_named
from jepsen_like.planted.source_patch import PatchError, install
from jepsen_like.planted.suite import SuiteError, run_guard


def main(arguments: list[str]) -> None:
    """Plant the bug named first, then run its guard with each seed until something is violated."""
    name, *seeds = arguments
    bug = bug_named(name.removeprefix("-"))
    is_planted = not name.startswith("-")
    patches = install(bug.edits if is_planted else ())
    for seed in [0] if bug.is_directed else map(int, seeds):
        began = time.perf_counter()
        try:
            told = run_guard(bug.guard, seed)
            patches.check_used()
        except (SuiteError, PatchError) as error:
            _tell({"error": str(error)})
            return
        seconds = round(time.perf_counter() - began, 2)
        _tell({"seed": seed, "violation": told.violation, "by": told.by, "seconds": seconds})
        if told.violation is not None:
            return


def _tell(result: dict[str, object]) -> None:
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
