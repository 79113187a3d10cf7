"""Switches every rule of the safety contract off in turn and fails if nobody notices.

    python -m tests.ablations [--only S3.1 …] [--jobs 2]
    python -m tests.ablations --list
    python -m tests.ablations --write        # the table of docs/testing.md

Exit code 1 when an ablation stays unnoticed, 2 when the table does not fit the sources.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.ablations.ablation import Ablation
from tests.ablations.runner import AblationError, run_all
from tests.ablations.table import ABLATIONS, DOCUMENTATION, as_markdown, write_table


def _chosen(only: list[str] | None) -> list[Ablation]:
    if not only:
        return list(ABLATIONS)
    chosen = [a for a in ABLATIONS if a.name in only or a.rule in only]
    known = {a.name for a in chosen} | {a.rule for a in chosen}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise AblationError(f"unknown ablation {unknown[0]!r}; --list shows all")
    return chosen


def main() -> int:
    """Run the ablations and say what became of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.ablations", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="a rule or an ablation's name")
    parser.add_argument("--jobs", type=int, default=2, help="ablations at a time")
    parser.add_argument("--list", action="store_true", help="print the table and end")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    arguments = parser.parse_args()
    if arguments.write:
        write_table(DOCUMENTATION)
        return 0
    if arguments.list:
        click.echo(as_markdown())
        return 0
    started = time.perf_counter()
    unnoticed = total = 0
    try:
        chosen = _chosen(arguments.only)
        with tempfile.TemporaryDirectory(prefix="raftstore-ablations-") as base:
            for result in run_all(Path(base), chosen, arguments.jobs):
                total += 1
                unnoticed += not result.noticed
                verdict = "noticed" if result.noticed else "UNNOTICED"
                name = result.ablation.name
                click.echo(f"{verdict:9} {result.seconds:5.1f} s  {name:32} {result.detail}")
    except AblationError as error:
        click.echo(error, err=True)
        return 2
    seconds = time.perf_counter() - started
    click.echo(f"{total} ablations, {unnoticed} unnoticed, {seconds:.0f} s")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
