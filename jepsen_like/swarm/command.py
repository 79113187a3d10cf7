"""``raftstore chaos simulate``: random worlds until one breaks a promise."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from jepsen_like.scene import Scene
from jepsen_like.schedule import ScheduleError, read_schedule
from jepsen_like.swarm.campaign import (
    FAULTS_NAME,
    Totals,
    WorldVerdict,
    keep,
    run_scenes,
    run_twice,
)
from jepsen_like.swarm.draw import changed, draw_scene
from jepsen_like.swarm.shrink import RUNS_MAX, NothingToShrinkError, shrink
from jepsen_like.workload.registry import WORKLOADS
from raftstore.cli.world_options import change_of, seeds_of

EXIT_VIOLATION = 7
"""As everywhere in raftstore: a promise was broken, or nothing was proven."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The options of the command."""

    seed: int | None
    seeds: str | None
    jobs: int | None
    twice: bool
    keep_going: bool
    shrink: bool
    runs: int
    faults: Path | None
    workload: str | None
    changes: tuple[str, ...]
    out: Path | None

    def scene(self, seed: int) -> Scene:
        """The world of a seed, changed as given."""
        return changed(
            draw_scene(seed),
            workload=self.workload,
            options=dict(change_of(change) for change in self.changes),
            schedule=None if self.faults is None else read_schedule(self.faults),
        )

    def replay(self, scene: Scene) -> str:
        """The command that runs the world again."""
        extra = f" --workload {self.workload}" if self.workload else ""
        extra += "".join(f" --set {change}" for change in self.changes)
        return scene.replay + extra + (f" --faults {self.faults}" if self.faults else "")

    def directory(self, seed: int) -> Path:
        """Where a failing world is kept: with several seeds each has its own."""
        if self.out is None:
            return Path(f"simulate-{seed}")
        return self.out if self.seed is not None else self.out / f"seed-{seed}"

    def is_bad(self, totals: Totals) -> bool:
        """Whether anything failed; a replay of few faults may be quiet."""
        is_quiet = bool(totals.quiet) and self.faults is None
        return bool(totals.failed or totals.unequal) or is_quiet


