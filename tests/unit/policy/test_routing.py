"""Routing of pull queries, table-driven; the sentences of KLIP-12 are in tests/design."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.policy.health import HealthState
from raftstore.policy.routing import (
    ALL_DEAD,
    Prefer,
    ReplicaView,
    no_replica_available,
    nodes_to_query,
)
from raftstore.types import NodeId

A, B, C = NodeId("a@01"), NodeId("b@02"), NodeId("c@03")
UP, DOWN = HealthState.UP, HealthState.DOWN
UNKNOWN, SUSPECT = HealthState.UNKNOWN, HealthState.SUSPECT


def leader(node: NodeId = A, state: HealthState = UP, lag: int | None = 0) -> ReplicaView:
    """The replica that leads."""
    return ReplicaView(node, state, lag, is_leader=True, silent_ms=700)


def follower(node: NodeId, lag: int | None = 0, state: HealthState = UP) -> ReplicaView:
    """A replica that follows."""
    return ReplicaView(node, state, lag, silent_ms=700)


CASES = [
    ("leader first, then by lag", [follower(B, 5), leader(), follower(C, 2)], 10, [A, C, B], {}),
    ("leader first although behind", [follower(B, 0), leader(lag=3)], 10, [A, B], {}),
    (
        "dead leader is left out",
        [leader(state=DOWN), follower(B, 5), follower(C, 2)],
        10,
        [C, B],
        {A: "not alive since 700 ms"},
    ),
    (
        "lag at the limit is served, above it not",
        [leader(state=DOWN), follower(B, 10), follower(C, 11)],
        10,
        [B],
        {A: "not alive since 700 ms", C: "lag 11 > 10"},
    ),
    (
        "a leader that is behind is filtered like any other",
        [leader(lag=7000), follower(B, 3)],
        1000,
        [B],
        {A: "lag 7000 > 1000"},
    ),
    (
        "unknown lag is refused with a bound",
        [follower(B, None), follower(C, 0)],
        0,
        [C],
        {B: "no lag information"},
    ),
    (
        "unknown lag comes last without a bound",
        [follower(B, None), follower(C, 9)],
        None,
        [C, B],
        {},
    ),
    ("no bound takes any lag", [follower(B, 10**9), leader()], None, [A, B], {}),
    ("ties by node id", [follower(C, 1), follower(B, 1)], 5, [B, C], {}),
    ("unknown state counts as up", [follower(B, 1, UNKNOWN), leader()], 5, [A, B], {}),
    (
        "suspect nodes come last, in their own order",
        [leader(state=SUSPECT), follower(B, 4, SUSPECT), follower(C, 5)],
        5,
        [C, A, B],
        {},
    ),
    ("no replicas, no nodes", [], 5, [], {}),
]


@pytest.mark.parametrize(
    ("replicas", "max_lag", "nodes", "refused"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_nodes_to_query_orders_and_refuses(
    replicas: list[ReplicaView], max_lag: int | None, nodes: list[NodeId], refused: dict
) -> None:
    """Each row is one rule of the order or of the filter (KIP-16, KLIP-10, KLIP-37)."""
    route = nodes_to_query(replicas, max_lag=max_lag)
    assert (list(route.nodes), route.refused) == (nodes, refused)


def test_nodes_to_query_prefers_the_local_node_when_lags_are_equal() -> None:
    """No network where the own copy is as good; a fresher copy elsewhere is still better."""
    equal = [follower(B, 1), follower(C, 1)]
    assert nodes_to_query(equal, max_lag=5, local=C).nodes == (C, B)
    behind = [follower(B, 1), follower(C, 2)]
    assert nodes_to_query(behind, max_lag=5, local=C).nodes == (B, C)


def test_nodes_to_query_asks_only_the_named_replica() -> None:
    """A query may name its replica; the rules are the same, and others are not mentioned."""
    replicas = [leader(), follower(B, 9), follower(C, 0, DOWN)]
    assert nodes_to_query(replicas, max_lag=9, only=B).nodes == (B,)
    assert nodes_to_query(replicas, max_lag=8, only=B).refused == {B: "lag 9 > 8"}
    assert nodes_to_query(replicas, max_lag=8, only=C).refused == {C: "not alive since 700 ms"}
    assert nodes_to_query(replicas, max_lag=8, only=NodeId("d@04")).refused == {
        NodeId("d@04"): "not hosting"
    }


def test_nodes_to_query_keeps_every_bound_that_is_given() -> None:
    """Rows, time and micro-batches are bounded independently; what is unknown meets no bound."""
    near = ReplicaView(B, UP, 5, time_lag_ms=300, batches_behind=1)
    bare = ReplicaView(C, UP, 0)
    assert nodes_to_query([near], max_lag=5, max_time_lag_ms=300, max_batches_behind=1).nodes == (
        B,
    )
    late = nodes_to_query([near, bare], max_lag=5, max_time_lag_ms=299)
    assert late.refused == {B: "time lag 300 ms > 299 ms", C: "no lag information"}
    old = nodes_to_query([near, bare], max_lag=None, max_batches_behind=0)
    assert old.refused == {B: "batches behind 1 > 0", C: "no lag information"}


def test_nodes_to_query_prefers_the_nearest_by_round_trip() -> None:
    """The local node first, then the quickest; a suspect one last, however near it is."""
    slow = ReplicaView(A, UP, 0, is_leader=True, round_trip_ms=9.0)
    quick = ReplicaView(B, UP, 4, round_trip_ms=0.5)
    unknown = ReplicaView(C, UP, 0)
    views = [slow, quick, unknown]
    assert nodes_to_query(views, max_lag=5, prefer=Prefer.NEAREST).nodes == (B, A, C)
    assert nodes_to_query(views, max_lag=5, prefer=Prefer.NEAREST, local=C).nodes == (C, B, A)
    suspect = ReplicaView(C, SUSPECT, 0, round_trip_ms=0.1)
    views = [slow, quick, suspect]
    assert nodes_to_query(views, max_lag=5, prefer=Prefer.NEAREST, local=C).nodes == (B, A, C)


def test_nodes_to_query_takes_turns_among_those_in_bound() -> None:
    """KIP-24: the load is spread over the healthy ones; a suspect one stays the last resort."""
    views = [leader(), follower(B, 3), follower(C, 0, SUSPECT)]
    spread = [
        nodes_to_query(views, max_lag=5, prefer=Prefer.ANY_IN_BOUND, turn=turn).nodes
        for turn in range(3)
    ]
    assert spread == [(A, B, C), (B, A, C), (A, B, C)]
    alone = [follower(C, 0, SUSPECT)]
    assert nodes_to_query(alone, max_lag=5, prefer=Prefer.ANY_IN_BOUND, turn=7).nodes == (C,)


VIEWS = st.builds(
    ReplicaView,
    st.integers(0, 6).map(lambda number: NodeId(f"n{number}@00")),
    st.sampled_from(HealthState),
    st.none() | st.integers(0, 20),
    is_leader=st.booleans(),
    round_trip_ms=st.none() | st.floats(0, 10),
)


@pytest.mark.slow
@given(
    st.lists(VIEWS, unique_by=lambda view: view.node),
    st.none() | st.integers(0, 20),
    st.sampled_from(Prefer),
    st.integers(0, 9),
    st.randoms(),
)
def test_nodes_to_query_answers_for_every_replica_whatever_their_order(
    views: list[ReplicaView], max_lag: int | None, prefer: Prefer, turn: int, random: object
) -> None:
    """Every replica is either asked or refused with a reason, and the input order is no matter."""
    route = nodes_to_query(views, max_lag=max_lag, prefer=prefer, turn=turn)
    assert sorted([*route.nodes, *route.refused]) == sorted(view.node for view in views)
    shuffled = list(views)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = nodes_to_query(shuffled, max_lag=max_lag, prefer=prefer, turn=turn)
    assert (again.nodes, sorted(again.refused)) == (route.nodes, sorted(route.refused))
    by_node = {view.node: view for view in views}
    for node in route.nodes:
        view = by_node[node]
        assert view.state is not DOWN
        assert max_lag is None or (view.lag is not None and view.lag <= max_lag)


def test_error_has_the_sentence_of_the_article_and_a_reason_per_node() -> None:
    """BLOG-21: scripts look for the sentence, people for the reasons."""
    error = no_replica_available("get orders 1", {"c": "timeout", "b": "lag 7000 > 1000"})
    assert str(error) == (
        "Unable to execute pull query get orders 1: All nodes are dead or exceed max allowed lag. "
        "(b: lag 7000 > 1000; c: timeout); retry, raise max_lag, or start the nodes again"
    )
    assert error.hosts == {"b": "lag 7000 > 1000", "c": "timeout"}
    assert (error.code, error.retriable) == ("no_replica_available", True)
    assert "no node hosts it" in str(no_replica_available("q", {}))
    assert ALL_DEAD in str(error)
