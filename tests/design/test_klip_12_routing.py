"""KLIP-12, "Lag-aware routing": one test per requirement, quoting its sentence.

Where a query goes is decided by the production code: by a node's view of the others
(``raftstore.policy.views``), and by the client beside it. What the nodes know comes
by heartbeats and lag reports. The document's test plan is ``test_klip_12_scenarios``.
"""

from __future__ import annotations

import builtins
import re
import socket
from itertools import pairwise
from typing import Any

import pytest

from raftstore.config import ReadSettings
from raftstore.errors import NoReplicaAvailableError
from raftstore.testing.sim_node import SimNode
from raftstore.types import NodeId
from tests.pull_queries import PullQueries, pull_queries

ACCEPTABLE_LAG = 10_000
"""The sample value of KLIP-12 and of the ksqlDB article."""
REPORTED_MS = 2_000
"""By then everybody knows of everything."""


@pytest.fixture
def scene() -> PullQueries:
    """A is active, B and C are standbys, a router hosts nothing."""
    return pull_queries()


def nodes(*hosts: SimNode) -> tuple[NodeId, ...]:
    """Their ids."""
    return tuple(host.node for host in hosts)


def behind(scene: PullQueries) -> tuple[SimNode, SimNode, SimNode]:
    """A is at 15, B at 10, C at 0: the numbers of the ksqlDB article (BLOG-15).

    By name C comes before B.
    """
    c, b = scene.standbys
    scene.hold(c)
    scene.write(10)
    scene.hold(b)
    scene.write(5)
    scene.pass_time(REPORTED_MS)
    return scene.active, b, c


def unready(scene: PullQueries) -> tuple[SimNode, SimNode]:
    """B has everything that C, the new leader, has still to apply: A is dead."""
    b, c = scene.standbys
    scene.hold(c)
    scene.write(10)
    scene.cut(scene.active, b)
    scene.write(1)
    scene.active.kill("killed")
    assert scene.until_led() is c
    scene.pass_time(REPORTED_MS)
    return b, c


def test_klip_36_lag_is_the_maximum_reported_end_minus_the_own_position(scene: PullQueries) -> None:
    """KLIP-36: "the maximum end offset ... as reported by all server and subtract from it"."""
    a, b, c = behind(scene)
    assert scene.lags(scene.router, a, b, c) == [0, 5, 15]
    scene.cut(scene.active, c)
    scene.write(2)  # now the end that C reports is an old one, as others know
    scene.pass_time(REPORTED_MS)
    assert scene.lags(scene.router, a, b, c) == [0, 7, 17]


def test_klip_37_the_active_is_asked_first_then_standbys_by_smallest_lag(
    scene: PullQueries,
) -> None:
    """KLIP-37: "in order of most caught-up to least", the active first if alive."""
    order = nodes(*behind(scene))
    assert scene.route(scene.router, ACCEPTABLE_LAG).nodes == order
    assert scene.candidates(scene.router, max_lag=ACCEPTABLE_LAG) == order


def test_klip_37_the_active_is_asked_first_although_it_is_behind(scene: PullQueries) -> None:
    """KLIP-37: as long as its lag is acceptable."""
    b, c = unready(scene)
    assert scene.route(scene.router, ACCEPTABLE_LAG).nodes == nodes(c, b)


def test_klip_38_a_node_known_to_be_down_is_never_asked(scene: PullQueries) -> None:
    """KLIP-38: "filter out all the standbys that are down", by status, not by being known."""
    a, b, c = behind(scene)
    b.kill("killed")
    scene.pass_time(REPORTED_MS)
    route = scene.route(scene.router, ACCEPTABLE_LAG)
    assert route.nodes == nodes(a, c)
    assert route.refused[b.node].startswith("not alive since ")


@pytest.mark.parametrize(("limit", "asked"), [(4, 1), (5, 2), (6, 2), (14, 2), (15, 3)])
def test_klip_39_a_standby_is_asked_when_its_lag_is_at_most_the_limit(
    scene: PullQueries, limit: int, asked: int
) -> None:
    """KLIP-39: it fails only if it lags "by more than the tolerable limit"."""
    order = nodes(*behind(scene))
    assert scene.route(scene.router, limit).nodes == order[:asked]


