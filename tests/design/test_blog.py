"""The ksqlDB article "Highly Available, Fault-Tolerant Pull Queries": figure 4 with its numbers.

Servers A, B, C and D on virtual time: A routes, B is the active server of partition 2, C and D are
its standbys.
"""

from __future__ import annotations

import pytest

from raftstore.errors import NoReplicaAvailableError, NotUpToBoundError
from raftstore.types import Level, node_name
from tests.pull_queries import PullQueries, pull_queries

MAX_LAG = 10
"""ksql.query.pull.max.allowed.offset.lag of these queries."""


@pytest.fixture
def scene() -> PullQueries:
    """A, B, C and D, all alive."""
    return pull_queries()


def test_blog_15_figure_4_with_its_numbers(scene: PullQueries) -> None:
    """C is at 10 of 15, D at 0 since it has just started restoring: A forwards to C; later D can
    serve, "once its table is sufficiently restored"."""
    a, b = scene.router, scene.active
    c, d = scene.standbys

    # "server C's table is at offset 10 out of 15, whereas server D is at offset 0 since it just
    # started restoring": what C lacks it never received, so D will be the newly elected active.
    behind = scene.applied(d)  # the first record of B's term
    scene.hold(d)
    scene.write(10)
    scene.cut(b, c)
    scene.write(5)
    scene.pass_time(2_000)
    scene.hold(c)
    assert scene.applied(c) == behind + 10
    assert scene.applied(d) == behind

    # Step 1: "server A receives a pull query request for table partition 2". Step 2: "that
    # destination server (server B) is down". Step 3: "a newly elected active (server D)".
    b.kill("killed")
    assert scene.until_led() is d
    scene.pass_time(2_000)

    # Step 4: "Hence, A forwards the request to C".
    reply = scene.query(a, max_lag=MAX_LAG)
    assert (reply.value, reply.served_by) == (10, c)
    assert reply.asked == (c.node,)
    refused = scene.route(a, MAX_LAG).refused
    assert "not alive" in refused[b.node]
    assert f"> {MAX_LAG}" in refused[d.node]

    # "Future pull queries on partition 2 can be served by D once its table is sufficiently
    # restored."
    scene.restore(d)
    scene.pass_time(2_000)
    reply = scene.query(a, max_lag=MAX_LAG)
    assert (reply.value, reply.served_by, reply.lag) == (15, d, 0)


def test_blog_10_over_the_bound_there_is_an_error_never_data(scene: PullQueries) -> None:
    """ "once the inconsistency exceeds the bounds, it returns to being a CP system"."""
    scene.write(10)
    for standby in scene.standbys:
        scene.hold(standby)
    scene.write(5)
    scene.pass_time(2_000)
    scene.active.kill("killed")
    scene.pass_time(2_000)
    for at in (scene.router, *scene.standbys):
        with pytest.raises(NoReplicaAvailableError) as caught:
            scene.query(at, max_lag=4)
        assert set(caught.value.hosts) == {node_name(node) for node in scene.hosts()}
        assert scene.query(at, max_lag=MAX_LAG).value == 10


def test_blog_14_a_standby_or_the_newly_elected_active_serves(scene: PullQueries) -> None:
    """ "server A needs to forward the request to another server, either a standby server (server C)
    or a newly elected active (server D)"."""
    scene.write(15)
    scene.active.kill("killed")
    before = scene.query(scene.router, max_lag=MAX_LAG)
    assert before.served_by in scene.standbys
    elected = scene.until_led()
    scene.pass_time(2_000)
    after = scene.query(scene.router, max_lag=MAX_LAG)
    assert (before.value, after.value) == (15, 15)
    assert after.served_by is elected


def test_blog_06_only_replicas_that_have_everything_are_elected(scene: PullQueries) -> None:
    """Reassign: ownership goes to a standby, here always to one that lacks nothing committed."""
    c, d = scene.standbys
    scene.cut(scene.active, c)
    scene.write(5)
    scene.active.kill("killed")
    assert scene.until_led() is d
    assert scene.router.runner is not None
    assert scene.channel not in scene.router.runner.channels


def test_blog_33_position_reads_are_repeatable_across_nodes(scene: PullQueries) -> None:
    """Given a position that was read once, each node serves its rows or refuses until it has
    reached it.
    """
    behind = scene.standbys[0]
    scene.write(3)
    scene.hold(behind)
    scene.write(3)
    position = scene.query(scene.router, max_lag=MAX_LAG).applied_seq
    with pytest.raises(NotUpToBoundError, match=f"has not reached {position}"):
        scene.query(scene.router, level=Level.ANY, at_least=position, only=behind)
    scene.restore(behind)
    for host in (scene.active, *scene.standbys):
        answer = scene.query(scene.router, level=Level.ANY, at_least=position, only=host)
        assert answer.served_by is host
        assert answer.applied_seq >= position
