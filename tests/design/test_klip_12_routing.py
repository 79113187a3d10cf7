"""KLIP-12, "Lag-aware routing" and "Test plan": one test per requirement, quoting its sentence."""

from __future__ import annotations

import builtins
import socket
from typing import Any

import pytest

from raftstore.config import HeartbeatSettings, ReadSettings
from raftstore.policy.health import HealthState, HealthTable
from raftstore.policy.lag import LagTable
from raftstore.policy.routing import (
    Prefer,
    ReplicaView,
    Route,
    no_replica_available,
    nodes_to_query,
)
from raftstore.protocol.node import ChannelPosition
from raftstore.types import NodeId, Seq, Term, channel_id, node_name

A, B, C = NodeId("a@01"), NodeId("b@02"), NodeId("c@03")
CHANNEL = channel_id(b"t" * 16, 0)
ACCEPTABLE_LAG = 10_000
"""The sample value of KLIP-12 and of the ksqlDB article."""


class Cluster:
    """A router's view of three nodes, built by heartbeats and lag reports as in a real one."""

    def __init__(self) -> None:
        self.health = HealthTable(HeartbeatSettings())
        self.lags = LagTable(leader_info_age_max_ms=ReadSettings().leader_info_age_max_ms)
        self.now_ms = 0
        self.dead: tuple[NodeId, ...] = ()
        for node in (A, B, C):
            self.health.add_peer(node, 0)

    def report(self, node: NodeId, applied: int, commit: int, *, leader: bool = False) -> None:
        """A lag report of one node arrives."""
        position = ChannelPosition(
            CHANNEL, Term(1), leader, Seq(applied), Seq(commit), Seq(commit), b""
        )
        self.lags.on_positions(node, [position], self.now_ms)

    def run_ms(self, duration_ms: int) -> None:
        """Let heartbeats of the living nodes arrive for a while."""
        end = self.now_ms + duration_ms
        while self.now_ms < end:
            self.now_ms += 50
            if self.now_ms % 100 == 0:
                for node in (A, B, C):
                    if node not in self.dead:
                        self.health.on_heartbeat(node, self.now_ms)
            self.health.check(self.now_ms)

    def kill(self, *nodes: NodeId) -> None:
        """Nodes die, and are found dead by their missing heartbeats."""
        self.dead += nodes
        self.run_ms(500)

    def route(self, max_lag: int | None, *, leader: NodeId | None = A, **options: Any) -> Route:
        """Where a query goes now."""
        views = []
        for node in (A, B, C):
            state = self.health.state(node)
            assert state is not None
            silent_ms = self.now_ms - (self.health.since_ms(node) or 0)
            lag = self.lags.lag(node, CHANNEL, self.now_ms)
            views.append(ReplicaView(node, state, lag, node == leader, silent_ms))
        return nodes_to_query(views, max_lag=max_lag, local=B, **options)


@pytest.fixture
def cluster() -> Cluster:
    """A leads at 15, B is at 10, C at 0: the numbers of the ksqlDB article (BLOG-15)."""
    made = Cluster()
    made.run_ms(1_000)
    made.report(A, 15, 15, leader=True)
    made.report(B, 10, 15)
    made.report(C, 0, 15)
    return made


def test_klip_36_lag_is_the_maximum_reported_end_minus_the_own_position(cluster: Cluster) -> None:
    """KLIP-36: "the maximum end offset ... as reported by all server and subtract from it"."""
    lags = [cluster.lags.lag(node, CHANNEL, cluster.now_ms) for node in (A, B, C)]
    assert lags == [0, 5, 15]
    cluster.report(C, 1, 3)  # an end that others know to be old
    assert cluster.lags.lag(C, CHANNEL, cluster.now_ms) == 14


def test_klip_37_the_active_is_asked_first_then_standbys_by_smallest_lag(cluster: Cluster) -> None:
    """KLIP-37: "in order of most caught-up to least", the active first if alive."""
    assert cluster.route(ACCEPTABLE_LAG).nodes == (A, B, C)
    assert cluster.route(ACCEPTABLE_LAG, leader=C).nodes == (C, A, B)  # although it is behind


def test_klip_38_a_node_known_to_be_down_is_never_asked(cluster: Cluster) -> None:
    """KLIP-38: "filter out all the standbys that are down", by status, not by being known."""
    cluster.kill(B)
    route = cluster.route(ACCEPTABLE_LAG)
    assert route.nodes == (A, C)
    assert route.refused[B].startswith("not alive since ")


@pytest.mark.parametrize(("limit", "nodes"), [(4, (A,)), (5, (A, B)), (6, (A, B))])
def test_klip_39_a_standby_is_asked_when_its_lag_is_at_most_the_limit(
    cluster: Cluster, limit: int, nodes: tuple[NodeId, ...]
) -> None:
    """KLIP-39: it fails only if it lags "by more than the tolerable limit"."""
    assert cluster.route(limit).nodes == nodes


