"""Breaks the sources on purpose, one mutation at a time, and fails if a guard does not notice.

    python -m tests.mutations [--rule S3.1 …] [--only NAME …] [--guard tests worlds …] [--jobs 2]
    python -m tests.mutations --guard worlds client_worlds disk chaos --replay
    python -m tests.mutations --list         # the table of docs/mutations.md
    python -m tests.mutations --write        # puts it there

Guards are tests, worlds, client_worlds, disk and chaos; all of them without --guard. Those that are
drawn from seeds search anew, unless --replay tries the recorded seed of each first; --record keeps
the seeds that catch. --part 2/5 runs the second fifth of what is chosen.

Exit code 7 when a mutation stays unnoticed, 2 when it cannot be tried.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from raftstore.testing.options import parse_seeds
from tests.mutations.catalogue import MUTATIONS, UnknownMutationError, chosen
from tests.mutations.directed import DirectedError, run_all
from tests.mutations.drawn import (
    CatchError,
    Result,
    Task,
    catch_all,
    load_record,
    median_seeds,
    save_record,
)
from tests.mutations.guard import KINDS
from tests.mutations.mutation import Mutation
from tests.mutations.source_patch import source_root
from tests.mutations.syntax import EditError, SourceTree
from tests.mutations.table import DOCUMENTATION, TableError, as_markdown, write_table

EXIT_UNNOTICED = 7
EXIT_WRONG = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments choose; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.write:
            write_table(DOCUMENTATION, as_markdown(MUTATIONS, load_record()))
            return 0
        if options.list:
            click.echo(as_markdown(MUTATIONS, load_record()))
            return 0
        return _run(options)
    except (CatchError, DirectedError, EditError, TableError, UnknownMutationError) as error:
        click.echo(f"error: {error}", err=True)
        return EXIT_WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rule", nargs="+", default=[], metavar="ID", help="of these rules")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument("--guard", nargs="+", default=KINDS, choices=KINDS, help="these guards")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="N/M", help="one part of M")
    parser.add_argument("--seeds", type=_seeds, metavar="A..B", help="try these until one catches")
    parser.add_argument("--replay", action="store_true", help="try the recorded seeds first")
    parser.add_argument("--record", action="store_true", help="keep the seeds that catch")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time")
    parser.add_argument("--list", action="store_true", help="print the table and end")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    return parser


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part; write N/M, as in 2/5")
    return int(number), int(count)


def _seeds(text: str) -> list[int]:
    try:
        return parse_seeds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run(options: Any) -> int:
    number, count = options.part
    mutations = chosen(options.rule, options.only)[number - 1 :: count]
    sources = SourceTree(source_root())
    for mutation in mutations:
        sources.check(mutation.edits)
    started = time.perf_counter()
    unnoticed: list[str] = []
    total = 0
    if directed := [m for m in mutations if m.tests and "tests" in options.guard]:
        total += len(directed)
        unnoticed += _run_tests(directed, options.jobs)
    tasks = [Task(m, g) for m in mutations for g in m.drawn if g.kind in options.guard]
    if tasks:
        total += len(tasks)
        unnoticed += _run_drawn(tasks, options)
    if not total:
        raise UnknownMutationError(f"nothing to run: no guard of {', '.join(options.guard)}")
    seconds = time.perf_counter() - started
    click.echo(f"{total} runs of mutations, {len(unnoticed)} unnoticed, {seconds:.0f} s")
    if unnoticed:
        click.echo(f"UNNOTICED: {', '.join(unnoticed)}")
    return EXIT_UNNOTICED if unnoticed else 0


def _run_tests(mutations: Sequence[Mutation], jobs: int) -> list[str]:
    """Names of those that a test of theirs does not notice."""
    unnoticed = []
    with tempfile.TemporaryDirectory(prefix="raftstore-mutations-") as base:
        for result in run_all(Path(base), mutations, jobs):
            name = result.mutation.name
            if not result.noticed:
                unnoticed.append(name)
            verdict = "noticed" if result.noticed else "UNNOTICED"
            click.echo(f"{verdict:9} {result.seconds:5.1f} s  {name:32} {result.detail}")
    return unnoticed


def _run_drawn(tasks: Sequence[Task], options: Any) -> list[str]:
    """Names of those that a guard drawn from seeds does not catch."""
    recorded = load_record() if options.replay else None
    unnoticed, catches = [], []
    for result in catch_all(tasks, jobs=options.jobs, recorded=recorded, seeds=options.seeds):
        if result.catch is None:
            unnoticed.append(result.task.mutation.name)
        else:
            catches.append(result.catch)
        click.echo(_line(result))
        if options.record:
            save_record([result])
    click.echo(f"{len(catches)} of {len(tasks)} caught, median {median_seeds(catches):g} seeds")
    return unnoticed


def _line(result: Result) -> str:
    name, label = result.task.key
    found = result.catch
    if result.failure is not None:
        return f"UNNOTICED          {name:40} NOTHING SHOWN: {result.failure}"
    if found is None:
        return f"UNNOTICED          {name:40} {label}: escaped after {result.seeds_run} seeds"
    moved = ", no longer by the recorded one" if result.has_moved else ""
    after = f"after {found.seeds} seeds (seed {found.seed}{moved})"
    return f"noticed   {found.seconds:5.1f} s  {name:40} {found.by:15} {after}, by {label}"


if __name__ == "__main__":
    sys.exit(main())
