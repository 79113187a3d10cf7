"""KLIP-12, "Test plan" and the paragraphs it comes from, with the whole stack on virtual time.

We will do unit tests and integration tests with failure scenarios where we cover the cases:
1. Request is forwarded to a standby.
2. Request is forward to the most caught-up standby.
3. Request fails if lag of standbys is more than acceptable lag configuration.
"""

from __future__ import annotations

import pytest

from raftstore.errors import NoLeaderError, NoReplicaAvailableError
from raftstore.types import Level, node_name
from tests.pull_queries import PullQueries, pull_queries

ACCEPTABLE_LAG = 10_000


@pytest.fixture
def scene() -> PullQueries:
    """A is active, B and C are standbys, a load balancer asks the router."""
    return pull_queries()


def test_klip_50_request_is_forwarded_to_a_standby(scene: PullQueries) -> None:
    """Test plan 1: the active server is killed; the query is served by a standby, in the moment in
    which nobody has noticed the death yet and ever after."""
    scene.write(15)
    before = scene.query(scene.router, max_lag=ACCEPTABLE_LAG)
    assert (before.value, before.served_by) == (15, scene.active)
    scene.active.kill("killed")
    unnoticed = scene.query(scene.router, max_lag=ACCEPTABLE_LAG)
    assert unnoticed.value == 15
    assert unnoticed.served_by in scene.standbys
    assert unnoticed.asked[0] == scene.active.node
    scene.pass_time(2_000)
    noticed = scene.query(scene.router, max_lag=ACCEPTABLE_LAG)
    assert noticed.value == 15
    assert noticed.served_by in scene.standbys


def test_klip_51_request_is_forwarded_to_the_most_caught_up_standby(scene: PullQueries) -> None:
    """Test plan 2: one standby has everything, the other a part: the query goes to the first."""
    b, c = scene.standbys
    scene.write(10)
    scene.hold(c)
    scene.write(5)
    scene.pass_time(2_000)  # lags are reported
    assert scene.applied(b) - scene.applied(c) == 5
    scene.active.kill("killed")
    reply = scene.query(scene.router, max_lag=ACCEPTABLE_LAG)
    assert (reply.value, reply.served_by) == (15, b)
    assert c.node not in reply.asked


def test_klip_52_request_fails_if_lag_of_standbys_exceeds_the_acceptable_lag(
    scene: PullQueries,
) -> None:
    """Test plan 3: both standbys lack more than the request accepts: it fails, with a reason for
    each host; accept more, and it is served."""
    b, c = scene.standbys
    scene.write(10)
    scene.hold(c)
    scene.hold(b)
    scene.write(5)
    scene.pass_time(2_000)
    scene.active.kill("killed")
    with pytest.raises(NoReplicaAvailableError, match="All nodes are dead or exceed max") as caught:
        scene.query(scene.router, max_lag=4)
    reasons = caught.value.hosts
    assert set(reasons) == {node_name(node) for node in scene.hosts()}
    assert all("lag" in reasons[node.name] for node in (b, c))
    reply = scene.query(scene.router, max_lag=10)
    assert reply.value == 10
    assert reply.served_by in (b, c)


def test_klip_04_a_second_request_does_not_pay_for_the_dead_node_again(scene: PullQueries) -> None:
    """Motivation: "The next request B receives, it will again try to forward it to A, since A is
    still the active, and it will fail again." Here it is not even tried."""
    scene.write(3)
    assert scene.query(scene.router, max_lag=ACCEPTABLE_LAG).asked == (scene.active.node,)
    scene.active.kill("killed")
    first = scene.query(scene.router, max_lag=ACCEPTABLE_LAG)
    assert scene.active.node in first.asked
    scene.pass_time(100)
    second = scene.query(scene.router, max_lag=ACCEPTABLE_LAG)
    assert scene.active.node not in second.asked
    assert second.took_ms < 50
    assert "not alive" in scene.route(scene.router, ACCEPTABLE_LAG).refused[scene.active.node]


def test_klip_06_bounded_and_any_reads_go_on_without_a_leader_and_while_catching_up(
    scene: PullQueries,
) -> None:
    """Motivation: requests are served "from standbys, even if they are still in rebalancing state
    or have not caught up to the last committed offset of the active"."""
    b, c = scene.standbys
    scene.write(10)
    scene.active.kill("killed")
    b.kill("killed")  # nobody can be elected
    scene.pass_time(3_000)
    assert scene.leader() is None
    for level in (Level.BOUNDED, Level.ANY):
        reply = scene.query(scene.router, max_lag=ACCEPTABLE_LAG, level=level)
        assert (reply.value, reply.served_by) == (10, c)
    with pytest.raises(NoLeaderError):
        scene.query(scene.router, level=Level.LINEARIZABLE)


def test_klip_11_any_reads_survive_two_of_three_nodes(scene: PullQueries) -> None:
    """Scope: with N standbys "we can tolerate upto N such failures"; a bound, though, is kept only
    as long as the last report of a leader counts (S7.3)."""
    c = scene.standbys[1]
    scene.write(4)
    scene.active.kill("killed")
    scene.standbys[0].kill("killed")
    scene.pass_time(15_000)
    assert scene.query(scene.router, level=Level.ANY).served_by is c
    with pytest.raises(NoReplicaAvailableError) as caught:
        scene.query(scene.router, max_lag=ACCEPTABLE_LAG)
    assert set(caught.value.hosts) == {node_name(node) for node in scene.hosts()}


def test_klip_12_a_cold_node_is_excluded_by_lag_and_disturbs_nobody(scene: PullQueries) -> None:
    """Public APIs: a "newly added KSQL server could be lagging by a lot as it rebuilds the entire
    state": within an acceptable lag it serves nothing, and every other query goes on."""
    cold = scene.standbys[1]
    scene.hold(cold)
    scene.write(20)
    scene.pass_time(2_000)
    for at in (scene.router, scene.active, scene.standbys[0], cold):
        reply = scene.query(at, max_lag=5)
        assert reply.value == 20
        assert reply.served_by is not cold
        assert cold.node in scene.route(at, 5).refused
    scene.restore(cold)
    scene.pass_time(2_000)
    assert cold.node not in scene.route(scene.router, 5).refused


def test_blog_22_a_standby_judges_its_own_lag_at_the_moment_of_the_answer(
    scene: PullQueries,
) -> None:
    """BLOG-22: a router that knows nothing of the lag yet is corrected by the replica itself."""
    c = scene.standbys[1]
    scene.write(10)
    scene.pass_time(2_000)
    scene.hold(c)
    scene.write(1)
    assert scene.applied(c) < scene.applied(scene.active)
    with pytest.raises(NoReplicaAvailableError, match="lag 1 > 0 rows"):
        scene.query(scene.router, max_lag=0, only=c)
