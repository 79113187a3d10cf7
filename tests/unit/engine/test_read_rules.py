"""Which states a bounded read may be answered from: pure rules (S7.3)."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.reads.read_rules import (
    ReplicaFreshness,
    beyond_bounds,
    bounds_problem,
    may_be_proven,
    needs_proof,
)
from raftstore.errors import LagUnknownError, SchemaError
from raftstore.policy.bounds import effective_bounds
from raftstore.protocol.reads import Bounds

NOW = 10_000
FRESH: dict[str, Any] = {
    "lag": 0,
    "leader_info_age_ms": 0,
    "as_of_ms": NOW,
    "batches_behind": (0, 0),
    "is_trusted": True,
    "now_ms": NOW,
}
NODE = Bounds(max_lag=10_000)


def freshness(**changes: Any) -> ReplicaFreshness:
    """A state that is as fresh as can be, but for the changes."""
    return ReplicaFreshness(**FRESH | changes)


def served(bounds: Bounds, **changes: Any) -> bool:
    """Whether such a state is served."""
    return beyond_bounds("t/0", freshness(**changes), bounds) is None


def test_blog_20_request_goes_before_table_before_node() -> None:
    """A request that names any bound replaces those of the table, and a table with any bound those
    of the node.
    """
    asked, table = Bounds(max_staleness_ms=5), Bounds(max_lag=7)
    assert effective_bounds(asked, table, NODE) == asked
    assert effective_bounds(Bounds(), table, NODE) == table
    assert effective_bounds(Bounds(), Bounds(), NODE) == NODE


@pytest.mark.parametrize("name", ["max_lag", "max_staleness_ms", "max_batches_behind"])
def test_negative_bound_is_refused_by_its_name(name: str) -> None:
    """It would refuse every state, so the caller must have meant another bound."""
    problem = bounds_problem(Bounds(**{name: -1}))
    assert problem is not None
    assert problem.error is SchemaError
    assert f"{name} -1" in problem.text


@pytest.mark.parametrize(
    ("bounds", "at_the_bound", "beyond"),
    [
        (Bounds(max_lag=5), {"lag": 5}, {"lag": 6}),
        (Bounds(max_staleness_ms=50), {"as_of_ms": NOW - 50}, {"as_of_ms": NOW - 51}),
        (
            Bounds(max_batches_behind=2),
            {"batches_behind": (1, 2)},
            {"batches_behind": (1, 3)},
        ),
    ],
)
def test_klip_39_state_at_the_bound_is_served_and_beyond_it_is_not(
    bounds: Bounds, at_the_bound: dict[str, Any], beyond: dict[str, Any]
) -> None:
    """In rows, in time and in micro-batches."""
    assert served(bounds, **at_the_bound)
    assert not served(bounds, **beyond)


def test_every_bound_has_to_hold() -> None:
    """One that is kept does not make up for another (N2, BLOG-08)."""
    bounds = Bounds(max_lag=5, max_staleness_ms=50, max_batches_behind=2)
    assert served(bounds)
    assert not served(bounds, lag=6)
    assert not served(bounds, as_of_ms=NOW - 51)
    assert not served(bounds, batches_behind=(3, 3))


@pytest.mark.parametrize(
    ("bounds", "unknown"),
    [
        (Bounds(max_lag=2**63 - 1), {"lag": None, "leader_info_age_ms": None}),
        (Bounds(max_staleness_ms=2**63 - 1), {"as_of_ms": None}),
        (Bounds(max_batches_behind=2**63 - 1), {"batches_behind": None}),
    ],
)
def test_unknown_is_beyond_every_bound(bounds: Bounds, unknown: dict[str, Any]) -> None:
    """S7.3: fail closed."""
    assert not served(bounds, **unknown)


def test_state_is_not_fresh_because_its_leader_was_heard_just_now() -> None:
    """S7.3: what arrives may have waited for minutes; only a round trip tells of an age."""
    assert not served(Bounds(max_staleness_ms=500), as_of_ms=None, leader_info_age_ms=0)


def test_clock_that_went_back_tells_no_age() -> None:
    """A negative age is no age."""
    assert freshness(as_of_ms=NOW + 1).staleness_ms is None


def test_state_behind_by_rows_is_refused_at_once() -> None:
    """Waiting would not bring it within its bound: the client asks another replica meanwhile."""
    bounds = Bounds(max_lag=5, max_staleness_ms=500)
    assert not may_be_proven(freshness(lag=6), bounds)
    assert may_be_proven(freshness(as_of_ms=None), bounds)


def test_state_certainly_behind_by_batches_is_refused_at_once() -> None:
    """A round trip helps only where the number is not certain."""
    bounds = Bounds(max_batches_behind=2)
    assert may_be_proven(freshness(batches_behind=(2, 9)), bounds)
    assert not may_be_proven(freshness(batches_behind=(3, 9)), bounds)


def test_round_trip_is_asked_for_only_when_the_last_one_is_too_old() -> None:
    """When it is not, what is committed just has to be applied: no message helps."""
    bounds = Bounds(max_staleness_ms=50)
    behind = freshness(as_of_ms=NOW - 400)
    assert needs_proof(behind, bounds, None)
    assert needs_proof(behind, bounds, NOW - 51)
    assert not needs_proof(behind, bounds, NOW - 50)


def test_round_trip_is_asked_for_when_nothing_that_is_known_counts() -> None:
    """After a stop of the node, or when more batches may be committed than the bound allows."""
    bounds = Bounds(max_staleness_ms=50, max_batches_behind=1)
    assert needs_proof(freshness(is_trusted=False), bounds, NOW)
    assert needs_proof(freshness(batches_behind=(0, 2)), bounds, NOW)
    assert needs_proof(freshness(batches_behind=None), bounds, NOW)
    assert not needs_proof(freshness(batches_behind=(0, 1)), bounds, NOW)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"leader_info_age_ms": None}, "no leader has told its position"),
        ({"leader_info_age_ms": 70}, "the leader told its position 70 ms ago"),
        ({"is_trusted": False}, "was paused"),
    ],
)
def test_unknown_lag_is_refused_with_what_is_known(changes: dict[str, Any], text: str) -> None:
    """An operator looks at the clock, the network or the leader."""
    refusal = beyond_bounds("t/0", freshness(lag=None, **changes), Bounds(max_lag=5))
    assert refusal is not None
    assert refusal.error is LagUnknownError
    assert text in refusal.text
