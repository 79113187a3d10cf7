"""``raftstore chaos``: faults on purpose, judged by checkers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from jepsen_like.checker.verdict import Validity
from jepsen_like.corruption import run_corruptions
from jepsen_like.explain import explain
from jepsen_like.history import HistoryError
from jepsen_like.plan import FAULT_PAUSE_S, Plan
from jepsen_like.power_losses import run_power_losses
from jepsen_like.result import Result
from jepsen_like.session import UnknownNameError, catalogue, run_plan
from jepsen_like.target.base import FaultUnavailableError, NotRunError
from jepsen_like.target.processes.network import LOOPBACK, NETWORKS
from jepsen_like.target.processes.runner import RunFailedError
from jepsen_like.workload.channelsets import NAME as CHANNELSETS
from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_DIFFERENCE, EXIT_UNAVAILABLE
from raftstore.cli.lazy import LazyGroup
from raftstore.types import DURABILITIES, Durability, DurabilityName

SUBCOMMANDS = {
    "simulate": "jepsen_like.swarm.command:simulate",
    "campaign": "jepsen_like.campaign.command:campaign",
}


@click.group(cls=LazyGroup, lazy=SUBCOMMANDS)
def chaos() -> None:
    """Run workloads under faults and judge what clients saw.

    \b
    Example:
      raftstore chaos list
      raftstore chaos run --workload register --nemesis kill-leader,partition-halves
      raftstore chaos report DIR
    """


@chaos.command("list")
@pass_context
def list_names(context: Context) -> None:
    """Every workload, shipped state machine and fault, and where each can run.

    \b
    Example:
      raftstore chaos list
    """
    rows = catalogue()
    context.show(rows, rows)


@chaos.command("run")
@click.option("--workload", help="What the clients do; see chaos list.")
@click.option(
    "--machine",
    "machines",
    multiple=True,
    metavar="MODULE:CLASS[=MODULE:WORKLOAD[,MODULE:CHECK]]",
    help="In its place a state machine, on processes; several share the cluster. WORKLOAD and "
    "CHECK: functions as simulate_machine takes them. 'recipes': all that raftstore comes with.",
)
@click.option(
    "--path",
    "paths",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with modules of machines and workloads that are not installed.",
)
@click.option("--nemesis", help="Faults by comma; 'all': whatever can run; without it no faults.")
@click.option(
    "--simulated/--processes",
    "simulated",
    default=None,
    help="Virtual time (the default without --machine), or real node processes on this machine.",
)
@click.option(
    "--network",
    type=click.Choice(NETWORKS),
    default=LOOPBACK,
    show_default=True,
    help="Of --processes: proxies on loopback, or as root a network namespace for each node.",
)
@click.option(
    "--cluster",
    metavar="HOST:PORT,...",
    help="Clients only, on a cluster that runs already; strike it yourself meanwhile.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=1.0, max=86_400.0),
    default=60.0,
    show_default=True,
    help="Seconds under faults; healing and read-back come after.",
)
@click.option(
    "--fault-pause",
    type=click.FloatRange(min=0.1),
    default=FAULT_PAUSE_S,
    show_default=True,
    help="Seconds from one fault to the next, on average.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Draws clients and faults.")
@click.option(
    "--clients",
    type=click.IntRange(1, 64),
    default=6,
    show_default=True,
    help="How many read and write at once.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Keep the run here.")
@pass_context
def run(  # noqa: PLR0913 - a run has many parts, all by name
    context: Context,
    *,
    workload: str | None,
    machines: tuple[str, ...],
    paths: tuple[Path, ...],
    nemesis: str | None,
    simulated: bool | None,
    network: str,
    cluster: str | None,
    time_limit: float,
    fault_pause: float,
    seed: int,
    clients: int,
    out: Path | None,
) -> int:
    """Run one workload under faults, heal, read everything back, judge.

    Exit code 7 when a checker finds a violation, or the cluster does not become whole after
    healing; 4 when one could not decide, or when the run could not take place here.

    \b
    Example:
      raftstore chaos run --workload register --nemesis kill-leader --time-limit 30
      raftstore chaos run --workload bank --nemesis all --processes --out chaos-1
      raftstore chaos run --workload register --cluster 127.0.0.1:4481 --time-limit 300
      raftstore chaos run --machine raftstore.recipes.lock:Lock --nemesis kill-leader,pause-leader
      raftstore chaos run --path . --machine counters:Counter=test_counters:workload
    """
    if out is not None and out.exists() and any(out.iterdir()):
        raise click.UsageError(f"--out {out} is not empty; name a new directory")
    faults, endpoints = _list_of("--nemesis", nemesis), _list_of("--cluster", cluster)
    if endpoints and faults:
        raise click.UsageError(
            "--nemesis strikes only processes that this kit starts itself; with --cluster leave it "
            "out and strike that cluster by your own means while the clients run"
        )
    _check_what_runs(workload, machines, paths)
    if simulated is None:
        simulated = not machines
    if network != LOOPBACK and (simulated or endpoints):
        raise click.UsageError(f"--network {network} is a network of --processes; name them too")
    directory = out or Path(tempfile.mkdtemp(prefix="raftstore-chaos-"))
    plan = Plan(
        workload=CHANNELSETS if workload is None else workload,
        machines=machines,
        paths=tuple(path.resolve() for path in paths),
        nemeses=faults,
        target="cluster" if endpoints else "simulated" if simulated else "processes",
        endpoints=endpoints,
        seconds=time_limit,
        fault_pause_s=fault_pause,
        seed=seed,
        clients=clients,
        directory=directory,
        network=network,
    )
    try:
        result = run_plan(plan, on_progress=context.say)
    except (UnknownNameError, FaultUnavailableError) as error:
        if out is None:
            directory.rmdir()  # refused before anything was written
        raise click.UsageError(str(error)) from error
    except NotRunError as error:
        return _not_run(context, error)
    except RunFailedError as error:
        context.say(f"INVALID: {error}")
        return EXIT_DIFFERENCE
    result.save(directory)
    _show(context, result, directory)
    return _exit_code(result)


def _list_of(option: str, text: str | None) -> tuple[str, ...]:
    """The names of a list by comma; empty where the option was left out.

    An empty or repeated name is refused: the run would be under fewer faults, or on another
    cluster, than was meant.
    """
    names = () if text is None else tuple(name.strip() for name in text.split(","))
    for number, name in enumerate(names):
        if not name:
            raise click.UsageError(
                f"{option} {text!r} names nothing at place {number + 1}; give names with a comma "
                "between them, or leave the option out"
            )
        if name in names[:number]:
            raise click.UsageError(f"{option} names {name!r} twice; name it once")
    return names


def _check_what_runs(
    workload: str | None, machines: tuple[str, ...], paths: tuple[Path, ...]
) -> None:
    if (workload is not None) == bool(machines):
        raise click.UsageError(
            "give --workload NAME (raftstore chaos list names them) or --machine MODULE:CLASS, "
            "and not both"
        )
    if paths and not machines:
        raise click.UsageError(
            "--path is where modules of --machine are; name one, or leave it out"
        )


@chaos.command("report")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@pass_context
def report(context: Context, *, directory: Path) -> int:
    """Write DIRECTORY/report.html: verdicts, faults over latency and throughput, silences.

    \b
    Example:
      raftstore chaos report chaos-1
    """
    from jepsen_like.report.page import write_report
    from jepsen_like.report.plots import PicturesUnavailableError

    try:
        result = Result.load(directory)
        path = write_report(result, directory)
    except (HistoryError, PicturesUnavailableError) as error:
        raise click.ClickException(str(error)) from error
    context.say(f"{path}: {result.validity.name}")
    return _exit_code(result)


@chaos.command("corrupt")
@click.option(
    "--count",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="How many stores.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Draws stores and damage.")
@pass_context
def corrupt(context: Context, *, count: int, seed: int) -> int:
    """Damage stores at random, open them, and compare every answer with what was stored.

    Exit code 7 when damage led to a wrong answer, or passed without being noticed.

    \b
    Example:
      raftstore chaos corrupt --count 500 --seed 7
    """
    with tempfile.TemporaryDirectory(prefix="raftstore-corrupt-") as directory:
        found = run_corruptions(count, seed, Path(directory), context.say)
    figures = {
        "trials": found.trials,
        "outcomes": dict(found.outcomes),
        "struck": dict(found.struck),
        "violations": found.violations,
    }
    rows = [{"what": "outcome", "name": n, "times": c} for n, c in found.outcomes.most_common()]
    rows += [{"what": "struck", "name": n, "times": c} for n, c in found.struck.most_common()]
    context.show(figures, rows)
    context.say(f"{found.trials} stores damaged, {len(found.violations)} violations")
    return EXIT_DIFFERENCE if found.violations else 0


@chaos.command("power")
@click.option(
    "--count",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="How many times.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Draws when it happens.")
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    default="fsync",
    show_default=True,
    help="Of the table that is written to.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Keep the run here.")
@pass_context
def power(
    context: Context, *, count: int, seed: int, durability: DurabilityName, out: Path | None
) -> int:
    """Take the power from all nodes under load, and look for every acknowledged write.

    With another durability than fsync, one node at a time loses its power, which must cost nothing,
    and in every fourth pull all of them, which may (given_up). With root the nodes' file systems
    are shut down without flushing; elsewhere whatever was written and not synced is taken back from
    files. Exit code 7 when an acknowledged write is lost; 4 when none was acknowledged, or the run
    could not take place here.

    \b
    Example:
      raftstore chaos power --count 20
      raftstore chaos power --count 20 --durability buffered
    """
    level = Durability(DURABILITIES.index(durability))
    with tempfile.TemporaryDirectory(prefix="raftstore-power-") as directory:
        place = out or Path(directory)
        try:
            found = run_power_losses(count, seed, place, context.say, durability=level)
        except NotRunError as error:
            return _not_run(context, error)
    figures = {
        "pulls": found.pulls,
        "acknowledged": found.acknowledged,
        "in_doubt": found.in_doubt,
        "lost": found.lost,
        "given_up": found.given_up,
        "made_up": found.made_up,
        "replicas_different": found.different,
        "longest_back_s": round(max(found.back_s, default=0.0), 1),
        "how": found.mechanism,
        "violations": found.violations,
    }
    context.show(figures, [figures])
    if found.violations:
        return EXIT_DIFFERENCE
    if found.too_little:
        context.say(f"UNDECIDED: {found.too_little}")
    return EXIT_UNAVAILABLE if found.too_little else 0


def _not_run(context: Context, error: NotRunError) -> int:
    """Neither passed nor violated."""
    context.say(f"not run: {error}")
    return EXIT_UNAVAILABLE


def _exit_code(result: Result) -> int:
    if result.validity is Validity.INVALID:
        return EXIT_DIFFERENCE
    return EXIT_UNAVAILABLE if result.validity is Validity.UNDECIDED else 0


def _as_dict(result: Result, directory: Path) -> dict[str, Any]:
    return {
        "validity": result.validity.name,
        "workload": result.workload,
        "target": result.target,
        "seed": result.seed,
        "operations": len(result.history),
        "verdicts": [
            {
                "checker": verdict.checker,
                "validity": verdict.validity.name,
                "summary": verdict.summary,
                "figures": verdict.figures,
            }
            for verdict in result.verdicts
        ],
        "faults": [dict(fault) for fault in result.faults],
        "facts": dict(result.facts),
        "directory": str(directory),
        "replay": result.replay,
    }


def _show(context: Context, result: Result, directory: Path) -> None:
    """The verdicts as a table; below it what a person does next."""
    rows = [
        {"checker": v.checker, "verdict": v.validity.name, "what it says": v.summary}
        for v in result.verdicts
    ]
    context.show(_as_dict(result, directory), rows)
    if context.output != "table":
        return
    for fault in result.faults:
        if not fault.get("fired", True):
            context.say(f"not run: {fault['kind']}: {fault.get('reason', 'no reason given')}")
    for verdict in result.verdicts:
        if not verdict.is_valid and verdict.evidence:
            context.say(f"\n{verdict.checker}: {explain(verdict)}")
    for fault in result.of_machine:
        lasted_s = (fault["ended"] - fault["started"]) / 1_000_000_000
        context.say(f"{fault['kind']}: {fault['where'] or 'all nodes'} for {lasted_s:.1f} s")
    fired = sum(1 for fault in result.injected if fault.get("fired", True))
    context.say(
        f"{result.validity.name}: {len(result.history):,} operations, {fired} faults, "
        f"{result.seconds:.0f} s; kept in {directory}; "
        f"next: raftstore chaos report {directory}"
    )
