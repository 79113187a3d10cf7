"""Which states a bounded read may be answered from: pure rules (S7.3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from raftstore.core.replica import DISPUTED
from raftstore.engine.reads.read_rules import (
    GET_BYTES_MAX,
    ReplicaFreshness,
    beyond_bounds,
    bounds_of_request,
    bounds_problem,
    late_refusal,
    may_be_proven,
    needs_proof,
    rows_too_large,
    serving_refusal,
    too_many_keys,
)
from raftstore.errors import (
    LagExceededError,
    LagUnknownError,
    NotUpToBoundError,
    PayloadTooLargeError,
    QueryError,
    Refusal,
    SchemaError,
    UnavailableError,
)
from raftstore.policy.bounds import effective_bounds
from raftstore.protocol.reads import Bounds, Consistency, Count, Get, row_read
from raftstore.types import Role, Seq
from tests.storage_helpers import CHANNEL

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


def get(*keys: bytes, min_seq: int = 0, bounds: Bounds | None = None) -> Get:
    """A read of these keys that may take 900 ms."""
    named = structs.asdict(bounds or Bounds())
    return row_read(Get, 1, CHANNEL, Consistency("bounded", Seq(min_seq), **named), 900, keys=keys)


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
    assert bounds_problem(Bounds(**{name: 0})) is None, "0 asks for everything that is known"
    assert bounds_problem(Bounds(**{name: 1})) is None


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
    """S7.3: what arrives may have waited for minutes; only a round trip proves an age."""
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
        ({"leader_info_age_ms": None}, "no leader has reported its position"),
        ({"leader_info_age_ms": 70}, "the leader reported its position 70 ms ago"),
        ({"is_trusted": False}, "was paused"),
    ],
)
def test_unknown_lag_is_refused_with_what_is_known(changes: dict[str, Any], text: str) -> None:
    """An operator looks at the clock, the network or the leader."""
    refusal = beyond_bounds("t/0", freshness(lag=None, **changes), Bounds(max_lag=5))
    assert refusal is not None
    assert refusal.error is LagUnknownError
    assert text in refusal.text


@pytest.mark.parametrize(
    ("bounds", "changes", "refusal"),
    [
        (Bounds(max_lag=5), {"lag": 6}, Refusal(LagExceededError, "lag 6 > 5 rows in t/0")),
        (
            Bounds(max_staleness_ms=50),
            {"as_of_ms": None},
            Refusal(LagUnknownError, "age of the state of t/0 is unknown here (bound 50 ms)"),
        ),
        (
            Bounds(max_staleness_ms=50),
            {"as_of_ms": NOW - 51},
            Refusal(LagExceededError, "state of t/0 known complete as of 51 ms ago > 50 ms"),
        ),
        (
            Bounds(max_batches_behind=2),
            {"batches_behind": None},
            Refusal(LagUnknownError, "micro-batches that t/0 is behind are unknown here (bound 2)"),
        ),
        (
            Bounds(max_batches_behind=2),
            {"batches_behind": (3, 3)},
            Refusal(LagExceededError, "3 > 2 micro-batches behind in t/0"),
        ),
        (
            Bounds(max_batches_behind=2),
            {"batches_behind": (1, 4)},
            Refusal(LagExceededError, "1 to 4 > 2 micro-batches behind in t/0"),
        ),
    ],
)
def test_refusal_tells_how_far_behind_the_state_is_as_far_as_that_is_known(
    bounds: Bounds, changes: dict[str, Any], refusal: Refusal
) -> None:
    """KLIP-39: the value, the bound and the channel; a number that is not certain as a range."""
    assert beyond_bounds("t/0", freshness(**changes), bounds) == refusal


def test_state_whose_batches_nobody_counted_waits_for_no_proof() -> None:
    """A round trip does not count them. After a stop of the node one may prove everything."""
    bounds = Bounds(max_batches_behind=2)
    assert not may_be_proven(freshness(batches_behind=None), bounds)
    assert may_be_proven(freshness(batches_behind=None), Bounds())
    paused = {"is_trusted": False, "lag": None, "batches_behind": None}
    assert may_be_proven(freshness(**paused), Bounds(max_lag=5, max_batches_behind=2))


def test_round_trip_proves_nothing_that_a_read_without_a_bound_in_time_asks_for() -> None:
    """Rows and batches are counted by what the leader reported."""
    bounds = Bounds(max_lag=5, max_batches_behind=2)
    assert not needs_proof(freshness(as_of_ms=None), bounds, None)
    assert not needs_proof(freshness(as_of_ms=None), Bounds(), None)


def test_bounds_of_a_request_are_told_apart() -> None:
    """Three numbers that look alike: rows, milliseconds, micro-batches."""
    bounds = Bounds(max_lag=1, max_staleness_ms=2, max_batches_behind=3)
    assert bounds_of_request(get(b"k", bounds=bounds)) == bounds


def test_request_of_too_many_keys_is_refused_and_a_count_has_none() -> None:
    """A node answers nobody else while it reads them."""
    assert too_many_keys(get(b"a", b"b"), 2) is None
    assert too_many_keys(get(b"a", b"b", b"c"), 2) == Refusal(
        PayloadTooLargeError, "3 keys in one request, the limit is 2; split it"
    )
    count = row_read(Count, 1, CHANNEL, Consistency("any"), 900, start=b"", stop=b"")
    assert too_many_keys(count, 0) is None


def test_rows_that_no_answer_can_carry_are_refused_with_their_number() -> None:
    """The caller learns how many of its keys were too many."""
    refusal = rows_too_large(get(b"a", b"b", b"c"), 2)
    assert refusal.error is PayloadTooLargeError
    assert refusal.text.startswith(f"the first 2 of 3 rows have more than the {GET_BYTES_MAX} byte")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stopped_reason": "histories differ"}, "stopped serving: histories differ"),
        (
            {"core": SimpleNamespace(is_disputed=False, is_recovering=True, doubt="")},
            "is recovering on this node; ask another replica",
        ),
        (
            {"table_damage": "a block"},
            "has a damaged table on this node, which is being replaced; ask another replica",
        ),
        (
            {"core": SimpleNamespace(is_disputed=True, is_recovering=False)},
            "serves nothing now: " + DISPUTED,
        ),
        (
            {"unserved_until": Seq(7)},
            "repeats an apply that a stop of this node interrupted; ask another replica",
        ),
        ({"has_rows": False}, "is a witness on this node and has no rows; ask another replica"),
    ],
)
def test_channel_that_may_not_serve_says_why(changes: dict[str, Any], reason: str) -> None:
    """S0.3, S10: whatever the level, and each reason by itself."""
    calm = {
        "name": "t/0",
        "stopped_reason": None,
        "table_damage": None,
        "has_rows": True,
        "elector": SimpleNamespace(role=Role.FOLLOWER),
        "core": SimpleNamespace(is_disputed=False, is_recovering=False),
        "unserved_until": Seq(0),
    }
    assert serving_refusal(cast(Any, SimpleNamespace(**calm))) is None
    refusal = serving_refusal(cast(Any, SimpleNamespace(**calm | changes)))
    assert refusal == Refusal(UnavailableError, f"channel t/0 {reason}")


def test_leader_with_a_damaged_table_serves_until_another_one_leads() -> None:
    """All that it reads is verified, so it serves nothing wrong."""
    leader = SimpleNamespace(
        name="t/0",
        stopped_reason=None,
        table_damage="a block",
        has_rows=True,
        elector=SimpleNamespace(role=Role.LEADER),
        core=SimpleNamespace(is_disputed=False, is_recovering=False),
        unserved_until=Seq(0),
    )
    assert serving_refusal(cast(Any, leader)) is None


@pytest.mark.parametrize(
    ("known_commit", "hint"),
    [
        (8, "; seq 8 is the highest known here to be committed: retry, or check where the position"
            " comes from"),
        (9, ""),
    ],
)  # fmt: skip
def test_position_that_was_not_reached_in_time_is_told_with_what_is_known_of_it(
    known_commit: int, hint: str
) -> None:
    """One that nobody committed may come from another cluster."""
    late = {"applied": Seq(5), "wanted": Seq(9), "known_commit": Seq(known_commit)}
    text = "channel t/0: applied seq 5 has not reached 9 within 900 ms"
    assert late_refusal("t/0", get(b"k", min_seq=6), **late) == Refusal(
        NotUpToBoundError, text + hint
    )
    # What the caller asked for is here; what the leader confirmed is not.
    assert late_refusal("t/0", get(b"k", min_seq=5), **late) == Refusal(QueryError, text)