@click.command()
@click.option("--seed", type=int, help="One world.")
@click.option("--seeds", help="A range of worlds: A..B.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes [default: one per core].")
@click.option("--twice", is_flag=True, help="Run each world twice; their traces must be equal.")
@click.option("--keep-going", is_flag=True, help="Do not stop at the first world that fails.")
@click.option("--shrink", is_flag=True, help="Reduce a failing world's faults.")
@click.option(
    "--runs", type=click.IntRange(min=1), default=RUNS_MAX, show_default=True,
    help="At most so many runs to shrink.",
)  # fmt: skip
@click.option(
    "--faults", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replay these faults instead of those the seed draws.",
)  # fmt: skip
@click.option("--workload", type=click.Choice(tuple(WORKLOADS)), help="Instead of the drawn one.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change an option.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path),
    help="Where failing worlds are kept; with --seeds a directory each [default: simulate-SEED].",
)  # fmt: skip
def simulate(**given: Any) -> int:
    """Run random worlds: any workload under any simulated faults, judged by all checkers.

    A seed draws the workload, up to eight kinds of faults (or all), the cluster and its options.
    "raftstore simulate" is the smaller one that needs the library alone: two kinds of clients and
    ten kinds of faults under the oracle.

    Exit code 7 at the first world that breaks a promise, or in which too little happened to prove
    anything (500 operations, 10 faults that fired and an election are the least). The world is
    kept with its history, its faults and a script of what happened.

    \b
    Example:
      raftstore chaos simulate --seeds 1..200
      raftstore chaos simulate --seed 17 --shrink
      raftstore chaos simulate --seed 17 --faults simulate-17/faults.jsonl
    """  # noqa: D301 - click wants the character, not two
    wanted = _Wanted(**given)
    try:
        scenes = [wanted.scene(number) for number in seeds_of(wanted.seed, wanted.seeds)]
    except (ScheduleError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    totals = Totals()
    for scene, verdict in _verdicts(scenes, wanted, totals):
        click.echo(_line(scene, verdict))
        if verdict.violation is not None or scene.seed in totals.unequal:
            _explain(verdict, wanted.replay(scene))
        if verdict.violation is not None:
            _keep(scene, wanted)
        if wanted.is_bad(totals) and not wanted.keep_going:
            break
    for line in summary(totals):
        click.echo(line)
    return EXIT_VIOLATION if wanted.is_bad(totals) else 0


def _verdicts(
    scenes: Sequence[Scene], wanted: _Wanted, totals: Totals
) -> Iterator[tuple[Scene, WorldVerdict]]:
    jobs = wanted.jobs or os.cpu_count() or 1
    if not wanted.twice:
        for scene, verdict in zip(scenes, run_scenes(scenes, jobs=jobs), strict=True):
            totals.add(verdict)
            yield scene, verdict
        return
    for scene, (first, second) in zip(scenes, run_twice(scenes, jobs=jobs), strict=True):
        totals.add(first)
        if first.digest != second.digest:
            totals.unequal.append(scene.seed)
        yield scene, first


def _line(scene: Scene, verdict: WorldVerdict) -> str:
    word = "FAILED" if verdict.violation else "too quiet" if verdict.too_quiet else "ok"
    speed = verdict.virtual_seconds / verdict.cpu_seconds if verdict.cpu_seconds else 0.0
    return (
        f"seed {verdict.seed}: {word}, {verdict.workload} on {scene.options.nodes} nodes, "
        f"{verdict.operations} operations, {sum(verdict.fired.values())} faults of "
        f"{len(verdict.fired)} kinds, {verdict.elections} elections, "
        f"{verdict.virtual_seconds:.0f} s at {speed:.0f} x, trace {verdict.digest[:12]}"
        + (f" ({verdict.too_quiet})" if word == "too quiet" else "")
    )


def _explain(verdict: WorldVerdict, replay: str) -> None:
    if verdict.violation is None:
        click.echo(f"  two runs of seed {verdict.seed} have different traces")
    else:
        click.echo(f"  {verdict.violation}")
    click.echo(f"  replay: {replay}")


def _keep(scene: Scene, wanted: _Wanted) -> None:
    directory = wanted.directory(scene.seed)
    if wanted.shrink:
        try:
            found = shrink(scene, lambda text: click.echo(f"  {text}"), runs_max=wanted.runs)
        except NothingToShrinkError as error:
            raise click.ClickException(str(error)) from None
        scene = found.scene
        how = "minimal" if found.is_minimal else f"the least found in {found.runs} runs"
        click.echo(f"  {len(scene.schedule)} faults are enough ({how})")
        for event in scene.schedule:
            click.echo(f"    {event.at_ms:10.2f} ms  {event.kind} for {event.lasts_ms:.0f} ms")
    keep(scene, directory)
    click.echo(f"  kept in {directory}; these faults alone: --faults {directory / FAULTS_NAME}")


def summary(totals: Totals) -> list[str]:
    """The summary of a campaign, one line for the sums and one per list."""
    fired = sum(totals.fired.values())
    lines = [
        f"{totals.worlds} worlds: {len(totals.failed)} failed, {len(totals.quiet)} too quiet, "
        f"{totals.operations:,} operations ({totals.operations_per_second:,.0f}/s per process), "
        f"{fired:,} faults, {totals.elections:,} elections, "
        f"{totals.virtual_seconds / 3_600:.1f} virtual hours at {totals.times_real_time:.0f} x",
        "fired: " + _counts(totals.fired),
    ]
    if totals.not_run:
        lines.append("not run: " + _counts(totals.not_run))
    named = (("failed", totals.failed), ("too quiet", totals.quiet), ("unequal", totals.unequal))
    for name, seeds in named:
        if seeds:
            lines.append(f"{name} seeds: {', '.join(map(str, seeds))}")
    return lines


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {counts[kind]:,}" for kind in sorted(counts)) or "none"