def test_klip_40_the_error_has_a_reason_per_node_when_nobody_can_answer(
    scene: PullQueries,
) -> None:
    """KLIP-40: "Unable to serve request. All nodes are down or too far behind", and why."""
    a, b, c = behind(scene)
    a.kill("killed")
    with pytest.raises(
        NoReplicaAvailableError, match=r"All nodes are dead or exceed max allowed lag\."
    ) as caught:
        scene.query(scene.router, max_lag=4)
    hosts = caught.value.hosts
    assert hosts[a.name] == "connection refused"
    assert re.fullmatch(r"lag [56] > 4 rows in t/0", hosts[b.name])
    assert re.fullmatch(r"lag 1[56] > 4 rows in t/0", hosts[c.name])
    scene.pass_time(REPORTED_MS)
    refused = scene.route(scene.router, 4).refused
    assert refused[a.node].startswith("not alive since ")
    assert set(refused) == set(nodes(a, b, c))


def test_klip_41_a_newly_added_replica_serves_no_bounded_read(scene: PullQueries) -> None:
    """KLIP-41: a "newly added KSQL server could be lagging by a lot as it rebuilds"."""
    b, new = scene.standbys
    scene.hold(new)
    scene.write(30)
    scene.pass_time(REPORTED_MS)
    route = scene.route(scene.router, 10)
    assert route.nodes == nodes(scene.active, b)
    assert route.refused == {new.node: "lag 30 > 10"}


def test_klip_42_a_leader_that_is_not_ready_is_filtered_like_any_other(scene: PullQueries) -> None:
    """KLIP-42: a leader "still applying reports its real lag"; a steady one reports 0."""
    b, c = unready(scene)
    [lag] = scene.lags(scene.router, c)
    assert lag is not None
    assert lag > 10
    route = scene.route(scene.router, lag - 1)
    assert route.nodes == nodes(b)
    assert route.refused[c.node] == f"lag {lag} > {lag - 1}"
    assert scene.route(scene.router, lag).nodes[0] == c.node


def test_klip_43_a_host_without_lag_information_is_asked_last_and_never_within_a_bound(
    scene: PullQueries,
) -> None:
    """KLIP-43: excluded with a bound, "without a bound it is allowed last in order"."""
    a, b, c = behind(scene)
    scene.router.kill("killed")
    b.kill("killed")
    scene.pass_time(REPORTED_MS)
    scene.router.boot()
    scene.pass_time(REPORTED_MS)
    b.boot()  # its heartbeats come at once, its lag with the next report
    scene.pass_time(250)
    assert scene.lags(scene.router, a, b, c) == [0, None, 15]
    assert scene.route(scene.router, ACCEPTABLE_LAG).refused == {b.node: "no lag information"}
    assert scene.route(scene.router, None).nodes == nodes(a, c, b)


def test_klip_43_a_single_survivor_has_lag_information_about_itself(scene: PullQueries) -> None:
    """KLIP-43: the last node standing serves bounded reads, until S7.3 calls its view too old."""
    a, b, c = behind(scene)
    for node in (a, c, scene.router):
        node.kill("killed")
    scene.pass_time(REPORTED_MS)
    assert scene.route(b, ACCEPTABLE_LAG).nodes == nodes(b)
    scene.pass_time(ReadSettings().leader_info_age_max_ms)
    assert scene.route(b, ACCEPTABLE_LAG).refused[b.node] == "no lag information"
    assert scene.route(b, None).nodes == nodes(b)


def test_klip_45_the_routing_decision_makes_no_remote_call(
    scene: PullQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KLIP-45: the decision "is local (i.e. does not require remote calls)"."""
    order = nodes(*behind(scene))

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("routing must not touch the outside")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(scene.cluster.network, "send", refuse)
    route = scene.route(scene.router, ACCEPTABLE_LAG)
    monkeypatch.undo()
    assert route.nodes == order


def test_klip_49_a_suspect_node_is_asked_last(scene: PullQueries) -> None:
    """KLIP-49: a broken connection means "routed last, not down" until it is known better."""
    a, b, c = behind(scene)
    scene.router.on_peer_lost(a.node, refused=False)
    assert scene.route(scene.router, ACCEPTABLE_LAG).nodes == nodes(b, c, a)


def test_klip_37_prefer_any_in_bound_spreads_reads(scene: PullQueries) -> None:
    """KIP-24: who wants throughput lets every replica within the bound take its turn."""
    a, b, c = behind(scene)
    asked = [scene.candidates(scene.router, max_lag=10, prefer="any_in_bound") for _ in range(4)]
    assert {order[0] for order in asked} == set(nodes(a, b))  # C is 15 behind
    assert all(before[0] != after[0] for before, after in pairwise(asked))
    assert {order[2] for order in asked} == set(nodes(c))
    assert scene.candidates(b, max_lag=10, prefer="nearest")[0] == b.node
