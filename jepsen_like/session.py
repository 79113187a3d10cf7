"""Runs a plan on the target it names, and judges what came of it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from jepsen_like.checker.injections import check_faults
from jepsen_like.checker.nodes import check_nodes
from jepsen_like.checker.progress import check_progress
from jepsen_like.checker.replicas import check_replicas
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.nemesis.fault import Fault
from jepsen_like.plan import Plan, Progress
from jepsen_like.result import Result, machine_facts
from jepsen_like.target.processes.network import check
from jepsen_like.target.processes.runner import run_on_own_cluster, run_on_processes
from jepsen_like.workload.base import Run, Workload
from jepsen_like.workload.machine_names import channelsets_of
from jepsen_like.workload.recipe_clients import RECIPE_CLIENTS
from jepsen_like.workload.registry import WORKLOADS, workload_named
from raftstore.errors import ArgumentError


class UnknownNameError(ValueError):
    """There is no workload or fault of this name; the text suggests what was meant."""


def run_plan(plan: Plan, on_progress: Progress) -> Result:
    """Run and judge; UnknownNameError or FaultUnavailableError (of a network that this machine does
    not have) before anything is started or written.
    """
    check_names(plan)
    if plan.machines and plan.target != "processes":
        raise UnknownNameError(
            "--machine runs on processes, whose stores say in the end what was committed; in "
            "simulated worlds a machine is run by raftstore.testing.simulate_machine"
        )
    if plan.target == "simulated":
        from jepsen_like.runner import run_simulated

        return run_simulated(plan, on_progress)
    if plan.target == "cluster":
        return _run_on_own_cluster(plan, on_progress)
    return _run_on_processes(plan, on_progress)


def check_names(plan: Plan) -> None:
    """Refuse a plan that names what does not exist."""
    if not plan.machines:
        _known("workload", [plan.workload], WORKLOADS)
    _known("fault", [name for name in plan.nemeses if name != "all"], CATALOGUE)


def catalogue() -> list[dict[str, str]]:
    """Every workload, shipped state machine and fault with what it does."""
    rows = [
        {"kind": "workload", "name": name, "what": make().text, "where": "simulated, processes"}
        for name, make in WORKLOADS.items()
    ]
    rows += [
        {"kind": "machine", "name": name, "what": clients.__doc__ or "", "where": "processes"}
        for name, clients in RECIPE_CLIENTS.items()
    ]
    rows += [
        {"kind": "fault", "name": fault.name, "what": fault.text, "where": _where(fault)}
        for fault in CATALOGUE.values()
    ]
    return rows


def chosen_faults(plan: Plan) -> list[Fault]:
    """The faults of a plan; ``all`` stands for every one."""
    names = CATALOGUE if "all" in plan.nemeses else plan.nemeses
    return [CATALOGUE[name] for name in names]


def _where(fault: Fault) -> str:
    return "simulated, processes (root)" if fault.needs_root else "simulated, processes"


def _known(what: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, list(known), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise UnknownNameError(f"there is no {what} {name!r}; {hint}")


def _workload_of(plan: Plan) -> Workload:
    if not plan.machines:
        return workload_named(plan.workload)
    try:
        return channelsets_of(plan.machines, plan.paths)
    except ArgumentError as error:
        raise UnknownNameError(str(error)) from error


def _run_on_processes(plan: Plan, on_progress: Progress) -> Result:
    check(plan.network)
    workload = _workload_of(plan)
    began = time.monotonic()
    run = run_on_processes(
        workload,
        chosen_faults(plan),
        seconds=plan.seconds,
        clients=plan.clients,
        seed=plan.seed,
        directory=plan.directory,
        on_progress=on_progress,
        fault_pause_s=plan.fault_pause_s,
        network=plan.network,
    )
    return _judged(plan, workload, run, time.monotonic() - began)


def _run_on_own_cluster(plan: Plan, on_progress: Progress) -> Result:
    workload = workload_named(plan.workload)
    began = time.monotonic()
    run = run_on_own_cluster(
        workload,
        plan.endpoints,
        seconds=plan.seconds,
        clients=plan.clients,
        seed=plan.seed,
        directory=plan.directory,
        on_progress=on_progress,
    )
    return _judged(plan, workload, run, time.monotonic() - began)


def _judged(plan: Plan, workload: Workload, run: Run, seconds: float) -> Result:
    return Result(
        target=plan.target,
        workload=plan.workload,
        nemeses=plan.nemeses,
        seed=plan.seed,
        options={"clients": plan.clients, "time_limit_s": plan.seconds},
        seconds=seconds,
        verdicts=[
            check_replicas(run),
            check_progress(run),
            run.status.verdict(),
            *([] if run.nodes is None else [check_nodes(run.nodes)]),
            *([check_faults(run.faults)] if plan.nemeses else []),
            *([run.repeats.verdict()] if run.repeats.sent else []),
            *workload.check(run),
        ],
        history=run.history,
        faults=run.faults,
        replica_hashes={f"{table}/{at}": of for (table, at), of in run.replica_hashes.items()},
        facts=machine_facts(),
        replay=plan.replay,
    )
