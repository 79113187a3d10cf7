"""Bounded reads of a replica whose leader fell silent: old for ten seconds at most (S7.3)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from jepsen_like.checker.staleness import INFO_AGE_MS, check_staleness
from jepsen_like.checker.verdict import Validity
from jepsen_like.runner import NANOSECONDS, SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.schedule import FaultEvent
from jepsen_like.workload.base import Run
from jepsen_like.workload.bounded_reads import BOUNDS, TABLE
from raftstore.testing.options import draw_options
from raftstore.types import Outcome

SILENCE_MS = 16_000.0
KIND = "isolate-follower"
MARGIN_MS = 500
"""For the word that was under way, and the answer."""


@cache
def played() -> Run:
    """One follower gets nothing for sixteen seconds, and clients go on asking it."""
    schedule = (FaultEvent(1_000.0, KIND, SILENCE_MS, 7),)
    scene = Scene(7, "bounded_reads", (KIND,), draw_options(7), schedule, 20.0, 6, "")
    world = SimulatedRun(scene, lambda _: None)
    result = world.run()
    assert result.validity is Validity.VALID, [verdict.summary for verdict in result.verdicts]
    return Run(world.history, world.target.commits(), faults=world.injected)


@pytest.mark.slow
def test_bounded_reads_miss_at_most_what_was_committed_in_the_last_ten_seconds() -> None:
    """The bound is kept against what was committed ten seconds before; against the present, and
    even the last half of that time, it is not, and cannot be: nothing was reported to the
    replica."""
    assert INFO_AGE_MS == 10_000
    verdict = check_staleness(played(), TABLE)
    assert verdict.is_valid, verdict.summary
    assert verdict.figures["worst_lag"] > max(BOUNDS)
    run = played()
    silent = [
        replace(read, details=read.details | {"leader_info_age_ms": None}) for read in run.history
    ]
    sooner = check_staleness(replace(run, history=silent), TABLE, info_age_ms=INFO_AGE_MS / 2)
    assert sooner.figures["beyond"] > 0


@pytest.mark.slow
def test_replica_that_calls_its_knowledge_new_is_found() -> None:
    """Everything else that it states is right: it lacks no row that it knows of."""
    run = played()
    lying = [
        replace(read, details=read.details | {"leader_info_age_ms": 0}) for read in run.history
    ]
    verdict = check_staleness(replace(run, history=lying), TABLE)
    assert verdict.figures["beyond"] > 0
    assert verdict.figures["under_reported"] > 0


@pytest.mark.slow
def test_replica_refuses_bounded_reads_once_its_leader_was_silent_for_ten_seconds() -> None:
    """The others go on serving; so a client is never without an answer."""
    run = played()
    (fault,) = run.faults
    cut, healed = fault["started"], fault["ended"]
    newest: dict[str, int] = {}
    until: dict[str, float] = {}
    for read in run.history:
        is_bounded = read.action == "get" and read.details["level"] == "bounded"
        if is_bounded and read.outcome is Outcome.OK and cut < read.invoked:
            if (read.returned or healed) >= healed:
                continue  # it waited for proof, and healing brought that
            node, ((_, applied),) = read.details["served_by"], read.details["positions"]
            newest[node] = max(newest.get(node, 0), applied)
            until[node] = ((read.returned or 0) - cut) / NANOSECONDS
    alone = min(newest, key=lambda node: newest[node])
    assert len(newest) == 3
    assert INFO_AGE_MS / 2 < until[alone] <= INFO_AGE_MS + MARGIN_MS
    assert all(until[node] > SILENCE_MS - 2_000 for node in newest if node != alone)
