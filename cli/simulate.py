"""``raftstore simulate``: deterministic worlds under faults."""

from __future__ import annotations

import os
from typing import Any

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_DIFFERENCE
from raftstore.cli.world_options import change_of, seeds_of
from raftstore.testing.campaign import CampaignResult, describe, is_weak, run_campaign
from raftstore.testing.options import SimOptions, is_drawn, own_options
from raftstore.testing.simulation import Verdict


@click.command()
@click.option("--seed", type=int, help="One world.")
@click.option("--seeds", help="A range of worlds: A..B.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes [default: one per core].")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change an option.")
@click.option(
    "--only",
    "wanted",
    multiple=True,
    metavar="NAME",
    help="Of the range, only worlds whose option NAME is not the default.",
)
@click.option("--trace", is_flag=True, help="Print the end of a failed world's trace.")
@pass_context
def simulate(
    context: Context,
    *,
    seed: int | None,
    seeds: str | None,
    jobs: int | None,
    changes: tuple[str, ...],
    wanted: tuple[str, ...],
    trace: bool,
) -> int:
    """Run the production core, engine and elector on virtual time under faults.

    The library's own simulator: writers and readers of one table under ten kinds of faults, held
    to the promises after every step. "raftstore chaos simulate" runs every workload under every
    simulated fault, judges what clients saw, and shrinks what fails.

    Exit code 7 when a world breaks a promise, or did too little to prove anything. A world is void
    when its faults took the last copy of a committed record: then it must stand still.

    \b
    Example:
      raftstore simulate --seeds 1..200
      raftstore simulate --seed 17 --trace
      raftstore simulate --seeds 51..1000 --only member_changes
      raftstore -o json simulate --seeds 1..20 --set slow_disk=yes
    """
    changed = dict(change_of(change) for change in changes)
    drawn = {number: _options(number, changed) for number in seeds_of(seed, seeds)}
    worlds = _only(drawn, wanted)
    chosen = list(worlds)
    as_json = context.output != "table"
    reported: list[dict[str, Any]] = []

    def tell(verdict: Verdict) -> None:
        if as_json:
            options = worlds[verdict.seed].as_dict()
            reported.append(_as_dict(verdict, options, changes, with_trace=trace))
            return
        click.echo(_line(verdict))
        if verdict.violation is not None:
            click.echo(f"  {verdict.violation}")
            click.echo(f"  {describe(worlds[verdict.seed])}")
            click.echo(f"  replay: {_replay(verdict.seed, changes)}")
            for line in verdict.trace if trace else ():
                click.echo(f"    {line}")
        elif verdict.void is not None:
            click.echo(f"  {verdict.void}")

    if not as_json:  # before anything runs, so that a hang or a crash can be replayed too
        click.echo(_announcement(chosen, worlds, changes, wanted))
    workers = jobs or os.cpu_count() or 1
    result = run_campaign(chosen, jobs=workers, changes=changed, on_verdict=tell)
    if as_json:
        context.show(
            {"seeds": reported, "failed": result.failed, "weak": result.weak, "void": result.void}
        )
    else:
        click.echo(_summary(result))
    return EXIT_DIFFERENCE if result.failed or result.weak else 0


def _options(seed: int, changed: dict[str, str]) -> SimOptions:
    try:
        return own_options(seed, changed)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _only(drawn: dict[int, SimOptions], wanted: tuple[str, ...]) -> dict[int, SimOptions]:
    """The worlds in which all of these options are other than the default."""
    try:
        found = {
            number: options
            for number, options in drawn.items()
            if all(is_drawn(options, name) for name in wanted)
        }
    except ValueError as error:
        raise click.UsageError(f"--only: {error}") from None
    if not found:
        raise click.UsageError(
            f"--only {' --only '.join(wanted)} leaves none of {len(drawn)} worlds; give more "
            "seeds, or turn it on with --set"
        )
    return found


def _announcement(
    chosen: list[int],
    worlds: dict[int, SimOptions],
    changes: tuple[str, ...],
    wanted: tuple[str, ...],
) -> str:
    if len(chosen) == 1:
        return describe(worlds[chosen[0]])
    changed = f" with {' '.join(changes)}" if changes else ""
    if wanted:
        changed += f"; {len(chosen)} worlds, all with {' and '.join(wanted)}"
    return f"seeds {chosen[0]}..{chosen[-1]}, each with the options it draws{changed}"


def _replay(seed: int, changes: tuple[str, ...]) -> str:
    extra = "".join(f" --set {change}" for change in changes)
    return f"raftstore simulate --seed {seed}{extra} --trace"


def _line(verdict: Verdict) -> str:
    word = "FAILED" if verdict.violation else "void" if verdict.void else "ok"
    if word == "ok" and is_weak(verdict):
        word = "weak"
    outcomes = verdict.outcomes
    return (
        f"seed {verdict.seed}: {word}, {outcomes.finished} operations, "
        f"{sum(verdict.faults.values())} faults, {verdict.elections} elections, "
        f"{verdict.operations_per_second:,.0f} operations/s, digest {verdict.digest[:12]}"
    )


def _summary(result: CampaignResult) -> str:
    return (
        f"{result.seeds} seeds: {len(result.failed)} failed, {len(result.weak)} weak"
        f"{f', {len(result.void)} void' if result.void else ''}; "
        f"{result.operations:,} operations ({result.operations_per_second:,.0f}/s per process), "
        f"{result.faults:,} faults, {result.elections:,} elections won, "
        f"{result.crashes:,} crashes, {result.times_real_time:.0f} x real time"
    )


def _as_dict(
    verdict: Verdict, options: dict[str, Any], changes: tuple[str, ...], *, with_trace: bool
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "seed": verdict.seed,
        "options": options,
        "violation": verdict.violation,
        "weak": verdict.violation is None and verdict.void is None and is_weak(verdict),
        "void": verdict.void,
        "operations": verdict.outcomes.finished,
        "faults": verdict.faults,
        "elections": verdict.elections,
        "crashes": verdict.crashes,
        "virtual_ms": round(verdict.virtual_ms),
        "operations_per_second": round(verdict.operations_per_second),
        "digest": verdict.digest,
    }
    if verdict.violation is not None:
        shown["replay"] = _replay(verdict.seed, changes)
        if with_trace:
            shown["trace"] = verdict.trace
    return shown
