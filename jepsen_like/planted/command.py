"""``raftstore chaos planted``: plant every bug and see that it is caught."""

from __future__ import annotations

import time
from pathlib import Path

import click

from jepsen_like.planted.bug import PlantedBug
from jepsen_like.planted.catalogue import PLANTED, UnknownBugError, bug_named
from jepsen_like.planted.catcher import (
    Catch,
    CatchError,
    Result,
    catch_all,
    load_record,
    median_seeds,
    save_record,
)
from jepsen_like.planted.source_patch import PatchError, check, source_root
from jepsen_like.planted.table import TableError, as_markdown, write_table
from raftstore.testing.options import parse_seeds

EXIT_ESCAPED = 7
SEEDS = "1..50"


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="Only this bug; may be repeated.")
@click.option(
    "--seeds", default=SEEDS, show_default=True, help="Try these, A..B, until one catches."
)
@click.option("--replay", is_flag=True, help="Try the recorded seed of each bug first.")
@click.option("--record", is_flag=True, help="Keep the seeds that catch, for --replay.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Bugs at a time."
)
@click.option("--markdown", is_flag=True, help="Run nothing; print the recorded table.")
@click.option(
    "--write",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PAGE",
    help="Run nothing; put the recorded table between the markers of a page.",
)
def planted(
    *,
    only: tuple[str, ...],
    seeds: str,
    replay: bool,
    record: bool,
    jobs: int,
    markdown: bool,
    write: Path | None,
) -> int:
    """Break raftstore on purpose, one bug at a time, and see that the kit catches it.

    Each bug is planted in a process of its own; the sources stay as they are. Runs drawn from seeds
    (worlds, workloads under faults, lives of a store) go on until one catches it; what random runs
    do not see, directed tests do. Whatever catches a bug is run again without it, and must pass.

    Exit code 7 when a bug escapes.

    \b
    Example:
      raftstore chaos planted --replay
      raftstore chaos planted --only quorum-off-by-one --seeds 1..20
      raftstore chaos planted --record
      raftstore chaos planted --write docs/testing.md
    """  # noqa: D301 - click wants the character, not two
    try:
        bugs = [bug_named(name) for name in only] if only else list(PLANTED)
        if markdown or write is not None:
            _show_table(write)
            return 0
        check(source_root(), [])
        recorded = load_record() if replay else None
        return _catch(bugs, _range(seeds), jobs=jobs, recorded=recorded, record=record)
    except (CatchError, PatchError, TableError, UnknownBugError) as error:
        raise click.ClickException(str(error)) from None


def _show_table(page: Path | None) -> None:
    table = as_markdown(PLANTED, load_record())
    if page is None:
        click.echo(table)
    else:
        write_table(page, table)


def _range(text: str) -> list[int]:
    try:
        return parse_seeds(text)
    except ValueError as error:
        raise click.UsageError(f"--seeds {error}") from error


def _catch(
    bugs: list[PlantedBug],
    seeds: list[int],
    *,
    jobs: int,
    recorded: dict[str, Catch] | None,
    record: bool,
) -> int:
    root = source_root()
    for bug in bugs:
        check(root, bug.edits)
    started = time.perf_counter()
    results: list[Result] = []
    for result in catch_all(bugs, seeds, jobs=jobs, recorded=recorded):
        results.append(result)
        click.echo(f"[{len(results):2}/{len(bugs)}] {_line(result)}")
        if record:
            save_record([result])
    escaped = [result.bug.name for result in results if result.catch is None]
    catches = [result.catch for result in results if result.catch is not None]
    seconds = time.perf_counter() - started
    click.echo(
        f"{len(catches)} of {len(results)} planted bugs caught, median "
        f"{median_seeds(catches):g} seeds, {seconds:.0f} s"
    )
    if escaped:
        click.echo(f"escaped: {', '.join(escaped)}")
    return EXIT_ESCAPED if escaped else 0


def _line(result: Result) -> str:
    bug, found = result.bug, result.catch
    name = f"{bug.rule:5} {bug.name}"
    if result.failure is not None:
        return f"{name:42} NOTHING SHOWN: {result.failure}"
    if found is None:
        return f"{name:42} ESCAPED after {result.seeds_run} seeds"
    if found.seed is None:
        return f"{name:42} {found.by} (directed)"
    moved = ", no longer by the recorded one" if result.has_moved else ""
    after = f"after {found.seeds} seeds (seed {found.seed}{moved})"
    return f"{name:42} {found.by:15} {after}, by {found.guard}"
