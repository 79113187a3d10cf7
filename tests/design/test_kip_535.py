"""KIP-535, "Motivation": the scenario t0 to t5 with its nodes A, B, S and R, on virtual time.

Each paragraph of a test is a moment of the document; what the document says of it is quoted. Where
it says that queries fail, here those of bounded staleness do not.
"""

from __future__ import annotations

import pytest

from raftstore.errors import NoLeaderError, NoReplicaAvailableError, QueryError
from raftstore.types import Level, node_name
from tests.pull_queries import PullQueries, pull_queries

BOUND = 10
"""Rows a query may miss."""


@pytest.fixture
def scene() -> PullQueries:
    """A active, B and S standbys, R the router."""
    return pull_queries()


@pytest.mark.slow
def test_kip_01_timeline_t0_to_t5(scene: PullQueries) -> None:
    """Queries within a bound never fail from t2 to t5; linearizable ones only until B is ready."""
    a, r = scene.active, scene.router
    b, s = scene.standbys

    # t0: "A is the active instance owning the partition, B is the standby that keeps replicating
    # the A's state into its local disk, R just routes streams IQs to active instance".
    # And node S "was down for a long time before time t0, and was still catching up when node A
    # went down": it has nothing of what follows, neither in its table nor in its log.
    scene.hold(s)
    scene.cut(a, s)
    scene.write(100)
    scene.pass_time(2_000)

    # t1: "IQs pick node R as router, R forwards query to A, A responds back to R".
    reply = scene.query(r, max_lag=BOUND)
    assert (reply.value, reply.served_by, reply.lag) == (100, a, 0)
    assert scene.query(r, level=Level.LINEARIZABLE).value == 100

    # t2: "Active A instance is killed and rebalance begins. IQs start failing to A". Just before,
    # B's table had fallen behind a little.
    scene.hold(b)
    scene.write(3)
    a.kill("killed")
    reply = scene.query(r, max_lag=BOUND)
    assert (reply.value, reply.served_by) == (100, b)
    assert reply.asked[0] == a.node
    # "Or even choose to fail the query if all the replicas are lagging behind very much"
    with pytest.raises(NoReplicaAvailableError) as caught:
        scene.query(r, max_lag=0)
    assert set(caught.value.hosts) == {node_name(node) for node in scene.hosts()}

    # t3: "Rebalance assignment happens and standby B is now promoted as active instance. IQs
    # continue to fail". S cannot be: it lacks what is committed (BLOG-06).
    assert scene.until_led() is b
    reply = scene.query(r, max_lag=BOUND)
    assert (reply.value, reply.served_by) == (100, b)
    with pytest.raises((NoLeaderError, QueryError)):
        scene.query(r, level=Level.LINEARIZABLE)

    # t4: "B fully catches up to changelog tail and rewinds offsets to A's last commit position,
    # IQs continue to fail".
    assert scene.query(r, max_lag=BOUND).served_by is b
    scene.restore(b)

    # t5: "IQs to R, get routed to B, which is now ready to serve results. IQs start succeeding
    # again".
    scene.pass_time(2_000)
    for level in (Level.BOUNDED, Level.LEADER, Level.LINEARIZABLE):
        reply = scene.query(r, max_lag=0, level=level)
        assert (reply.value, reply.served_by, reply.lag) == (103, b, 0)
        assert reply.asked == (b.node,)


def test_kip_12_a_ready_leader_reports_0_and_an_unready_one_its_lag(scene: PullQueries) -> None:
    """ "allLocalStorePartitionLags": an active that restores says how far it has to go."""
    b, s = scene.standbys
    scene.cut(scene.active, s)
    scene.hold(b)
    scene.write(7)
    scene.pass_time(2_000)

    assert scene.lags(scene.router, scene.active, b) == [0, 7]
    scene.active.kill("killed")
    assert scene.until_led() is b
    scene.pass_time(2_000)
    [lag] = scene.lags(scene.router, b)
    assert lag is not None
    assert lag >= 7
    scene.restore(b)
    scene.pass_time(2_000)
    assert scene.lags(scene.router, b) == [0]


def test_kip_20_a_promoted_standby_serves_while_restoring(scene: PullQueries) -> None:
    """t3 and t4 "can be solved if we start serving from Restoring state of active as well, since it
    is almost equivalent to previous active": within the bound that the query chose."""
    b, s = scene.standbys
    scene.cut(scene.active, s)
    scene.hold(s)  # what the new leader sends it later, it does not apply
    scene.write(20)
    scene.hold(b)
    scene.write(5)
    scene.active.kill("killed")
    assert scene.until_led() is b
    reply = scene.query(scene.router, max_lag=BOUND)
    assert (reply.value, reply.served_by) == (20, b)
    assert reply.lag is not None
    assert 5 <= reply.lag <= BOUND
    with pytest.raises(NoReplicaAvailableError, match="lag"):
        scene.query(scene.router, max_lag=4)


def test_kip_17_the_loop_stops_at_the_first_success(scene: PullQueries) -> None:
    """ "for (host : hosts) ... if (result != null) break": one answer, one node asked."""
    scene.write(2)
    assert scene.query(scene.router, max_lag=BOUND).asked == (scene.active.node,)
