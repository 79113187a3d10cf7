"""The process that runs broken code: ``python -m tests.mutations.child MUTATION GUARD [SEED …]``.

Prints one JSON object per run; its exit code says nothing. Nothing of raftstore is imported before
the patches are installed. ``--sound`` before the name breaks nothing but runs the guard, to see
that it passes without the mutation.
"""

from __future__ import annotations

import json
import sys
import time

import click

from tests.mutations.catalogue import mutation_named
from tests.mutations.source_patch import PatchError, install
from tests.mutations.suite import SuiteError, run_guard


def main(arguments: list[str]) -> None:
    """Break what the mutation says, then run its guard with each seed until one is violated."""
    is_sound = arguments[0] == "--sound"
    name, label, *seeds = arguments[is_sound:]
    mutation = mutation_named(name)
    (guard,) = (guard for guard in mutation.drawn if guard.label == label)
    patches = install(() if is_sound else mutation.edits)
    for seed in map(int, seeds):
        began = time.perf_counter()
        try:
            told = run_guard(guard, seed)
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
