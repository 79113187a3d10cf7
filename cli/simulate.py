"""``raftstore simulate``: deterministic worlds under faults."""

from __future__ import annotations

import os

import click

from raftstore.cli.errors import EXIT_DIFFERENCE
from raftstore.errors import ConfigError
from raftstore.testing.campaign import describe, is_weak, run_campaign
from raftstore.testing.options import draw_options, override
from raftstore.testing.simulation import Verdict


@click.command()
@click.option("--seed", type=int, help="One world.")
@click.option("--seeds", help="A range of worlds: A..B.")
@click.option("--jobs", type=int, help="Processes [default: one per core].")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change an option.")
@click.option("--trace", is_flag=True, help="Print the end of a failed world's trace.")
def simulate(
    *,
    seed: int | None,
    seeds: str | None,
    jobs: int | None,
    changes: tuple[str, ...],
    trace: bool,
) -> int:
    r"""Run the production core, engine and elector on virtual time under faults.

    \b
    Example:
      raftstore simulate --seeds 1..200
      raftstore simulate --seed 17 --trace
    """
    chosen = _chosen(seed, seeds)
    changed = dict(_pair(change) for change in changes)
    failed_before = 0

    def tell(verdict: Verdict) -> None:
        nonlocal failed_before
        click.echo(_line(verdict))
        if verdict.violation is not None:
            failed_before += 1
            extra = "".join(f" --set {change}" for change in changes)
            click.echo(f"  {verdict.violation}")
            click.echo(f"  replay: raftstore simulate --seed {verdict.seed}{extra} --trace")
            for line in verdict.trace if trace else ():
                click.echo(f"    {line}")

    for number in chosen if len(chosen) == 1 else ():
        click.echo(describe(override(draw_options(number), changed)))
    workers = jobs or os.cpu_count() or 1
    result = run_campaign(chosen, jobs=workers, changes=changed, on_verdict=tell)
    click.echo(
        f"{result.seeds} seeds: {len(result.failed)} failed, {len(result.weak)} weak; "
        f"{result.operations:,} operations ({result.operations_per_second:,.0f}/s per process), "
        f"{result.faults:,} faults, {result.elections:,} elections won, "
        f"{result.crashes:,} crashes, {result.times_real_time:.0f} x real time"
    )
    return EXIT_DIFFERENCE if result.failed or result.weak else 0


def _chosen(seed: int | None, seeds: str | None) -> list[int]:
    if (seed is None) == (seeds is None):
        raise click.UsageError("give --seed N or --seeds A..B")
    if seed is not None:
        return [seed]
    first, dots, last = (seeds or "").partition("..")
    if not dots or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise click.UsageError(f"--seeds {seeds!r} is no range; write A..B, as in 1..200")
    return list(range(int(first), int(last) + 1))


def _pair(change: str) -> tuple[str, str]:
    name, equals, value = change.partition("=")
    if not equals:
        raise ConfigError(f"--set {change!r} is no option; write name=value, as in nodes=5")
    return name, value


def _line(verdict: Verdict) -> str:
    word = "FAILED" if verdict.violation else "weak" if is_weak(verdict) else "ok"
    outcomes = verdict.outcomes
    return (
        f"seed {verdict.seed}: {word}, {outcomes.finished} operations, "
        f"{sum(verdict.faults.values())} faults, {verdict.elections} elections, "
        f"{verdict.operations_per_second:,.0f} operations/s, digest {verdict.digest[:12]}"
    )