def test_klip_40_the_error_has_a_reason_per_node_when_nobody_can_answer(cluster: Cluster) -> None:
    """KLIP-40: "Unable to serve request. All nodes are down or too far behind", and why."""
    cluster.kill(A)
    cluster.report(C, 0, 20_000)
    route = cluster.route(100)
    assert route.nodes == ()
    reasons = {node_name(node): reason for node, reason in route.refused.items()}
    error = no_replica_available("get orders 1", reasons)
    assert "All nodes are dead or exceed max allowed lag." in str(error)
    assert error.hosts["a"].startswith("not alive since ")
    assert error.hosts["b"] == "lag 19990 > 100"
    assert error.hosts["c"] == "lag 20000 > 100"


def test_klip_41_a_newly_added_replica_serves_no_bounded_read(cluster: Cluster) -> None:
    """KLIP-41: a "newly added KSQL server could be lagging by a lot as it rebuilds"."""
    cluster.report(A, 50_000, 50_000, leader=True)
    cluster.report(B, 49_000, 50_000)
    cluster.report(C, 0, 50_000)
    route = cluster.route(ACCEPTABLE_LAG)
    assert route.nodes == (A, B)
    assert route.refused == {C: "lag 50000 > 10000"}


def test_klip_42_a_leader_that_is_not_ready_is_filtered_like_any_other(cluster: Cluster) -> None:
    """KLIP-42: a leader "still applying reports its real lag"; a steady one reports 0."""
    cluster.report(A, 2, 15, leader=True)
    route = cluster.route(12)
    assert route.nodes == (B,)
    assert route.refused[A] == "lag 13 > 12"
    assert cluster.route(13).nodes[0] == A


def test_klip_43_a_host_without_lag_information_is_asked_last_and_never_within_a_bound() -> None:
    """KLIP-43: excluded with a bound, "without a bound it is allowed last in order"."""
    cluster = Cluster()
    cluster.run_ms(1_000)
    cluster.report(A, 15, 15, leader=True)
    cluster.report(C, 0, 15)
    assert cluster.route(ACCEPTABLE_LAG).refused == {B: "no lag information"}
    assert cluster.route(None).nodes == (A, C, B)


def test_klip_43_a_single_survivor_has_lag_information_about_itself(cluster: Cluster) -> None:
    """KLIP-43: the last node standing serves bounded reads, until S7.3 calls its view too old."""
    cluster.kill(A, C)
    assert cluster.route(ACCEPTABLE_LAG).nodes == (B,)
    cluster.run_ms(ReadSettings().leader_info_age_max_ms)
    assert cluster.route(ACCEPTABLE_LAG).refused[B] == "no lag information"
    assert cluster.route(None).nodes == (B,)


def test_klip_45_the_routing_decision_makes_no_remote_call(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KLIP-45: the decision "is local (i.e. does not require remote calls)"."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("routing must not touch the outside")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(builtins, "open", refuse)
    route = cluster.route(ACCEPTABLE_LAG)
    monkeypatch.undo()
    assert route.nodes == (A, B, C)


def test_klip_49_a_suspect_node_is_asked_last(cluster: Cluster) -> None:
    """KLIP-49: a broken connection means "routed last, not down" until it is known better."""
    cluster.health.connection_lost(A, cluster.now_ms, refused=False)
    assert cluster.health.state(A) is HealthState.SUSPECT
    assert cluster.route(ACCEPTABLE_LAG).nodes == (B, C, A)


def test_klip_50_request_is_forwarded_to_a_standby(cluster: Cluster) -> None:
    """KLIP-50: "Request is forwarded to a standby" when the active is dead."""
    cluster.kill(A)
    assert cluster.route(ACCEPTABLE_LAG).nodes[0] == B


def test_klip_51_request_is_forwarded_to_the_most_caught_up_standby(cluster: Cluster) -> None:
    """KLIP-51: "Request is forward to the most caught-up standby", and changes when another is."""
    cluster.kill(A)
    assert cluster.route(ACCEPTABLE_LAG).nodes == (B, C)
    cluster.report(C, 14, 15)
    assert cluster.route(ACCEPTABLE_LAG).nodes == (C, B)


def test_klip_52_request_fails_when_the_lag_of_standbys_is_over_the_limit(
    cluster: Cluster,
) -> None:
    """KLIP-52: "Request fails if lag of standbys is more than acceptable lag configuration"."""
    cluster.kill(A)
    route = cluster.route(4)
    assert route.nodes == ()
    assert route.refused[B] == "lag 5 > 4"
    assert route.refused[C] == "lag 15 > 4"


def test_klip_37_prefer_any_in_bound_spreads_reads(cluster: Cluster) -> None:
    """KIP-24: who wants throughput lets every replica within the bound take its turn."""
    firsts = [
        cluster.route(10, prefer=Prefer.ANY_IN_BOUND, turn=turn).nodes[0] for turn in range(4)
    ]
    assert firsts == [A, B, A, B]  # C is 15 behind
    assert cluster.route(10, prefer=Prefer.NEAREST).nodes == (B, A)
