"""Every workload is judged by all checkers that apply, and none of them sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from jepsen_like.runner import SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.schedule import draw_schedule
from jepsen_like.workload.base import Run, Workload
from jepsen_like.workload.registry import WORKLOADS, workload_named
from raftstore.testing.options import draw_options
from raftstore.types import Outcome

OWN = {
    "register": ["linearizable", "rw_register"],
    "cas_register": ["linearizable", "rw_register"],
    "table_set": ["set"],
    "list_append": ["list_append"],
    "bank": ["bank"],
    "publish_log": [],
    "bounded_reads": ["staleness"],
    "sessions": [],
    "scan_snapshot": ["snapshot"],
    "bounded_time": ["staleness"],
    "bounded_sessions": [],
    "write_fates": [],
    "paged_scan": ["pages"],
    "bounded_batches": ["staleness"],
    "http_sessions": [],
    "bank_batches": ["batches"],
    "leader_sessions": ["leader_reads"],
    "lifetimes": ["lifetimes"],
}
ROWS_EXPIRE = ("lifetimes",)
"""Workloads whose rows go by themselves: what was acknowledged need not be there at the end."""
NOT_BY = {
    # These judge their lag by themselves.
    "staleness": {"bounded_reads", "bounded_time", "bounded_batches"},
    # Only scans, and only writes and reads of many rows.
    "audit": {"scan_snapshot", "bank/accounts"},
}

FAULTS = ("kill-leader", "partition-halves")


@cache
def _played(name: str) -> tuple[Workload, Run]:
    """A short run of a workload under faults, and what its checkers look at."""
    schedule = draw_schedule(random.Random(3), FAULTS, until_ms=6_000, pause_ms=600)
    world = SimulatedRun(
        Scene(3, name, FAULTS, draw_options(3), schedule, 8.0, 6, ""), lambda _: None
    )
    result = world.run()
    assert result.validity is Validity.VALID, [v.summary for v in result.verdicts]
    run = Run(world.history, world.target.commits(), world.target.replica_hashes(), world.injected)
    return workload_named(name), run


def _names(workload: Workload, run: Run) -> list[str]:
    """Names of the checkers that judge a run of the workload."""
    if workload.name in ROWS_EXPIRE:
        return [*OWN[workload.name], *(f"stream {table}" for table in workload.tables)]
    was_asked = any(op.action == "fate" and op.outcome is Outcome.OK for op in run.history)
    tables = [
        f"{checker} {table}"
        for table in workload.tables
        for checker in ("stream", "staleness", "audit")
        if not {workload.name, f"{workload.name}/{table}"} & NOT_BY.get(checker, set())
    ]
    fates = ["fates"] if was_asked else []
    return [*OWN[workload.name], "lost_writes", *tables, "sessions", *fates]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_is_judged_by_every_checker_that_applies(name: str) -> None:
    """A run under faults is valid by all of them; a lost or changed answer is found."""
    workload, run = _played(name)
    verdicts = workload.check(run)
    assert [verdict.checker for verdict in verdicts] == _names(workload, run)
    assert all(verdict.is_valid for verdict in verdicts)
    for damage in DAMAGES:
        broken = workload.check(damage(run))
        assert Validity.INVALID in [verdict.validity for verdict in broken], damage.__name__


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_without_history_proves_nothing(name: str) -> None:
    """Where nothing was observed, no checker says that all is well."""
    verdicts = workload_named(name).check(Run([]))
    assert {verdict.validity for verdict in verdicts} == {Validity.UNDECIDED}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_judges_absurd_answers_without_raising(name: str) -> None:
    """A broken store may answer anything; every answer is replaced by the same nonsense."""
    workload, run = _played(name)
    for nonsense in (None, 7, "x", [], {}, {"a": None}, [[1, 2]], float("nan")):
        history = [
            replace(op, result=nonsense if op.outcome is Outcome.OK else op.result)
            for op in run.history
        ]
        assert workload.check(replace(run, history=history))


# --- what a broken store would have done ----------------------------------------------------------


def _lost_record(run: Run) -> Run:
    """The last acknowledged record is in no log."""
    acked = [op for op in run.history if op.outcome is Outcome.OK and op.action.startswith("put")]
    partition, seq = acked[-1].details["positions"][0]
    table = acked[-1].details["table"]
    kept = [row for row in run.commits[table, partition] if row.seq != seq]
    return replace(run, commits={**run.commits, (table, partition): kept})


def _empty_read_back(run: Run) -> Run:
    """Everything is gone when it is read back."""
    gone: dict[str, Any] = {"scan": {}, "get": None, "get_many": [None] * 5}
    gone["snapshot"] = {"n": 0, "vector": [0, 0, 0, 0], "rows": {}}
    return _changed(run, lambda op: replace(op, result=gone[op.action]))


def _unwritten_read_back(run: Run) -> Run:
    """The run with one value read that was never written."""
    answers: dict[str, Any] = {"scan": {"s-1": -1}, "get": [-1], "get_many": [-1] * 5}
    answers["snapshot"] = {"n": 1, "vector": [1, 1, 1, 1], "rows": {"s0": [-1, -1]}}
    return _changed(run, lambda op: replace(op, result=answers[op.action]))


def _changed(run: Run, change: Callable[[Operation], Operation]) -> Run:
    history = [change(op) if op.details.get("final") else op for op in run.history]
    return replace(run, history=history)


DAMAGES = (_lost_record, _empty_read_back, _unwritten_read_back)


# --- one wrong answer somewhere in the middle -----------------------------------------------------

UNWRITTEN = -7_777
"""A value that no workload writes."""
TAMPERED = 8


def _tampered(run: Run, rng: random.Random) -> Run:
    """One answered read of the run shows one value that was never written."""
    reads = [at for at, op in enumerate(run.history) if _shows_values(op)]
    at = rng.choice(reads)
    history = list(run.history)
    history[at] = replace(history[at], result=_with_unwritten(history[at].result, rng))
    return replace(run, history=history)


def _shows_values(op: Operation) -> bool:
    asked = op.action in ("get", "get_many", "scan", "snapshot")
    return asked and op.outcome is Outcome.OK and bool(_places(op.result))


def _places(result: Any) -> list[Any]:
    """Where the answer has values of rows."""
    if isinstance(result, dict):
        return sorted(result["rows"] if "vector" in result else result)
    if isinstance(result, list):
        return [at for at, value in enumerate(result) if value is not None]
    return [] if result is None else [None]


def _with_unwritten(result: Any, rng: random.Random) -> Any:
    place = rng.choice(_places(result))
    changed = deepcopy(result)
    if place is None:
        return UNWRITTEN
    rows = changed["rows"] if isinstance(changed, dict) and "vector" in changed else changed
    rows[place] = UNWRITTEN if not isinstance(rows[place], list) else [UNWRITTEN, UNWRITTEN]
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_one_unwritten_value_in_any_read_is_found(name: str) -> None:
    """Not only in the last reads: wherever it is, some checker of the workload calls it wrong."""
    workload, run = _played(name)
    for number in range(TAMPERED):
        tampered = _tampered(run, random.Random(f"{name} {number}"))
        found = {verdict.checker: verdict.validity for verdict in workload.check(tampered)}
        assert Validity.INVALID in found.values(), (number, found)
